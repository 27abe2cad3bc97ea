"""Discord: the agent is a bot that people write to, in direct messages, channels and threads. Events come by a
WebSocket that the server opens, so no public address is needed.

Sources: docs.discord.com/developers, "API Reference", "Gateway" (version 10), "Message", "Receiving and Responding",
"Rate Limits". An answer with a `nonce` that is sent again leads to one message, but only "in the past few minutes":
later it is in doubt.

The place up to which everything is stored is the session with the number of its last event, from which the service
repeats the rest. If it ended the session, messages are read from each known channel behind the last one that is known.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from typing import Any, ClassVar
from urllib.parse import quote

import trio

from pattern_core.errors import InvalidInput, NotFound, Overloaded, PatternError, PermissionDenied, Unavailable
from pattern_core.outbox import IS_FINAL
from pattern_core.sources.gateway import Gateway, GatewayKind
from pattern_core.sources.service import BUTTONS, REFUSED_S, ServiceApi, checked, pressed
from pattern_core.sources.source import (
    UNREADABLE,
    Outgoing,
    Receive,
    SourceAccount,
    SourceEvent,
    SourceFile,
    bytes_of,
    multipart,
)
from pattern_core.web.websocket import TOO_BIG, WebSocket, WebSocketClosed, json_object
from pattern_db.columns import Json

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
INTENTS = 1 << 9 | 1 << 12 | 1 << 15  # messages of servers, direct messages, and what they say
CHANNELS_MAX = 100  # of which the last message is known
PAGE = 100  # messages that are read at once
NEW_SESSION_S = 5.0  # before a new session
HEARTBEAT_S_MAX = 300.0
CALLBACK_S = 3.0  # in which the service wants to know of a pressed button
HEARTBEAT, IDENTIFY, RESUME = 1, 2, 6
EMOJI_CHARS_MAX = 8
_OF_EMOJI = ("So", "Sk", "Mn", "Me", "Cf")  # symbols, skin tones, forms, and what joins them
_FINAL = {
    4004: f"Discord does not know this token; {NO_TOKEN}",
    4011: "Discord wants this bot in shards, which Pattern does not have; invite it to fewer servers",
    4012: "Discord ended this version of its gateway; update Pattern",
    4013: "Discord does not know what this version asks for; update Pattern",
    4014: "the bot may not read messages; switch on Message Content Intent at discord.com/developers, Bot",
}
_ENDS_SESSION = (4007, 4009, TOO_BIG)  # a message that is too long would come again and again
_SAID = (0, 19)  # types of messages that a person writes: a message, an answer
_DIRECT, _THREADS = 1, (10, 11, 12)  # types of channels
_id = partial(checked, form=re.compile(r"[0-9]{1,20}"))  # of any object; it becomes part of addresses


class _Connection(Gateway):
    """One connection. `cursor` holds the session with its last event, the bot, and for each known channel the last
    message, the room that it belongs to and its name.
    """

    service: ClassVar = "Discord"
    places_max: ClassVar = CHANNELS_MAX

    def __init__(self, account: SourceAccount) -> None:
        super().__init__(account)
        self._stored: Json = self.cursor.get("seq")  # the last event that is stored
        self._is_alive = True  # the last heartbeat was acknowledged
        self._is_first = True  # nothing was handed over yet

    async def prove(self) -> None:
        """Ask whether the token is accepted, as `Gateway.prove`."""
        self.cursor["bot"] = _id((await _call(self.account, "/users/@me"))["id"])

    async def connected(self) -> WebSocket:
        """Return a connection to where the session can be resumed, else to where a new one begins."""
        if "session" in self.cursor:
            with suppress(Unavailable):  # that server may be gone
                return await self._at(self.cursor["resume"])
        found = await _call(self.account, "/gateway/bot")
        limit = found.get("session_start_limit", {})
        if limit.get("remaining", 1) < 1:
            after_s = limit.get("reset_after", 0) / 1000
            raise Overloaded("the bot connected too often; Discord wants it to wait", retry_after_s=after_s)
        return await self._at(found["url"])

    async def _at(self, url: str) -> WebSocket:
        return await self.open(f"{url.rstrip('/')}/?v=10&encoding=json")

    async def begin(self, socket: WebSocket) -> Callable[[], Awaitable[None]]:
        """Begin or resume the session; return what sends heartbeats."""
        every_s = float(json_object(await socket.receive())["d"]["heartbeat_interval"]) / 1000
        about: dict[str, Json] = {"token": await self.account.secret("token")}
        if "session" in self.cursor:
            about |= {"session_id": self.cursor["session"], "seq": self.cursor.get("seq", 0)}
        else:
            names = {"os": "linux", "browser": "pattern", "device": "pattern"}
            about |= {"intents": INTENTS, "properties": names}
        await socket.send(json.dumps({"op": RESUME if "session" in self.cursor else IDENTIFY, "d": about}))
        return partial(self._beat, socket, max(0.01, min(HEARTBEAT_S_MAX, every_s)))

    async def behind(self, place: str) -> tuple[Sequence[SourceEvent], bool]:
        """Return a page of what was said in a channel, as `Gateway.behind`."""
        known = self.places[place]
        path = f"/channels/{_id(place)}/messages?limit={PAGE}&after={_id(known['last'])}"
        answer = await _call(self.account, path)
        page: dict[int, Any] = {}
        for one in answer:
            with suppress(*UNREADABLE):
                page[int(_id(one["id"]))] = one
        events = [event for one in sorted(page) for event in await self.read("MESSAGE_CREATE", page[one])]
        known["last"] = str(max(page, default=known["last"]))
        return events, bool(page) and len(answer) >= PAGE

    async def hear(self, socket: WebSocket, found: Mapping[str, Any]) -> bool | None:
        """Return whether this is an event, as `Gateway.hear`."""
        match found.get("op"):
            case 0:
                self.is_connected = True
                return True
            case 1:  # it wants a heartbeat now
                await self._send_heartbeat(socket)
            case 7:  # it wants a new connection
                return None
            case 9:
                if found.get("d") is not True:
                    self._forget()
                return None
            case 11:
                self._is_alive = True
        return False

    def ended(self, error: WebSocketClosed) -> None:
        """Note what the code says of the session, as `Gateway.ended`."""
        if error.code in _FINAL:
            self.failure = PermissionDenied(_FINAL[error.code], retry_after_s=REFUSED_S)
        elif error.code in _ENDS_SESSION:
            self._forget()
        elif not self.is_connected:
            self.failure = Unavailable(f"Discord: {error}")

    def _forget(self) -> None:
        """Forget the session, which the service has ended; that is of use if there was one."""
        self.is_connected, self.again_s = self.is_connected or "session" in self.cursor, NEW_SESSION_S
        for name in ("session", "seq", "resume"):
            self.cursor.pop(name, None)

    async def _beat(self, socket: WebSocket, every_s: float) -> None:
        """Send heartbeats; end a connection that did not acknowledge the last one."""
        await trio.sleep(every_s / 2)
        with suppress(WebSocketClosed):
            while self._is_alive:
                self._is_alive = False
                with trio.move_on_after(every_s):
                    await self._send_heartbeat(socket)
                    await trio.sleep_forever()
        await socket.abort()

    async def _send_heartbeat(self, socket: WebSocket) -> None:
        await socket.send(json.dumps({"op": HEARTBEAT, "d": self._stored}))

    async def store(self, socket: WebSocket, receive: Receive, batch: Sequence[Mapping[str, Any]]) -> None:
        """Store events; then the service may know that a button was pressed."""
        events, used = list[SourceEvent](), list[Mapping[str, Any]]()
        for payload in batch:
            if payload.get("t") == "READY":
                await self._ready(payload["d"], receive)
            found = await self.read(payload.get("t"), payload.get("d"))
            events += found
            used += [payload["d"] for event in found if event.native.startswith(INTERACTION)]
            if isinstance(payload.get("s"), int):
                self.cursor["seq"] = payload["s"]
        if events or self._is_first:
            await receive(self.arrivals(events))
        self._is_first, self._stored = False, self.cursor.get("seq")
        with trio.move_on_after(CALLBACK_S):
            for one in used:
                await self._acknowledge(one)

    async def _ready(self, ready: Mapping[str, Any], receive: Receive) -> None:
        """Begin a session. It is part of the cursor once all that was missed before it is stored."""
        self.cursor["bot"] = _id(ready["user"]["id"])
        await self.missed(receive)
        self.cursor |= {"session": checked(ready["session_id"]), "resume": checked(ready["resume_gateway_url"])}
        with suppress(PatternError, *UNREADABLE):  # without the command, people can still write
            await _call(self.account, f"/applications/{_id(ready['application']['id'])}/commands", COMMAND)

    async def events(self, name: object, data: Any) -> Sequence[SourceEvent]:
        """Return the event of what the service sent, as `Gateway.events`; none if it is not for the bot."""
        match name:
            case "MESSAGE_CREATE" | "MESSAGE_UPDATE":
                return await self._message(data, is_edit=name == "MESSAGE_UPDATE")
            case "INTERACTION_CREATE":
                if (fields := _interaction(data)) is not None:
                    place = await self._place(_id(data["channel_id"]), _id(data["id"]))
                    return [] if place is None else [SourceEvent(**fields, **place)]
        return []

    async def _message(self, data: Mapping[str, Any], *, is_edit: bool) -> Sequence[SourceEvent]:
        """Return the event of a message that was meant for the bot."""
        bot, chat, number = self.cursor["bot"], _id(data["channel_id"]), _id(data["id"])
        known = self.places.get(chat)
        if known is not None:
            known["last"] = max(known["last"], number, key=int)
        if data["author"]["id"] == bot or data.get("type", 0) not in _SAID or (is_edit and not _edited_at(data)):
            return []
        answered = ((data.get("referenced_message") or {}).get("author") or {}).get("id")
        is_addressed = bot in (answered, *(one["id"] for one in data.get("mentions", ())))
        # What is not for the bot is not even stored: a room may have thousands of messages.
        if not is_addressed and (data.get("guild_id") if known is None else known["room"]):
            return []
        place = await self._place(chat, number)
        if place is None or (place["room"] and not is_addressed):
            return []
        return [SourceEvent(**_fields(data, bot, is_edit=is_edit), **place)]

    async def _place(self, chat: str, last: str) -> Mapping[str, Any] | None:
        """Return the fields of an event that say where it was; None if the bot cannot read that channel. A thread is in
        the room of its channel.
        """
        if (known := self.places.get(chat)) is None:
            try:
                found = await _call(self.account, f"/channels/{chat}")
            except PatternError as error:
                if not error.details.get(IS_FINAL):
                    raise
                return None
            if found["type"] != _DIRECT and not found.get("guild_id"):
                return None
            above = found["parent_id"] if found["type"] in _THREADS else chat
            room = "" if found["type"] == _DIRECT else _id(above)
            name = f"#{found.get('name')}"[:100].encode("utf-8", "replace").decode() if room else ""
            known = {"last": last, "room": room, "name": name}
        self.remember(chat, known)
        return {"chat": chat, "room": known["room"], "chat_name": known["name"]}

    async def _acknowledge(self, used: Mapping[str, Any]) -> None:
        """Have a button or a command stop waiting. It does not matter if that fails, such as for one that is old."""
        answer: dict[str, Json] = {"type": 6}
        if used["type"] == ASKED:
            words = f"I pass this on: {used['data']['options'][0]['value']}"[:1_900]
            # Only who asked sees it: perhaps no one there may talk to the agent.
            answer = {"type": 4, "data": {"content": words, "flags": 1 << 6, "allowed_mentions": {"parse": []}}}
        with suppress(PatternError, *UNREADABLE):
            path = f"/interactions/{_id(used['id'])}/{quote(used['token'], safe='')}/callback"
            await _call(self.account, path, answer)


class DiscordChannel(GatewayKind):
    """People talk to a bot: each direct chat, channel and thread is a conversation."""

    fields: ClassVar = {
        "token": "name of a secret below [sources.secrets] with the bot's token from discord.com/developers",
        "base_url": "address of the API, with its version",
    }
    secret_fields: ClassVar = ("token",)
    home: ClassVar = "https://discord.com/api/v10"
    chars_max: ClassVar = 2000
    gateway: ClassVar = _Connection

    async def signal(self, account: SourceAccount, chat: str) -> None:
        """Show that the bot is typing, as `SourceKind.signal`."""
        await _call(account, f"/channels/{_id(chat)}/typing", {})

    async def show(self, account: SourceAccount, chat: str, text: str, shown: str) -> str:
        """Show what the agent does, as `SourceKind.show`."""
        path = f"/channels/{_id(chat)}/messages"
        if not shown:
            about = {"content": text, "allowed_mentions": {"parse": []}, "flags": 1 << 2 | 1 << 12}
            return _id((await _call(account, path, about))["id"])
        method = "PATCH" if text else "DELETE"
        await _call(account, f"{path}/{_id(shown)}", {"content": text} if text else None, method=method)
        return shown

    async def send(self, account: SourceAccount, chat: str, said: Outgoing, send_id: str) -> None:
        """Send a message, with two buttons if it is a question, as `SourceKind.send`. It notifies no one by name.

        An answer that is one emoji is a reaction to the message, where the bot may add some.
        """
        place = f"/channels/{_id(chat)}/messages"
        if said.reply_to and not said.reply_to.startswith(INTERACTION) and _is_emoji(said.text.strip()):
            sign, number = quote(said.text.strip(), safe=""), _id(said.reply_to.split("/")[1])
            with suppress(PermissionDenied, InvalidInput, NotFound):
                await _call(account, f"{place}/{number}/reactions/{sign}/@me", method="PUT")
                return
        message: dict[str, Json] = {**_message(send_id), "content": said.text}
        if said.reply_to and not said.reply_to.startswith(INTERACTION):
            message["message_reference"] = {"message_id": said.reply_to.split("/")[1], "fail_if_not_exists": False}
        if said.approval is not None:
            buttons = [
                {"type": 2, "style": style, "label": label, "custom_id": f"{sign}:{said.approval}"}
                for style, (label, sign) in enumerate(BUTTONS, 3)
            ]
            message["components"] = [{"type": 1, "components": buttons}]
        await _call(account, place, message)

    async def send_file(self, account: SourceAccount, chat: str, said: Outgoing, data: bytes, send_id: str) -> None:
        """Send a file, as `SourceKind.send_file`."""
        form = multipart({"payload_json": json.dumps(_message(send_id))}, "files[0]", said.file_name, data)
        await _call(account, f"/channels/{_id(chat)}/messages", form)

    async def download(self, account: SourceAccount, ref: str) -> bytes:
        """Return the bytes of a file, as `SourceKind.download`."""
        return bytes_of(await account.fetch(ref))


def _is_emoji(text: str) -> bool:
    """Return whether a text is one emoji, which may be made of several characters."""
    return 0 < len(text) <= EMOJI_CHARS_MAX and all(unicodedata.category(one) in _OF_EMOJI for one in text)


def _message(send_id: str) -> dict[str, Json]:
    """Return what every message has: a name by which a repetition is known, no notifications, no previews of links."""
    nonce = blake2b(send_id.encode(), digest_size=12).hexdigest()
    return {"nonce": nonce, "enforce_nonce": True, "allowed_mentions": {"parse": []}, "flags": 1 << 2}


async def _call(
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


def _interaction(data: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the fields of an event for a pressed button or the command; None for anything else."""
    author, given = data.get("user") or data["member"]["user"], data["data"]
    about = {
        "native": f"{INTERACTION}{_id(data['id'])}",
        "author": _id(author["id"]),
        "author_name": _name(data, author),
    }
    if data["type"] == PRESSED and re.fullmatch(r"[yn]:[!-~]+", given["custom_id"]):
        return {**about, "text": "", "decides": pressed(given["custom_id"])}
    if data["type"] == ASKED and given["name"] == COMMAND["name"]:
        return {**about, "text": str(given["options"][0]["value"])}
    return None


def _fields(data: Mapping[str, Any], bot: str, *, is_edit: bool) -> Mapping[str, Any]:
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
        "native": f"{_id(data['channel_id'])}/{_id(data['id'])}" + (f"/{_edited_at(data)}" if is_edit else ""),
        "text": f"{'(edited) ' if is_edit else ''}{shown}",
        "files": files,
        "author": _id(author["id"]),
        "author_name": _name(data, author),
        "is_bot": bool(author.get("bot")) or "webhook_id" in data,
    }


def _name(data: Mapping[str, Any], user: Mapping[str, Any]) -> str:
    """Return what a person is called: in the server, else everywhere, else the unique name."""
    return str((data.get("member") or {}).get("nick") or user.get("global_name") or user.get("username") or "")


def _edited_at(data: Mapping[str, Any]) -> str:
    """Return when a message was edited; empty if it was not, such as when only a preview was added to it."""
    return "" if data.get("edited_timestamp") is None else checked(data["edited_timestamp"])
