"""`pattern search`: find words in memory, archive and messages."""

from __future__ import annotations

import click

from pattern_server.cli.client import Api, Json, path
from pattern_server.cli.command import ExitCode, connected, constellation_option
from pattern_server.cli.output import Output

KINDS = ("message", "block", "archival")
LIMIT_MAX = 100


@click.command()
@click.argument("query", nargs=-1, required=True)
@constellation_option
@click.option("-a", "--agent", "agents", multiple=True, metavar="NAME", help="Only what this agent knows; repeatable.")
@click.option("--kind", "kinds", multiple=True, type=click.Choice(KINDS), help="Only this kind; repeatable.")
@click.option(
    "--mode",
    type=click.Choice(["hybrid", "words", "meaning"]),
    help="By words, by meaning, or by both.  [default: hybrid]",
)
@click.option("--limit", type=click.IntRange(1, LIMIT_MAX), default=10, show_default=True)
@connected
async def search(
    api: Api,
    output: Output,
    query: tuple[str, ...],
    constellation: str,
    agents: tuple[str, ...],
    kinds: tuple[str, ...],
    mode: str | None,
    limit: int,
) -> ExitCode:
    """Find QUERY, best first. "A phrase" in quotes, -word to leave out, word* for what begins so."""
    body: Json = {"query": " ".join(query), "limit": limit}
    if mode is not None:
        body["mode"] = mode
    if agents:
        body["agents"] = list(agents)
    if kinds:
        body["kinds"] = list(kinds)
    answer = await api.call("POST", path("constellations", constellation, "search"), body=body)
    output.data(answer)
    if answer.get("notice") and mode is not None:  # who did not choose a mode need not hear that another one was used
        output.note(answer["notice"])
    if output.is_json:
        return None
    rows = [
        {
            "score": f"{hit['score']:.2f}",
            "kind": hit["kind"],
            "when": str(hit.get("created_at") or "")[:16].replace("T", " "),
            "text": " ".join(str(hit.get("snippet") or hit["content"]).split()),
        }
        for hit in answer["hits"]
    ]
    output.table(("score", "kind", "when", "text"), rows, empty="Nothing was found.")
    return None
