"""`pattern approval …`: what agents ask people's consent for."""

from __future__ import annotations

import json

import click

from pattern_server.cli.client import Api, Json, path
from pattern_server.cli.command import ExitCode, connected, constellation_option
from pattern_server.cli.output import Output

COLUMNS = ("id", "status", "audience", "what", "asked", "expires")
REQUEST_CHARS_MAX = 200  # shown of a request that has no words of its own


@click.group()
def approval() -> None:
    """Approvals: what an agent may only do if a person agrees."""


@approval.command("list")
@constellation_option
@click.option("--all", "is_all", is_flag=True, help="Also what was answered or has expired.")
@connected
async def list_all(api: Api, output: Output, constellation: str, is_all: bool) -> ExitCode:
    """List what waits for an answer, newest first."""
    status = "all" if is_all else "pending"
    found = await api.pages(path("constellations", constellation, "approvals"), status=status)
    rows = found if output.is_json else [_row(one) for one in found]
    output.table(COLUMNS, rows, empty="Nothing waits for an answer." if not is_all else "Nothing was ever asked.")
    if found and not output.is_json and any(one["status"] == "pending" for one in found):
        output.say(f"Answer with: pattern approval approve ID -c {constellation}, or deny.")
    return None


def _row(one: Json) -> Json:
    return {
        **one,
        "what": what_is_asked(one["request"]),
        "asked": str(one["created_at"])[:16].replace("T", " "),
        "expires": str(one.get("expires_at") or "")[:16].replace("T", " ") or None,
    }


def what_is_asked(request: Json) -> str:
    """A request in one line: its own words if it has some, else its fields."""
    words = request.get("summary") or request.get("question") or request.get("note")
    if isinstance(words, str) and words.strip():
        return " ".join(words.split())
    text = ", ".join(f"{name}: {_short(value)}" for name, value in request.items() if value not in (None, "", {}, []))
    return text if len(text) <= REQUEST_CHARS_MAX else text[: REQUEST_CHARS_MAX - 1] + "…"


def _short(value: object) -> str:
    return " ".join((value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).split())


@approval.command("show")
@click.argument("id_", metavar="ID")
@constellation_option
@connected
async def show(api: Api, output: Output, id_: str, constellation: str) -> ExitCode:
    """Show one question with all that would be done."""
    output.record(await api.get(path("constellations", constellation, "approvals", id_)))
    return None


@approval.command("approve")
@click.argument("id_", metavar="ID")
@constellation_option
@connected
async def approve(api: Api, output: Output, id_: str, constellation: str) -> ExitCode:
    """Agree: what was asked for is done now, once."""
    return await _answer(api, output, path("constellations", constellation, "approvals", id_), "approve")


@approval.command("deny")
@click.argument("id_", metavar="ID")
@constellation_option
@connected
async def deny(api: Api, output: Output, id_: str, constellation: str) -> ExitCode:
    """Refuse: nothing is done."""
    return await _answer(api, output, path("constellations", constellation, "approvals", id_), "deny")


async def _answer(api: Api, output: Output, where: str, decision: str) -> ExitCode:
    answered = await api.call("POST", where, body={"decision": decision})
    output.data(answered)
    note = (answered.get("decision") or {}).get("note")
    done = "Approved" if decision == "approve" else "Denied"
    output.say(f"{done}: {note or what_is_asked(answered['request'])}")
    return None
