"""One sequence: each listener, from any place and however often, hears each event once and in order."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from pattern_core.errors import PatternError
from pattern_core.events import (
    READ_MAX,
    TERMINAL,
    TEXT_CHARS_MAX,
    Draft,
    Event,
    EventLog,
    Subscription,
    append,
    called,
    check_kept,
    owners_of,
    read,
    resulted,
)
from pattern_core.limits import Limits, TurnLimits
from pattern_core.models.errors import ModelRefused
from pattern_core.testing import Paced, StoppedClock, calls, says, together
from pattern_core.testing.model import Answer
from pattern_db.connection import Connection
from pattern_db.database import Database, DatabaseThreads
from pattern_db.enums import TurnStatus
from pattern_db.errors import RowNotFound
from pattern_db.journal import turns
from pattern_db.journal.retention import pruned_event
from pattern_db.journal.steps import EffectRow
from pattern_db.journal.turns import NewTurn
from pattern_db.tables import agents, groups, messages
from tests.pattern_core.turns.rig import ADA
from tests.support import START, Outside, acting, in_memory, note, on_file, running, shout

PATIENCE_S = 60.0
TURNS = ("turn_0", "turn_1")


def add_turns(connection: Connection) -> dict[str, int]:
    agents.create(connection, ADA)
    new = [NewTurn(id=turn, agent_id=ADA.id, sender="system", seed=0, created_at=START) for turn in TURNS]
    return {turn.id: turns.insert(connection, turn) for turn in new}


@dataclass
class Rig:
    """A log over a database with two turns, and what was stored in order."""

    database: Database
    keys: dict[str, int]
    log: EventLog
    stored: list[Event] = field(default_factory=list)

    def store(self, connection: Connection, turn: str | None, names: Sequence[str]) -> list[Event]:
        drafts = [Draft(name, {"n": number}) for number, name in enumerate(names)]
        return append(connection, None if turn is None else (self.keys[turn], turn), drafts, created_at=START)

    def publish(self, committed: Sequence[Event]) -> None:
        self.stored.extend(committed)
        self.log.publish((None, committed))

    async def say(self, *names: str, turn: str | None = None) -> list[Event]:
        return await self.database.write_and_announce(
            lambda connection: self.store(connection, turn, names), self.publish
        )


async def make_rig(database: Database, buffer_max: int) -> Rig:
    keys = await database.write(add_turns)
    return Rig(database, keys, EventLog(database, buffer_max=buffer_max, latest=0))


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    """A log that remembers three events."""
    async with in_memory() as database:
        yield await make_rig(database, 3)


@asynccontextmanager
async def heard_of(stream: Subscription, *, until: str) -> AsyncIterator[list[str]]:
    """The names that a listener hears, up to that one; within the block it listens, and has heard what there is."""
    heard: list[str] = []

    async def listen() -> None:
        async for event in stream:
            heard.append(event.name)
            if event.name == until:
                return

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen)
            await wait_all_tasks_blocked()
            yield heard


async def take(stream: Subscription, count: int) -> list[str]:
    with trio.fail_after(PATIENCE_S):
        return [(await anext(stream)).name for _time in range(count)]


def test_the_terminal_events_are_those_of_the_terminal_states() -> None:
    open_states = {TurnStatus.QUEUED, TurnStatus.RUNNING, TurnStatus.WAITING}
    assert {f"turn.{status}" for status in TurnStatus if status not in open_states} == TERMINAL


async def test_whose_a_turn_is_that_a_group_asked_for(rig: Rig) -> None:
    def asked(connection: Connection) -> list[set[str]]:
        group = groups.GroupRow("grp_1", "g", "round_robin", START, START)
        groups.create(connection, group)
        of_group = "UPDATE turn SET agent_id = NULL, group_id = 'grp_1' WHERE key = ?"
        connection.execute(of_group, (rig.keys["turn_0"],))
        new = NewTurn(
            id="turn_2", agent_id=ADA.id, sender="x", seed=0, created_at=START, parent_turn=rig.keys["turn_0"]
        )
        turns.insert(connection, new)
        return [owners_of(connection, turn) for turn in ("turn_0", "turn_1", "turn_2", "turn_9")]

    assert await rig.database.write(asked) == [{"grp_1"}, {ADA.id}, {ADA.id, "grp_1"}, set()]


async def test_what_was_published_beside_the_data_is_not_stored(rig: Rig) -> None:
    draft = Draft("odd", {"a": 1}, {"b": 2})
    [event] = await rig.database.write(lambda connection: append(connection, None, [draft], created_at=START))
    assert event.data == {"a": 1, "b": 2}
    [stored] = await rig.database.read(read, 0)
    assert stored.data == {"a": 1}


async def test_a_long_past_is_read_in_pieces(rig: Rig) -> None:
    for _time in range(3):
        await rig.say(*["x"] * READ_MAX, turn="turn_0")
    await rig.say("turn.completed", turn="turn_0")
    for turn in (None, "turn_0"):
        stream = rig.log.subscribe(after=0, turn_id=turn)
        assert len(await take(stream, 3 * READ_MAX + 1)) == 3 * READ_MAX + 1


async def test_a_stream_of_an_unknown_turn_says_so_when_it_must_look(rig: Rig) -> None:
    await rig.say(*"abcdef")
    with pytest.raises(RowNotFound):
        await take(rig.log.subscribe(after=0, turn_id="turn_9"), 1)


@pytest.mark.parametrize("turn", [None, "turn_0"])
async def test_nothing_is_heard_before_it_is_published_nor_twice(rig: Rig, turn: str | None) -> None:
    """A commit is in the file a moment before it is announced, and a stream that catches up reads the file."""
    await rig.say(*"abcde", turn="turn_0")
    early = [await rig.database.write(rig.store, "turn_0", [name]) for name in "fgh"]
    async with heard_of(rig.log.subscribe(after=0, turn_id=turn), until="i") as heard:
        assert "".join(heard) == "abcde"
        for committed in early:
            rig.publish(committed)
            await wait_all_tasks_blocked()
        await rig.say("i", turn="turn_0")
    assert "".join(heard) == "abcdefghi"


async def test_streams_that_end_leave_nothing_behind(rig: Rig) -> None:
    for turn in (None, *rig.keys):
        with trio.move_on_after(0):
            await rig.log.subscribe(after=0, turn_id=turn).__anext__()
    assert not rig.log._waiting


async def test_a_cursor_from_the_future_hears_what_is_new(rig: Rig) -> None:
    """A client may bring the number of an event that a restored backup does not have."""
    await rig.say("a", "b")
    async with heard_of(rig.log.subscribe(after=100), until="d") as heard:
        await rig.say("c")
        await rig.say("d")
    assert heard == ["c", "d"]


@dataclass(frozen=True)
class Listener:
    """Brings a cursor of at most `after`, waits `patience` ms at a time, and starts again every `renew` events."""

    after: int
    turn: str | None
    patience: int
    renew: int

    async def listen(self, rig: Rig, last: int) -> tuple[int, list[Event]]:
        """Where it began, and all that it heard up to the last event or its turn's end."""
        cursor = begun = min(self.after, rig.log.latest)
        heard: list[Event] = []
        while cursor < last and not any(event.seq <= cursor for event in rig.stored if self.is_end(event)):
            stream = rig.log.subscribe(after=cursor, turn_id=self.turn)
            for _time in range(self.renew):
                event = await self._next(stream)
                if event is not None:
                    heard.append(event)
                    cursor = event.seq
                if event is None or cursor == last:
                    break
        return begun, heard

    def is_end(self, event: Event) -> bool:
        return event.name in TERMINAL and event.turn_id == self.turn

    async def _next(self, stream: Subscription) -> Event | None:
        """What comes next; cancelled in between, as by a keep-alive, and asked again."""
        for wait_s in (0, self.patience / 1000, PATIENCE_S):
            with trio.move_on_after(wait_s):
                try:
                    return await anext(stream)
                except StopAsyncIteration:
                    return None
        raise TimeoutError("nothing came")


