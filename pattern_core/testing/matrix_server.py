"""A homeserver on loopback that speaks the part of Matrix that the channel uses, also badly: for tests, also of users.

Source: spec.matrix.org/v1.11/client-server-api. Places are `s{number}` of the last event that was seen.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import trio

from pattern_core.testing.wire import Play, WireRequest, WireServer, document

TOKEN = "syt_a-token-for-tests"
ME = "@pattern:home.example"
ANNA = "@anna:home.example"
BODY_BYTES_MAX = 65_536  # of an event


@dataclass
class HomeRoom:
    """A room: who is in it (`join`, `invite`), and its name."""

    id: str
    members: dict[str, str] = field(default_factory=dict)
    name: str = ""


class MatrixServer(WireServer):
    """A homeserver. `room`, `invites` and `says` are what people do; `sent` is what the agent sent, each once.

    Faults, each a number of times or permanently: `drops` accepts a message and closes the connection; `too_many`
    answers 429; `silent` never answers a poll; `repeats` sends events again; `page` is how long a timeline may be.
    """

    def __init__(self) -> None:
        super().__init__()
        self.answers: dict[str, Play] = {}  # by the end of a path: what is answered there instead
        self.rooms: dict[str, HomeRoom] = {}
        self.direct: dict[str, list[str]] = {}
        self.sent: list[dict[str, Any]] = []
        self.typing = self.sends = 0  # requests; repeated ones, too
        self.drops = self.too_many = self.silent = self.repeats = 0
        self.page = 5
        self.polled = 0  # the newest place from which a poll asked: what was before is stored
        self._events: list[dict[str, Any]] = []  # each with its room; its place is the number in the list, from 1
        self._known: dict[str, str] = {}  # the events that the agent sent, by transaction
        self._changed = trio.Event()

    def room(self, *members: str, name: str = "", room: str = "") -> str:
        """Create a room with these people and the agent; return its id."""
        made = HomeRoom(room or f"!room{len(self.rooms)}:home.example", name=name)
        self.rooms[made.id] = made
        if name:
            self.put(made.id, "m.room.name", {"name": name}, ANNA, state_key="")
        for one in (*members, ME):
            self.enters(made.id, one)
        return made.id

    def enters(self, room: str, person: str, membership: str = "join", by: str = "") -> None:
        """Have a person enter a room, or be invited or leave."""
        self.rooms[room].members[person] = membership
        about = {"membership": membership, "displayname": person[1:].partition(":")[0].title()}
        self.put(room, "m.room.member", about, by or person, state_key=person)

    def invites(self, by: str = ANNA) -> str:
        """Have a person create a room and invite the agent; return the room's id."""
        made = HomeRoom(f"!room{len(self.rooms)}:home.example")
        self.rooms[made.id] = made
        self.enters(made.id, by)
        self.enters(made.id, ME, "invite", by)
        return made.id

    def says(self, text: str, *, room: str, author: str = ANNA, **content: Any) -> str:
        """Have a person write in a room; return the event's id."""
        return self.put(room, "m.room.message", {"msgtype": "m.text", "body": text, **content}, author)

    def reacts(self, sign: str, event: str, *, room: str, author: str = ANNA) -> str:
        """Have a person react to an event with a sign."""
        about = {"rel_type": "m.annotation", "event_id": event, "key": sign}
        return self.put(room, "m.reaction", {"m.relates_to": about}, author)

    def put(self, room: str, kind: str, content: object, author: str, **more: object) -> str:
        """Add an event as it is; return its id."""
        event = {"event_id": f"$e{len(self._events) + 1}", "type": kind, "content": content, "sender": author, **more}
        self._events.append({"room_id": room, "origin_server_ts": 0, **event})
        self._changed.set()
        self._changed = trio.Event()
        return str(event["event_id"])

    @property
    def texts(self) -> list[str]:
        """The words that the agent sent, in order."""
        return [one["content"]["body"] for one in self.sent if one["type"] == "m.room.message"]

    async def answer(self, request: WireRequest) -> Play:
        """Return the answer to a request."""
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return _refused(401, "M_UNKNOWN_TOKEN", "Unrecognised access token")
        url = urlsplit(request.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        parts = [unquote(part) for part in url.path.removeprefix("/_matrix/client/v3/").split("/")]
        for path, play in self.answers.items():
            if url.path.endswith(path):
                return play
        match request.method, *parts:
            case "GET", "account", "whoami":
                return document({"user_id": ME})
            case "GET", "profile", _, "displayname":
                return document({"displayname": "Pattern"})
            case "GET", "sync":
                return await self._sync(query)
            case _, "rooms", room, *rest if room in self.rooms:
                return self._in_room(request, room, rest, query)
        return _refused(404, "M_UNRECOGNIZED", "Unrecognized request")

    async def _sync(self, query: Mapping[str, str]) -> Play:
        if self.silent:
            self.silent -= 1
            return Play(never_answers=True)
        since = int(query.get("since", "s0")[1:])
        self.polled = max(self.polled, since)
        if "since" in query:
            with trio.move_on_after(int(query.get("timeout", "0")) / 1000):
                while len(self._events) <= since:
                    await self._changed.wait()
        if self.repeats and since:
            self.repeats -= 1
            since = max(1, since - 3)
        rooms: dict[str, dict[str, Any]] = {"join": {}, "invite": {}, "leave": {}}
        for room in self.rooms.values():
            new = [one for one in self._events[since:] if one["room_id"] == room.id]
            match room.members.get(ME) if new else None:
                case "join":
                    rooms["join"][room.id] = self._joined(room, new, since)
                case "invite":
                    rooms["invite"][room.id] = {"invite_state": {"events": _shown(new)}}
                case "leave":
                    rooms["leave"][room.id] = {}
        direct = {"type": "m.direct", "content": self.direct}
        following = {"next_batch": f"s{len(self._events)}", "rooms": rooms}
        return document({**following, "account_data": {"events": [direct] if self.direct and not since else []}})

    def _joined(self, room: HomeRoom, new: list[dict[str, Any]], since: int) -> dict[str, Any]:
        """Return what a poll shows of a room: all of it to an agent that has just entered."""
        everything = [one for one in self._events if one["room_id"] == room.id]
        members = [one for one in everything if one["type"] == "m.room.member"]
        shown = everything if any(one.get("state_key") == ME for one in new) else new
        about: dict[str, Any] = {
            "timeline": {"events": _shown(shown[-self.page :]), "limited": len(shown) > self.page},
            "state": {"events": _shown([*members, *(one for one in everything if one["type"] == "m.room.name")])},
        }
        if not since or any(one in members for one in new):
            there = list(room.members.values())
            about["summary"] = {
                "m.joined_member_count": there.count("join"),
                "m.invited_member_count": there.count("invite"),
            }
        return about

    def _in_room(self, request: WireRequest, room: str, parts: list[str], query: Mapping[str, str]) -> Play:
        match request.method, *parts:
            case "POST", "join" if self.rooms[room].members.get(ME):
                self.enters(room, ME)
                return document({"room_id": room})
            case _ if self.rooms[room].members.get(ME) != "join":
                return _refused(403, "M_FORBIDDEN", "User is not in the room")
            case "GET", "messages":
                start, end = int(query["from"][1:]), int(query["to"][1:])
                places = range(start, min(end, len(self._events)))
                found = [at for at in places if self._events[at]["room_id"] == room][: int(query["limit"])]
                there = (one for one in self._events if one["type"] == "m.room.member" and one["room_id"] == room)
                more = {"end": f"s{found[-1] + 1}"} if found else {}
                return document({"chunk": _shown(self._events[at] for at in found), "state": _shown(there), **more})
            case "GET", "event", native:
                for one in self._events:
                    if (one["room_id"], one["event_id"]) == (room, native):
                        return document(one)
            case "PUT", "typing", _:
                self.typing += 1
                return document({})
            case "PUT", "send", kind, transaction:
                return self._send(request, room, kind, transaction)
        return _refused(404, "M_NOT_FOUND", "Not found")

    def _send(self, request: WireRequest, room: str, kind: str, transaction: str) -> Play:
        self.sends += 1
        if self.too_many:
            self.too_many -= 1
            wanted = {"errcode": "M_LIMIT_EXCEEDED", "error": "Too Many Requests", "retry_after_ms": 2500}
            return document(wanted, status=429)
        content = request.json()
        if len(json.dumps(content, ensure_ascii=False).encode()) > BODY_BYTES_MAX:
            return _refused(413, "M_TOO_LARGE", "event too large")
        if transaction not in self._known:
            self._known[transaction] = self.put(room, kind, content, ME)
            self.sent.append(self._events[-1])
        if self.drops and kind == "m.room.message":
            self.drops -= 1
            return Play(stops_after=0, chunks=(b"x",))
        return document({"event_id": self._known[transaction]})


def _shown(events: Any) -> list[dict[str, Any]]:
    """Return events without their room, as lists of one room have them."""
    return [{name: value for name, value in one.items() if name != "room_id"} for one in events]


def _refused(status: int, code: str, words: str) -> Play:
    return document({"errcode": code, "error": words}, status=status)
