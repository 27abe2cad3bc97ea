"""Discord's API: calls, with their errors in words, and its objects as events.

Sources: docs.discord.com/developers, "API Reference", "Rate Limits", "Message", "Receiving and Responding".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import trio

from pattern_core.sources.service import ServiceApi, checked, pressed
from pattern_core.sources.source import SourceAccount, SourceFile

RATE_WAIT_S_MAX = 10.0  # for the limit of a channel to allow the next request
NO_TOKEN = "copy the token again from discord.com/developers, Bot, Reset Token"
INTERACTION = "interaction/"  # how the name of an event that is a pressed button or a command begins
ASKED, PRESSED = 2, 3  # types of interactions
COMMAND = {
    "name": "ask",
    "description": "Ask the agent",
    "contexts": [0, 1],  # in servers and direct messages of the bot
    "options": [{"type": 3, "name": "question", "description": "What to ask", "required": True}],
}
_API = ServiceApi(name="Discord", advice=NO_TOKEN)
_AGENT = "DiscordBot (Pattern, 1)"  # others are refused


async def call(
    account: SourceAccount,
    path: str,
    given: Mapping[str, Any] | tuple[str, bytes] | None = None,
    *,
    method: str | None = None,
) -> Any:
    """Call the API, with POST if an object or a form is given, and return its answer.

    Raises:
        PatternError: as `ServiceApi.call`.
    """
    token = await _API.secret(account)
    headers = {"Authorization": f"Bot {token}", "User-Agent": _AGENT}
    url = f"{account.config['base_url'].rstrip('/')}{path}"
    answer, sent = await _API.call(account, url, given, secrets=(token,), headers=headers, method=method)
    if sent.get("x-ratelimit-remaining") == "0":
        # The next request of this channel would be refused.
        with suppress(ValueError):
            await trio.sleep(max(0.0, min(RATE_WAIT_S_MAX, float(sent.get("x-ratelimit-reset-after", "1")))))
    return answer


checked_id = partial(checked, form=re.compile(r"[0-9]{1,20}"))  # of any object; it becomes part of addresses


def interaction_fields(data: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the fields of an event for a pressed button or the command; None for anything else."""
    author, given = data.get("user") or data["member"]["user"], data["data"]
    about = {
        "native": f"{INTERACTION}{checked_id(data['id'])}",
        "author": checked_id(author["id"]),
        "author_name": _name(data, author),
    }
    if data["type"] == PRESSED and re.fullmatch(r"[yn]:[!-~]+", given["custom_id"]):
        return {**about, "text": "", "decides": pressed(given["custom_id"])}
    if data["type"] == ASKED and given["name"] == COMMAND["name"]:
        return {**about, "text": str(given["options"][0]["value"])}
    return None


def message_fields(data: Mapping[str, Any], bot: str, *, is_edit: bool) -> Mapping[str, Any]:
    """Return the fields of an event for a message. Names are there instead of ids; an edit does not bring files."""
    words, author = str(data.get("content") or ""), data["author"]
    for one in data.get("mentions", ()):
        name = "" if one["id"] == bot else f"@{_name(one, one)}"
        words = words.replace(f"<@{one['id']}>", name).replace(f"<@!{one['id']}>", name)
    forwarded = [str(one["message"].get("content") or "") for one in data.get("message_snapshots", ())]
    given = () if is_edit else data.get("attachments", ())
    files = [SourceFile(name=str(one.get("filename", "file")), ref=str(one.get("url", ""))) for one in given]
    shown = "\n".join(filter(None, [words.strip(), *forwarded])) or (
        "" if files else "[something that cannot be shown]"
    )
    return {
        "native": f"{checked_id(data['channel_id'])}/{checked_id(data['id'])}"
        + (f"/{edited_at(data)}" if is_edit else ""),
        "text": f"{'(edited) ' if is_edit else ''}{shown}",
        "files": files,
        "author": checked_id(author["id"]),
        "author_name": _name(data, author),
        "is_bot": bool(author.get("bot")) or "webhook_id" in data,
    }


def _name(data: Mapping[str, Any], user: Mapping[str, Any]) -> str:
    """Return what a person is called: in the server, else everywhere, else the unique name."""
    return str((data.get("member") or {}).get("nick") or user.get("global_name") or user.get("username") or "")


def edited_at(data: Mapping[str, Any]) -> str:
    """Return when a message was edited; empty if it was not, such as when only a preview was added to it."""
    return "" if data.get("edited_timestamp") is None else checked(data["edited_timestamp"])
