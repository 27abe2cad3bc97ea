"""Matrix: the agent is a user of a homeserver, which is asked by long polls, so no public address is needed.

Source: spec.matrix.org/v1.11/client-server-api. The server knows a repeated message by its transaction id, so an answer
is there once. A poll sends `since`, which is stored with the events. A timeline that is incomplete is read again as a
whole, forwards from there, before anything newer. Encrypted rooms cannot be read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any, ClassVar
from urllib.parse import quote, urlencode

from pattern_core.errors import InvalidInput, NotFound, PatternError, PermissionDenied
from pattern_core.sources.service import ServiceApi
from pattern_core.sources.source import (
    UNREADABLE,
    Arrivals,
    Outgoing,
    SourceAccount,
    SourceEvent,
    SourceKind,
    decision,
    take_fields,
)
from pattern_core.untrusted import plain
from pattern_core.web.policy import SourceSettings
from pattern_db.columns import Json

POLL_S = 30  # how long the server waits for something new
PAUSE_S = 1.0  # after a poll that found nothing: a server that does not wait is not asked all the time
SYNC_EVENTS = 5  # of a room in one poll; what is more comes in pages. An event has 65,536 bytes, an answer 5 MB
PAGE_EVENTS = 50
ROOMS_MAX = 1_000  # of which something is remembered; any other counts as one of several people
TYPING_MS = 6_000
APPROVAL = "org.pattern.approval"  # in the content of a question: the id of its approval
ANSWERS = {"✅": True, "❌": False}
ENCRYPTED = "This room is encrypted, so I cannot read what is written here. Please write to me in one that is not."
_ID = re.compile(r"[!$@][^\s\0-\x1f\x7f-\x9f\ud800-\udfff]{1,254}")  # of a room, an event or a person
_TOKEN = re.compile(r"[!-~]{1,800}")
_QUOTED = re.compile(r"\A(> [^\n]*\n)+\n?")  # the message that is answered, as some programs repeat it
_TYPES = ("m.room.message", "m.reaction", "m.room.encrypted", "m.room.member", "m.room.name")
_MEMBERS = {"lazy_load_members": True, "include_redundant_members": True}
_NONE: Mapping[str, Json] = {"types": []}
_TIMELINE = {"limit": SYNC_EVENTS, "types": _TYPES, **_MEMBERS}
_STATE = {"types": ["m.room.member", "m.room.name"], **_MEMBERS}
_ROOM = {"timeline": _TIMELINE, "state": _STATE, "ephemeral": _NONE, "account_data": _NONE}
_FILTER = {"room": _ROOM, "presence": _NONE, "account_data": {"types": ["m.direct"]}}
_API = ServiceApi(name="the homeserver", advice="make a new one, and set it as the secret")
_Content = Mapping[str, Any]


class MatrixChannel(SourceKind):
    """People talk to a user: each room and each thread is a conversation."""

    fields: ClassVar = {
        "token": "name of a secret below [sources.secrets] with an access token of the agent's user",
        "homeserver": "address of the homeserver's client API, such as https://matrix.example.org",
        "invitations_from": "ids of people, such as @anna:example.org: their invitations into rooms are accepted",
    }
    secret_fields: ClassVar = ("token",)
    chars_max: ClassVar = 20_000  # at most 60,000 bytes; an event has 65,536
    is_idempotent: ClassVar = True

    def checked(self, config: Mapping[str, Json], settings: SourceSettings) -> Mapping[str, Json]:
        """Return the configuration with its defaults, as `SourceKind.checked`."""
        found = take_fields(self, config, {"token": None, "homeserver": None, "invitations_from": []})
        for person in found["invitations_from"]:
            if not isinstance(person, str) or not _ID.fullmatch(person) or person[0] != "@":
                raise InvalidInput(f"{person!r} is not the id of a person; one looks like @anna:example.org")
        settings.check_service(found["homeserver"])
        return found

    async def poll(self, account: SourceAccount) -> Arrivals:
        """Return new events, as `SourceKind.poll`; waits for the first one. The first poll only notes the place."""
        reading = _Reading(account)
        if reading.gaps:
            await reading.fill()
        else:
            await reading.sync()
        is_more = bool(reading.events or reading.gaps)
        return Arrivals(events=reading.events, cursor=reading.cursor, wait_s=0.0 if is_more else PAUSE_S)

    async def signal(self, account: SourceAccount, chat: str) -> None:
        """Show that the agent is typing, as `SourceKind.signal`."""
        path = f"{_path(chat.split()[1])}/typing/{quote(account.cursor['me']['id'], safe='')}"
        await _call(account, "PUT", path, {"typing": True, "timeout": TYPING_MS})

    async def send(self, account: SourceAccount, chat: str, said: Outgoing, send_id: str) -> None:
        """Send a message, as `SourceKind.send`. A question has two reactions: people only need to choose one."""
        _, room, thread = (*chat.split(), "")[:3]
        relation: dict[str, Json] = {"rel_type": "m.thread", "event_id": thread} if thread else {}
        if said.reply_to:
            relation["m.in_reply_to"] = {"event_id": said.reply_to.split()[-1]}
        words = said.text
        if said.approval is not None:
            words += "\n\nReact with ✅ or ❌, or reply to this message with yes or no."
        # No one is notified because of a word, such as @room: only of what is named in `m.mentions`.
        content: dict[str, Json] = {"msgtype": "m.text", "body": plain(words), "m.mentions": {}}
        content |= {"m.relates_to": relation} if relation else {}
        content |= {APPROVAL: said.approval} if said.approval is not None else {}
        sent = await _say(account, room, content, send_id)
        for number, sign in enumerate(ANSWERS if said.approval is not None else ()):
            with suppress(PatternError):  # the words say it, too
                about = {"rel_type": "m.annotation", "event_id": sent.get("event_id"), "key": sign}
                await _say(account, room, {"m.relates_to": about}, f"{send_id}.{number}", "m.reaction")


class _Reading:
    """One poll: what is remembered, which becomes the next cursor, and what was found."""

    def __init__(self, account: SourceAccount) -> None:
        self.account = account
        self.cursor = kept = json.loads(json.dumps(dict(account.cursor)))  # a copy: what is stored does not change
        self.since: str = kept.get("since", "")
        self.me: dict[str, str] = kept.get("me", {})
        self.rooms: dict[str, list[Any]] = kept.setdefault("rooms", {})  # name, how many joined and are invited
        self.direct: dict[str, str] = kept.setdefault("direct", {})  # by room: with whom
        self.encrypted: list[str] = kept.setdefault("encrypted", [])  # rooms in which that was said
        self.gaps: list[list[str]] = kept.setdefault("gaps", [])  # a room, and between which places to read it
        self.joined: dict[str, str] = kept.setdefault("joined", {})  # rooms that come, and since when to read them
        self.names: dict[tuple[str, str], str] = {}  # of people, by room and id
        self.events: list[SourceEvent] = []

    async def sync(self) -> None:
        """Ask for what is new in all rooms."""
        query = {"filter": json.dumps(_FILTER, separators=(",", ":")), "set_presence": "offline"}
        if self.since:
            query |= {"since": self.since, "timeout": str(POLL_S * 1000)}
        else:
            self.cursor["me"] = self.me = await _myself(self.account)
        page = await _call(self.account, "GET", f"sync?{urlencode(query)}", timeout_s=POLL_S)
        following = page["next_batch"]
        if not _TOKEN.fullmatch(following):
            raise InvalidInput("the homeserver names no place to read on from")
        for one in _all(page.get("account_data")):
            with suppress(*UNREADABLE):
                pairs = [(room, person) for person, rooms in one["content"].items() for room in rooms]
                self.direct.clear()
                self.direct |= {room: person for room, person in pairs[:ROOMS_MAX] if _ID.fullmatch(room)}
        rooms = page.get("rooms") or {}
        for room in rooms.get("leave") or ():
            self.rooms.pop(room, None)
        for room, about in (rooms.get("join") or {}).items():
            if _ID.fullmatch(room):
                await self._room(room, about, following)
        for room, about in (rooms.get("invite") or {}).items():
            mine = [one for one in _all(about.get("invite_state")) if _is_of(one, self.me["id"])]
            is_welcome = mine and mine[-1].get("sender") in self.account.config["invitations_from"]
            with suppress(PatternError):  # such as one that was withdrawn; the person can invite again
                if is_welcome and _ID.fullmatch(room):
                    await _call(self.account, "POST", f"{_path(room)}/join", {})
                    self.joined[room] = self.since  # what was written behind the invitation is for the agent
        self.cursor["since"] = following

    async def _room(self, room: str, about: _Content, following: str) -> None:
        """Read what is new in a room. Nothing is from before the agent came, or before the first poll."""
        name, *counts = self.rooms.get(room, ["", None, 0])
        timeline, found = about.get("timeline") or {}, _all(about.get("timeline"))
        name = self._names(room, (*_all(about.get("state")), *found)) or name
        said = [(about.get("summary") or {}).get(f"m.{which}_member_count") for which in ("joined", "invited")]
        if room in self.rooms or len(self.rooms) < ROOMS_MAX:
            both = zip(said, counts, strict=True)
            self.rooms[room] = [name, *(new if isinstance(new, int) else known for new, known in both)]
        start = self.joined.pop(room, "") or self.since
        if self.since and (timeline.get("limited") or any(_is_of(event, self.me["id"]) for event in found)):
            self.gaps.append([room, start, following])
        elif self.since:
            await self._add_all(room, found)

    def _names(self, room: str, events: Sequence[_Content]) -> str:
        """Note the names of people; return that of the room, if it is among the events."""
        name = ""
        for event in events:
            with suppress(*UNREADABLE):
                if event["type"] == "m.room.name":
                    name = event["content"]["name"][:200].encode("utf-8", "replace").decode()
                elif event["type"] == "m.room.member":
                    self.names[room, event["state_key"]] = event["content"]["displayname"]
        return name

    async def fill(self) -> None:
        """Read the next part of a timeline that was incomplete."""
        room, start, end = self.gaps[0]
        wanted = json.dumps({"types": _TYPES, **_MEMBERS}, separators=(",", ":"))
        query = {"dir": "f", "from": start, "to": end, "limit": str(PAGE_EVENTS), "filter": wanted}
        page: _Content = {"chunk": []}
        with suppress(NotFound, PermissionDenied):  # the agent is not in the room any more
            page = await _call(self.account, "GET", f"{_path(room)}/messages?{urlencode(query)}")
        self._names(room, page.get("state") or ())
        await self._add_all(room, page["chunk"])
        self.gaps[0][1] = following = page.get("end") or ""
        if not page["chunk"] or not _TOKEN.fullmatch(following) or following == start:
            del self.gaps[0]

    async def _add_all(self, room: str, events: Sequence[_Content]) -> None:
        for event in events:
            with suppress(*UNREADABLE):
                await self._add(room, event)

    async def _add(self, room: str, event: _Content) -> None:
        """Add an event to what was found, if it is one that someone else wrote. Raises any of `UNREADABLE`."""
        native, author, content = event["event_id"], event["sender"], event["content"]
        if author == self.me["id"] or not (_ID.fullmatch(native) and _ID.fullmatch(author)):
            return
        if event["type"] == "m.room.encrypted":
            await self._cannot_read(room)
            return
        relation, asked = content.get("m.relates_to") or {}, dict[str, Any]()
        thread, target, text, choice = _thread(content), relation.get("event_id"), "", None
        if event["type"] == "m.reaction":
            choice, asked = ANSWERS[relation["key"].replace("\ufe0f", "")], await self._find(room, target)
            native, thread = f"{native} {target}", _thread(asked["content"])
        elif relation.get("rel_type") == "m.replace":
            changed = await self._find(room, target)  # only this says in which thread it is
            if changed["sender"] != author:
                return
            content, native, thread = content["m.new_content"], f"{native} {target}", _thread(changed["content"])
            text = f"(edited) {_words(content)}"
        elif event["type"] == "m.room.message":
            text = _words(content)
            choice = decision(text)
            answered = (relation.get("m.in_reply_to") or {}).get("event_id")
            if answered and not relation.get("is_falling_back"):
                asked = await self._find(room, answered)
        is_private, is_mine = self._is_private(room, author), asked.get("sender") == self.me["id"]
        approval = asked["content"].get(APPROVAL) if is_mine and choice is not None else None
        if not text and not isinstance(approval, str):  # such as a reaction to something else
            return
        self.events.append(
            SourceEvent(
                native=native,
                text=text.replace(self.me["id"], "").strip(),
                author=author,
                author_name=str(self.names.get((room, author), author)),
                # A room that is not private any more is another conversation.
                chat=" ".join(filter(None, ("private" if is_private else "room", room, thread))),
                chat_name="" if is_private else self.rooms.get(room, [""])[0] or room,
                room="" if is_private else room,
                is_addressed=is_private or is_mine or self._names_me(content, text),
                is_bot=content.get("msgtype") == "m.notice",  # which programs write, and are not to answer
                decides=(approval, bool(choice)) if isinstance(approval, str) else None,
            )
        )

    def _is_private(self, room: str, author: str) -> bool:
        """Return whether no one but this person reads what is said in a room, as far as is known."""
        _, joined, invited = self.rooms.get(room, ["", None, 0])
        return self.direct.get(room) == author or (joined is not None and joined + invited <= 2)

    def _names_me(self, content: _Content, text: str) -> bool:
        mentions = content.get("m.mentions")
        if isinstance(mentions, dict):
            return self.me["id"] in (mentions.get("user_ids") or ())
        names = "|".join(re.escape(name.casefold()) for name in self.me.values() if name)
        return re.search(rf"(?<!\w)(?:{names})(?!\w)", text.casefold()) is not None

    async def _find(self, room: str, native: object) -> dict[str, Any]:
        """Return an event of a room; nothing if it is not there."""
        if isinstance(native, str) and _ID.fullmatch(native):
            with suppress(NotFound, PermissionDenied):
                return await _call(self.account, "GET", f"{_path(room)}/event/{quote(native, safe='')}")
        return {}

    async def _cannot_read(self, room: str) -> None:
        """Say once in a room that it cannot be read."""
        if room not in self.encrypted and len(self.encrypted) < ROOMS_MAX:
            with suppress(PatternError):
                send_id = f"encrypted.{blake2b(room.encode(), digest_size=10).hexdigest()}"
                await _say(self.account, room, {"msgtype": "m.notice", "body": ENCRYPTED, "m.mentions": {}}, send_id)
                self.encrypted.append(room)


def _all(about: Any) -> list[_Content]:
    """Return the events of a part of an answer."""
    events = about.get("events") if isinstance(about, dict) else None
    return [one for one in events if isinstance(one, dict)] if isinstance(events, list) else []


def _is_of(event: _Content, person: str) -> bool:
    """Return whether an event says whether this person is in the room."""
    return event.get("type") == "m.room.member" and event.get("state_key") == person


def _thread(content: _Content) -> str:
    """Return the thread that an event is in; empty if it is in none."""
    relation = content.get("m.relates_to") or {}
    root = relation["event_id"] if relation.get("rel_type") == "m.thread" else ""
    if root and not _ID.fullmatch(root):
        raise ValueError("an event names a thread that cannot be")
    return str(root)


def _words(content: _Content) -> str:
    """Return what a message says; of files only that they are there."""
    kind, body = content["msgtype"], content["body"]
    if kind in ("m.text", "m.notice", "m.emote"):
        return _QUOTED.sub("", body) if "m.in_reply_to" in (content.get("m.relates_to") or {}) else str(body)
    name = content.get("filename") or body
    return "\n".join(filter(None, ("" if name == body else body, f"[{str(kind).removeprefix('m.')} {name}]")))


def _path(room: str) -> str:
    return f"rooms/{quote(room, safe='')}"


async def _myself(account: SourceAccount) -> dict[str, str]:
    """Return the id of the agent's user, and the name that is shown."""
    me = (await _call(account, "GET", "account/whoami"))["user_id"]
    if not _ID.fullmatch(me):
        raise InvalidInput("the homeserver does not say which user this token is of")
    name = ""
    with suppress(NotFound, PermissionDenied):
        name = (await _call(account, "GET", f"profile/{quote(me, safe='')}/displayname")).get("displayname") or ""
    return {"id": me, "name": name[:200].encode("utf-8", "replace").decode()}


async def _say(
    account: SourceAccount, room: str, content: Mapping[str, Json], send_id: str, kind: str = "m.room.message"
) -> _Content:
    return await _call(account, "PUT", f"{_path(room)}/send/{kind}/{quote(send_id, safe='')}", content)


async def _call(
    account: SourceAccount, method: str, path: str, given: Mapping[str, Json] | None = None, timeout_s: float = 0.0
) -> dict[str, Any]:
    """Return what the client API answers.

    Raises:
        PatternError: as `ServiceApi.call`.
    """
    token = await _API.secret(account)
    url = f"{account.config['homeserver'].rstrip('/')}/_matrix/client/v3/{path}"
    request: dict[str, Any] = {"method": method, "headers": {"Authorization": f"Bearer {token}"}}
    return dict((await _API.call(account, url, given, secrets=(token,), timeout_s=timeout_s, **request))[0])
