"""`blackboard`: members that wake on the changes of a block that they share."""

from __future__ import annotations

from collections.abc import Iterable

import trio.testing

from pattern_core.groups.group import Group
from pattern_core.memory.block import NewBlock
from pattern_core.memory.edits import AppendText
from pattern_core.models.model import ModelReply, ModelRequest
from pattern_core.testing import StoppedClock
from pattern_core.testing.model import calls, says
from pattern_core.tools.builtin.block_edit import block_edit
from tests.pattern_core.groups.rig import answer_of, asked, group, say
from tests.pattern_core.schedule.rig import Scheduled
from tests.support import BY_USER, Running, in_memory, rows, running

NAME = "desk: own work"


class Writers:
    """Members that append their name to the block on their first turns, each as often as `times` says."""

    def __init__(self, **times: int) -> None:
        self._left = times

    def __call__(self, request: ModelRequest) -> ModelReply:
        name = request.system[0]
        if request.messages[-1].role != "user":
            return says(f"{name} wrote")
        if self._left.get(name, 0) == 0:
            return says(f"{name} looked")
        self._left[name] -= 1
        return calls("block_edit", {"op": "append", "label": "plan", "content": f"\n{name}"})


async def board(world: Running, config: dict[str, object] | None = None) -> Group:
    """Make a group with the block that it works on."""
    desk = await group(world, "blackboard", {"label": "plan", **(config or {})})
    await world.constellation.memory.create(desk.id, NewBlock(label="plan", content="Plan:"), by=BY_USER)
    return desk


async def people_write(world: Running, desk: Group, words: Iterable[str]) -> None:
    """Have a person change the block."""
    for one in words:
        await world.constellation.memory.edit(desk.id, "plan", AppendText(text=one), by=BY_USER)


async def test_members_are_asked_again_while_others_change_the_block() -> None:
    async with running(otherwise=Writers(ada=1, bob=2), tools=[block_edit]) as world:
        desk = await board(world)
        view = await say(world)
        # All were asked; ada and bob wrote, so all are asked again; bob wrote again, so the other two are.
        found = await asked(world.database)
        assert [sorted(found[:3]), sorted(found[3:6]), sorted(found[6:])] == [
            ["ada", "bob", "cleo"],
            ["ada", "bob", "cleo"],
            ["ada", "cleo"],
        ]
        assert await answer_of(world, view.id) == "ada: ada looked\n\nbob: bob wrote\n\ncleo: cleo looked"
        whys = await world.database.read(rows, "SELECT DISTINCT why FROM group_ask ORDER BY asked")
        assert whys == [("a message",), ("ada, bob changed plan",), ("bob changed plan",)]
        [block] = await world.constellation.memory.list(desk.id)
        assert sorted(str(block.content).splitlines()) == ["Plan:", "ada", "bob", "bob"]


async def test_rounds_are_limited() -> None:
    async with running(otherwise=Writers(ada=9, bob=9), tools=[block_edit]) as world:
        await board(world, {"max_rounds": 2})
        view = await say(world)
        assert (view.status, len(await asked(world.database))) == ("completed", 6)


async def test_changes_by_others_wake_the_group_once_and_its_own_do_not() -> None:
    clock = StoppedClock()
    async with running(otherwise=Writers(ada=1), tools=[block_edit], clock=clock) as world:
        here, desk = Scheduled(world, clock), await board(world)
        await people_write(world, desk, ["one", "two", "three"])
        await here.pass_time(4)
        assert await asked(world.database) == []
        await here.pass_time(1)
        assert len(await asked(world.database)) == 5  # all; ada wrote, so the other two
        await here.pass_time(60)
        assert [status for _, status, _ in await here.found(NAME)] == ["fired", "skipped"]
        assert len(await asked(world.database)) == 5
        await people_write(world, desk, ["four"])
        await here.pass_time(5)
        assert len(await asked(world.database)) == 8
        asked_what = world.provider.requests[-1].messages[-1].text
        assert "The memory block `plan` was changed.\n\nWhy now: the block plan changed" in asked_what


async def test_a_change_before_a_crash_wakes_the_group_after_it() -> None:
    clock = StoppedClock()
    async with in_memory() as database:
        async with running(otherwise=Writers(), tools=[block_edit], clock=clock, database=database) as world:
            await people_write(world, await board(world), ["one"])
        clock.advance(5_000)
        async with running(otherwise=Writers(), tools=[block_edit], clock=clock, database=database, seed=2) as world:
            await trio.testing.wait_all_tasks_blocked()
            assert sorted(await asked(database)) == ["ada", "bob", "cleo"]


async def test_only_the_groups_own_block_wakes_it() -> None:
    clock = StoppedClock()
    async with running(otherwise=Writers(), tools=[block_edit], clock=clock) as world:
        here, _desk = Scheduled(world, clock), await board(world)
        memory, ada = world.constellation.memory, await world.constellation.roster.get("ada")
        await memory.create(ada.id, NewBlock(label="plan", content="mine"), by=BY_USER)
        await memory.edit(ada.id, "plan", AppendText(text="x"), by=BY_USER)
        await here.pass_time(3_600)
        assert await asked(world.database) == []
