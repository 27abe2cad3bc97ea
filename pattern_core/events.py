"""The events of a constellation: one sequence, stored before it is published, and live streams of it.

SSE, WebSocket and every other protocol are projections of this sequence. A stored event refers to its message;
`hydrate` adds the text, so that it is on disk only once. A stream reads the newest events from a bounded buffer and
older ones from the file: a slow or disconnected reader never slows a turn and misses nothing.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import islice
from typing import NamedTuple

import trio

from pattern_core.errors import PatternError
from pattern_core.ids import message_id
from pattern_db.columns import to_json
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.errors import RowNotFound
from pattern_db.journal import approvals, events, group_runs, retention, steps, turns, usage
from pattern_db.journal.usage import UsageSum
from pattern_db.tables import messages

TERMINAL = frozenset({"turn.completed", "turn.failed", "turn.cancelled", "turn.interrupted", "turn.limit"})
RESTING = TERMINAL | {"turn.waiting"}  # the turn pauses: it has ended, or waits for a person
NO_DATA: Mapping[str, object] = {}
READ_MAX = 500  # events per read of the file
TEXT_CHARS_MAX = 20_000  # of a turn's last text in its terminal event; its `message` has all of it


class EventsPruned(PatternError):
    """The requested events have been deleted as too old; `details["after"]` is where to begin."""

    code = "events_pruned"
    remedy = "Begin the stream after the event that `after` names; raise `limits.retention_days` to keep more."


class Event(NamedTuple):
    """Something that happened. `seq` rises by one per event of the constellation; `data` is JSON-safe."""

    seq: int
    name: str
    turn_id: str | None
    data: Mapping[str, object]
    created_at: str


class Draft(NamedTuple):
    """An event about to be stored. `derived` are the parts of its data that are stored elsewhere."""

    name: str
    data: Mapping[str, object]
    derived: Mapping[str, object] = NO_DATA


def append(
    connection: Connection, turn: tuple[int, str] | None, drafts: Sequence[Draft], *, created_at: str
) -> list[Event]:
    """Store events of one turn (key and id) or of none, within the caller's transaction."""
    key, turn_id = turn or (None, None)
    first = events.append(
        connection,
        [(key, draft.name, to_json(draft.data) if draft.data else "{}") for draft in drafts],
        created_at=created_at,
    )
    return [
        Event(seq=seq, name=draft.name, turn_id=turn_id, data={**draft.data, **draft.derived}, created_at=created_at)
        for seq, draft in enumerate(drafts, start=first)
    ]


def read(connection: Connection, after: int, *, limit: int = READ_MAX, turn_id: str | None = None) -> list[Event]:
    """Return at most `limit` stored events after `after`, oldest first and complete; of one turn if given. A turn of a
    group has what its members said and did, too.

    Raises:
        pattern_db.errors.RowNotFound: there is no such turn.
    """
    turn = None if turn_id is None else turns.by_id(connection, turn_id)
    key, is_group = (None, False) if turn is None else (turn.key, turn.group_id is not None)
    reader = _Reader(connection)
    found = events.after(connection, after, limit=limit, turn=key, with_members=is_group)
    return [reader.complete(row) for row in found]


def check_kept(connection: Connection, after: int, turn_id: str | None) -> None:
    """Refuse a position before the oldest kept event; 0 is always allowed.

    Raises:
        EventsPruned: events after it (of this turn, if given) have been deleted.
        pattern_db.errors.RowNotFound: there is no such turn.
    """
    gone = retention.pruned_event(connection)
    if 0 < after < gone:
        raise EventsPruned(
            f"the events up to {gone} have been deleted; start with after={gone}, and read earlier texts as messages",
            after=gone,
        )
    if turn_id is not None and gone:
        turn = turns.by_id(connection, turn_id)
        if turn.ended_at is not None and not events.after(connection, max(after, gone), limit=1, turn=turn.key):
            raise EventsPruned(f"the events of {turn_id} have been deleted; GET the turn for its messages")


def owners_of(connection: Connection, turn_id: str) -> set[str]:
    """Return the ids of the agent and of the groups that a turn is of: its own, and those of the turns that led to it.
    Nothing if the turn was deleted.
    """
    found: set[str | None] = set()
    with suppress(RowNotFound):
        turn = turns.by_id(connection, turn_id)
        found |= {turn.agent_id, turn.group_id}
        while turn.parent_turn is not None:
            turn = turns.by_key(connection, turn.parent_turn)
            found.add(turn.group_id)
    return {owner for owner in found if owner}


