"""`pattern approvals …`: what agents ask people's consent for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

import click

from pattern_server.cli.client import Api, Json, path
from pattern_server.cli.command import ExitCode, connected, constellation_option
from pattern_server.cli.output import Output

COLUMNS = ("id", "status", "audience", "what", "asked", "expires")
GRANT_COLUMNS = ("id", "agent", "subject", "arguments", "until", "granted_by")
PROGRAMS_WORDS = frozenset({"agent_id", "call_id", "subject", "digest"})  # in a request, beside the agent's name …
REQUEST_CHARS_MAX = 200  # shown of a request that has no words of its own

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)")
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@click.group()
def approvals() -> None:
    """Approvals: what an agent may only do if a person agrees."""


@approvals.command("list")
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
        output.say(f"Answer with: pattern approvals approve ID -c {constellation}, or deny.")
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
    if "tool" in request:
        told = ", ".join(f"{name}: {_short(value)}" for name, value in request["arguments"].items())
        return _cut(f"{request['agent']} wants to run {request['tool']}({told}): {request.get('reason', '')}")
    text = ", ".join(f"{name}: {_short(value)}" for name, value in request.items() if value not in (None, "", {}, []))
    return _cut(text)


def _cut(text: str) -> str:
    return text if len(text) <= REQUEST_CHARS_MAX else text[: REQUEST_CHARS_MAX - 1] + "…"


def _short(value: object) -> str:
    return " ".join((value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).split())


@approvals.command("show")
@click.argument("id_", metavar="ID")
@constellation_option
@connected
async def show(api: Api, output: Output, id_: str, constellation: str) -> ExitCode:
    """Show one question with all that would be done."""
    found = await api.get(path("constellations", constellation, "approvals", id_))
    if output.is_json:
        output.data(found)
        return None
    request = found.pop("request")
    output.record({**found, "request": "\n".join(_request_lines(request))})
    return None


def _request_lines(request: Json) -> Iterator[str]:
    """All that a request says, a line for each thing; the arguments of a call whole, and what only programs want not
    at all."""
    for name, value in request.items():
        if name in PROGRAMS_WORDS or value in (None, "", {}, []):
            continue
        if name == "arguments" and isinstance(value, dict):
            yield "arguments:"
            yield from (f"  {key}: {_whole(one)}" for key, one in value.items())
        else:
            yield f"{name.replace('_', ' ')}: {_whole(value)}"


def _whole(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class Duration(click.ParamType[float]):
    """A time such as `90s`, `30m`, `2h` or `7d`; seconds without a unit."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The time in seconds."""
        found = _DURATION.fullmatch(str(value).strip())
        if found is None:
            self.fail(f"{value!r} is no time; write 90s, 30m, 2h or 7d", param, ctx)
        return float(found[1]) * _UNITS_S[found[2] or "s"]


@approvals.command("approve")
@click.argument("id_", metavar="ID")
@constellation_option
@click.option("--same", is_flag=True, help="From now on also without asking, for the same arguments.")
@click.option("--always", is_flag=True, help="From now on also without asking, whatever the arguments.")
@click.option("--for", "seconds", type=Duration(), help="… only for this long: 90s, 30m, 2h, 7d.")
@click.option("--arguments", help="Run it with these arguments instead, a JSON object.")
@connected
async def approve(
    api: Api,
    output: Output,
    id_: str,
    constellation: str,
    same: bool,
    always: bool,
    seconds: float | None,
    arguments: str | None,
) -> ExitCode:
    """Agree: what was asked for is done now. Without an option, this once."""
    if same and always:
        raise click.UsageError("--same and --always exclude each other")
    scope = "same" if same else "always" if always else "once" if seconds is None else "time"
    body: Json = {"decision": "approve", "scope": scope}
    if seconds is not None:
        body["seconds"] = seconds
    if arguments is not None:
        body["arguments"] = _object(arguments)
    return await _answer(api, output, path("constellations", constellation, "approvals", id_), body)


def _object(text: str) -> Json:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"no JSON: {error}", param_hint="--arguments") from None
    if not isinstance(value, dict):
        raise click.BadParameter("must be a JSON object", param_hint="--arguments")
    return value


@approvals.command("deny")
@click.argument("id_", metavar="ID")
@constellation_option
@click.option("--reason", help="Why; the agent is told.")
@connected
async def deny(api: Api, output: Output, id_: str, constellation: str, reason: str | None) -> ExitCode:
    """Refuse: nothing is done."""
    body: Json = {"decision": "deny", **({"reason": reason} if reason else {})}
    return await _answer(api, output, path("constellations", constellation, "approvals", id_), body)


async def _answer(api: Api, output: Output, where: str, body: Json) -> ExitCode:
    answered = await api.call("POST", where, body=body)
    output.data(answered)
    note = (answered.get("decision") or {}).get("note")
    done = "Approved" if body["decision"] == "approve" else "Denied"
    told = str(note or what_is_asked(answered["request"]))
    output.say(told if told.startswith(done) else f"{done}: {told}")
    return None


@approvals.command("grants")
@constellation_option
@connected
async def grants(api: Api, output: Output, constellation: str) -> ExitCode:
    """List what agents may do without asking again."""
    found = await api.pages(path("constellations", constellation, "grants"))
    if output.is_json or not found:
        rows = found
    else:
        agents = await api.pages(path("constellations", constellation, "agents"))
        rows = [_grant_row(one, {agent["id"]: agent["name"] for agent in agents}) for one in found]
    output.table(GRANT_COLUMNS, rows, empty="Nothing: every question is asked.")
    return None


def _grant_row(one: Json, names: Mapping[str, str]) -> Json:
    until = str(one["expires_at"] or "")[:16].replace("T", " ")
    agent = names.get(one["agent_id"], one["agent_id"])
    return {
        **one,
        "agent": agent,
        "arguments": "the same" if one["same_arguments"] else "any",
        "until": until or "revoked",
    }


@approvals.command("revoke")
@click.argument("id_", metavar="ID")
@constellation_option
@connected
async def revoke(api: Api, output: Output, id_: str, constellation: str) -> ExitCode:
    """Revoke a consent that holds: the agent asks again."""
    await api.call("DELETE", path("constellations", constellation, "grants", id_))
    output.say("Revoked; the agent asks again.")
    return None
