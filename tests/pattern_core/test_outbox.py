"""Messages that found no agent: tried again, then left to a person; nothing accepted is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import trio
import trio.testing

from pattern_core.errors import Conflict, NotFound, Unavailable
from pattern_core.groups.group import MemberSpec
from pattern_core.models.model import ModelReply, ModelRequest
from pattern_core.outbox import ATTEMPTS_MAX, FIRST_WAIT_S, WAIT_S_MAX, Undelivered, wait_before
from pattern_core.testing import StoppedClock
from pattern_core.testing.model import Paced, calls, says
from pattern_core.turns.admission import IncomingMessage
from pattern_db.columns import unix_ms
from pattern_db.database import Database
from pattern_db.enums import AgentStatus, DeliveryStatus
from pattern_db.tables import messages
from tests.pattern_core.groups.rig import DyingMeters, Killed
from tests.support import START, USER, Running, in_memory, note, rows, running

AGENT = {"sender": "agent:agt_bob"}
DAY_S = 24 * 3600


@dataclass
class Mood:
    """A model that is down until it is set right."""

    is_down: bool = True

    def __call__(self, _request: ModelRequest) -> ModelReply:
        if self.is_down:
            raise Unavailable("the model is down")
        return says("At last.")


@dataclass
class Post:
    """A running constellation, its model, and its wall clock."""

    world: Running
    clock: StoppedClock
    model: Mood

    async def letters(self) -> list[Undelivered]:
        """What is in the outbox, newest first."""
        return await self.world.constellation.outbox.newest("agent:*", 99)

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, and what is due be delivered."""
        self.clock.advance(round(seconds * 1000))
        self.world.constellation.outbox.changed()
        await trio.testing.wait_all_tasks_blocked()


@asynccontextmanager
async def post(**options: Any) -> AsyncIterator[Post]:
    clock, model = StoppedClock(), Mood()
    async with running(otherwise=model, clock=clock, tools=[note], **options) as world:
        await world.agent()
        yield Post(world, clock, model)


async def answered(database: Database) -> list[tuple[object, ...]]:
    """The messages of completed turns, oldest first."""
    return await database.read(
        rows,
        "SELECT m.content FROM turn AS t JOIN messages AS m ON m.batch_id = t.batch_id AND m.role = 'user'"
        " WHERE t.status = 'completed' ORDER BY t.key",
    )


async def test_what_an_agent_sent_is_tried_again_until_it_is_answered() -> None:
    async with post() as here:
        view = await here.world.wait(await here.world.submit("Water the beds.", **AGENT, depth=2))
        assert view.status == "failed"
        [letter] = await here.letters()
        assert (letter.status, letter.attempts, letter.last_error) == ("pending", 1, "the model is down")
        await here.pass_time(FIRST_WAIT_S - 1)
        assert here.world.provider.asked == 1
        await here.pass_time(FIRST_WAIT_S)
        assert here.world.provider.asked == 2
        second, first = await here.letters()
        assert (first.status, second.status, second.attempts) == ("delivered", "pending", 2)
        here.model.is_down = False
        await here.pass_time(10 * FIRST_WAIT_S)
        assert await answered(here.world.database) == [("Water the beds.",)]
        history = await here.world.constellation.roster.get("ada")
        shown = await here.world.database.read(messages.shown, history.id, 9)
        assert [row.content for row in shown if row.role == "user"] == ["Water the beds."]
        assert [one.status for one in await here.letters()] == ["delivered", "delivered"]
        found = await here.world.database.read(rows, "SELECT sender, depth FROM turn")
        assert found == [("agent:agt_bob", 2)] * 3


async def test_it_is_dead_after_a_day_and_a_person_sends_it_again_or_discards_it() -> None:
    async with post() as here:
        box = here.world.constellation.outbox
        await here.world.wait(await here.world.submit("Water the beds.", **AGENT))
        for _ in range(ATTEMPTS_MAX):
            await here.pass_time(WAIT_S_MAX * 2)
        dead, *others = await here.letters()
        assert (dead.status, dead.attempts, len(others)) == ("dead", ATTEMPTS_MAX, ATTEMPTS_MAX - 1)
        assert here.world.constellation.is_idle
        here.model.is_down = False
        await here.pass_time(DAY_S)
        assert await answered(here.world.database) == []
        await box.retry(dead)
        await trio.testing.wait_all_tasks_blocked()
        assert await answered(here.world.database) == [("Water the beds.",)]
        with pytest.raises(Conflict, match="being delivered, or was"):
            await box.retry(await box.get(dead.id, ("agent",)))
        await box.discard(dead)
        with pytest.raises(NotFound):
            await box.discard(dead)
        with pytest.raises(NotFound):
            await box.get(dead.id, ("agent",))


async def test_what_did_something_is_not_repeated_by_itself() -> None:
    script = iter([calls("note", {"text": "beds"})])
    async with post() as here:
        here.world.provider._script = script
        await here.world.wait(await here.world.submit("Note the beds.", **AGENT))
        [letter] = await here.letters()
        assert letter.status is DeliveryStatus.DEAD


