"""Many groups of the same agents that talk at the same time, in virtual time: none waits for ever, budgets hold, and a
late turn costs as many rows and tasks as an early one.

The test command has 8 groups for two minutes; `python -m tests.scenarios.test_many_groups --groups 50 --minutes 10` has
more.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import trio
from trio.testing import MockClock

from pattern_core.budgets.budget import Budget
from pattern_core.groups.group import MemberSpec
from pattern_core.limits import Limits
from pattern_core.models.model import ModelReply, ModelRequest, OnDelta, Usage
from pattern_core.testing.model import ScriptedProvider, calls
from pattern_core.tools.builtin.send_message import send_message
from pattern_core.turns.admission import IncomingMessage
from pattern_db.connection import Connection
from pattern_db.journal.budgets import BudgetScope, Period, Unit
from tests.pattern_core.groups.rig import speak
from tests.support import USER, Running, rows, running

PATTERNS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("round_robin", {}),
    ("dynamic", {"selector": "random"}),
    ("supervisor", {}),
    ("pipeline", {}),
    ("voting", {}),
    ("parallel", {}),
    ("debate", {"termination": {"rounds": 3}}),
    ("swarm", {}),
)
MEMBERS = 4
BUDGET = 8_000  # tokens of every third group, which the talk of some would exceed in any order
USED = Usage(input_tokens=400, output_tokens=200)
HALF_AN_HOUR_S = 1_800.0  # of virtual time, after which something waits for ever
GROWTH_MAX = 1.15  # of the rows per turn, from the first half to the second
TABLES = (
    "turn",
    "event",
    "messages",
    "step",
    "usage",
    "group_run",
    "group_ask",
    "inbox",
    "timer",
    "budget_reservation",
)


class Slow(ScriptedProvider):
    """Members that think for some seconds, and now and then send another group a message."""

    def __init__(self, groups: int) -> None:
        super().__init__(otherwise=speak)
        self._chance, self._groups = random.Random(1), groups

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        """Think, and answer."""
        await trio.sleep(self._chance.uniform(0.5, 8))
        if request.messages[-1].role == "user" and self._chance.random() < 0.05:
            to = f"group{self._chance.randrange(self._groups)}"
            return calls("send_message", {"to": to, "content": "And you?", "needs_response": False})
        return replace(await super().ask(request, on_delta), usage=USED)


@dataclass
class Talk:
    """What came of it: the ends of groups' turns, turns of members that a budget refused, rows and turns in each half,
    tasks at rest, and tokens by group.
    """

    ends: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    rows: list[int] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)
    tasks: list[int] = field(default_factory=list)
    spent: dict[str, int] = field(default_factory=dict)

    @property
    def growth(self) -> float:
        """How many rows a turn of the second half has, compared with one of the first."""
        return self.rows[1] / self.turns[1] / (self.rows[0] / self.turns[0])


def _counts(connection: Connection) -> tuple[int, int]:
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    found = [connection.execute(f"SELECT count(*) FROM {name}").get for name in TABLES if name in tables]
    return sum(found), found[0]


async def talk(groups: int, seconds: float) -> Talk:
    """Have the groups talk for so long, in two halves with a rest after each."""
    done, chance = Talk(), random.Random(2)
    async with running(provider=Slow(groups), tools=[send_message], limits=Limits(pair_cooldown_s=0)) as world:
        names = [f"a{number:03}" for number in range(max(MEMBERS, groups * 2))]  # each is in two groups
        for name in names:
            await world.agent(name, prompt=name)
        for number in range(groups):
            pattern, config = PATTERNS[number % len(PATTERNS)]
            members = [MemberSpec(name) for name in chance.sample(names, MEMBERS)]
            made = await world.constellation.groups.create(
                name=f"group{number}",
                pattern_type=pattern,
                pattern_config={"on_member_error": "skip", **config},
                members=members,
            )
            if number % 3 == 0:
                budget = Budget(BudgetScope.GROUP, made.id, Period.TOTAL, Unit.TOKENS, BUDGET)
                await world.constellation.budgets.put(budget)
        before = await world.database.read(_counts)
        for _half in range(2):
            with trio.fail_after(HALF_AN_HOUR_S):
                async with trio.open_nursery() as nursery:
                    for number in range(groups):
                        nursery.start_soon(_speak, world, number, seconds / 2, done)
                while not world.constellation.is_idle:
                    await trio.sleep(1)
            await trio.sleep(1)
            after = await world.database.read(_counts)
            done.rows.append(after[0] - before[0])
            done.turns.append(after[1] - before[1])
            done.tasks.append(trio.lowlevel.current_statistics().tasks_living)
            before = after
        open_turns = await world.database.read(rows, "SELECT count(*) FROM turn WHERE ended_at IS NULL")
        assert open_turns == [(0,)]
        [(refused,)] = await world.database.read(
            rows, "SELECT count(*) FROM turn WHERE status = 'limit' AND agent_id IS NOT NULL"
        )
        done.refused = int(str(refused))
        spent = (
            "SELECT name, sum(input_tokens + output_tokens) FROM usage JOIN agent_groups ON id = group_id GROUP BY 1"
        )
        done.spent = {str(name): int(str(tokens)) for name, tokens in await world.database.read(rows, spent)}
    return done


async def _speak(world: Running, number: int, seconds: float, done: Talk) -> None:
    chance, end = random.Random(number), trio.current_time() + seconds
    while trio.current_time() < end:
        incoming = IncomingMessage(agent_id="", content="Is it time?", sender=USER)
        ticket = await world.constellation.submit_to_group(f"group{number}", incoming)
        done.ends[(await world.constellation.wait(ticket.turn_id)).status] += 1
        await trio.sleep(chance.uniform(0, 20))


def check(done: Talk) -> None:
    """Fail if a budget did not hold, or something grew."""
    limited = {name: tokens for name, tokens in done.spent.items() if int(name.removeprefix("group")) % 3 == 0}
    assert done.refused > 0
    assert max(limited.values()) <= BUDGET, limited
    assert set(done.ends) <= {"completed", "limit", "failed"}, done.ends
    assert done.ends["completed"] > sum(done.ends.values()) / 2, done.ends
    assert done.growth < GROWTH_MAX, done
    assert done.tasks[0] == done.tasks[1], done.tasks


async def test_groups_that_talk_at_the_same_time_end_their_turns_within_their_budgets(
    autojump_clock: MockClock,
) -> None:
    check(await talk(8, 120))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=50)
    parser.add_argument("--minutes", type=float, default=10)
    options = parser.parse_args()
    found = trio.run(talk, options.groups, options.minutes * 60, clock=MockClock(autojump_threshold=0))
    sys.stdout.write(f"{found}\nrows per turn, second half to first: {found.growth:.3f}\n")
    check(found)
