"""Discord on loopback, also when it behaves badly: for tests, also of users. It speaks the part of the API and of the
gateway that the channel uses (docs.discord.com/developers).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import trio

from pattern_core.testing.channels import GatewayServer
from pattern_core.testing.wire import Play, WireRequest, document
from pattern_core.web.websocket import WebSocket, WebSocketClosed

TOKEN = "a-discord-token-for-tests"
BOT = {"id": "99", "username": "pattern", "bot": True}
SERVER, ROOM, THREAD = "7", "500", "501"
REST = "/api/v10"


@dataclass(eq=False)
class _Session:
    """What a client may resume: all that was sent, each with its number."""

    name: str
    events: list[dict[str, Any]] = field(default_factory=list)
    changed: trio.Event = field(default_factory=trio.Event)

    def add(self, name: str, data: object) -> None:
        self.events.append({"op": 0, "s": len(self.events) + 1, "t": name, "d": data})
        self.changed.set()
        self.changed = trio.Event()


class DiscordServer(GatewayServer):
    """The API and the gateway. `says`, `presses` and `asks` are what people do; `sent` is what the bot sent, in order.

    Faults, each a number of times: `drops` accepts a message and closes the connection; `too_many` answers 429;
    `repeats` sends an event twice; `deaf` connections acknowledge no heartbeat and say nothing. `closes_with` are codes
    with which the next connections are closed when they begin a session. `breaks`, `reconnects` and `expires` end the
    connections that there are, `forgets` the memory of what was sent.
    """

    def __init__(self, *, heartbeat_ms: int = 41_250) -> None:
        super().__init__()
        self.heartbeat_ms = heartbeat_ms
        self.sent: list[dict[str, Any]] = []
        self.signals = 0
        self.reactions: list[tuple[str, str]] = []  # to which message, and which
        self.may_react = True
        self.changes: list[str] = []  # of messages that say what the agent does, in order
        self.callbacks: list[dict[str, Any]] = []  # to buttons and commands
        self.commands: list[dict[str, Any]] = []
        self.begun: list[str] = []  # `identify` and `resume`, in order
        self.beats: list[int | None] = []  # the number of the last event, by heartbeats
        self.intents = 0
        self.drops = self.too_many = self.repeats = self.deaf = 0
        self.starts_left = 1000
        self.rate_headers: dict[str, str] = {}  # of answers to messages
        self.closes_with: list[int] = []
        self.channels: dict[str, dict[str, Any]] = {
            ROOM: {"id": ROOM, "type": 0, "guild_id": SERVER, "name": "general", "parent_id": "400"},
            THREAD: {"id": THREAD, "type": 11, "guild_id": SERVER, "name": "a thread", "parent_id": ROOM},
        }
        self.files: dict[str, bytes] = {}  # by path: what may be downloaded
        self.history: dict[str, list[dict[str, Any]]] = {}
        self._nonces: dict[str, dict[str, Any]] = {}
        self._number = 10_000
        self._session: _Session | None = None
        self._sessions = 0

    # What people do

    def says(self, text: str, *, author: int = 1, chat: str | None = None, **more: Any) -> str:
        """Have a person write a message, directly or in a channel; return its id. `<@99>` mentions the bot."""
        place = chat or self._direct(author)
        about = {name: value for name, value in self.channels[place].items() if name == "guild_id"}
        writer = {"id": str(author), "username": f"user{author}", "global_name": "Anna"}
        mentions = [BOT] if f"<@{BOT['id']}>" in text else []
        return self._message(place, {**about, "author": writer, "content": text, "mentions": mentions, **more})

    def edits(self, chat: str, number: str, text: str) -> None:
        """Have a person edit a message."""
        message = next(one for one in self.history[chat] if one["id"] == number)
        message |= {"content": text, "edited_timestamp": f"2026-11-30T00:00:0{text.count('!')}+00:00"}
        self.put("MESSAGE_UPDATE", dict(message))

    def presses(self, label: str, *, author: int = 1) -> None:
        """Have a person press the button with this label on the newest message that has buttons."""
        asked = next(one for one in reversed(self.sent) if "components" in one)
        [row] = asked["components"]
        button = next(one["custom_id"] for one in row["components"] if one["label"] == label)
        self._interact(3, {"custom_id": button}, author, asked["channel_id"])

    def asks(self, question: str, *, author: int = 1) -> None:
        """Have a person use the command, in the direct chat."""
        given = {"name": "ask", "options": [{"name": "question", "type": 3, "value": question}]}
        self._interact(2, given, author, self._direct(author))

    def put(self, name: str, data: object) -> None:
        """Send an event as it is."""
        if self._session is not None:
            self._session.add(name, data)

    # Faults

    def reconnects(self) -> None:
        """Want new connections: the sessions can be resumed."""
        for end in self._open.values():
            end.set()

    async def expires(self) -> None:
        """End the session, so that it cannot be resumed, and close all connections."""
        self._session = None
        await self.breaks()

    def forgets(self) -> None:
        """Forget which messages were sent, as the service does after some minutes."""
        self._nonces.clear()

    @property
    def texts(self) -> list[str]:
        """The words that the bot sent, in order."""
        return [str(one["content"]) for one in self.sent]

    # The API

    async def answer(self, request: WireRequest) -> Play:
        """Return the answer to a request."""
        url = urlsplit(request.path)
        parts = url.path.removeprefix(f"{REST}/").split("/")
        if request.path in self.files:
            return Play(chunks=(self.files[request.path],))
        if request.headers.get("authorization") != f"Bot {TOKEN}":
            return document({"message": "401: Unauthorized", "code": 0}, status=401)
        match request.method, parts:
            case "GET", ["users", "@me"]:
                return document(BOT)
            case "GET", ["gateway", "bot"]:
                limit = {"total": 1000, "remaining": self.starts_left, "reset_after": 60_000, "max_concurrency": 1}
                return document({"url": self.gateway_url, "shards": 1, "session_start_limit": limit})
            case "GET", ["channels", chat] if chat in self.channels:
                return document(self.channels[chat])
            case "GET", ["channels", chat, "messages"] if chat in self.channels:
                asked = parse_qs(url.query)
                after = int(asked["after"][0])
                known = self.history.get(chat, ())
                found = [one for one in known if not one["id"].isdecimal() or int(one["id"]) > after]
                return document(found[: int(asked["limit"][0])][::-1])
            case "PATCH", ["channels", _chat, "messages", _number]:
                self.changes.append(str(request.json()["content"]))
                return document({})
            case "DELETE", ["channels", _chat, "messages", _number]:
                self.changes.append("deleted")
                return Play(status=204)
            case "POST", ["channels", chat, "messages"] if chat in self.channels:
                if not request.headers["content-type"].startswith("multipart/"):
                    return self._send(chat, request.json())
                form = request.form()
                name, data = form["files[0]"]
                return self._send(chat, {**json.loads(form["payload_json"]), "content": f"<{name}>", "file": data})
            case "PUT", ["channels", _chat, "messages", number, "reactions", sign, "@me"] if self.may_react:
                self.reactions.append((number, unquote(sign)))
                return Play(status=204)
            case "POST", ["channels", _chat, "typing"]:
                self.signals += 1
                return Play(status=204)
            case "POST", ["interactions", _number, _token, "callback"]:
                self.callbacks.append(request.json())
                return Play(status=204)
            case "POST", ["applications", _number, "commands"]:
                self.commands.append(request.json())
                return document({"id": "1"}, status=201)
        return document({"message": "Unknown Channel", "code": 10003}, status=404)

    def _send(self, chat: str, given: dict[str, Any]) -> Play:
        if given["flags"] & 1 << 12:  # that notifies no one
            self.changes.append(given["content"])
            return document({"id": str(len(self.changes))})
        if self.too_many:
            self.too_many -= 1
            wanted = {"message": "You are being rate limited.", "retry_after": 3.5, "global": True}
            return document(wanted, status=429)
        if not 0 < len(given["content"]) <= 2000:
            return document({"message": "Invalid Form Body", "code": 50035}, status=400)
        known = self._nonces.get(given["nonce"]) if given.get("enforce_nonce") else None
        if known is None:
            self.sent.append({"channel_id": chat, **given})
            self._nonces[given["nonce"]] = given
            self._message(chat, {"author": BOT, "content": given["content"], "mentions": []})
        if self.drops:
            self.drops -= 1
            return Play(stops_after=0, chunks=(b"x",))
        return document({"id": str(self._number)}, headers=self.rate_headers)

    # The gateway

    async def serve_socket(self, socket: WebSocket, target: str) -> None:
        """Serve a connection that begins or resumes a session."""
        is_deaf = self.deaf > 0
        self.deaf -= is_deaf
        await socket.send(json.dumps({"op": 10, "d": {"heartbeat_interval": self.heartbeat_ms}}))
        await self._speak(socket, json.loads(await socket.receive()), is_deaf=is_deaf)

    async def _speak(self, socket: WebSocket, begin: Mapping[str, Any], *, is_deaf: bool) -> None:
        self.begun.append({2: "identify", 6: "resume"}[begin["op"]])
        if begin["d"]["token"] != TOKEN or self.closes_with:
            await socket.close(self.closes_with.pop(0) if self.closes_with else 4004, "the reason")
            return
        at = 0
        if begin["op"] == 2:
            self.intents = begin["d"]["intents"]
            self._sessions += 1
            self._session = _Session(f"session{self._sessions}")
            ready = {"user": BOT, "session_id": self._session.name, "application": {"id": BOT["id"]}}
            self._session.add("READY", {**ready, "resume_gateway_url": self.gateway_url})
        elif self._session is None or begin["d"]["session_id"] != self._session.name:
            await socket.send(json.dumps({"op": 9, "d": False}))
            return
        else:
            at = begin["d"]["seq"]
            self._session.add("RESUMED", {})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hear, socket, is_deaf, nursery.cancel_scope)
            if not is_deaf:
                nursery.start_soon(self._tell, socket, self._session, at)
            await self._open[socket].wait()
            with suppress(WebSocketClosed):
                await socket.send(json.dumps({"op": 7, "d": None}))
            nursery.cancel_scope.cancel()

    async def _hear(self, socket: WebSocket, is_deaf: bool, scope: trio.CancelScope) -> None:
        with suppress(WebSocketClosed):
            while True:
                self.beats.append(json.loads(await socket.receive())["d"])
                if not is_deaf:
                    await socket.send(json.dumps({"op": 11}))
        scope.cancel()

    async def _tell(self, socket: WebSocket, session: _Session, at: int) -> None:
        with suppress(WebSocketClosed):
            while True:
                changed = session.changed
                for event in session.events[at:]:
                    await socket.send(json.dumps(event))
                    if self.repeats:
                        self.repeats -= 1
                        await socket.send(json.dumps(event))
                    at = event["s"]
                await changed.wait()

    def _direct(self, author: int) -> str:
        place = str(1000 + author)
        self.channels.setdefault(place, {"id": place, "type": 1})
        return place

    def _message(self, chat: str, about: Mapping[str, Any]) -> str:
        self._number += 1
        message = {"id": str(self._number), "channel_id": chat, "type": 0, "edited_timestamp": None, **about}
        self.put("MESSAGE_CREATE", message)
        kept = {name: value for name, value in message.items() if name not in ("guild_id", "member")}
        self.history.setdefault(chat, []).append(kept)
        return str(self._number)

    def _interact(self, kind: int, given: Mapping[str, Any], author: int, chat: str) -> None:
        self._number += 1
        about = {"id": str(self._number), "type": kind, "token": "a.token", "channel_id": chat, "data": given}
        self.put("INTERACTION_CREATE", {**about, "user": {"id": str(author), "username": f"user{author}"}})
