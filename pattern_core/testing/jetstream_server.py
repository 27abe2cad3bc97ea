"""A Jetstream server on loopback, and the part of Bluesky's public API that its source asks, also when they behave
badly: for tests, also of users (github.com/bluesky-social/jetstream).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs, urlsplit

import trio

from pattern_core.ids import Clock, SystemClock
from pattern_core.testing.channels import GatewayServer
from pattern_core.testing.wire import Play, WireRequest, document
from pattern_core.web.websocket import WebSocket, WebSocketClosed

LATE_US_MAX = 2_000_000  # how much a frame is late when frames are reordered
LIST = "at://did:plc:anna/app.bsky.graph.list/3kfriends"
_POST = "app.bsky.feed.post"


class JetstreamServer(GatewayServer):
    """`says` is what people do; everyone is `NAME.example` with the DID `did:plc:NAME`. `members` are those of `LIST`.
    `queries` are what connections asked for, `wanted` the DIDs that each of them wanted.

    Faults: `drops` is how many connections are closed after their next frame without a word; `repeats` sends frames
    twice; `reorders` sends those that are there together up to two seconds late; so many `deaf` connections are sent
    nothing, and their pings are not answered.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__()
        self.members: list[str] = []
        self.frames: list[Any] = []
        self.queries: list[dict[str, list[str]]] = []
        self.wanted: list[list[str]] = []
        self.drops = self.deaf = 0
        self.repeats = self.reorders = False
        self._clock = clock or SystemClock()
        self._last_us = 0
        self._changed = trio.Event()

    def says(self, text: str, *, author: str = "anna", operation: str = "create", **record: Any) -> str:
        """Have a person write a post, or change or delete one; return its URI."""
        key = f"3k{len(self.frames):011d}"
        commit: dict[str, Any] = {"rev": "1", "operation": operation, "collection": _POST, "rkey": key}
        if operation != "delete":
            commit |= {"record": {"$type": _POST, "text": text, **record}, "cid": "bafy"}
        self.put({"did": f"did:plc:{author}", "kind": "commit", "commit": commit})
        return f"at://did:plc:{author}/{_POST}/{key}"

    def put(self, frame: Any) -> None:
        """Send a frame, with its time unless it has one."""
        self._last_us = max(self._clock.now_ms() * 1000, self._last_us + 1)
        self.frames.append({"time_us": self._last_us, **frame} if isinstance(frame, dict) else frame)
        self._changed.set()
        self._changed = trio.Event()

    async def serve_socket(self, socket: WebSocket, target: str) -> None:
        """Send one client what it wants, until it is gone."""
        query = parse_qs(urlsplit(target).query)
        self.queries.append(query)
        if self.deaf:
            self.deaf -= 1
            await trio.sleep_forever()
        asked = json.loads(await socket.receive())["payload"]
        cursor = int(query.get("cursor", ["0"])[0])
        start = 0 if cursor else len(self.frames)
        self.wanted.append(asked["wantedDids"])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._speak, socket, start, cursor, asked, nursery)
            with suppress(WebSocketClosed):
                while True:
                    await socket.receive()  # answers pings
            nursery.cancel_scope.cancel()

    async def _speak(
        self, socket: WebSocket, sent: int, cursor: int, asked: Mapping[str, Any], nursery: trio.Nursery
    ) -> None:
        with suppress(WebSocketClosed):
            while True:
                changed, there = self._changed, [one for one in self.frames[sent:] if self._wants(one, cursor, asked)]
                sent = len(self.frames)
                if self.reorders:
                    there.sort(key=lambda one: one["time_us"] + one["time_us"] * 7_919 % LATE_US_MAX)
                for frame in there * (1 + self.repeats):
                    await socket.send(frame if isinstance(frame, str) else json.dumps(frame))
                    if self.drops:
                        self.drops -= 1
                        await socket.abort()
                await changed.wait()
        nursery.cancel_scope.cancel()

    def _wants(self, frame: Any, cursor: int, asked: Mapping[str, Any]) -> bool:
        if not isinstance(frame, dict) or not isinstance(frame["time_us"], int):
            return True
        is_wanted = not asked["wantedDids"] or frame.get("did") in asked["wantedDids"]
        is_short = len(json.dumps(frame)) <= asked["maxMessageSizeBytes"]
        return frame["time_us"] >= cursor and is_wanted and is_short

    async def answer(self, request: WireRequest) -> Play:
        """Answer a call of the public API, which needs no account."""
        url = urlsplit(request.path)
        query = parse_qs(url.query)
        match url.path.rpartition(".")[2]:
            case "getProfiles" if len(query["actors"]) <= 25:
                names = [one.removeprefix("did:plc:").removesuffix(".example") for one in query["actors"]]
                return document({"profiles": [_profile(one) for one in names if one != "gone"]})
            case "getList" if query["list"] == [LIST]:
                start, limit = int(query.get("cursor", ["0"])[0]), int(query["limit"][0])
                page, end = self.members[start : start + limit], start + limit
                more = {"cursor": str(end)} if end < len(self.members) else {}
                return document({"list": {"uri": LIST}, "items": [{"subject": _profile(one)} for one in page], **more})
        return document({"error": "InvalidRequest", "message": f"no such thing: {request.path}"}, status=400)


def _profile(name: str) -> dict[str, str]:
    return {"did": f"did:plc:{name}", "handle": f"{name}.example"}
