"""Each coordination, killed after each of its commits: no member is asked twice, none is skipped, the answer is the
same.

`python -m tests.pattern_core.groups.test_kill_points --points 20000 --seed 7` kills as often in random places: groups
of 2 to 20 members, one to three kills in a row.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import pytest
import trio
from trio.testing import MockClock

from pattern_core.groups import group
from pattern_core.groups.coordination import Coordination, Room
from pattern_core.groups.coordinations.round_robin import order
from tests.pattern_core.groups.rig import Left, lived

CASES: dict[str, tuple[str, Mapping[str, Any]]] = {
    "round_robin": ("round_robin", {}),
    "dynamic": ("dynamic", {"selector": "random", "selector_config": {"count": 2}}),
    "chosen by a member": ("dynamic", {"selector": "supervisor"}),
    "supervisor": ("supervisor", {}),
    "pipeline": ("pipeline", {"stages": [{"name": "bob"}, {"name": "all", "agents": ["ada", "bob"], "mode": "all"}]}),
    "stages side by side": ("pipeline", {"parallel_stages": True, "context": "shared"}),
    "voting": ("voting", {"quorum": 2}),
    "parallel": ("parallel", {"aggregator": "bob"}),
    "swarm": ("swarm", {}),
    "sleeptime": ("sleeptime", {}),
    "until its termination": ("debate", {"rounds": 3, "termination": {"all": [{"text": "bob"}, {"rounds": 4}]}}),
    "blackboard": ("blackboard", {"label": "plan"}),
    "debate": ("debate", {"judge": "bob", "rounds": 2, "max_turns": 100}),
}
MESSAGES = ["Is it time?", "And now?"]


def messages_of(config: Mapping[str, Any]) -> list[str]:
    """A message that is accepted in a later life has another seed than in an undisturbed one."""
    return MESSAGES[:1] if config.get("selector") == "random" else MESSAGES


@pytest.mark.parametrize("size", [3, 7])
@pytest.mark.parametrize("case", CASES)
async def test_a_group_that_is_killed_after_any_commit_ends_as_if_it_was_not(case: str, size: int) -> None:
    pattern, config = CASES[case]
    messages = messages_of(config)
    whole, commits = await lived(messages, pattern, config, size=size)
    assert [status for status, _answer in whole.answers] == ["completed"] * len(messages)
    assert commits > 5
    for kill_at in range(1, commits + 1):
        found, _commits = await lived(messages, pattern, config, size=size, kills=[kill_at])
        assert found == whole, f"killed after commit {kill_at}"


@pytest.mark.parametrize("case", CASES)
def test_two_runs_that_nothing_disturbs_have_the_same_log(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trio._core._run, "_ALLOW_DETERMINISTIC_SCHEDULING", True)  # else trio shuffles ready tasks
    logs = []
    for _run in range(2):
        trio._core._run._r.seed(0)
        clock = MockClock(autojump_threshold=0.1)  # a thread that works for a moment is waited for
        found, _commits = trio.run(partial(lived, MESSAGES, *CASES[case], size=5), clock=clock)
        logs.append(found.log)
    assert logs[0] == logs[1]
    assert len(logs[0]) > 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgetful(Coordination):
    """Takes turns, but stores who was last after the answer, apart from it."""

    LAST: ClassVar[list[str]] = []

    async def run(self, room: Room) -> str:
        """Ask the next member, and then the one after it."""
        members = order(room.members, next(iter(self.LAST), None), 0)
        answer = await room.ask(members[0])
        self.LAST[:] = [members[0].id]
        return f"{answer.text}, {(await room.ask(members[1])).text}"


async def test_a_cursor_that_is_stored_after_the_answer_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "COORDINATIONS", {"forgetful": Forgetful})

    async def left_by(*kills: int) -> tuple[Left, int]:
        Forgetful.LAST.clear()
        return await lived(MESSAGES, "forgetful", {}, kills=kills)

    whole, commits = await left_by()
    assert (await left_by())[0] == whole
    wrong = [kill_at for kill_at in range(1, commits + 1) if (await left_by(kill_at))[0] != whole]
    assert wrong


async def many(points: int, seed: int) -> None:
    """Kill in random places, and compare with undisturbed runs."""
    chance, whole, done = random.Random(seed), dict[tuple[str, int], tuple[Left, int]](), 0
    while done < points:
        case, size = chance.choice(sorted(CASES)), chance.choice([2, 3, 5, 8, 20])
        if case == "debate" and size < 3:
            continue
        pattern, config = CASES[case]
        messages = messages_of(config)
        if (case, size) not in whole:
            whole[case, size] = await lived(messages, pattern, config, size=size)
        wanted, commits = whole[case, size]
        kills = [chance.randint(1, commits) for _ in range(chance.randint(1, 3))]
        found, _commits = await lived(messages, pattern, config, size=size, kills=kills)
        assert found == wanted, f"{case}, {size} members, killed after commits {kills}"
        done += len(kills)
    sys.stdout.write(f"{done:,} kills, 0 violations\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    trio.run(many, options.points, options.seed)