Commit = tuple[str | None, int]  # of which turn, how many events
LISTENERS = st.builds(
    Listener,
    after=st.integers(0, 12),
    turn=st.sampled_from([None, *TURNS]),
    patience=st.integers(0, 4),
    renew=st.integers(1, 5),
)


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.sampled_from([None, *TURNS]), st.integers(1, 4)), max_size=10),
    st.lists(st.tuples(st.integers(0, 10), LISTENERS), min_size=1, max_size=6),
    st.integers(1, 6),
)
def test_every_listener_hears_all_once_and_in_order(
    commits: list[Commit], listeners: list[tuple[int, Listener]], buffer_max: int
) -> None:
    last = sum(count for _turn, count in commits) + len(TURNS)
    heard: list[tuple[Listener, int, list[Event]]] = []

    async def listen(rig: Rig, listener: Listener) -> None:
        heard.append((listener, *await listener.listen(rig, last)))

    async def say(rig: Rig, turn: str | None, count: int) -> None:
        await rig.say(*["x"] * count or ["turn.completed"], turn=turn)

    async def main(folder: str) -> list[Event]:
        with DatabaseThreads() as threads:
            async with await on_file(Path(folder) / "pattern.db", threads) as database:
                rig = await make_rig(database, buffer_max)
                with trio.fail_after(PATIENCE_S):
                    async with trio.open_nursery() as nursery:
                        for number, (turn, count) in enumerate([*commits, *((turn, 0) for turn in TURNS)]):
                            for begins, listener in listeners:
                                if min(begins, len(commits)) == number:
                                    nursery.start_soon(listen, rig, listener)
                            nursery.start_soon(say, rig, turn, count)
                            await trio.sleep(0.0005 * (number % 3))
                return rig.stored

    with tempfile.TemporaryDirectory() as folder:
        stored = trio.run(main, folder)
    assert [event.seq for event in stored] == list(range(1, last + 1))
    assert len(heard) == len(listeners)
    for listener, begun, events in heard:
        wanted = [event for event in stored if event.seq > begun and listener.turn in (None, event.turn_id)]
        end = next((place for place, event in enumerate(wanted, 1) if listener.is_end(event)), len(wanted))
        if any(event.seq <= begun for event in stored if listener.is_end(event)):
            end = 0
        assert [event.seq for event in events] == [event.seq for event in wanted[:end]]


