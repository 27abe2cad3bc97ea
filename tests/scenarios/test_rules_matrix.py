"""Rules × effect classes × kill points: a turn that a crash cut off at any commit is judged as if nothing had happened.

The process dies right before or right after a commit: its constellation is dropped, and another one continues with the
same rows. Then the agent's rules have to come to the same verdicts, and each call has to have happened as its effect
class promises.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import pytest
import trio

from pattern_core.models.model import ModelReply
from pattern_core.testing import StoppedClock
from pattern_core.testing.model import calls, together
from pattern_core.tools.tool import Probe, Tool, ToolContext, tool
from pattern_db.columns import Json
from pattern_db.connection import Connection
from pattern_db.enums import EffectClass
from tests.scenarios.cancelled import CutDatabase, Scene, model_of, person, problems_of, rest
from tests.support import PATIENCE_S, empty_constellation, rows, running

EVERY = len(EffectClass)  # of a case's kill points, in each effect class others
ACT, OTHER, LOOK, JOT = (calls(name) for name in ("act", "other", "look", "jot"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A rule, what the model decides, and the verdicts: `tool status` of each call, in order."""

    scene: Scene
    verdicts: str


def case(rule: Mapping[str, Json], verdicts: str, *decisions: ModelReply) -> Case:
    """A case of one rule."""
    scene = Scene(name=str(rule["type"]), expects="", decisions=decisions, rules=[dict(rule)])
    return Case(scene=scene, verdicts=verdicts)


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


@dataclass
class Ledger:
    """What really happened outside: the tool and the idempotency key of each run."""

    runs: list[tuple[str, str]] = field(default_factory=list)

    def tools(self, effect: EffectClass) -> list[Tool]:
        """`act` and `other` of the class under test, `look` and `jot` beside them."""

        async def probe(key: str) -> tuple[Probe, str]:
            return ("done" if any(key == ran for _tool, ran in self.runs) else "absent"), "acted"

        def acting(name: str) -> Tool:
            @tool(effect=effect, probe=probe if effect is EffectClass.VERIFIABLE else None, name=name)
            async def act(context: ToolContext) -> str:
                """Act."""
                await trio.lowlevel.checkpoint()
                self.runs.append((name, context.idempotency_key))
                if effect is EffectClass.LOCAL:
                    context.work.event("acted", {"tool": name})
                return "acted"

            return act

        @tool(effect=EffectClass.PURE)
        async def look(_context: ToolContext) -> str:
            """Look."""
            return "seen"

        @tool(effect=EffectClass.LOCAL)
        async def jot(context: ToolContext) -> str:
            """Jot something down."""
            context.work.event("jotted", {})
            return "jotted"

        return [acting("act"), acting("other"), look, jot]


LEDGER = Ledger()
TOOLS = {effect: LEDGER.tools(effect) for effect in EffectClass}  # made once: that takes longer than a turn


async def lead(one: Case, effect: EffectClass, cut: tuple[int, str] | None) -> tuple[list[str], int, str]:
    """Lead the case, cut off once; its verdicts, how many commits its turn took, and the turn's status."""
    LEDGER.runs.clear()
    clock = StoppedClock()
    async with CutDatabase.in_memory(empty_constellation()) as database:
        opened = partial(running, tools=TOOLS[effect], database=database, clock=clock)
        async with opened(provider=model_of(one.scene)) as first:
            await first.agent()
            await first.constellation.roster.update("ada", {"tool_rules": one.scene.rules})
            database.cut_at(*(cut or (0, "")), first)
            first.nursery.start_soon(person, first)
            with trio.fail_after(PATIENCE_S):
                await first.submit("go")
                await rest(first)
        commits, database.cut = database.commits, None
        if cut is not None:
            async with opened(provider=model_of(one.scene)) as second:
                second.nursery.start_soon(person, second)
                with trio.fail_after(PATIENCE_S):
                    await rest(second)
        found = await database.read(rows, "SELECT tool, status, idempotency_key FROM effect ORDER BY step, call")
        problems = [*await database.read(problems_of), *_promises(found, effect, await database.read(_acted))]
        assert not problems, (one.scene.name, effect, cut, problems)
        statuses = await database.read(rows, "SELECT status FROM turn")
        status = str(statuses[0][0]) if statuses else "never accepted"
        return [f"{tool_name} {verdict}" for tool_name, verdict, _key in found], commits, status


def _acted(connection: Connection) -> int:
    count: int = connection.execute("SELECT count(*) FROM event WHERE name = 'acted'").get
    return count


def _promises(found: Sequence[tuple[object, ...]], effect: EffectClass, acted: int) -> Iterator[str]:
    """What does not hold of how often each call happened."""
    runs = Counter(key for _tool, key in LEDGER.runs)
    ours = [(str(status), str(key)) for name, status, key in found if name in ("act", "other")]
    if set(runs) - {key for _status, key in ours}:
        yield "something ran under a key of no call"
    for status, key in ours:
        if status == "denied" and runs[key]:
            yield "a refused call ran"
        if status == "done" and not runs[key]:
            yield "a call is said to be done and never ran"
        if effect in (EffectClass.VERIFIABLE, EffectClass.UNSAFE) and runs[key] > 1:
            yield f"a call that must not be repeated ran {runs[key]} times"
        if status == "in_doubt" and effect is not EffectClass.UNSAFE:
            yield f"a call of class {effect} is in doubt"
    if effect is EffectClass.LOCAL and acted != sum(status == "done" for status, _key in ours):
        yield f"{acted} local effects are stored"


EFFECTS = list(EffectClass)


@pytest.mark.parametrize("effect", EFFECTS, ids=str)
@pytest.mark.parametrize("one", CASES, ids=[one.scene.name for one in CASES])
async def test_a_kill_changes_no_verdict(
    one: Case, effect: EffectClass, autojump_clock: trio.testing.MockClock
) -> None:
    expected, commits, ended = await lead(one, effect, None)
    assert expected == one.verdicts.split(", ")
    assert ended == "completed"
    # Each commit is cut off in one class or another; before the first there is nothing to recover.
    cuts = [(number, phase) for number in range(1, commits + 1) for phase in ("before", "after")][1:]
    for cut in cuts[EFFECTS.index(effect) :: EVERY]:
        verdicts, _commits, status = await lead(one, effect, cut)
        if any("in_doubt" in verdict for verdict in verdicts):
            assert effect is EffectClass.UNSAFE
            # Later verdicts depend on whether it happened, which is unknown.
            doubtful = next(place for place, verdict in enumerate(verdicts) if "in_doubt" in verdict)
            assert verdicts[:doubtful] == expected[:doubtful]
        else:
            assert (verdicts, status) == (expected, ended), cut
