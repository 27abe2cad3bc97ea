"""`pattern search`: find by words and meaning in messages, memory, archive, files and summaries."""

from __future__ import annotations

import click

from pattern_server.cli.client import Api, Json, path
from pattern_server.cli.command import ExitCode, connected, constellation_option
from pattern_server.cli.output import Output

KINDS = ("message", "block", "archival", "file", "summary")
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
@click.option("--since", metavar="TIME", help="Only from this time on, as in 2026-01-31T00:00:00Z.")
@click.option("--until", metavar="TIME", help="Only before this time.")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="Only what has this tag, or another one named.")
@click.option("--workspace", metavar="NAME", help="Only what belongs to this project.")
@click.option("--session", "sessions", multiple=True, metavar="ID", help="Only messages of this session; repeatable.")
@click.option("--superseded", is_flag=True, help="Archive entries that were superseded, too.")
@click.option("--by-session", is_flag=True, help="Rank whole conversations, each by its best message.")
@click.option("-v", "--explain", is_flag=True, help="Say for each hit why it was found.")
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
    since: str | None,
    until: str | None,
    tags: tuple[str, ...],
    workspace: str | None,
    sessions: tuple[str, ...],
    superseded: bool,
    by_session: bool,
    explain: bool,
    limit: int,
) -> ExitCode:
    """Find QUERY, best first. "A phrase" in quotes, -word to leave out, word* for what begins so."""
    asked: Json = {
        "mode": mode,
        "agents": list(agents) or None,
        "kinds": list(kinds) or None,
        "since": since,
        "until": until,
        "tags": list(tags) or None,
        "workspace": workspace,
        "sessions": list(sessions) or None,
        "include_superseded": superseded or None,
        "group_by": "session" if by_session else None,
    }
    body: Json = {"query": " ".join(query), "limit": limit}
    body |= {name: value for name, value in asked.items() if value is not None}
    answer = await api.call("POST", path("constellations", constellation, "search"), body=body)
    output.data(answer)
    if answer.get("notice") and mode is not None:  # who did not choose a mode need not hear that another one was used
        output.note(answer["notice"])
    if output.is_json:
        return None
    output.table(_columns(by_session, explain), [_row(hit) for hit in answer["hits"]], empty="Nothing was found.")
    return None


def _columns(by_session: bool, explain: bool) -> tuple[str, ...]:
    session = ("session", "hits") if by_session else ()
    return ("score", "kind", *session, "when", "text", *(("why",) if explain else ()))


def _row(hit: Json) -> Json:
    return {
        "score": f"{hit['score']:.2f}",
        "kind": hit["kind"],
        "session": hit.get("session_id") or "",
        "hits": hit.get("count", 1),
        "when": str(hit.get("created_at") or "")[:16].replace("T", " "),
        "text": " ".join(str(hit.get("snippet") or hit["content"]).split()),
        "why": hit["reason"],
    }