async def test_what_is_read_later_is_what_was_published_live() -> None:
    outside, gate = Outside(), trio.Event()
    mixed = together(
        says("Let me see. ", reasoning="hm"),
        calls("note", {"text": "naïve"}, call_id="1"),
        calls("mail", {"to": "bob"}, call_id="2"),
        calls("shout", {"text": "a"}, call_id="3"),
        calls("nothing", {}, call_id="4"),
        calls("note", {"wrong": 1}, call_id="5"),
    )
    script: list[Answer] = [
        mixed,
        says("done"),
        ModelRefused("no", provider="scripted"),
        Paced(answer=says("late"), gate=gate),
    ]
    limits = Limits(turn=TurnLimits(steps_max=2), event_buffer_max=2)
    live: list[Event] = []
    async with running(
        script, otherwise=calls("note", {"text": "x"}), tools=[note, shout, *outside.tools], limits=limits
    ) as it:

        async def listen() -> None:
            async for event in it.constellation.events.subscribe(after=0):
                live.append(event)

        it.nursery.start_soon(listen)
        await it.agent()
        assert (await it.say("one")).status == "completed"
        assert (await it.say("two")).status == "failed"
        slow = await it.submit("three")
        queued = await it.submit("four")
        await wait_all_tasks_blocked()
        assert await it.constellation.cancel(queued)
        assert await it.constellation.cancel(slow)
        assert (await it.constellation.wait(slow)).status == "cancelled"
        assert (await it.say("five")).status == "limit"
        await it.constellation.roster.update("ada", {"description": "changed"})
        await wait_all_tasks_blocked()
        stored = await it.events()
    kept = [event for event in live if not event.name.endswith(".delta")]
    assert len(kept) < len(live)  # pieces were published, and dropped when the whole was stored
    assert stored == kept
    names = {event.name for event in stored}
    assert {"turn.completed", "turn.failed", "turn.cancelled", "turn.limit", "tool.call", "noted"} <= names


