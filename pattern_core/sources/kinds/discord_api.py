"""Discord's API: calls, with their errors in words, and its objects as events.

Sources: docs.discord.com/developers, "API Reference", "Rate Limits", "Message", "Receiving and Responding".
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import trio

from pattern_core.errors import InvalidInput, NotFound, Overloaded, PermissionDenied, Unavailable
from pattern_core.outbox import IS_FINAL
from pattern_core.sources.source import IS_UNCLEAR, SourceAccount
from pattern_core.web.download import Download
from pattern_core.web.websocket import json_object

FINAL_S = 900.0  # before a request that will be refused, until a person does something
RATE_WAIT_S_MAX = 10.0  # for the limit of a channel to allow the next request
NO_TOKEN = "Discord does not know this token; copy it again from discord.com/developers, Bot, Reset Token"
UNREADABLE = (LookupError, TypeError, AttributeError, ValueError)  # one object that no one can read stops no other
INTERACTION = "interaction/"  # how the name of an event that is a pressed button or a command begins
ASKED, PRESSED = 2, 3  # types of interactions
COMMAND = {
    "name": "ask",
    "description": "Ask the agent",
    "contexts": [0, 1],  # in servers and direct messages of the bot
    "options": [{"type": 3, "name": "question", "description": "What to ask", "required": True}],
}
_AGENT = "DiscordBot (Pattern, 1)"  # others are refused


async def call(account: SourceAccount, path: str, given: Mapping[str, Any] | None = None) -> Any:
    """Call the API, with POST if something is given, and return its answer. No error shows the token.

    Raises:
        Overloaded: too many requests; `details["retry_after_s"]` says when to continue.
        InvalidInput: the service will never accept this.
        PermissionDenied: the bot may not do this, or the token is wrong.
        Unavailable: there was no answer that could be read; whether it was done is unclear, unless it was not sent.
    """
    token = checked_word(await account.secret("token"))
    headers = {"Authorization": f"Bot {token}", "Content-Type": "application/json", "User-Agent": _AGENT}
    body = None if given is None else json.dumps(given).encode()
    url = f"{account.config['base_url'].rstrip('/')}{path}"
    try:
        page = await account.fetch(url, headers=headers, body=body, redirects_max=0)
    except Unavailable as error:
        is_unclear = error.details.get("was_sent") is not False
        raise Unavailable(error.message.replace(token, "…"), **{IS_UNCLEAR: is_unclear}) from None
    except NotFound as error:  # the host, perhaps only now
        raise Unavailable(error.message) from None
    result = _result(page)
    if page.headers.get("x-ratelimit-remaining") == "0":
        # The next request of this channel would be refused.
        await trio.sleep(_seconds(page.headers.get("x-ratelimit-reset-after"), RATE_WAIT_S_MAX))
    return result


def _seconds(value: object, most: float) -> float:
    with suppress(TypeError, ValueError):
        return max(0.0, min(most, float(value)))  # type: ignore[arg-type]  # anything else raises
    return 1.0


def _result(page: Download) -> Any:
    answer = json_object(f'{{"is": {page.body.decode("utf-8", "replace") or "null"}}}')
    about = answer.get("is")
    said = str(about.get("message", ""))[:200] if isinstance(about, dict) else f"HTTP status {page.status}"
    match page.status:
        case 200 | 201 | 204 if answer:
            return about
        case 200 if page.is_cut:
            raise InvalidInput("Discord's answer is too long to be read", **{IS_FINAL: True})
        case 429:
            after = about.get("retry_after") if isinstance(about, dict) else page.headers.get("retry-after")
            raise Overloaded(f"Discord wants fewer requests: {said}", retry_after_s=_seconds(after, 24 * 3600.0))
        case 401:
            raise PermissionDenied(NO_TOKEN, retry_after_s=FINAL_S)
        case 403:
            raise PermissionDenied(f"Discord does not let the bot do this here: {said}", **{IS_FINAL: True})
        case 400 | 404 | 405 | 413:
            raise InvalidInput(f"Discord refused this: {said}", **{IS_FINAL: True})
        case _:
            raise Unavailable(f"Discord answered with {said}", **{IS_UNCLEAR: True})


def checked_id(value: object) -> str:
    """Return an id, which becomes part of addresses.

    Raises:
        ValueError: it is none.
    """
    if not (isinstance(value, str) and re.fullmatch(r"[0-9]{1,20}", value)):
        raise ValueError(f"not an id: {str(value)[:50]}")
    return value


def checked_word(value: object) -> str:
    """Return a text of letters and signs that may be part of an address or a header.

    Raises:
        ValueError: it is none.
    """
    if not (isinstance(value, str) and re.fullmatch(r"[\x21-\x7e]{1,300}", value)):
        raise ValueError(f"not a word: {str(value)[:50]}")
    return value


def has_id(value: Any) -> bool:
    """Return whether this is an object with an id."""
    with suppress(*UNREADABLE):
        return bool(checked_id(value["id"]))
    return False


def interaction_fields(data: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the fields of an event for a pressed button or the command; None for anything else."""
    author, given = data.get("user") or data["member"]["user"], data["data"]
    about = {
        "native": f"{INTERACTION}{checked_id(data['id'])}",
        "author": checked_id(author["id"]),
        "author_name": _name(data, author),
    }
    if data["type"] == PRESSED and (found := re.fullmatch(r"([yn]):([\x21-\x7e]+)", given["custom_id"])):
        return {**about, "text": "", "decides": (found[2], found[1] == "y")}
    if data["type"] == ASKED and given["name"] == COMMAND["name"]:
        return {**about, "text": str(given["options"][0]["value"])}
    return None


def message_fields(data: Mapping[str, Any], bot: str, *, is_edit: bool) -> Mapping[str, Any]:
    """Return the fields of an event for a message. Names are there instead of ids, and of files only their names."""
    words, author = str(data.get("content") or ""), data["author"]
    for one in data.get("mentions", ()):
        name = "" if one["id"] == bot else f"@{_name(one, one)}"
        words = words.replace(f"<@{one['id']}>", name).replace(f"<@!{one['id']}>", name)
    forwarded = [str(one["message"].get("content") or "") for one in data.get("message_snapshots", ())]
    files = [f"[file {one.get('filename', '')}]" for one in data.get("attachments", ())]
    shown = "\n".join(filter(None, [words.strip(), *forwarded, *files])) or "[something that cannot be shown]"
    return {
        "native": f"{checked_id(data['channel_id'])}/{checked_id(data['id'])}"
        + (f"/{edited_at(data)}" if is_edit else ""),
        "text": f"{'(edited) ' if is_edit else ''}{shown}",
        "author": checked_id(author["id"]),
        "author_name": _name(data, author),
        "is_bot": bool(author.get("bot")) or "webhook_id" in data,
    }


def _name(data: Mapping[str, Any], user: Mapping[str, Any]) -> str:
    """Return what a person is called: in the server, else everywhere, else the unique name."""
    return str((data.get("member") or {}).get("nick") or user.get("global_name") or user.get("username") or "")


def edited_at(data: Mapping[str, Any]) -> str:
    """Return when a message was edited; empty if it was not, such as when only a preview was added to it."""
    return "" if data.get("edited_timestamp") is None else checked_word(data["edited_timestamp"])