class _Reader:
    """Completes stored events with the data that they refer to; reads each turn and step once."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._turn = cache(partial(turns.by_key, connection))
        self._effects = cache(partial(steps.calls_of_step, connection))
        self._asked_for = cache(partial(approvals.arguments_before, connection))

    def complete(self, row: events.EventRow) -> Event:
        """Return the event as it was published when it was stored."""
        data: dict[str, object] = json.loads(row.data)
        turn = None if row.turn is None else self._turn(row.turn)
        if turn is not None:
            data.update(self._referred(row.name, data, turn))
        turn_id = None if turn is None else turn.id
        return Event(seq=row.seq, name=row.name, turn_id=turn_id, data=data, created_at=row.created_at)

    def _referred(self, name: str, data: Mapping[str, object], turn: turns.TurnRow) -> dict[str, object]:
        match name, data:
            case "turn.queued", _:
                return {**_owner(turn), "sender": turn.sender}
            case "turn.started", _:
                about = {"message_id": message_id(turn.batch_id or "")} if turn.group_id is None else {}
                return {**_owner(turn), **about}
            case "message" | "message.joined", {"message_id": str(message)}:
                return {"content": self._content(message)}
            case "tool.call", {"step": int(step), "call": int(call)}:
                return self._called(turn.key, step, call)
            case "tool.result", {"step": int(step), "call": int(call)}:
                effect = self._effect(turn.key, step, call)
                if effect is None:
                    return {}
                content = self._content(effect.message_id or "")
                return dict(resulted(effect, content, status=effect.status, message_id=effect.message_id).derived)
            case _ if name in TERMINAL:
                error = None if turn.error is None else json.loads(turn.error)
                if turn.group_id is not None:
                    answer = group_runs.get(self._connection, turn.key).answer
                    rest = None, answer, None, usage.of_tree(self._connection, turn.key)
                    return dict(ended(turn.status, error, rest).derived)
                said = data.get("message_id")
                text, finish = (None, None) if said is None else self._said(str(said))
                spent = usage.of_turn(self._connection, turn.key)
                return dict(ended(turn.status, error, (None, text, finish, spent)).derived)
        return {}

    def _called(self, turn: int, step: int, call: int) -> dict[str, object]:
        """Return the call as the model decided it, without a person's later changes."""
        effect = self._effect(turn, step, call)
        if effect is None:
            return {}
        decided = called(effect).derived
        return {**decided, "arguments": self._asked_for(turn, step).get(call, decided["arguments"])}

    def _effect(self, turn: int, step: int, call: int) -> steps.EffectRow | None:
        return next((effect for effect in self._effects(turn, step) if effect.call == call), None)

    def _content(self, message: str) -> str | None:
        return self._said(message)[0]

    def _said(self, message: str) -> tuple[str | None, str | None]:
        """Return the text of a message, and why it is incomplete."""
        try:
            row = messages.get(self._connection, message)
        except RowNotFound:
            return None, None  # deleted since
        return row.content, row.finish_reason


def _owner(turn: turns.TurnRow) -> dict[str, object]:
    return {"agent_id": turn.agent_id} if turn.group_id is None else {"group_id": turn.group_id}


def called(effect: steps.EffectRow) -> Draft:
    """Return the event of a model's tool call."""
    derived = {"call_id": effect.call_id, "tool": effect.tool, "arguments": json.loads(effect.args)}
    return Draft("tool.call", {"step": effect.step, "call": effect.call}, derived)


def resulted(
    effect: steps.EffectRow,
    content: str | None,
    *,
    status: str,
    message_id: str | None,
    duration_ms: int | None = None,
) -> Draft:
    """Return the event that a tool call ended, `duration_ms` after its start."""
    derived = {
        "call_id": effect.call_id,
        "tool": effect.tool,
        "status": status,
        "message_id": message_id,
        "content": content,
    }
    data = {"step": effect.step, "call": effect.call}
    return Draft("tool.result", data if duration_ms is None else {**data, "duration_ms": duration_ms}, derived)


def ended(
    status: str,
    error: Mapping[str, object] | None,
    rest: tuple[str | None, str | None, str | None, UsageSum] = (None, None, None, usage.NOTHING),
    data: Mapping[str, object] = NO_DATA,
) -> Draft:
    """Return the terminal event of a turn; `rest` is as `turns.end` returns it, `data` is stored with it."""
    message_id, text, finish, spent = rest
    derived: dict[str, object] = {
        "status": status,
        "text": None if text is None else text[:TEXT_CHARS_MAX],
        "usage": {
            "input_tokens": spent.input_tokens,
            "output_tokens": spent.output_tokens,
            "cached_tokens": spent.cached_tokens,
            "cost_microdollars": spent.cost_microdollars,
            "is_estimate": spent.is_estimate,
        },
    }
    if finish is not None:
        derived["finish_reason"] = finish
    if error is not None:
        derived["error"] = dict(error)
    return Draft(f"turn.{status}", data if message_id is None else {**data, "message_id": message_id}, derived)


