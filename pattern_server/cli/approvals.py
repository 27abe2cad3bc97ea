"""`pattern approvals …`: what agents ask people's consent for."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click

from pattern_server.cli.client import Json
from pattern_server.cli.command import Duration, Home, PlainGroup, json_of
from pattern_server.cli.names import Named
from pattern_server.cli.output import Output, cut, in_line, when

COLUMNS = ("id", "status?", "audience?", "what*", "asked=created_at?", "expires=expires_at?")
GRANT_COLUMNS = ("id", "agent", "subject", "arguments?", "until?", "granted_by?")
APPROVAL = Named("constellations/{constellation}/approvals", field="id", status="all")
PROGRAMS_WORDS = frozenset({"agent_id", "call_id", "subject", "digest"})  # in a request, next to the agent's name …
REQUEST_CHARS_MAX = 200  # shown of a request that has no words of its own

approvals = PlainGroup("approvals", help="Approvals: what an agent may only do if a person agrees.")


@approvals.add("list")
@click.option("--all", "is_all", is_flag=True, help="Also what was answered or has expired.")
async def list_all(home: Home, output: Output, is_all: bool) -> None:
    """List what waits for an answer, newest first."""
    found = await home.pages("approvals", status="all" if is_all else "pending")
    empty = "Nothing waits for an answer." if not is_all else "Nothing was ever asked."
    output.table(COLUMNS, found, empty=empty, shown=lambda one: {**one, "what": what_is_asked(one["request"])})
    if any(one["status"] == "pending" for one in found):
        output.say(f"Answer with: pattern approvals approve ID -c {home.name}, or deny.")


def what_is_asked(request: Json) -> str:
    """Return a request in one line: its own words if it has some, else its fields."""
    words = request.get("summary") or request.get("question") or request.get("note")
    if isinstance(words, str) and words.strip():
        return in_line(words)
    if "tool" in request:
        arguments = ", ".join(f"{name}: {in_line(value)}" for name, value in request["arguments"].items())
        text = f"{request['agent']} wants to run {request['tool']}({arguments}): {request.get('reason', '')}"
    else:
        text = ", ".join(f"{name}: {in_line(value)}" for name, value in request.items() if _has_value(value))
    return cut(text, REQUEST_CHARS_MAX)


def _has_value(value: object) -> bool:
    return value not in (None, "", {}, [])


@approvals.add("show", "apr_01k")
@click.argument("id_", metavar="ID", type=APPROVAL)
async def show(home: Home, output: Output, id_: str) -> None:
    """Show one question with all that would be done."""
    found = await home.get("approvals", id_)
    shown = {name: value for name, value in found.items() if name != "request"}
    output.record({**shown, "request": "\n".join(_request_lines(found["request"]))}, data=found)


def _request_lines(request: Json) -> Iterator[str]:
    """Yield all that a request says, a line for each thing; the arguments of a call whole, and what only programs want
    not at all.
    """
    for name, value in request.items():
        if name in PROGRAMS_WORDS or not _has_value(value):
            continue
        if name == "arguments" and isinstance(value, dict):
            yield "arguments:"
            yield from (f"  {key}: {_whole(one)}" for key, one in value.items())
        else:
            yield f"{name.replace('_', ' ')}: {_whole(value)}"


def _whole(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@approvals.add("approve", "apr_01k --for 30m")
@click.argument("id_", metavar="ID", type=APPROVAL)
@click.option("--same", is_flag=True, help="From now on also without asking, for the same arguments.")
@click.option("--always", is_flag=True, help="From now on also without asking, whatever the arguments.")
@click.option("--for", "seconds", type=Duration(), help="… only for this long: 90s, 30m, 2h, 7d.")
@click.option("--arguments", help="Run it with these arguments instead, a JSON object.")
async def approve(
    home: Home, output: Output, id_: str, same: bool, always: bool, seconds: float | None, arguments: str | None
) -> None:
    """Agree: what was asked for is done now. Without an option, this once."""
    if same and always:
        raise click.UsageError("--same and --always exclude each other")
    scope = "same" if same else "always" if always else "once" if seconds is None else "time"
    body: Json = {"decision": "approve", "scope": scope}
    if seconds is not None:
        body["seconds"] = seconds
    if arguments is not None:
        body["arguments"] = json_of("--arguments", arguments)
    await _answer(home, output, id_, body)


@approvals.add("deny", 'apr_01k --reason "Too expensive."')
@click.argument("id_", metavar="ID", type=APPROVAL)
@click.option("--reason", help="Why; the agent sees it.")
async def deny(home: Home, output: Output, id_: str, reason: str | None) -> None:
    """Refuse: nothing is done."""
    await _answer(home, output, id_, {"decision": "deny", **({"reason": reason} if reason else {})})


async def _answer(home: Home, output: Output, id_: str, body: Json) -> None:
    answered = await home.call("POST", "approvals", id_, body=body)
    note = (answered.get("decision") or {}).get("note")
    done = "Approved" if body["decision"] == "approve" else "Denied"
    said = str(note or what_is_asked(answered["request"]))
    output.result(answered, said if said.startswith(done) else f"{done}: {said}")


@approvals.add("grants")
async def grants(home: Home, output: Output) -> None:
    """List what agents may do without asking again."""
    found = await home.pages("grants")
    await home.name_people(output)

    def row(one: Json) -> Json:
        return {
            **one,
            "agent": one["agent_id"],
            "arguments": "the same" if one["same_arguments"] else "any",
            "until": when(one["expires_at"]) or "revoked",
        }

    output.table(GRANT_COLUMNS, found, empty="Nothing: every question is asked.", shown=row)


@approvals.add("revoke", "cgr_01k")
@click.argument("id_", metavar="ID", type=Named("constellations/{constellation}/grants", field="id"))
async def revoke(home: Home, output: Output, id_: str) -> None:
    """Revoke a consent that holds: the agent asks again."""
    await home.call("DELETE", "grants", id_)
    output.say("Revoked; the agent asks again.")
