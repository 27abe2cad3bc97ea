"""Slack on loopback, also when it behaves badly: for tests, also of users. It speaks the part of the Web API and of
Socket Mode that the channel uses (docs.slack.dev).
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl

import trio

from pattern_core.testing.channels import GatewayServer
from pattern_core.testing.wire import Play, WireRequest, document
from pattern_core.web.websocket import WebSocket, WebSocketClosed

TOKEN = "xoxb-a-slack-token-for-tests"
APP_TOKEN = "xapp-a-slack-token-for-tests"
BOT, ROOM = "U99", "C500"
RETRIES = 3  # of an envelope, then it is given up
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # of a message, by who sends it


class SlackServer(GatewayServer):
    """The API and the connections. `says` and `presses` are what people do; `sent` is what the app sent, in order.

    An envelope that is not acknowledged within `patience_s`, or before its connection ended, is sent again. Faults,
    each a number of times: `drops` accepts a message and closes the connection; `too_many` answers 429; `repeats` sends
    an envelope twice; `deaf` connections say nothing and answer no ping. `breaks` and `disconnects` end the connections
    that there are, `gives_up` forgets what was not acknowledged. A `forgetful` service does not know ids of messages.
    """

    def __init__(self, *, patience_s: float = 3.0) -> None:
        super().__init__()
        self.sent: list[dict[str, str]] = []
        self.begun: list[str] = []  # the tickets of connections that were greeted
        self.acknowledged: list[str] = []
        self.retries = 0
        self.drops = self.too_many = self.repeats = self.deaf = 0
        self.forgetful = False
        self.errors: dict[str, str] = {}  # by method: with what it is refused
        self.files: dict[str, bytes] = {}  # by path: what may be downloaded
        self.history: dict[str, list[dict[str, Any]]] = {}
        self._patience_s = patience_s
        self._ids: set[str] = set()
        self._tickets: set[str] = set()  # each opens one connection
        self._number = 0
        self._waiting: dict[str, dict[str, Any]] = {}  # envelopes that are not acknowledged
        self._sent: dict[str, tuple[WebSocket, float]] = {}  # and by which connections they were sent last, and when
        self._changed = trio.Event()
        self._reason = ""

    @property
    def texts(self) -> list[str]:
        """The words that the app sent, in order."""
        return [one["text"] for one in self.sent]

    # What people do

    def says(self, text: str, *, author: int = 1, chat: str = "", thread: str = "", **more: Any) -> str:
        """Have a person write a message, directly or in a channel; return its timestamp. `<@U99>` mentions the app."""
        place = chat or f"D{author}"
        message = self._message(place, {"user": f"U{author}", "text": text, "team": "T1", **more}, thread)
        event = {**message, "channel": place, "channel_type": "im" if place[0] == "D" else "channel"}
        self.put(dict(event))
        if f"<@{BOT}>" in text and place[0] != "D":
            del event["channel_type"]
            self.put({**event, "type": "app_mention"})  # comes in addition to the message
        return str(message["ts"])

    def edits(self, chat: str, number: str, text: str) -> None:
        """Have a person edit a message."""
        message = next(one for one in self.history[chat] if one["ts"] == number)
        message |= {"text": text, "edited": {"user": message["user"], "ts": self._stamp()}}
        self.put({"type": "message", "subtype": "message_changed", "channel": chat, "message": dict(message)})

    def presses(self, label: str, *, author: int = 1) -> None:
        """Have a person press the button with this label on the newest message that has buttons."""
        asked = next(one for one in reversed(self.sent) if "blocks" in one)
        [_words, actions] = json.loads(asked["blocks"])
        button = next(one for one in actions["elements"] if one["text"]["text"] == label)
        pressed = {name: button[name] for name in ("action_id", "value", "type")}
        container = {"type": "message", "channel_id": asked["channel"], "message_ts": asked["ts"]}
        payload = {
            "type": "block_actions",
            "user": {"id": f"U{author}", "name": f"user{author}"},
            "container": {**container, **({"thread_ts": asked["thread_ts"]} if "thread_ts" in asked else {})},
            "actions": [{**pressed, "action_ts": self._stamp()}],
        }
        self._add({"type": "interactive", "payload": payload})

    def put(self, event: object) -> None:
        """Send an event as it is."""
        payload = {"type": "event_callback", "event_id": f"Ev{self._number}", "event": event}
        self._add({"type": "events_api", "payload": payload})

    # Faults

    def disconnects(self, reason: str = "refresh_requested") -> None:
        """Have all connections end, and say why."""
        self._reason = reason
        for end in self._open.values():
            end.set()

    def gives_up(self) -> None:
        """Forget what was not acknowledged: it is only in the history."""
        self._waiting.clear()

    # The API

    async def answer(self, request: WireRequest) -> Play:
        """Return the answer to a request."""
        method, given = request.path.removeprefix("/"), dict(parse_qsl(request.body.decode()))
        token = APP_TOKEN if method == "apps.connections.open" else TOKEN
        authorization = request.headers.get("authorization")
        if authorization != f"Bearer {token}":
            is_other = authorization in (f"Bearer {TOKEN}", f"Bearer {APP_TOKEN}")
            return _refused("not_allowed_token_type" if is_other else "invalid_auth")
        if method.startswith("files-pri/"):
            is_there = request.path in self.files
            return Play(chunks=(self.files.get(request.path, b""),), status=200 if is_there else 404)
        if method in self.errors:
            return _refused(self.errors[method])
        match method:
            case "auth.test":
                return _ok(user_id=BOT, bot_id="B99", user="pattern")
            case "apps.connections.open":
                self._tickets.add(ticket := f"ticket-{self._next()}")
                return _ok(url=f"{self.gateway_url}/link/?{ticket}")
            case "users.info":
                return _ok(user={"id": given["user"], "name": "anna", "real_name": "Anna", "profile": {}})
            case "conversations.info":
                return _ok(channel={"id": given["channel"], "name": "general"})
            case "conversations.history" | "conversations.replies":
                return self._history(given, is_newest_first=method.endswith("history"))
            case "chat.postMessage":
                return self._post(given)
        return _refused("unknown_method")

    def _history(self, given: dict[str, str], *, is_newest_first: bool) -> Play:
        if given["channel"] not in self.history:
            return _refused("channel_not_found")
        root, oldest = given.get("ts"), given.get("oldest", "")
        found = [
            one
            for one in self.history[given["channel"]]
            if (one["ts"] == root or (one["ts"] > oldest and one.get("thread_ts") == root))
            or (root is None and one["ts"] > oldest and one.get("thread_ts") in (None, one["ts"]))
        ]
        start, limit = int(given.get("cursor", "0")), int(given["limit"])
        page = (found[::-1] if is_newest_first else found)[start : start + limit]
        following = str(start + limit) if start + limit < len(found) else ""
        return _ok(messages=page, has_more=bool(following), response_metadata={"next_cursor": following})

    def _post(self, given: dict[str, str]) -> Play:
        if self.too_many:
            self.too_many -= 1
            return document({"ok": False, "error": "ratelimited"}, status=429, headers={"retry-after": "7"})
        if not 0 < len(given["text"]) <= 40_000:
            return _refused("msg_too_long" if given["text"] else "no_text")
        if given["channel"][0] != "D" and given["channel"] != ROOM:
            return _refused("channel_not_found")
        if not _ID.fullmatch(given["client_msg_id"]):
            return _refused("invalid_arguments")
        if self.forgetful or given["client_msg_id"] not in self._ids:
            self._ids.add(given["client_msg_id"])
            about = {"user": BOT, "bot_id": "B99", "text": given["text"]}
            message = self._message(given["channel"], about, given.get("thread_ts", ""))
            self.sent.append({**given, "ts": message["ts"]})
            self.put({**message, "channel": given["channel"]})
        if self.drops:
            self.drops -= 1
            return Play(stops_after=0, chunks=(b"x",))
        return _ok(channel=given["channel"], ts=self.sent[-1]["ts"])

    # Socket Mode

    async def serve_socket(self, socket: WebSocket, target: str) -> None:
        """Serve a connection with a ticket."""
        ticket = target.partition("?")[2]
        self._tickets.remove(ticket)
        try:
            if self.deaf:
                self.deaf -= 1
                await self._open[socket].wait()
            else:
                self.begun.append(ticket)
                await self._speak(socket)
        finally:
            self._sent = {name: last for name, last in self._sent.items() if last[0] is not socket}
            self._change()

    async def _speak(self, socket: WebSocket) -> None:
        await socket.send(json.dumps({"type": "hello", "num_connections": len(self._open)}))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hear, socket, nursery.cancel_scope)
            nursery.start_soon(self._tell, socket)
            await self._open[socket].wait()
            with suppress(WebSocketClosed):
                await socket.send(json.dumps({"type": "disconnect", "reason": self._reason}))
            await trio.sleep_forever()  # acknowledgements still come, until the client leaves

    async def _hear(self, socket: WebSocket, scope: trio.CancelScope) -> None:
        with suppress(WebSocketClosed):
            while True:
                name = json.loads(await socket.receive())["envelope_id"]
                self.acknowledged.append(name)
                self._waiting.pop(name, None)
        scope.cancel()

    async def _tell(self, socket: WebSocket) -> None:
        with suppress(WebSocketClosed):
            while True:
                changed = self._changed
                for name, envelope in list(self._waiting.items()):
                    if name in self._sent and trio.current_time() < self._sent[name][1] + self._patience_s:
                        continue
                    if envelope["retry_attempt"] > RETRIES:
                        del self._waiting[name]
                    elif not self._open[socket].is_set():
                        self._sent[name] = socket, trio.current_time()
                        for _ in range(2 if self.repeats else 1):
                            await socket.send(json.dumps(envelope))
                        self.repeats -= self.repeats > 0
                        self.retries += envelope["retry_attempt"] > 0
                        envelope["retry_attempt"] += 1
                with trio.move_on_after(self._patience_s):
                    await changed.wait()

    def _add(self, envelope: dict[str, Any]) -> None:
        name = f"envelope-{self._next()}"
        self._waiting[name] = {**envelope, "envelope_id": name, "retry_attempt": 0}
        self._change()

    def _change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _stamp(self) -> str:
        return f"1796000000.{self._next():06}"

    def _message(self, chat: str, about: dict[str, Any], thread: str) -> dict[str, Any]:
        message = {"type": "message", "ts": self._stamp(), **({"thread_ts": thread} if thread else {}), **about}
        self.history.setdefault(chat, []).append(message)
        return message


def _ok(**fields: object) -> Play:
    return document({"ok": True, **fields})


def _refused(error: str) -> Play:
    return document({"ok": False, "error": error})
