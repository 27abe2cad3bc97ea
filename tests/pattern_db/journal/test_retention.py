"""What the journal gives up with time, and what it never does."""

from __future__ import annotations

from dataclasses import astuple
from operator import add

import pytest

from pattern_core.testing.model import calls, says
from pattern_core.turns.admission import IncomingMessage
from pattern_db.connection import Connection
from pattern_db.journal import retention
from pattern_db.journal.retention import Pruned, prunable, prune, pruned_event
from tests.support import USER, Running, acting, note, rows

BEFORE, SOON = "2026-01-01T00:00:00.001Z", "2026-01-01T00:00:00.000Z"  # all tests happen at the first moment
KEPT = ("messages", "usage", "usage_day", "turn", "memory_blocks", "archival_entries")


async def counts(world: Running, *tables: str) -> dict[str, object]:
    return {table: (await world.database.read(rows, f"SELECT count(*) FROM {table}"))[0][0] for table in tables}


async def all_pruned(world: Running, before: str = BEFORE) -> Pruned:
    total = Pruned()
    while (gone := await world.database.write(prune, before)) != Pruned():
        total = Pruned(*map(add, astuple(total), astuple(gone)))
    return total


async def test_what_is_old_goes_and_what_people_said_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "TURNS_AT_ONCE", 2)
    monkeypatch.setattr(retention, "EVENTS_AT_ONCE", 7)
    async with acting([calls("note", {"text": "x"})], otherwise=says("ok"), tools=[note]) as world:
        views = [await world.say(f"message {number}") for number in range(5)]
        key = IncomingMessage(agent_id="ada", content="once", sender=USER, idempotency_key="k")
        first = await world.constellation.submit(key)
        await world.constellation.wait(first.turn_id)
        before, newest = await counts(world, *KEPT), world.constellation.events.latest
        assert await all_pruned(world, SOON) == Pruned()  # nothing is old enough
        expected = await world.database.read(prunable, BEFORE)
        gone = await all_pruned(world)
        assert (gone.turns, gone.steps, gone.calls) == (6, 7, 1)
        assert gone == expected
        assert await world.database.read(pruned_event) == newest - 1
        assert await counts(world, *KEPT) == before
        assert await counts(world, "step", "effect", "prompt_log") == {"step": 0, "effect": 0, "prompt_log": 0}
        assert [event.seq for event in await world.events()] == [newest]  # a number is never given twice
        assert (await world.constellation.submit(key)).turn_id == first.turn_id
        again = await world.constellation.turn(views[0].id)
        assert [message.content for message in again.messages] == [one.content for one in views[0].messages]
        assert (again.usage, again.steps) == (views[0].usage, views[0].steps)
        await world.say("and now?")
        assert await counts(world, "step") == {"step": 1}
        assert [event.seq for event in await world.events()][:2] == [newest, newest + 1]


async def test_a_turn_that_has_not_ended_keeps_what_came_after_it() -> None:
    ask = {"tool": "note", "type": "requires_consent"}
    async with acting([calls("note", {"text": "x"}), says("ok"), says("ok")], tools=[note]) as world:
        await world.say("first")
        await world.constellation.roster.update("ada", {"tool_rules": [ask]})
        world.provider._script = iter([calls("note", {"text": "x"}), says("meanwhile")])
        waiting = await world.say("second")
        assert waiting.status == "waiting"
        await world.say("third")
        expected = await world.database.read(prunable, BEFORE)
        gone = await all_pruned(world)
        assert gone == expected
        assert gone.turns == 1
        names = [event.name for event in await world.events(waiting.id)]
        assert names[0] == "turn.queued" and names[-1] == "turn.waiting"


async def test_what_two_prompts_showed_stays_as_long_as_one_of_them() -> None:
    def age(connection: Connection) -> None:
        connection.execute("UPDATE turn SET ended_at = '2025-01-01T00:00:00.000Z' WHERE key = 1").fetchall()

    async with acting(otherwise=says("ok")) as world:
        await world.say("one")
        await world.say("two")
        await world.database.write(age)
        assert (await all_pruned(world, "2025-06-01T00:00:00.000Z")).turns == 1
        missing = "SELECT count(*) FROM step WHERE prompt_stable NOT IN (SELECT digest FROM prompt_log)"
        assert await world.database.read(rows, missing) == [(0,)]
