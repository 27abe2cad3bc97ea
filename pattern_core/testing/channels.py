"""Services on loopback that behave as those of sources and channels do, also badly: for tests, also of users.

`TelegramServer` speaks the part of the Bot API that the channel uses (core.telegram.org/bots/api); `FeedServer` serves
a feed with conditional requests; `GatewayServer` is for those that keep connections.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from typing import Any, Self

import trio

from pattern_core.testing.wire import Play, WireRequest, WireServer, document
from pattern_core.web.websocket import WebSocket, WebSocketClosed

TOKEN = "12345:a-token-for-tests"
SOCKET_BYTES_MAX = 1024 * 1024
BOT = {"id": 12345, "is_bot": True, "first_name": "Bot", "username": "pattern_bot"}


class TelegramServer(WireServer):
    """A Bot API server. `says` and `presses` are what people do; `sent` is what the bot sent, in order.

    Faults, each a number of times: `drops` accepts a message and closes the connection; `too_many` answers 429;
    `unable` shows no file; `silent` never answers; `repeats` sends updates again that were acknowledged; `reorders`
    sends them backwards.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[dict[str, Any]] = []
        self.signals = 0
        self.changes: list[str] = []  # of messages that say what the agent does, in order
        self.answered: list[str] = []  # buttons that stopped waiting
        self.drops = self.too_many = self.unable = self.silent = self.repeats = 0
        self.reorders = False
        self.acknowledged = 0  # the offset of the last poll
        self.updates: list[dict[str, Any]] = []  # all, in order
        self._arrived_update = trio.Event()
        self._messages = 100
        self._files: dict[str, bytes] = {}

    def says(self, text: str, *, author: int = 1, chat: int | None = None, name: str = "Anna", **more: Any) -> int:
        """Have a person write a message, in a private chat or in a room (a negative id); return the message's id."""
        self._messages += 1
        place = author if chat is None else chat
        about = {"id": place, "type": "private" if place > 0 else "supergroup", "title": "The room"}
        writer = {"id": author, "is_bot": False, "first_name": name}
        message = {"message_id": self._messages, "date": 0, "chat": about, "from": writer, "text": text, **more}
        self.put({"message": message})
        return self._messages

    def sends(self, name: str, data: bytes, **more: Any) -> int:
        """Have a person send a file, as `says`; one without a name is a photo."""
        file_id = f"f{len(self._files)}"
        self._files[file_id] = data
        file = {"document": {"file_id": file_id, "file_name": name}}
        photo = {"photo": [{"file_id": "small"}, {"file_id": file_id}]}
        return self.says("", **(file if name else photo), **more)

    def presses(self, button: str, *, author: int = 1) -> None:
        """Have a person press the button with these words on the newest message that has buttons."""
        asked = next(one for one in reversed(self.sent) if "reply_markup" in one)
        [row] = asked["reply_markup"]["inline_keyboard"]
        data = next(one["callback_data"] for one in row if one["text"] == button)
        writer = {"id": author, "is_bot": False, "first_name": "Anna"}
        message = {"message_id": 1, "date": 0, "chat": {"id": asked["chat_id"], "type": "private"}}
        self.put({"callback_query": {"id": f"q{len(self.updates)}", "from": writer, "message": message, "data": data}})

    def put(self, update: Mapping[str, Any]) -> None:
        """Add an update as it is."""
        self.updates.append({"update_id": len(self.updates) + 1, **update})
        self._arrived_update.set()
        self._arrived_update = trio.Event()

    @property
    def texts(self) -> list[str]:
        """The words that the bot sent, in order."""
        return [str(one["text"]) for one in self.sent]

    async def answer(self, request: WireRequest) -> Play:
        """Return the answer to a call of a method."""
        path, method = request.path.rpartition("/")[::2]
        if path == f"/file/bot{TOKEN}/files":
            self.unable -= self.unable > 0
            status = 503 if self.unable else 200 if method in self._files else 404
            return Play(chunks=(self._files.get(method, b""),), status=status)
        if path != f"/bot{TOKEN}":
            return document({"ok": False, "error_code": 401, "description": "Unauthorized"}, status=401)
        given: dict[str, Any] = request.form() if method == "sendDocument" else request.json()
        if self.too_many and method == "sendMessage":
            self.too_many -= 1
            wanted = {"ok": False, "description": "Too Many Requests", "parameters": {"retry_after": 3}}
            return document(wanted, status=429)
        match method:
            case "getMe":
                return _done(BOT)
            case "getUpdates":
                return await self._poll(given)
            case "sendChatAction":
                self.signals += 1
                return _done(True)
            case "editMessageText" | "deleteMessage":
                self.changes.append(str(given["text"] if method == "editMessageText" else "deleted"))
                return _done(True)
            case "sendMessage" if given.get("disable_notification"):
                self.changes.append(str(given["text"]))
                return _done({"message_id": 9_000 + len(self.changes)})
            case "answerCallbackQuery":
                self.answered.append(str(given["callback_query_id"]))
                return _done(True)
            case "getFile":
                return _done({"file_path": f"files/{given['file_id']}"})
            case "sendMessage":
                return self._send(given)
            case "sendDocument":
                name, data = given.pop("document")
                return self._send({**given, "chat_id": int(given["chat_id"]), "text": f"<{name}>", "document": data})
        return document({"ok": False, "description": "Not Found"}, status=404)

    async def _poll(self, given: Mapping[str, Any]) -> Play:
        if self.silent:
            self.silent -= 1
            return Play(never_answers=True)
        offset = int(given.get("offset", 0))
        self.acknowledged = max(self.acknowledged, offset - 1)
        if self.repeats:
            self.repeats -= 1
            offset = 0
        with trio.move_on_after(int(given.get("timeout", 0))):
            while not any(one["update_id"] >= offset for one in self.updates):
                await self._arrived_update.wait()
        found = [one for one in self.updates if one["update_id"] >= offset][: int(given.get("limit", 100))]
        return _done(found[::-1] if self.reorders else found)

    def _send(self, given: Mapping[str, Any]) -> Play:
        if not 0 < len(str(given["text"]).encode("utf-16-le")) // 2 <= 4096:
            return document({"ok": False, "description": "Bad Request: message is too long"}, status=400)
        self.sent.append(dict(given))
        if self.drops:
            self.drops -= 1
            return Play(stops_after=0, chunks=(b"x",))
        return _done({"message_id": 10_000 + len(self.sent)})