class EventLog:
    """The newest events in memory, and the streams that wait for more."""

    def __init__(self, database: Database, *, buffer_max: int, latest: int) -> None:
        self.latest = latest
        self._database = database
        self._recent: deque[Event] = deque(maxlen=buffer_max)
        # By turn, since thousands may wait, each for its own turn; under None those that wait for any event.
        self._waiting: dict[str | None, trio.lowlevel.ParkingLot] = {}
        self._ends: dict[str, trio.Event] = {}

    def publish(self, committed: tuple[object, Sequence[Event]]) -> None:
        """Give the events of a transaction to all streams; called in the order of the commits. Never waits."""
        _value, published = committed
        if not published:
            return
        self._recent.extend(published)
        self.latest = published[-1].seq
        if self._waiting:
            for turn_id in self._waiting.keys() & {None, *(event.turn_id for event in published)}:
                self._waiting[turn_id].unpark_all()
        for event in published if self._ends else ():
            if event.name in RESTING and event.turn_id in self._ends:
                self._ends.pop(event.turn_id).set()

    def is_heard(self, turn_id: str) -> bool:
        """Return whether a stream waits for the next event of a turn."""
        return turn_id in self._waiting or None in self._waiting

    async def rested(self, turn_id: str, *, after: int) -> None:
        """Wait until a turn, which was running at event `after`, has ended or waits for a person."""
        count = self.latest - after
        if count > len(self._recent):  # it may be older than the events in memory
            async for event in self.subscribe(after=after, turn_id=turn_id):
                if event.name in RESTING:
                    return
        for event in islice(reversed(self._recent), count):
            if event.turn_id == turn_id and event.name in RESTING:
                return
        await self._ends.setdefault(turn_id, trio.Event()).wait()

    def subscribe(self, *, after: int, turn_id: str | None = None, is_new: bool = False) -> Subscription:
        """Return a stream of the events after `after`; of one turn, up to its end, if given. If the turn `is_new`, all
        its events come after `after`.

        A number after the newest event, as after restoring a backup, means from now on.
        """
        return Subscription(self, min(after, self.latest), turn_id, set() if is_new or turn_id is None else None)

    async def next_after(
        self, cursor: int, turn_id: str | None, wants: Callable[[Event], bool], *, is_alone: bool
    ) -> tuple[int, list[Event]]:
        """Wait for events after `cursor`; return the new cursor and those that a stream of this turn wants (maybe
        none). `is_alone` says that no event of another turn can be among them.
        """
        key = turn_id if is_alone else None
        if cursor >= self.latest:
            lot = self._waiting.setdefault(key, trio.lowlevel.ParkingLot())
            try:
                await lot.park()
            finally:
                if not lot and self._waiting.get(key) is lot:
                    del self._waiting[key]
        count = self.latest - cursor
        if count <= len(self._recent):
            fresh = [*islice(reversed(self._recent), count)]
            return self.latest, [event for event in reversed(fresh) if wants(event)]
        target = self.latest
        stored = await self._database.read_aside(read, cursor, turn_id=turn_id)
        # The file is a moment ahead of what is announced.
        older = [event for event in stored if event.seq <= target and wants(event)]
        return (target if len(stored) < READ_MAX else stored[-1].seq), older

    async def members_of(self, turn_id: str) -> set[str]:
        """Return the turns that a group's turn led to; none of another turn."""
        return await self._database.read_aside(group_runs.member_turns, turn_id)


@dataclass(slots=True, eq=False)
class Subscription:
    """An async iterator over events in order, without gap or repetition; with a turn, up to its terminal event.

    For a group's turn it also yields the events of its members' turns, except those on their status (`turn.*`). It is
    a place in the log and holds nothing, so it may be left at any time.
    """

    _log: EventLog
    _cursor: int
    _turn_id: str | None
    _members: set[str] | None  # turns of members; None: still to be read
    _ready: deque[Event] = field(default_factory=deque)
    _ended: bool = False

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Event:
        if self._members is None and self._turn_id is not None:
            self._members = await self._log.members_of(self._turn_id)
        while not self._ready:
            if self._ended:
                raise StopAsyncIteration
            self._cursor, fresh = await self._log.next_after(
                self._cursor, self._turn_id, self._wants, is_alone=not self._members
            )
            self._ready.extend(fresh)
        event = self._ready.popleft()
        if self._turn_id is not None and event.name in TERMINAL:
            self._ended = True
            self._ready.clear()
        return event

    def _wants(self, event: Event) -> bool:
        assert self._members is not None
        if self._turn_id is None:
            return True
        if event.turn_id == self._turn_id:
            if event.name == "group.selected":
                self._members.add(str(event.data["member_turn"]))
            return True
        return event.turn_id in self._members and not event.name.startswith("turn.")
