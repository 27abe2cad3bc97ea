"""`pattern search`: search messages, memory, archive, files, summaries and tasks by words and meaning."""

from __future__ import annotations

from typing import Any

import click

from pattern_server.cli.client import Json
from pattern_server.cli.command import Home, in_constellation
from pattern_server.cli.names import AGENT, WORKSPACE
from pattern_server.cli.output import Output, in_line

KINDS = ("message", "block", "archival", "file", "summary", "task")
LIMIT_MAX = 100


@click.command(epilog='Example: pattern search "rye bread" --kind message --limit 5')
@click.argument("query", nargs=-1, required=True)
@click.option(
    "-a", "--agent", "agents", multiple=True, metavar="NAME", type=AGENT, help="Only what this agent knows; repeatable."
)
@click.option("--kind", "kinds", multiple=True, type=click.Choice(KINDS), help="Only this kind; repeatable.")
@click.option(
    "--mode",
    type=click.Choice(["hybrid", "words", "meaning"]),
    help="By words, by meaning, or both.  [default: hybrid; words if no server runs]",
)
@click.option("--since", metavar="TIME", help="Only from this time, such as 2026-01-31T00:00:00Z.")
@click.option("--until", metavar="TIME", help="Only before this time.")
@click.option(
    "--tag", "tags", multiple=True, metavar="TAG", help="Only entries with this tag; repeatable, any of them."
)
@click.option("--workspace", metavar="WORKSPACE", type=WORKSPACE, help="Only this project.")
@click.option("--session", "sessions", multiple=True, metavar="ID", help="Only messages of this session; repeatable.")
@click.option("--superseded", is_flag=True, help="Include superseded archive entries.")
@click.option("--by-session", is_flag=True, help="Rank sessions, each by its best message.")
@click.option("-v", "--explain", is_flag=True, help="Show for each hit why it was found.")
@click.option("--limit", type=click.IntRange(1, LIMIT_MAX), default=10, show_default=True, help="How many hits.")
@in_constellation
async def search(
    home: Home, output: Output, query: tuple[str, ...], superseded: bool, by_session: bool, explain: bool, **given: Any
) -> None:
    """Find QUERY, best first. Use "a phrase" in quotes, -word to exclude, word* for a prefix."""
    given |= mode_of(home, output, given.pop("mode"))
    body: Json = {"query": " ".join(query), **{name: value for name, value in given.items() if value not in (None, ())}}
    if superseded:
        body["include_superseded"] = True
    if by_session:
        body["group_by"] = "session"
    answer = await home.call("POST", "search", body=body)
    if answer.get("notice"):
        output.note(answer["notice"])
    session = ("session", "hits=count") if by_session else ()
    columns = ("score?", "kind?", *session, "when=created_at?", "text*", *(("why=reason*",) if explain else ()))
    output.table(columns, answer["hits"], empty="Nothing was found.", shown=_row, data=answer)


def mode_of(home: Home, output: Output, mode: str | None) -> Json:
    """Return the mode of a search, {} for the server's default. Without a server it is by words: a command would load
    the embedding model for a single question, which needs seconds and 500 MB.
    """
    if mode is None and not home.streams:
        output.note("Searched by words only, because no server runs. For search by meaning: --mode hybrid")
        return {"mode": "words"}
    return {} if mode is None else {"mode": mode}


def _row(hit: Json) -> Json:
    text = in_line(hit.get("snippet") or hit["content"])
    return {**hit, "score": f"{hit['score']:.2f}", "session": hit.get("session_id") or "", "text": text}
