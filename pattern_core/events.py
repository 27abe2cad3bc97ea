"""The events of a constellation: one sequence, stored before it is published, and live streams of it.

SSE, WebSocket and every other protocol are projections of this sequence. A stored event refers to the message it is
about; `hydrate` adds the words, so that they are on disk once. A stream reads the newest events from a bounded
buffer and older ones from the file: a slow or lost reader never slows a turn and misses nothing.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import islice

import trio

from pattern_core.errors import PatternError
from pattern_core.ids import message_id
from pattern_db.columns import to_json
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.errors import RowNotFound
from pattern_db.journal import approvals, events, retention, steps, turns, usage
from pattern_db.journal.usage import UsageSum
from pattern_db.tables import messages

TERMINAL = frozenset({"turn.completed", "turn.failed", "turn.cancelled", "turn.interrupted", "turn.limit"})
RESTING = TERMINAL | {"turn.waiting"}  # the turn goes no further for now: it has ended, or waits for a person
NO_DATA: Mapping[str, object] = {}
READ_MAX = 500  # events read from the file at once
TEXT_CHARS_MAX = 20_000  # of a turn's last words in its terminal event; its `message` has them all


class EventsPruned(PatternError):
    """The events that were asked for are older than the server keeps them; `details["after"]` is where to begin."""

    code = "events_pruned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened. `seq` rises by one per event of the constellation; `data` is JSON-safe."""

    seq: int
    name: str
    turn_id: str | None
    data: Mapping[str, object]
    created_at: str


@dataclass(frozen=True, slots=True)
class Draft:
    """An event about to be stored. `derived` are the parts of its data that storage has elsewhere already."""

    name: str
    data: Mapping[str, object]
    derived: Mapping[str, object] = field(default_factory=dict)


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
    """Return at most `limit` stored events after `after`, oldest first and complete; of one turn if given.

    Raises:
        pattern_db.errors.RowNotFound: there is no such turn.
    """
    turn = None if turn_id is None else turns.by_id(connection, turn_id).key
    reader = _Reader(connection)
    return [reader.complete(row) for row in events.after(connection, after, limit=limit, turn=turn)]


def check_kept(connection: Connection, after: int, turn_id: str | None) -> None:
    """Refuse a place that lies before the events that are kept; 0 is before whatever is the first.

    Raises:
        EventsPruned: there were events after it, of this turn if given, that were given up.
        pattern_db.errors.RowNotFound: there is no such turn.
    """
    gone = retention.pruned_event(connection)
    if 0 < after < gone:
        raise EventsPruned(
            f"the events up to {gone} are not kept any more; begin after={gone}, and read what was said as messages",
            after=gone,
        )
    if turn_id is not None and gone:
        turn = turns.by_id(connection, turn_id)
        if turn.ended_at is not None and not events.after(connection, max(after, gone), limit=1, turn=turn.key):
            raise EventsPruned(f"the events of {turn_id} are not kept any more; GET the turn has its messages")


class _Reader:
    """Completes stored events with what their rows only refer to; reads each turn and step once."""

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
                return {"agent_id": turn.agent_id, "sender": turn.sender}
            case "turn.started", _:
                return {"agent_id": turn.agent_id, "message_id": message_id(turn.batch_id or "")}
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
                said = data.get("message_id")
                text, finish = (None, None) if said is None else self._said(str(said))
                spent = usage.of_turn(self._connection, turn.key)
                return dict(ended(turn.status, error, (None, text, finish, spent)).derived)
        return {}

    def _called(self, turn: int, step: int, call: int) -> dict[str, object]:
        """Return the call as the model decided on it, whatever a person made of it later."""
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
        """Return the words of a message, and what ended it too early."""
        try:
            row = messages.get(self._connection, message)
        except RowNotFound:
            return None, None  # deleted since
        return row.content, row.finish_reason


def called(effect: steps.EffectRow) -> Draft:
    """Return the event that a model asked for a tool."""
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
        # By turn, since thousands may wait, each for its own; under None those that wait for any event.
        self._waiting: dict[str | None, trio.lowlevel.ParkingLot] = {}
        self._ends: dict[str, trio.Event] = {}

    def publish(self, committed: tuple[object, Sequence[Event]]) -> None:
        """Give the events of a transaction, which it returned after a value, to all streams; called in the order of the
        commits. Never waits.
        """
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

    async def rested(self, turn_id: str, *, after: int) -> None:
        """Wait until a turn that had not at event `after` has ended or waits for a person."""
        count = self.latest - after
        if count > len(self._recent):  # it may be further back than memory goes
            async for event in self.subscribe(after=after, turn_id=turn_id):
                if event.name in RESTING:
                    return
        for event in islice(reversed(self._recent), count):
            if event.turn_id == turn_id and event.name in RESTING:
                return
        await self._ends.setdefault(turn_id, trio.Event()).wait()

    def subscribe(self, *, after: int, turn_id: str | None = None) -> Subscription:
        """Return a stream of the events after `after`; of one turn, up to its end, if given.

        A number from the future, as after a backup was restored, means from now on.
        """
        return Subscription(self, min(after, self.latest), turn_id)

    async def next_after(self, cursor: int, turn_id: str | None) -> tuple[int, list[Event]]:
        """Wait for events after `cursor`; return the new cursor and those that the stream wants (maybe none)."""
        if cursor >= self.latest:
            lot = self._waiting.setdefault(turn_id, trio.lowlevel.ParkingLot())
            try:
                await lot.park()
            finally:
                if not lot and self._waiting.get(turn_id) is lot:
                    del self._waiting[turn_id]
        count = self.latest - cursor
        if count <= len(self._recent):
            fresh = [event for event in islice(reversed(self._recent), count) if turn_id in (None, event.turn_id)]
            return self.latest, fresh[::-1]
        target = self.latest
        stored = await self._database.read_aside(read, cursor, turn_id=turn_id)
        older = [event for event in stored if event.seq <= target]  # the file is a moment ahead of what is announced
        return (target if len(older) < READ_MAX else older[-1].seq), older


class Subscription:
    """An async iterator over events in order, without gap or repetition; with a turn, up to its terminal event.

    It is a place in the log and holds nothing, so it may be left at any time.
    """

    def __init__(self, log: EventLog, after: int, turn_id: str | None) -> None:
        self._log = log
        self._cursor = after
        self._turn_id = turn_id
        self._ready: deque[Event] = deque()
        self._ended = False

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Event:
        while not self._ready:
            if self._ended:
                raise StopAsyncIteration
            self._cursor, fresh = await self._log.next_after(self._cursor, self._turn_id)
            self._ready.extend(fresh)
        event = self._ready.popleft()
        if self._turn_id is not None and event.name in TERMINAL:
            self._ended = True
            self._ready.clear()
        return event
