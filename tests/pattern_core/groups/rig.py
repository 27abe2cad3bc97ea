"""A group of scripted agents, and a constellation that can be killed after any commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio

from pattern_core.errors import leaves
from pattern_core.groups.group import Group, MemberSpec
from pattern_core.memory.block import NewBlock
from pattern_core.models.model import ModelReply, ModelRequest
from pattern_core.runtime import Meters
from pattern_core.testing.model import calls, says
from pattern_core.tools.builtin.block_edit import block_edit
from pattern_core.turns import actor
from pattern_core.turns.admission import IncomingMessage
from pattern_core.views import TurnView
from pattern_db.database import Database
from tests.support import BY_USER, PATIENCE_S, USER, Running, in_memory, rows, running

NAMES = ("ada", "bob", "cleo", "dan", "eve")


class Killed(Exception):
    """The process ends here."""


class DyingMeters(Meters):
    """Ends the process after a commit: what it stored is on the disk, and nothing that follows happens."""

    def __init__(self, at: int) -> None:
        self._at = at
        self._count = 0
        super().__init__()

    @property
    def commits(self) -> int:
        """How many there were."""
        return self._count

    @commits.setter
    def commits(self, count: int) -> None:
        self._count = count
        if 0 < count == self._at:
            raise Killed


def speak(request: ModelRequest) -> ModelReply:
    """Answer by name and by what is asked, the same whenever it is asked again."""
    name, words = request.system[0], request.messages[-1].text
    if "VOTE:" in words:
        return says(f"I am {name}.\nVOTE: {'Approve' if name < 'd' else 'Reject'}\nREASON: {name} thinks so")
    if "Write only the name" in words:
        return says("bob")
    if "Work on the memory block" in words and name not in "".join(request.memory):
        return calls("block_edit", {"op": "append", "label": "plan", "content": name})
    if "give tasks to members" in words:
        return says("@bob: dig\n@cleo: plant\n@any: water")
    if "To hand over" in words and name < "c":
        return says(f"{name} passes.\n@{'bob' if name == 'ada' else 'cleo'}: yours")
    return says(f"{name} answers")


async def group(
    world: Running,
    pattern: str,
    config: Mapping[str, Any] | None = None,
    *,
    names: Sequence[str] = NAMES[:3],
    roles: Mapping[str, str] | None = None,
    **fields: Mapping[str, Any],
) -> Group:
    """Make agents of these names, and a group `desk` of them; `fields` are more of a member, by its name."""
    for name in names:
        await world.agent(name, prompt=name)
    members = [MemberSpec(name, (roles or {}).get(name), **fields.get(name, {})) for name in names]
    return await world.constellation.groups.create(
        name="desk", pattern_type=pattern, pattern_config=dict(config or {}), members=members
    )


async def submit(world: Running, content: str = "Is it time?", *, key: str | None = None, **more: Any) -> str:
    """Send the group a message; the id of its turn."""
    incoming = IncomingMessage(agent_id="", content=content, idempotency_key=key, **{"sender": USER, **more})
    return (await world.constellation.submit_to_group("desk", incoming)).turn_id


async def say(world: Running, content: str = "Is it time?") -> TurnView:
    """Send the group a message and wait for the end of its turn; fails rather than hang."""
    with trio.fail_after(PATIENCE_S):
        return await world.constellation.wait(await submit(world, content))


async def answer_of(world: Running, turn_id: str) -> str:
    """What the group answered."""
    [(answer,)] = await world.database.read(
        rows, "SELECT coalesce(answer, '') FROM group_run JOIN turn ON turn.key = group_run.turn WHERE id = ?", turn_id
    )
    return str(answer)


async def asked(database: Database) -> list[str]:
    """The members that groups asked, in order."""
    found = await database.read(
        rows,
        "SELECT name FROM group_ask JOIN turn ON turn.key = asked JOIN agents ON agents.id = agent_id ORDER BY key",
    )
    return [str(name) for (name,) in found]


@dataclass(frozen=True)
class Left:
    """What is left of a group's turns: its answers, what each place was asked, its own events, its state; and all
    events as they are stored, with ids and times, which are not compared.
    """

    answers: list[tuple[object, ...]]
    asked: list[tuple[object, ...]]
    events: list[tuple[object, ...]]
    state: list[tuple[object, ...]] = field(default_factory=list)
    log: list[tuple[object, ...]] = field(default_factory=list, compare=False, repr=False)


async def left(database: Database) -> Left:
    """Read it; ids and times differ from run to run and are left out."""
    return Left(
        answers=await database.read(
            rows, "SELECT status, answer FROM group_run JOIN turn ON turn.key = group_run.turn ORDER BY turn.key"
        ),
        asked=await database.read(
            rows,
            "SELECT g.turn, replace(a.place, t.agent_id, n.name), t.status, m.content FROM group_ask AS a"
            " JOIN turn AS t ON t.key = a.asked JOIN agents AS n ON n.id = t.agent_id JOIN group_run AS g"
            " ON g.turn = a.turn LEFT JOIN messages AS m ON m.batch_id = t.batch_id"
            " AND m.role <> 'tool'"  # those say how long a block was, and members write at the same time
            " ORDER BY a.turn, 2, m.position",
        ),
        events=await database.read(
            rows,
            "SELECT e.name, json_remove(e.data, '$.member_turn', '$.agent_id') FROM event AS e JOIN turn AS t"
            " ON t.key = e.turn WHERE t.group_id IS NOT NULL ORDER BY e.seq",
        ),
        state=await database.read(rows, "SELECT count(*) FROM agent_groups WHERE state <> '{}'"),
        log=await database.read(rows, "SELECT seq, turn, name, data, created_at FROM event ORDER BY seq"),
    )


async def lived(
    messages: Sequence[str], pattern: str, config: Mapping[str, Any], *, size: int = 3, kills: Sequence[int] = ()
) -> tuple[Left, int]:
    """Have a group of `size` members answer messages, in lives of which each is killed after a number of its commits
    (`kills`), and a last one that is not; what is left, and the number of commits of the last life.
    """
    names = [*NAMES, *(f"m{number:02}" for number in range(size))][:size]
    with pytest.MonkeyPatch.context() as patch:
        # To be killed in a late flush, which comes by time, leaves its turn running: no process dies so.
        patch.setattr(actor, "LATE_S", 3600)
        async with in_memory() as database:
            async with running(otherwise=speak, database=database, tools=[block_edit]) as world:
                desk = await group(world, pattern, config, names=names, roles={"ada": "supervisor"})
                await world.constellation.memory.create(desk.id, NewBlock(label="plan", content="Plan:"), by=BY_USER)
            meters = DyingMeters(0)
            for seed, kill_at in enumerate([*kills, 0]):
                meters = DyingMeters(kill_at)
                try:
                    async with running(
                        otherwise=speak, database=database, tools=[block_edit], meters=meters, seed=seed
                    ) as world:
                        for number, message in enumerate(messages):
                            with trio.fail_after(PATIENCE_S):
                                await world.constellation.wait(await submit(world, message, key=str(number)))
                except* Killed as killed:
                    assert all(isinstance(error, Killed) for error in leaves(killed))
            return await left(database), meters.commits