def _done(result: object) -> Play:
    return document({"ok": True, "result": result})


class GatewayServer(WireServer):
    """An API, and next to it a port for WebSockets, each of which `serve_socket` serves."""

    def __init__(self) -> None:
        super().__init__()
        self._gateway = _Port(self._serve_gateway)
        self._open: dict[WebSocket, trio.Event] = {}  # connections, and what asks each to end

    async def __aenter__(self) -> Self:
        await self._gateway.__aenter__()
        await super().__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        try:
            await super().__aexit__(*error)
        finally:
            await self._gateway.__aexit__(*error)

    @property
    def ports(self) -> tuple[int, ...]:
        """What a policy must allow."""
        return self.port, self._gateway.port

    @property
    def gateway_url(self) -> str:
        """The address for WebSockets, without a path."""
        return f"ws://127.0.0.1:{self._gateway.port}"

    async def breaks(self) -> None:
        """Close all WebSockets without a word."""
        for socket in list(self._open):
            await socket.abort()

    async def serve_socket(self, socket: WebSocket, target: str) -> None:
        """Serve a WebSocket that was opened at a path."""
        raise NotImplementedError

    async def _serve_gateway(self, stream: trio.SocketStream) -> None:
        async with WebSocket(stream, is_client=False, bytes_max=SOCKET_BYTES_MAX) as socket:
            self._open[socket] = trio.Event()
            try:
                with suppress(WebSocketClosed):
                    await self.serve_socket(socket, await socket.accept())
            finally:
                del self._open[socket]


class _Port(WireServer):
    def __init__(self, serve: Callable[[trio.SocketStream], Awaitable[None]]) -> None:
        super().__init__()
        self._serve = serve

    async def serve_connection(self, stream: trio.SocketStream) -> None:
        await self._serve(stream)


class FeedServer(WireServer):
    """Serves `body` as a feed, and 304 to who has it; `moved_to` is a path to which it has moved permanently."""

    def __init__(self, body: bytes) -> None:
        super().__init__(otherwise=self._feed)
        self.body = body
        self.moved_to: str | None = None
        self.status = 200

    def _feed(self, request: WireRequest) -> Play:
        if self.moved_to is not None and request.path != self.moved_to:
            return Play(status=301, headers={"location": self.moved_to})
        tag = f'"{sha256(self.body).hexdigest()[:16]}"'
        if request.headers.get("if-none-match") == tag:
            return Play(status=304, headers={"etag": tag})
        return Play(chunks=(self.body,), status=self.status, headers={"content-type": "application/xml", "etag": tag})
