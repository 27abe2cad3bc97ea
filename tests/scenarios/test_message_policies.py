"""A message for an agent that is busy: it waits, is refused, ends what runs, undoes it, or joins it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from pattern_core.agent_settings import MessagePolicy
from pattern_core.errors import Conflict
from pattern_core.events import TERMINAL
from pattern_core.search import SearchRequest
from pattern_core.testing.model import Answer, Paced, calls, says
from pattern_db.database import Database
from tests.support import Outside, Running, acting, in_memory, note, rows, running


@asynccontextmanager
async def busy(*script: Answer, database: Database | None = None) -> AsyncIterator[tuple[Running, str, trio.Event]]:
    """An agent whose turn notes something as soon as the event is set, and then asks the model again."""
    gate = trio.Event()
    first = Paced(answer=calls("note", {"text": "noted by the first"}), gate=gate)
    async with acting([first, *script], tools=[note], database=database) as one:
        turn_id = await one.submit("the first message")
        await trio.testing.wait_all_tasks_blocked()
        yield one, turn_id, gate


async def status(one: Running, turn_id: str) -> str:
    return (await one.wait(turn_id)).status


def shown(one: Running, asked: int) -> list[str]:
    return [message.text for message in one.provider.requests[asked].messages if message.role == "user"]


async def test_it_ends_the_turn_at_its_next_step() -> None:
    async with busy(says("2"), says("3")) as (one, first, gate):
        waiting = await one.submit("in line")
        second = await one.submit("stop, rather this", policy="interrupt")
        gate.set()
        assert await status(one, second) == "completed"
        assert (await one.constellation.turn(first)).error == {"code": "cancelled", "message": "cancelled: superseded"}
        # The step that was under way was finished, and its work stays; who interrupts goes before who waits.
        assert "noted" in await one.names(first)
        assert shown(one, 1) == ["the first message", "stop, rather this"]
        assert await status(one, waiting) == "completed"


async def test_it_undoes_what_the_turn_said() -> None:
    async with busy(says("2")) as (one, first, gate):
        second = await one.submit("forget that, rather this", policy="rollback")
        gate.set()
        assert await status(one, second) == "completed"
        assert await status(one, first) == "cancelled"
        assert shown(one, 1) == ["forget that, rather this"]
        found = await one.constellation.search(SearchRequest(query="first message"))
        assert found.hits == []
        assert (await one.names(first)).count("turn.cancelled") == 1


async def test_it_joins_the_turn_at_its_next_step() -> None:
    async with busy(says("both"), says("later")) as (one, first, gate):
        second = await one.submit("and also this", policy="steer")
        assert (await one.constellation.turn(second)).status == "queued"
        gate.set()
        assert await status(one, first) == "completed"
        assert await status(one, second) == "completed"
        assert one.provider.asked == 2
        assert shown(one, 1) == ["the first message", "and also this"]
        [ended] = [event for event in await one.events(second) if event.name in TERMINAL]
        assert (ended.data["joined"], ended.data["status"], ended.data["text"]) == (first, "completed", None)
        [joined] = [event for event in await one.events(first) if event.name == "message.joined"]
        assert joined.data["content"] == "and also this"
        view = await one.constellation.turn(first)
        assert [message.role for message in view.messages] == ["user", "assistant", "tool", "user", "assistant"]
        assert (await one.say("and?")).status == "completed"
        assert shown(one, 2) == ["the first message", "and also this", "and?"]


async def test_it_waits_in_line_or_is_refused_as_the_agents_config_says_by_default() -> None:
    async with busy(says("1"), says("2"), says("3")) as (one, first, gate):
        second = await one.submit("the second")
        await one.constellation.roster.update("ada", {"config": {"message_policy": "reject"}})
        with pytest.raises(Conflict, match="busy"):
            await one.submit("the third")
        gate.set()
        assert [await status(one, turn) for turn in (first, second)] == ["completed", "completed"]
        assert shown(one, 1) == ["the first message"]
        assert await status(one, await one.submit("the fourth")) == "completed"


@pytest.mark.parametrize(("policy", "kept"), [("interrupt", ["first", "next"]), ("rollback", ["next"])])
async def test_a_crash_does_not_bring_back_what_was_to_end(policy: MessagePolicy, kept: list[str]) -> None:
    outside = Outside(gate=trio.Event())
    async with in_memory() as database:
        async with acting([calls("mail", {"to": "bob"})], tools=outside.tools, database=database) as one:
            first = await one.submit("first")
            await trio.testing.wait_all_tasks_blocked()
            second = await one.submit("next", policy=policy)
        async with running([says("2")], tools=outside.tools, database=database) as again:
            assert await status(again, second) == "completed"
            assert await status(again, first) == "cancelled"
            assert shown(again, 0) == kept
            assert await database.read(rows, "SELECT status FROM effect") == [("in_doubt",)]


async def test_it_joins_a_turn_that_was_about_to_end() -> None:
    gate = trio.Event()
    streamed = Paced(answer=says("one two"), gate=gate)
    async with acting([streamed, says("both"), says("later")]) as one:
        first = await one.submit("the first")
        await trio.testing.wait_all_tasks_blocked()
        second = await one.submit("and also this", policy="steer")
        gate.set()
        assert [await status(one, turn) for turn in (first, second)] == ["completed", "completed"]
        assert one.provider.asked == 2
        assert shown(one, 1) == ["the first", "and also this"]
