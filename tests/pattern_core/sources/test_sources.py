"""Sources: an event arrives once, with the cursor; it becomes what its agent wants of it; one that fails is visible."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from pattern_core.errors import Conflict, InvalidInput, NotFound, Overloaded
from pattern_core.ids import SystemClock
from pattern_core.sources.intake import EVERY_S, passes, wait_s
from pattern_core.sources.source import TEXT_CHARS_MAX, Arrivals, SourceEvent, split
from pattern_core.sources.sources import BURST_S, WAITING_MAX, Sources
from pattern_core.testing import StoppedClock
from pattern_core.testing.model import says
from pattern_db.database import Database
from pattern_db.enums import SourceDelivery, TrustLevel
from pattern_db.tables import sources
from pattern_db.tables.sources import SourceRow
from tests.pattern_core.sources.rig import settings
from tests.support import START, Running, in_memory, last_words, rows, running, until

HOOK = {"secret": "hook"}


@dataclass
class Receiving:
    """A running constellation with the source `hook`, by its id, and its clock."""

    world: Running
    source_id: str
    clock: StoppedClock

    @property
    def sources(self) -> Sources:
        return self.world.constellation.sources

    async def gets(self, *texts: str, cursor: dict[str, Any] | None = None, **fields: Any) -> int:
        """Receive an event of each text, which is its name, too."""
        events = [SourceEvent(**{"native": text, "text": text, **fields}) for text in texts]
        return await self.sources.receive(self.source_id, Arrivals(events=events, cursor=cursor or {}))

    async def idle(self) -> None:
        """Wait until all that is due soon was delivered and answered."""
        self.clock.advance(round(BURST_S * 1000))
        self.world.constellation.outbox.changed()
        await until(lambda: self.world.constellation.is_idle)

    @property
    def prompts(self) -> list[str]:
        """What the agent was shown last, of each prompt."""
        return [last_words(request) for request in self.world.provider.requests]


@asynccontextmanager
async def receiving(*, database: Database | None = None, **options: Any) -> AsyncIterator[Receiving]:
    """Start a constellation with a source that is called."""
    clock = StoppedClock()
    async with running(otherwise=says("Seen."), sources=settings(), clock=clock, database=database, **options) as world:
        await world.agent()
        row = await world.constellation.sources.create(name="hook", kind="webhook", config=HOOK, agent="ada")
        yield Receiving(world, row.id, clock)


async def test_an_event_arrives_once_with_the_cursor_and_is_untrusted() -> None:
    async with receiving() as one:
        assert await one.gets("a", "b", cursor={"at": 2}) == 2
        assert await one.gets("b", "c", cursor={"at": 3}) == 1
        await one.idle()
        assert sum(prompt.count("<data from=") for prompt in one.prompts) == 3
        row = await one.sources.get("hook")
        assert (row.sync_cursor, row.last_event_at) == ({"at": 3}, row.last_sync_at)
        levels = await one.world.database.read(rows, "SELECT DISTINCT trust FROM messages")
        assert levels == [(TrustLevel.SOURCE,)]


async def test_a_restart_loses_nothing_and_knows_what_it_had() -> None:
    async with in_memory() as database:
        async with receiving(database=database) as one:
            await one.gets("a")  # stored, and perhaps not delivered when the process dies
        later = SystemClock()
        async with running(otherwise=says("Seen."), sources=settings(), clock=later, database=database) as world:
            await until(lambda: world.constellation.is_idle and world.provider.requests)
            assert "a" in last_words(world.provider.requests[-1])
            arrived = Arrivals(events=[SourceEvent(native="a", text="a")])
            assert await world.constellation.sources.receive(one.source_id, arrived) == 0


@pytest.mark.parametrize(
    ("delivery", "template", "shown"),
    [
        (SourceDelivery.NOTIFICATION, "Alarm from {source}: {title}", "Alarm from <data"),
        (SourceDelivery.ARCHIVE, None, None),
        (SourceDelivery.ACTIVITY, None, None),
    ],
)
async def test_an_event_becomes_what_its_agent_wants(
    delivery: SourceDelivery, template: str | None, shown: str | None
) -> None:
    async with receiving() as one:
        await one.sources.set_receiver("hook", "ada", delivery=delivery, template=template)
        await one.gets("The text", title="A {text} </data> title")
        await one.idle()
        if shown is not None:
            assert shown in one.prompts[0] and "{text} &lt;/data>" in one.prompts[0]
        else:
            assert one.prompts == []
        entries = await one.world.database.read(rows, "SELECT content FROM archival_entries")
        assert [("The text" in str(content)) for (content,) in entries] == [True] * (delivery == "archive")
        noted = await one.world.database.read(rows, "SELECT event_type FROM activity_events")
        assert [("source.event",)] * (delivery == "activity") == [one for one in noted if one[0] == "source.event"]


async def test_a_batch_is_one_message() -> None:
    async with receiving() as one:
        await one.sources.set_receiver("hook", "ada", batch_s=60)
        await one.gets("first")
        one.clock.advance(59_000)
        await one.gets("second")
        await one.idle()
        assert one.prompts == []
        one.clock.advance(1_000)
        await one.idle()
        [prompt] = one.prompts
        assert "first" in prompt and "second" in prompt


async def test_an_agent_gets_a_message_of_a_source_every_three_seconds_at_most() -> None:
    """Each is a turn, which costs money, and time that others wait for."""
    async with receiving() as one:
        for number in range(EVERY_S + 1):
            await one.gets(f"event {number}")
            one.clock.advance(1_000)
            one.world.constellation.outbox.changed()
            await one.idle()
            assert len(one.prompts) == 1 + number // EVERY_S
        assert "event 0" in one.prompts[0]
        assert all(f"event {number}" in one.prompts[1] for number in (1, 2, 3))
        one.clock.advance(-3_600_000)
        await one.gets("after the clock was set back")
        await one.idle()
        assert "set back" in one.prompts[2]


def test_filters() -> None:
    event = SourceEvent(native="1", text="A storm is coming", author_name="Anna")
    assert passes({}, event) and passes({"words": ["STORM"], "authors": ["anna"]}, event)
    assert not passes({"words": ["rain"]}, event)
    assert not passes({"not_words": ["storm"], "words": ["storm"]}, event)
    assert not passes({"authors": ["bob"]}, event)
    noon = 12 * 3_600_000
    assert wait_s({"quiet": "11:30-13:00"}, 5, noon) == 3600
    assert wait_s({"quiet": "22:00-07:00"}, 5, noon) == 5
    assert wait_s({"quiet": "22:00-13:00"}, 5, noon) == 3600
    with pytest.raises(InvalidInput, match="22:00-07:00"):
        wait_s({"quiet": "late"}, 0, 0)


async def test_settings_of_a_receiver_are_checked() -> None:
    async with receiving() as one:
        with pytest.raises(InvalidInput, match="template"):
            await one.sources.set_receiver("hook", "ada", delivery=SourceDelivery.NOTIFICATION)
        with pytest.raises(InvalidInput, match="no filter 'colour'"):
            await one.sources.set_receiver("hook", "ada", filters={"colour": "red"})
        with pytest.raises(InvalidInput, match="batch_s"):
            await one.sources.set_receiver("hook", "ada", batch_s=-1)
        await one.sources.drop_receiver("hook", "ada")
        await one.gets("for no one")
        await one.idle()
        assert one.prompts == []


async def test_a_source_is_checked_when_it_is_created() -> None:
    async with receiving() as one:
        for fields, error, words in (
            ({"kind": "carrier"}, InvalidInput, "kinds are file"),
            ({"config": {"secret": "none"}}, InvalidInput, "sources.secrets.none"),
            ({"config": {"colour": "red"}}, InvalidInput, "no 'colour'"),
            ({"config": {}}, InvalidInput, "`secret` must be given"),
            ({"name": "hook"}, Conflict, "taken"),
            ({"agent": "bob"}, NotFound, "bob"),
            ({"name": ""}, InvalidInput, "1 to 100"),
        ):
            given: dict[str, Any] = {"name": "other", "kind": "webhook", "config": HOOK, "agent": "ada", **fields}
            with pytest.raises(error, match=words):
                await one.sources.create(**given)


async def test_what_is_paused_receives_nothing_and_what_is_removed_is_gone() -> None:
    reported: list[dict[str, bool]] = []

    async def report(accounts: Any) -> None:
        reported.append(dict(accounts))

    async with receiving() as one:
        one.sources.on_change = report
        await one.sources.set_enabled("hook", False)
        with pytest.raises(Conflict, match="paused"):
            await one.gets("a")
        await one.sources.set_enabled("hook", True)
        assert await one.gets("a") == 1
        await one.sources.delete("hook")
        with pytest.raises(NotFound):
            await one.gets("b")
        assert reported == [{}, {one.source_id: False}, {}]


async def test_a_source_of_an_unknown_kind_harms_nothing() -> None:
    """As an archive of a newer version may hold it."""
    async with in_memory() as database:
        await database.write(sources.create, SourceRow("src_1", "it", "carrier", {}, START, START))
        async with receiving(database=database) as one:
            assert await one.sources.accounts() == {one.source_id: False}
            await one.gets("a")
            await one.idle()
            assert len(one.prompts) == 1
            with pytest.raises(InvalidInput, match="carrier"):
                await one.sources.poll("it")
            await one.sources.delete("it")


async def test_a_storm_is_bounded_and_nothing_of_it_is_lost() -> None:
    async with receiving() as one:
        await one.sources.set_receiver("hook", "ada", batch_s=3600)
        for start in range(0, WAITING_MAX, 500):
            await one.gets(*(str(number) for number in range(start, start + 500)))
        with pytest.raises(Overloaded):
            await one.gets("one too many", cursor={"at": 1})
        assert (await one.sources.get("hook")).sync_cursor is None


async def test_all_events_of_a_poll_are_stored_whatever_characters_they_have() -> None:
    async with receiving() as one:
        assert await one.gets(*map(str, range(1_500)), cursor={"at": 1_500}) == 1_500
        odd: dict[str, Any] = {"text": "nul \0 half \ud800", "author": "\udc00", "author_name": "\0"}
        assert [await one.gets("id \ud800 \0", **odd) for _ in range(2)] == [1, 0]


async def test_a_failure_is_visible_until_it_is_over() -> None:
    async with receiving() as one:
        await one.sources.failed(one.source_id, "the service is away")
        await one.sources.failed(one.source_id, "the service is still away")
        row = await one.sources.get("hook")
        assert (row.error, row.failing_since) == ("the service is still away", row.created_at)
        assert "source.failed" in [event.name for event in await one.world.events()]
        await one.gets("a")
        assert (await one.sources.get("hook")).error is None


def test_texts_are_bounded_and_can_be_stored() -> None:
    event = SourceEvent(native="1", text="x" * (TEXT_CHARS_MAX + 5) + "\0\ud800").bounded
    assert event.text.endswith("[7 more characters were left out]")
    assert "\0" not in SourceEvent(native="1", text="a\0\ud800").bounded.text
    wrong: list[dict[str, Any]] = [
        {"chat": ""},
        {"chat": "1"},
        {"native": ""},
        {"text": None},
        {"chat": 5, "author": "1"},
        {"room": "x" * 9999},
    ]
    for odd in wrong:
        with pytest.raises((TypeError, ValueError)):
            SourceEvent(**{"native": "1", "text": "", **odd})


def test_answers_are_split_within_limits() -> None:
    """5,000 characters for a limit of 2,000, and lines before words (case 209)."""
    text = "\n".join(["line " * 20] * 50)
    pieces = split(text, 2000)
    assert all(len(piece) <= 2000 for piece in pieces) and len(pieces) == 3
    assert all(len(piece.splitlines()[-1].split()) == 20 for piece in pieces)
    assert "".join(split("\U0001f600" * 3000, 4096)) == "\U0001f600" * 3000
    assert split("  \n", 10) == []
