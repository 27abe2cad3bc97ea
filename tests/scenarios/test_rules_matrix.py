"""Rules × kill points: a turn that a crash cut off at any commit is judged as if nothing had happened.

The process dies right before or right after a commit: its constellation is dropped, and another one continues with the
same rows. Then the agent's rules have to come to the same verdicts. What calls of each effect class promise is in
`test_recovery_matrix.py` and `tests/crash`.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import trio

from pattern_core.models.model import ModelReply
from pattern_core.testing import StoppedClock
from pattern_core.testing.model import calls, together
from pattern_core.tools.tool import Tool, ToolContext, tool
from pattern_db.columns import Json
from pattern_db.enums import EffectClass
from tests.scenarios.cancelled import CutDatabase, Scene, model_of, person, problems_of, rest
from tests.support import PATIENCE_S, empty_constellation, rows, running

ACT, OTHER, LOOK, JOT = (calls(name) for name in ("act", "other", "look", "jot"))


def case(rule: Mapping[str, Json], verdicts: str, *decisions: ModelReply) -> object:
    """A case of one rule: what the model decides, and the verdicts, `tool status` of each call in order."""
    scene = Scene(name=str(rule["type"]), expects="", decisions=decisions, rules=[dict(rule)])
    return pytest.param(scene, verdicts, id=scene.name)


CASES = (
    case(
        {"tool": "act", "type": "requires_preceding", "tools": ["look"]},
        "act denied, look done, act done",
        ACT,
        together(LOOK, ACT),
    ),
    case(
        {"tool": "*", "type": "exclusive_groups", "groups": [["act", "other"]]},
        "act done, other denied, other denied",
        together(ACT, OTHER),
        OTHER,
    ),
    case({"tool": "act", "type": "max_calls", "count": 1}, "act done, act denied, look done", ACT, together(ACT, LOOK)),
    case({"tool": "act", "type": "cooldown", "seconds": 60}, "act done, act denied", ACT, ACT),
    case(
        {"tool": "act", "type": "child", "children": ["look"]},
        "act done, jot denied, look done, act done, look done",  # the last one by the rule: the model wanted to end
        together(ACT, JOT),
        LOOK,
        ACT,
    ),
    case(
        {"tool": "act", "type": "conditional", "outputs": {"acted": "look"}},
        "act done, jot denied, look done, jot done",
        ACT,
        JOT,
        LOOK,
        JOT,
    ),
    case({"tool": "act", "type": "required_before_exit"}, "look done, act done", LOOK),
    case({"tool": "act", "type": "requires_consent"}, "look done, act done, jot done", together(LOOK, ACT), JOT),
    case({"tool": "act", "type": "exit_loop"}, "look done, act done, jot denied", LOOK, together(ACT, JOT), JOT),
    case({"tool": "act", "type": "start_constraint"}, "look denied, act done, look done", LOOK, ACT, LOOK),
)


def tool_of(name: str, effect: EffectClass, says: str) -> Tool:
    @tool(effect=effect, name=name)
    async def called(_context: ToolContext) -> str:
        """Do something."""
        await trio.lowlevel.checkpoint()
        return says

    return called


ACTING = [tool_of(name, EffectClass.IDEMPOTENT, "acted") for name in ("act", "other")]
TOOLS = [*ACTING, tool_of("look", EffectClass.PURE, "seen"), tool_of("jot", EffectClass.LOCAL, "jotted")]


async def lead(scene: Scene, cut: tuple[int, str]) -> tuple[list[str], str, int]:
    """Lead the scene, cut off once or, at (0, ""), never: the verdicts, the turn's status, the commits of its life."""
    clock, commits = StoppedClock(), 0
    async with CutDatabase.in_memory(empty_constellation()) as database:
        for life in (1, 2):
            async with running(provider=model_of(scene), tools=TOOLS, database=database, clock=clock) as one:
                if life == 1:
                    await one.agent(tool_rules=scene.rules)
                    database.cut_at(*cut, one)
                one.nursery.start_soon(person, one)
                with trio.fail_after(PATIENCE_S):
                    if life == 1:
                        await one.submit("go")
                    await rest(one)
            if life == 1:
                commits, database.cut = database.commits, None
        assert await database.read(problems_of) == []
        found = await database.read(rows, "SELECT tool, status FROM effect ORDER BY step, call")
        [(status,)] = await database.read(rows, "SELECT status FROM turn")
    return [f"{name} {verdict}" for name, verdict in found], str(status), commits


@pytest.mark.parametrize(("scene", "verdicts"), CASES)
async def test_a_kill_changes_no_verdict(scene: Scene, verdicts: str, autojump_clock: trio.testing.MockClock) -> None:
    *expected, commits = await lead(scene, (0, ""))
    assert expected == [verdicts.split(", "), "completed"]
    # Before the first commit there is nothing to recover.
    for cut in [(number, phase) for number in range(1, commits + 1) for phase in ("before", "after")][1:]:
        *found, _commits = await lead(scene, cut)
        assert found == expected, cut
