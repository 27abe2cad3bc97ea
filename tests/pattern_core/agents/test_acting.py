"""Rules, detectors and budgets at work in a turn: what runs, what is refused, and how the turn ends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any

import pytest

from pattern_core.approvals import Answer
from pattern_core.budgets.budget import Budget
from pattern_core.messages import Message, ToolResult
from pattern_core.testing.model import Answer as Scripted
from pattern_core.testing.model import calls, says, together
from pattern_core.tools.tool import Tool, ToolContext, tool
from pattern_db.enums import EffectClass
from pattern_db.journal.budgets import BudgetScope, Period, Unit
from tests.support import USER, Outside, Running, note, rows, running, shout


@tool(effect=EffectClass.PURE)
async def fail(_context: ToolContext, text: Annotated[str, "What to say."]) -> str:
    """Fail."""
    raise LookupError(text)


TOOLS: Sequence[Tool] = (note, shout, fail, *Outside().tools)
NOTE = calls("note", {"text": "x"})
SHOUT = calls("shout", {"text": "x"})
MAIL = calls("mail", {"to": "bob"})


@asynccontextmanager
async def ruled(rules: list[dict[str, Any]], *script: Scripted, **config: object) -> AsyncIterator[Running]:
    async with running(script, tools=TOOLS) as one:
        await one.agent()
        await one.constellation.roster.update("ada", {"tool_rules": rules, "config": config})
        yield one


async def statuses(one: Running) -> list[tuple[object, ...]]:
    return await one.database.read(rows, "SELECT tool, status FROM effect ORDER BY turn, step, call")


def last_results(one: Running) -> list[str]:
    messages: Sequence[Message] = one.provider.requests[-1].messages
    return [part.content for message in messages for part in message.parts if isinstance(part, ToolResult)]


async def test_a_call_ends_the_turn_without_asking_again() -> None:
    async with ruled([{"tool": "note", "type": "exit_loop"}], together(NOTE, SHOUT)) as one:
        view = await one.say("go")
        assert (view.status, one.provider.asked) == ("completed", 1)
        # What stands behind the end is answered, and not run.
        assert await statuses(one) == [("note", "done"), ("shout", "denied")]
        assert (await one.names(view.id)).count("turn.completed") == 1


async def test_a_failed_call_does_not_end_the_turn() -> None:
    async with ruled([{"tool": "fail", "type": "exit_loop"}], calls("fail", {"text": "x"}), says("over")) as one:
        assert (await one.say("go")).status == "completed"
        assert one.provider.asked == 2


async def test_order_within_one_decision() -> None:
    rule = {"tool": "mail", "type": "requires_preceding", "tools": ["note"]}
    async with ruled([rule], MAIL, together(NOTE, MAIL), says("over")) as one:
        await one.say("go")
        assert await statuses(one) == [("mail", "denied"), ("note", "done"), ("mail", "done")]
        assert "`note` must run first" in last_results(one)[0]


async def test_a_refused_call_counts_for_nothing() -> None:
    rule = {"tool": "note", "type": "max_calls", "count": 1}
    both = together(NOTE, calls("note", {"text": "y"}))
    async with ruled([rule], both, says("over")) as one:
        await one.say("go")
        assert await statuses(one) == [("note", "done"), ("note", "denied")]


async def test_a_required_call_is_asked_for_twice_and_then_made() -> None:
    rule = {"tool": "note", "type": "required_before_exit", "args": {"text": "made by the rule"}}
    async with ruled(
        [{"tool": "note", "type": "required_before_exit"}], says("1"), says("2"), says("3"), says("4")
    ) as one:
        assert rule["tool"] == "note"
        view = await one.say("go")
        assert view.status == "completed"
        tails = ["\n".join(request.tail) for request in one.provider.requests]
        assert "not finished" not in tails[0]
        assert "not finished" in tails[1]
        assert "`note`" in tails[2]
        # It was made with no arguments, which this tool does not take; having been made it keeps nobody.
        assert [tool for tool, _status in await statuses(one)] == ["note"]


async def test_a_turn_begins_with_its_first_tool() -> None:
    rule = {"tool": "note", "type": "start_constraint", "args": {"text": "first"}}
    async with ruled([rule], NOTE, says("over")) as one:
        await one.say("go")
        first, second = one.provider.requests
        assert (first.force_tool, [spec.name for spec in first.tools]) == ("note", ["note"])
        assert second.force_tool is None
        noted = [event.data["text"] for event in await one.events() if event.name == "noted"]
        assert noted == ["first"]


async def test_consent_by_rule_holds_for_its_scope() -> None:
    rules = [{"tool": name, "type": "requires_consent", "scope": "outside"} for name in ("mail", "put")]
    async with ruled(rules, MAIL, calls("put", {"text": "x"}), says("over")) as one:
        view = await one.say("go")
        assert view.status == "waiting"
        [asked] = await one.constellation.approvals.list(9)
        await one.constellation.approvals.decide(asked.id, Answer(approve=True, by=USER, scope="always"))
        assert (await one.constellation.wait(view.id)).status == "completed"
        assert await statuses(one) == [("mail", "done"), ("put", "done")]


async def test_rules_are_told_in_words() -> None:
    async with ruled([{"tool": "note", "type": "exit_loop"}], says("hi")) as one:
        await one.say("go")
        assert any("your turn ends" in part for part in one.provider.requests[0].system)


async def test_going_in_circles_is_told_once_and_then_stopped() -> None:
    async with running(otherwise=SHOUT, tools=TOOLS) as one:
        await one.agent()
        view = await one.say("go")
        assert view.status == "limit"
        assert view.error is not None
        assert "shout" in str(view.error["message"])
        assert one.provider.asked < 10
        assert any("shout" in text for text in one.provider.requests[-1].tail)


@pytest.mark.parametrize(("limits", "word"), [({"steps": 2}, "steps"), ({"tool_calls": 1}, "calls")])
async def test_an_agents_own_bounds(limits: dict[str, int], word: str) -> None:
    script = [calls("shout", {"text": str(number)}) for number in range(5)]
    async with ruled([], *script, limits=limits) as one:
        view = await one.say("go")
        assert view.status == "limit"
        assert view.error is not None
        assert word in str(view.error["message"])


async def test_a_budget_stops_before_the_call_that_might_pass_it() -> None:
    async with running(otherwise=SHOUT, tools=TOOLS) as one:
        await one.agent()
        await one.constellation.roster.update("ada", {"config": {"max_output_tokens": 100, "detectors": False}})
        budget = Budget(BudgetScope.CONSTELLATION, "", Period.DAY, Unit.TOKENS, 1_000)
        await one.constellation.spending.put(budget)
        view = await one.say("go")
        assert view.status == "limit"
        assert view.error is not None
        assert "budget" in str(view.error["message"])
        [stands] = await one.constellation.spending.budgets()
        assert stands.spent is not None
        assert stands.spent <= 1_000
        assert stands.held == 0
        # The call that met the bound was stored with its result, and nobody was asked once more.
        assert (await statuses(one))[-1] == ("shout", "done")
        assert (await one.say("and?")).status == "limit"