async def test_a_person_sees_that_it_failed_and_a_group_decides_about_its_members() -> None:
    async with post() as here:
        await here.world.say("Hello")
        await here.world.wait(await here.world.submit("Hello", sender="conversant:u"))
        constellation = here.world.constellation
        await constellation.groups.create(name="desk", pattern_type="parallel", members=[MemberSpec("ada")])
        for sender, waits in ((USER, 0), ("system", 1)):
            incoming = IncomingMessage(agent_id="", content="Hello", sender=sender)
            await here.world.wait((await constellation.submit_to_group("desk", incoming)).turn_id)
            assert await here.letters() == []
            assert len(await constellation.outbox.newest("group:*", 9, statuses=[DeliveryStatus.DEAD])) == waits


@asynccontextmanager
async def one_in_line() -> AsyncIterator[tuple[Post, str, trio.Event]]:
    """A message that waits until ada's turn ends, which the event does; bob is there, too."""
    async with post() as here:
        here.model.is_down, gate = False, trio.Event()
        here.world.provider._script = iter([Paced(answer=says("Wait."), gate=gate)])
        await here.world.agent("bob")
        await here.world.submit("First.")
        await trio.testing.wait_all_tasks_blocked()
        yield here, await here.world.submit("For you."), gate


async def test_a_message_for_an_agent_that_was_archived_waits_and_may_go_to_another() -> None:
    async with one_in_line() as (here, waiting, gate):
        constellation = here.world.constellation
        await constellation.roster.update("ada", {"status": AgentStatus.ARCHIVED})
        gate.set()
        view = await here.world.wait(waiting)
        assert (view.status, view.error) == ("failed", {"code": "undelivered", "message": "the agent ada is archived"})
        [letter] = await here.letters()
        assert (letter.status, letter.last_error) == ("pending", "the agent ada is archived")
        with pytest.raises(Conflict, match="archived"):
            await constellation.outbox.retry(letter)
        bob = await constellation.roster.get("bob")
        await constellation.outbox.retry(replace(letter, target=f"agent:{bob.id}"))
        await trio.testing.wait_all_tasks_blocked()
        assert await answered(here.world.database) == [("First.",), ("For you.",)]


async def test_a_message_for_an_agent_that_was_deleted_is_left_to_a_person() -> None:
    async with one_in_line() as (here, waiting, _gate):
        await here.world.constellation.delete_agent("ada")
        [letter] = await here.letters()
        assert (letter.id, letter.status, letter.last_error) == (waiting, "dead", "agent_deleted")
        with pytest.raises(NotFound, match="no agent"):
            await here.world.constellation.outbox.retry(letter)
        bob = await here.world.constellation.roster.get("bob")
        await here.world.constellation.outbox.retry(replace(letter, target=f"agent:{bob.id}"))
        await trio.testing.wait_all_tasks_blocked()
        assert await answered(here.world.database) == [("For you.",)]


async def test_a_message_that_cannot_be_read_stops_nothing() -> None:
    async with one_in_line() as (here, waiting, gate):
        await here.world.submit("After it.")
        await here.world.database.write(
            rows, """UPDATE inbox SET payload = '{"parts": [{"type": "smell"}]}' WHERE turn = 2"""
        )
        gate.set()
        assert (await here.world.wait(waiting)).status == "failed"
        await trio.testing.wait_all_tasks_blocked()
        assert await answered(here.world.database) == [("First.",), ("After it.",)]
        [letter] = await here.letters()
        assert letter.status is DeliveryStatus.DEAD


async def live(database: Database, kill_at: int) -> int:
    """Run a constellation a day later until it rests, or dies after a commit; how many commits there were."""
    meters, clock = DyingMeters(kill_at), StoppedClock(unix_ms(START) + DAY_S * 1000)
    try:
        async with running(otherwise=says("Done."), clock=clock, database=database, meters=meters, seed=2 + kill_at):
            await trio.testing.wait_all_tasks_blocked()
    except* Killed:
        pass
    return meters.commits


async def test_a_kill_after_any_commit_delivers_it_once() -> None:
    kill_at = commits = 0
    while kill_at <= commits:
        async with in_memory() as database:
            async with post(database=database) as here:
                await here.world.wait(await here.world.submit("Water the beds.", **AGENT))
            died = await live(database, kill_at)
            await live(database, 0)
            assert await answered(database) == [("Water the beds.",)], f"killed after commit {kill_at}"
        commits = max(commits, died)
        kill_at += 1
    assert commits >= 3


def test_waits_grow_and_end() -> None:
    waits = [wait_before("turn_1", failed) for failed in range(1, ATTEMPTS_MAX)]
    assert all(wait is not None and wait >= FIRST_WAIT_S for wait in waits)
    assert waits == sorted(wait for wait in waits if wait is not None)
    assert FIRST_WAIT_S * 5**6 > WAIT_S_MAX <= (waits[-1] or 0) <= WAIT_S_MAX * 1.5
    assert len({wait_before(f"turn_{number}", 1) for number in range(9)}) == 9
    assert wait_before("turn_1", ATTEMPTS_MAX) is None