def test_a_call_of_a_tool_and_its_end_are_events() -> None:
    effect = EffectRow(1, 2, 3, "call_1", "note", '{"text": "x"}', b"", "local", "key")
    assert called(effect) == Draft(
        "tool.call",
        {"step": 2, "call": 3},
        {"call_id": "call_1", "tool": "note", "arguments": {"text": "x"}},
    )
    ended = resulted(effect, "Noted.", status="done", message_id="msg_1")
    said = {"call_id": "call_1", "tool": "note", "status": "done", "message_id": "msg_1", "content": "Noted."}
    assert ended == Draft("tool.result", {"step": 2, "call": 3}, said)
    timed = resulted(effect, None, status="done", message_id=None, duration_ms=0)
    assert timed.data == {"step": 2, "call": 3, "duration_ms": 0}


async def test_the_end_of_a_turn_says_its_last_words_and_what_it_spent() -> None:
    talking = together(says("Let me see."), calls("note", {"text": "x"}))
    long = says("".join(map(str, range(TEXT_CHARS_MAX))))
    refused = ModelRefused("no", provider="scripted")
    async with acting([talking, says("done"), long, refused], tools=[note]) as it:
        spoke, lengthy, silent = await it.say("one"), await it.say("two"), await it.say("three")
        ends = [(await it.events(view.id))[-1].data for view in (spoke, lengthy, silent)]
    usage = {"input_tokens": 20, "output_tokens": 10, "cached_tokens": 0, "cost_microdollars": None}
    assert ends[0] == {
        "status": "completed",
        "message_id": spoke.messages[-1].id,
        "text": "done",
        "usage": {**usage, "is_estimate": False},
    }
    assert ends[1]["text"] == "".join(map(str, range(TEXT_CHARS_MAX)))[:TEXT_CHARS_MAX]
    assert (ends[2]["status"], ends[2]["text"], "message_id" in ends[2]) == ("failed", None, False)


async def test_words_that_were_deleted_since_are_not_shown_again() -> None:
    async with acting([says("a secret")]) as it:
        view = await it.say("hello")
        await it.database.write(messages.tombstone, [view.messages[-1].id])
        event, end = (await it.events(view.id))[-2:]
    assert end.data["text"] is None
    assert event.data == {"message_id": view.messages[-1].id, "role": "assistant", "content": None}


async def test_a_stream_from_before_is_told_where_to_begin() -> None:
    clock = StoppedClock()
    async with acting(otherwise=says("ok"), clock=clock) as world:
        old = await world.say("old")
        await world.say("of which the newest event stays")
        clock.advance(1)
        await world.constellation.prune(0)
        gone = await world.database.read(pruned_event)
        assert gone > 1
        new = await world.say("new")
        for place, turn in ((1, None), (gone - 1, None), (0, old.id), (gone, old.id)):
            with pytest.raises(PatternError) as refused:
                await world.database.read(check_kept, place, turn)
            assert (refused.value.code, refused.value.details.get("after", gone)) == ("events_pruned", gone)
        for place, turn in ((0, None), (gone, None), (gone + 1, None), (0, new.id)):
            await world.database.read(check_kept, place, turn)
