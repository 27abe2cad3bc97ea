"""Assignments: each is done by the one agent that claims it, whatever dies."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from pattern_core.assignments import DESCRIPTION_CHARS_MAX
from pattern_core.errors import Conflict, InvalidInput, NotFound
from pattern_core.testing.model import Paced, calls, says
from pattern_core.tools.builtin.assignment import assign, claim
from pattern_db.enums import AssignmentStatus, Priority
from tests.support import USER, Running, in_memory, last_words, rows, running, until

TOOLS: dict[str, Any] = {"tools": [assign, claim]}


async def add(world: Running, description: str, agent: str | None = None) -> str:
    """Put work on the list; its id."""
    made = await world.constellation.assignments.add(description, Priority.MEDIUM, agent, author=USER)
    return made.id


async def listed(world: Running) -> list[tuple[object, ...]]:
    """Description, status and agent of all, the oldest first."""
    return await world.database.read(
        rows,
        "SELECT c.description, c.status, name FROM coordination_tasks AS c LEFT JOIN agents AS a ON a.id = assigned_to"
        " ORDER BY c.id",
    )


async def test_an_agent_assigns_and_another_claims_until_there_is_no_more_work() -> None:
    script = [calls("assign", {"description": "Dig.", "to": "bob", "priority": "high"}), says("Done.")]
    async with running(otherwise=lambda _request: script.pop(0), **TOOLS) as world:
        await world.agent("ada")
        await world.agent("bob")
        await world.say("Have bob dig.", "ada")
        assert await listed(world) == [("Dig.", "pending", "bob")]
        await add(world, "Water.")
        newest_first = await world.constellation.assignments.page(9)
        script += [calls("claim", {"finished": one}) for one in ("", *(row.id for row in reversed(newest_first)))]
        script.append(says("All done."))
        turn = await world.say("Claim work until there is none.", "bob")
        results = [str(one.content) for one in turn.messages if one.role == "tool"]
        assert ["Dig." in results[0], "Water." in results[1], "No work is left" in results[2]] == [True] * 3
        assert await listed(world) == [("Dig.", "completed", "bob"), ("Water.", "completed", "bob")]
        told = [one.data for one in await world.events() if one.name == "assignment.changed"]
        assert [one["status"] for one in told] == [
            *("pending", "pending", "in_progress", "completed", "in_progress", "completed")
        ]


async def test_of_two_agents_that_claim_at_once_one_gets_it_and_the_other_is_refused() -> None:
    async with running(otherwise=says("Done."), **TOOLS) as world:
        agents = [await world.agent(name) for name in ("ada", "bob")]
        own_id = await add(world, "Dig.")
        with pytest.raises(Conflict, match=f"claimed the assignment {own_id}"):
            async with world.constellation.transaction() as later, world.constellation.transaction() as earlier:
                for agent, work in zip(agents, (earlier, later), strict=True):
                    taken = await world.constellation.assignments.claim(agent.id, "", author=USER, work=work)
                    assert taken is not None and taken.id == own_id
        assert await listed(world) == [("Dig.", "in_progress", "ada")]


async def test_what_was_claimed_before_a_crash_is_not_claimed_again() -> None:
    late = Paced(answer=says("Late."), gate=trio.Event())
    async with in_memory() as database:
        async with running([calls("claim", {}), late], database=database, **TOOLS) as world:
            await world.agent("ada")
            await world.agent("bob")
            await add(world, "Dig.")
            await world.submit("Claim.", "ada")
            await until(lambda: len(world.provider.requests) == 2)
        script = [says("I dug."), calls("claim", {}), says("Nothing.")]
        async with running(script, database=database, seed=2, **TOOLS) as world:
            await until(lambda: len(world.provider.requests) == 1)
            assert "Dig." in last_words(world.provider.requests[0])
            await world.say("Claim.", "bob")
            assert "No work is left" in last_words(world.provider.requests[-1])
            assert await listed(world) == [("Dig.", "in_progress", "ada")]
            [row] = await world.constellation.assignments.page(9)
            await world.constellation.assignments.update(row.id, AssignmentStatus.PENDING, author=USER)
            assert await listed(world) == [("Dig.", "pending", None)]


async def test_what_is_refused() -> None:
    async with running(otherwise=says("Done."), **TOOLS) as world:
        ada = await world.agent("ada")
        for description in ("", " ", "x" * (DESCRIPTION_CHARS_MAX + 1)):
            with pytest.raises(InvalidInput, match="1 to 2,000 characters"):
                await add(world, description)
        with pytest.raises(NotFound, match="no agent 'bob'"):
            await add(world, "Dig.", "bob")
        own_id = await add(world, "Dig.")
        async with world.constellation.transaction() as work:
            with pytest.raises(InvalidInput, match="leave out `finished`"):
                await world.constellation.assignments.claim(ada.id, own_id, author=USER, work=work)
