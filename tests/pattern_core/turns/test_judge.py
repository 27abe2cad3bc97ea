"""What rules and detectors say of a turn, from its calls alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Annotated, Any

import pytest

from pattern_core.messages import Text
from pattern_core.rules.detectors import DetectorSettings
from pattern_core.rules.facts import FORCED_PREFIX, RESULT_CHARS_MAX, JudgedCall
from pattern_core.rules.rule import RequestedCall
from pattern_core.rules.ruleset import RuleSet
from pattern_core.testing.model import Answer, calls, says, together
from pattern_core.tools.tool import Tool, ToolContext, tool
from pattern_core.turns.judge import Judge
from pattern_core.turns.state import FinishedCall
from pattern_db.enums import EffectClass
from pattern_db.journal.steps import EffectRow
from tests.support import Outside, Running, acting, last_words, note, rows, running, shout

NOW_MS = 1_000


def judge_of(*rules: dict[str, Any]) -> Judge:
    return Judge(now_ms=lambda: NOW_MS, rules=RuleSet.of(list(rules)), tools=["note", "shout"])


def row(tool: str, call: int = 0, *, step: int = 1, is_forced: bool = False) -> EffectRow:
    call_id = f"{FORCED_PREFIX if is_forced else 'call_'}{step}_{call}"
    return EffectRow(1, step, call, call_id, tool, "{}", b"h" * 16, "pure", f"key_{step}_{call}")


def plan(judge: Judge, *rows: EffectRow, arguments: Sequence[object] | None = None) -> None:
    given = [{} for _row in rows] if arguments is None else arguments
    judge.calls |= {row.key: JudgedCall.of(row, one) for row, one in zip(rows, given, strict=True)}


def end(judge: Judge, one: EffectRow, content: str = "ok", status: str = "done") -> None:
    judge.finish(FinishedCall(row=one, status=status, content=content), NOW_MS)


def test_calls_are_noted_where_they_stand() -> None:
    judge = judge_of()
    plan(judge, row("note"))
    plan(judge, row("note", step=2), row("shout", 1, step=2), arguments=[{"text": "x"}, '{"broken'])
    end(judge, row("shout", 1, step=2), "y" * (RESULT_CHARS_MAX + 1), "error")
    first, second, third = judge.calls.values()
    assert (first.status, second.status, third.status) == ("planned", "planned", "error")
    assert (len(third.result), third.at_ms, third.arguments) == (RESULT_CHARS_MAX, NOW_MS, {"invalid": '{"broken'})
    judge.refuse(row("note", step=2))
    assert [call.status for call in judge.calls.values()] == ["planned", "denied", "error"]
    assert (judge.count(1), judge.count(2)) == (1, 2)


def test_a_result_that_becomes_an_error_later_keeps_its_time() -> None:
    judge = judge_of({"tool": "shout", "type": "requires_preceding", "tools": ["note"]})
    both = row("note"), row("shout", 1)
    plan(judge, *both)
    end(judge, both[0])
    assert judge.before(both[1]).check(RequestedCall(tool="shout")).kind == "run"
    judge.finish(FinishedCall(row=both[0], status="error", content="Nothing was changed"))
    assert (judge.calls[both[0].key].status, judge.calls[both[0].key].at_ms) == ("error", NOW_MS)
    assert judge.before(both[1]).check(RequestedCall(tool="shout")).kind == "refuse"


def test_a_turn_would_end_when_nothing_was_called_or_a_call_ends_it() -> None:
    judge = judge_of({"tool": "note", "type": "exit_loop"})
    assert judge.border(1).ends
    plan(judge, row("note"))
    assert not judge.border(1).ends
    end(judge, row("note"))
    assert judge.border(1).ends
    plan(judge, row("note", step=2))
    end(judge, row("note", step=2), status="error")
    assert not judge.border(2).ends
    plan(judge, row("note", step=3, is_forced=True))
    assert judge.border(3).ends, "what a rule called is no decision of the model"


def test_what_is_missing_is_said_twice_and_then_called() -> None:
    judge = judge_of({"tool": "note", "type": "required_before_exit"})
    assert not judge.exit(1).ends
    for step in (1, 2):
        border = judge.border(step)
        assert (border.ends, list(border.forced)) == (False, [])
        assert "`note`" in border.notes[0]
    border = judge.border(3)
    assert [call.tool for call in border.forced] == ["note"]
    plan(judge, row("note", step=3, is_forced=True))
    end(judge, row("note", step=3, is_forced=True), status="error")
    assert judge.border(3).ends, "it is called once, however that ends"


def test_room_that_was_made_for_the_next_step_already_hides_no_circle() -> None:
    judge = judge_of()
    for step in (1, 2, 3):
        plan(judge, row("shout", step=step))
        end(judge, row("shout", step=step))
    judge.compactions = [4]  # a process died between making room and asking
    assert "`shout` was called 3 times" in judge.border(3).notes[0]
    judge.detectors, judge.compactions = DetectorSettings(identical=None), [2, 2, 3]
    assert "room was made in the conversation 3 times" in judge.border(3).notes[0]


# At work in a turn: what runs, what is refused, and how the turn ends.


@tool(effect=EffectClass.PURE)
async def fail(_context: ToolContext, text: Annotated[str, "What to say."]) -> str:
    """Fail."""
    raise LookupError(text)


TOOLS: Sequence[Tool] = (note, shout, fail, *Outside().tools)
NOTE = calls("note", {"text": "x"})
SHOUT = calls("shout", {"text": "x"})


@asynccontextmanager
async def ruled(rules: list[dict[str, Any]], *script: Answer, **config: object) -> AsyncIterator[Running]:
    async with running(script, tools=TOOLS) as one:
        await one.agent(tool_rules=rules, config=config)
        yield one


async def statuses(one: Running) -> list[tuple[object, ...]]:
    return await one.database.read(rows, "SELECT tool, status FROM effect ORDER BY turn, step, call")


async def test_a_call_ends_the_turn_without_asking_again() -> None:
    async with ruled([{"tool": "note", "type": "exit_loop"}], together(NOTE, SHOUT)) as one:
        view = await one.say("go")
        assert (view.status, one.provider.asked) == ("completed", 1)
        # What stands behind the end is answered, and not run.
        assert await statuses(one) == [("note", "done"), ("shout", "denied")]
        assert (await one.names(view.id)).count("turn.completed") == 1


async def test_a_refused_call_is_free_for_those_of_the_same_decision() -> None:
    rules: list[dict[str, Any]] = [
        {"tool": "note", "type": "max_calls", "count": 1},
        {"tool": "note", "type": "allowed_operations", "operations": ["y"], "parameter": "text"},
    ]
    async with ruled(rules, together(NOTE, calls("note", {"text": "y"})), says("over")) as one:
        await one.say("go")
        assert await statuses(one) == [("note", "denied"), ("note", "done")]


async def test_a_turn_begins_with_its_first_tool() -> None:
    rule = {"tool": "note", "type": "start_constraint", "args": {"text": "first"}}
    async with ruled([rule], NOTE, says("over")) as one:
        await one.say("go")
        first, second = one.provider.requests
        assert (first.force_tool, [spec.name for spec in first.tools]) == ("note", ["note"])
        assert second.force_tool is None
        noted = [event.data["text"] for event in await one.events() if event.name == "noted"]
        assert noted == ["first"]


async def test_going_in_circles_is_told_once_and_then_stopped() -> None:
    async with acting(otherwise=SHOUT, tools=TOOLS) as one:
        view = await one.say("go")
        assert view.status == "limit"
        assert view.error is not None
        assert "shout" in str(view.error["message"])
        assert one.provider.asked < 10
        assert "the same arguments" in last_words(one.provider.requests[-1])


@pytest.mark.parametrize(
    ("words", "status"), [([], "limit"), ([""], "limit"), (["Still looking."], "completed"), (["", "Hm."], "completed")]
)
async def test_who_says_something_beside_its_calls_makes_progress(words: list[str], status: str) -> None:
    look = calls("shout", {"text": "x"})
    look = replace(look, parts=(*(Text(text=one) for one in words), *look.parts))
    detectors = {"identical": None, "ping_pong": None, "no_progress": 2}
    async with running([*[look] * 6, says("over")], tools=[shout]) as one:
        await one.agent(config={"detectors": detectors})
        assert (await one.say("go")).status == status
