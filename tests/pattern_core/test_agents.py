"""Agents: made, found, changed and deleted; and their config, read and checked in one place."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import trio

from pattern_core.agents import NAME_CHARS_MAX, AgentSpec, version_of
from pattern_core.errors import Conflict, InvalidInput, NotFound, VersionMismatch
from pattern_core.limits import Limits
from pattern_core.memory.block import NewBlock
from pattern_core.testing import StoppedClock, says
from pattern_core.testing.model import Paced, calls
from pattern_core.tools.builtin.block_edit import block_edit
from pattern_db.enums import AgentStatus
from pattern_db.errors import RowConflict
from pattern_db.tables import agents, timers
from tests.pattern_core.schedule.rig import HOUR_S, scheduled
from tests.support import START, USER, Outside, Running, acting, in_memory, note, rows, running, shout, until

RULE = {"tool": "note", "type": "exit_loop"}


@pytest.fixture
async def world() -> AsyncIterator[Running]:
    async with running([], otherwise=says("ok"), tools=[note, block_edit], limits=Limits(agents_max=3)) as it:
        yield it


def spec(name: str = "ada", **fields: Any) -> AgentSpec:
    return AgentSpec(**{"name": name, "model_provider": "scripted", "model_name": "script-1", **fields})


async def test_a_new_agent_has_what_it_needs(world: Running) -> None:
    roster = world.constellation.roster
    agent = await roster.create(spec(" ada ", description="d", config={"temperature": 1}), author=USER)
    assert agent.id.startswith("agent_")
    assert (agent.name, agent.description, agent.status) == ("ada", "d", AgentStatus.ACTIVE)
    assert (agent.created_at, agent.updated_at) == (START, START)
    assert list(agent.enabled_tools) == ["auto"]
    blocks = await world.constellation.memory.list(agent.id)
    assert sorted(block.label for block in blocks) == ["human", "persona"]
    events = await world.events()
    assert sorted(event.name for event in events) == ["agent.created", "memory.changed", "memory.changed"]
    told = next(event.data for event in events if event.name == "agent.created")
    assert told == {"agent_id": agent.id, "name": "ada"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": ""}, "1 to 100 printable"),
        ({"name": "  "}, "1 to 100 printable"),
        ({"name": "x" * (NAME_CHARS_MAX + 1)}, "1 to 100 printable"),
        ({"name": "a/b"}, "no slash"),
        ({"name": "a\nb"}, "printable"),
        ({"name": "a\ud83d"}, "printable"),
        ({"model_provider": ""}, "model_provider"),
        ({"model_name": ""}, "model_name"),
        ({"enabled_tools": ["note", "magic"]}, "there is no tool magic; there are note, block_edit, auto, small, full"),
    ],
)
async def test_what_does_not_fit_is_refused_whole(world: Running, fields: dict[str, Any], words: str) -> None:
    roster = world.constellation.roster
    with pytest.raises(InvalidInput, match=words):
        await roster.create(spec(**fields), author=USER)
    assert await roster.all() == []
    agent = await roster.create(spec(), author=USER)
    with pytest.raises(InvalidInput, match=words):
        await roster.update("ada", fields)
    assert await roster.get("ada") == agent
    assert "agent.changed" not in [event.name for event in await world.events()]


async def test_a_bad_block_leaves_no_agent_behind(world: Running) -> None:
    with pytest.raises(InvalidInput):
        await world.constellation.roster.create(spec(memory=[NewBlock(label="no/slash")]), author=USER)
    twice = [NewBlock(label="a"), NewBlock(label="a")]
    with pytest.raises(RowConflict, match="block 'a' already exists"):
        await world.constellation.roster.create(spec(memory=twice), author=USER)
    assert await world.constellation.roster.all() == []
    assert await world.events() == []


async def test_names_are_taken_once_and_agents_are_bounded(world: Running) -> None:
    roster = world.constellation.roster
    ada = await roster.create(spec(), author=USER)
    await roster.create(spec("bob"), author=USER)
    for taken in ("ada", ada.id):
        with pytest.raises(Conflict, match="choose another name"):
            await roster.create(spec(taken), author=USER)
        with pytest.raises(Conflict, match="choose another name"):
            await roster.update("bob", {"name": taken})
    with pytest.raises(Conflict):
        await roster.update("bob", {"name": " ada "})
    await roster.update("ada", {"name": "ada"})  # its own name is no other's
    await roster.update("ada", {"name": "eve"})
    with pytest.raises(NotFound):
        await roster.get("ada")
    bob = await roster.update("bob", {"name": "ada"})
    assert ((await roster.get("ada")).id, (await roster.get("eve")).id) == (bob.id, ada.id)
    await roster.create(spec("bob"), author=USER)
    with pytest.raises(InvalidInput, match="at most 3 agents"):
        await roster.create(spec("d"), author=USER)
    await roster.delete("ada")
    with pytest.raises(NotFound):
        await roster.get("ada")
    await roster.create(spec("d"), author=USER)


async def test_a_change_is_seen_at_once_and_announced(world: Running) -> None:
    roster = world.constellation.roster
    made = await roster.create(spec(), author=USER)
    clock = world.clock
    assert isinstance(clock, StoppedClock)
    clock.advance(1)
    changed = await roster.update("ada", {"system_prompt": "Be brief.", "status": "hibernated"})
    assert (changed.id, changed.created_at, changed.updated_at) == (made.id, START, "2026-01-01T00:00:00.001Z")
    assert (changed.system_prompt, changed.status) == ("Be brief.", AgentStatus.HIBERNATED)
    assert await roster.get("ada") == await roster.get(made.id) == changed
    assert await roster.all() == [changed]
    event = (await world.events())[-1]
    assert event.name == "agent.changed"
    assert event.data == {"agent_id": made.id, "fields": ["status", "system_prompt"]}
    assert (await world.say("hello")).status == "completed"
    assert world.provider.requests[-1].system[0] == "Be brief."
    assert (await roster.get("ada")).status is AgentStatus.ACTIVE, "a message wakes it"
    await roster.update("ada", {"status": AgentStatus.ARCHIVED})
    with pytest.raises(Conflict, match="archived"):
        await world.submit("hello")


async def test_an_idle_agent_hibernates_and_what_it_is_to_do_wakes_it() -> None:
    async with scheduled() as here:
        world, roster, statuses = here.running, here.running.constellation.roster, list[str]()

        async def passes(seconds: float) -> None:
            """Note its status after a time, and whether something is still to happen."""
            await here.pass_time(seconds)
            statuses.append((await roster.get("ada")).status)

        await roster.update("ada", {"config": {"hibernate_after_s": HOUR_S}})
        await passes(HOUR_S / 2)
        await world.say("hello")
        await passes(HOUR_S / 2)  # an hour after the change, half an hour after the message
        await passes(HOUR_S / 2)
        assert statuses == ["active", "active", "hibernated"]
        assert await world.database.read(timers.first_due) is None
        assert (await world.events())[-1].data["fields"] == ["status"]
        await world.say("good morning")
        await passes(HOUR_S - 1)
        await passes(1)
        await roster.update("ada", {"status": AgentStatus.ACTIVE, "config": {}})
        await passes(10 * HOUR_S)
        assert statuses[3:] == ["active", "hibernated", "active"]
        assert await world.database.read(timers.first_due) is None


async def test_an_agent_that_works_does_not_hibernate_and_one_that_waits_for_a_person_wakes_with_the_answer() -> None:
    gate, script = trio.Event(), [calls("mail", {"to": "bob"})]
    slow = Paced(answer=says("There."), gate=gate)
    async with running([slow, *script], otherwise=says("Sent."), tools=Outside().tools) as world:
        roster, clock = world.constellation.roster, world.clock
        assert isinstance(clock, StoppedClock)
        rules = [{"tool": "mail", "type": "requires_consent"}]
        await world.agent(config={"hibernate_after_s": HOUR_S}, tool_rules=rules)
        turn = await world.submit("hello")
        await until(lambda: world.provider.running)
        clock.advance(2 * HOUR_S * 1000)
        while await world.constellation.timers.fire_due():
            pass
        assert (await roster.get("ada")).status is AgentStatus.ACTIVE
        gate.set()
        await world.wait(turn)
        assert (await world.say("Write to bob.")).status == "waiting"
        clock.advance(HOUR_S * 1000)
        while await world.constellation.timers.fire_due():
            pass
        assert (await roster.get("ada")).status is AgentStatus.HIBERNATED
        await world.answer()
        await until(lambda: world.provider.requests[2:])
        assert (await roster.get("ada")).status is AgentStatus.ACTIVE


async def test_what_cannot_be_changed(world: Running) -> None:
    roster = world.constellation.roster
    await roster.create(spec(), author=USER)
    with pytest.raises(InvalidInput, match="no changeable field created_at, id"):
        await roster.update("ada", {"id": "agent_x", "created_at": START, "name": "eve"})
    with pytest.raises(InvalidInput, match="active, hibernated, archived"):
        await roster.update("ada", {"status": "asleep"})
    with pytest.raises(NotFound):
        await roster.update("eve", {"name": "bob"})


async def test_changes_of_different_fields_at_once_all_count(tmp_path: Path) -> None:
    changes = {"description": "d", "system_prompt": "s", "model_name": "m", "tool_rules": [RULE]}
    async with running(path=tmp_path / "pattern.db") as it:
        roster = it.constellation.roster
        agent = await roster.create(spec(), author=USER)
        async with trio.open_nursery() as nursery:
            for name, value in changes.items():
                nursery.start_soon(roster.update, agent.id, {name: value})
                nursery.start_soon(roster.get, "ada")
        known = await roster.get(agent.id)
        assert {name: getattr(known, name) for name in changes} == changes
        assert await roster.all() == [known]


async def test_a_change_can_demand_the_version_that_was_read(world: Running) -> None:
    roster = world.constellation.roster
    ada = await roster.create(spec(enabled_tools=["note"], config={"temperature": 1}), author=USER)
    read = version_of(ada)
    assert read == version_of(replace(ada, enabled_tools=("note",), config=MappingProxyType({"temperature": 1})))
    changed = await roster.update("ada", {"tool_rules": [RULE]}, version=read)
    assert version_of(changed) != read
    with pytest.raises(VersionMismatch, match="read it again"):
        await roster.update("ada", {"tool_rules": None}, version=read)
    assert (await roster.get("ada")).tool_rules == [RULE]
    others = (
        replace(ada, name="bob"),
        replace(ada, status=AgentStatus.ARCHIVED),
        replace(ada, enabled_tools=[]),
        replace(ada, config={}),
        replace(ada, tool_rules=[RULE]),
    )
    assert len({read, *map(version_of, others)}) == 1 + len(others)


async def test_a_tool_that_is_gone_does_not_matter() -> None:
    async with in_memory() as database:
        async with running(database=database, tools=[note, shout]) as it:
            await it.agent(tools=["note", "shout"])
        async with running([says("ok")], database=database, tools=[note]) as it:
            changed = await it.constellation.roster.update("ada", {"description": "d"})
            assert list(changed.enabled_tools) == ["note", "shout"]
            assert (await it.say("hello")).status == "completed"
            assert [tool.name for tool in it.provider.requests[0].tools] == ["note"]
            with pytest.raises(InvalidInput, match="no tool shout"):
                await it.constellation.roster.update("ada", {"enabled_tools": ["note", "shout"]})


async def test_deleting_takes_everything_along(world: Running) -> None:
    roster = world.constellation.roster
    ada = await roster.create(spec(), author=USER)
    await roster.create(spec("bob"), author=USER)
    turn = await world.say("hello")
    assert await roster.delete("ada") == ada
    for name in ("ada", ada.id):
        with pytest.raises(NotFound):
            await roster.get(name)
    with pytest.raises(NotFound):
        await roster.delete("ada")
    with pytest.raises(NotFound):
        await world.constellation.turn(turn.id)
    assert (await world.events())[-1].data == {"agent_id": ada.id, "name": "ada"}
    for table in ("messages", "turn", "step", "memory_blocks WHERE agent_id <> (SELECT id FROM agents)"):
        assert await world.database.read(rows, f"SELECT count(*) FROM {table}") == [(0,)]
    again = await roster.create(spec(), author=USER)
    assert again.id != ada.id
    assert (await world.say("hello again")).status == "completed"
    assert [message.text for message in world.provider.requests[-1].messages] == ["hello again"]


async def test_deleting_twice_at_once_deletes_once(tmp_path: Path) -> None:
    outcomes: list[str] = []

    async def delete(it: Running) -> None:
        try:
            outcomes.append((await it.constellation.roster.delete("ada")).name)
        except NotFound:
            outcomes.append("not found")

    async with acting(path=tmp_path / "pattern.db") as it, trio.open_nursery() as nursery:
        for _time in range(3):
            nursery.start_soon(delete, it)
    assert sorted(outcomes) == ["ada", "not found", "not found"]


async def test_an_agent_that_is_deleted_while_it_is_read_is_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with acting(path=tmp_path / "pattern.db"):
        pass
    async with running([], path=tmp_path / "pattern.db") as it:
        roster, read = it.constellation.roster, it.database.read

        async def read_late(look: Any, *args: Any) -> Any:
            found = await read(look, *args)
            if look is agents.find:
                monkeypatch.setattr(it.database, "read", read)
                await roster.delete("ada")
            return found

        monkeypatch.setattr(it.database, "read", read_late)
        assert (await roster.get("ada")).name == "ada"
        with pytest.raises(NotFound):
            await roster.get("ada")
