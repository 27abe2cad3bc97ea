"""Tool calls that wait for a person: the turn rests as rows, and goes on, once, with the answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated

import pytest
import trio
import trio.testing

from pattern_core.approvals import ApprovalAnswer
from pattern_core.errors import Conflict, InvalidInput
from pattern_core.limits import Limits
from pattern_core.messages import ToolCall, ToolResult
from pattern_core.rules import facts
from pattern_core.rules.facts import EDITED, JudgedCall
from pattern_core.testing import StoppedClock
from pattern_core.testing.model import Answer, calls, says, together
from pattern_core.tools.builtin.send_message import send_message
from pattern_core.tools.tool import Tool, ToolContext, tool
from pattern_db.enums import EffectClass
from pattern_db.journal.steps import EffectRow
from tests.support import USER, Running, note, rows, running


def reason(arguments: Mapping[str, object]) -> str | None:
    return "it costs money" if arguments["amount"] != 0 else None


@dataclass
class Bank:
    """Payments, which need consent unless they are of nothing."""

    paid: list[tuple[str, int]] = field(default_factory=list)

    @property
    def tool(self) -> Tool:
        @tool(effect=EffectClass.UNSAFE, name="pay", consent=reason)
        async def pay(_context: ToolContext, to: Annotated[str, "Whom."], amount: Annotated[int, "How much."]) -> str:
            """Pay somebody."""
            self.paid.append((to, amount))
            return "paid"

        return pay


PAY = calls("pay", {"to": "bob", "amount": 5})


@asynccontextmanager
async def asked(
    *script: Answer,
    tools: Sequence[Tool] = (),
    limits: Limits | None = None,
    clock: StoppedClock | None = None,
    rules: Sequence[Mapping[str, object]] = (),
    otherwise: Answer | None = None,
) -> AsyncIterator[tuple[Running, Bank, str]]:
    """A constellation whose agent ada has begun a turn and waits for a person."""
    bank = Bank()
    async with running(script, otherwise=otherwise, tools=[note, bank.tool, *tools], limits=limits, clock=clock) as one:
        agent = await one.agent()
        if rules:
            await one.constellation.roster.update(agent.id, {"tool_rules": rules})
        view = await one.say("go")
        assert view.status == "waiting"
        yield one, bank, view.id


def shown(one: Running) -> list[ToolResult]:
    parts = [part for message in one.provider.requests[-1].messages for part in message.parts]
    return [part for part in parts if isinstance(part, ToolResult)]


async def test_a_call_runs_when_a_person_agreed() -> None:
    async with asked(PAY, says("done")) as (one, bank, turn_id):
        assert bank.paid == []
        await trio.testing.wait_all_tasks_blocked()
        assert one.constellation.is_idle  # a waiting turn is rows and nothing else
        names = await one.names(turn_id)
        assert names[-3:] == ["tool.call", "approval.requested", "turn.waiting"]
        view = await one.constellation.turn(turn_id)
        assert [item.id for item in await one.constellation.approvals.list(9)] == view.approvals
        await one.answer()
        assert (await one.wait(turn_id)).status == "completed"
        assert bank.paid == [("bob", 5)]
        assert (await one.names(turn_id)).count("turn.completed") == 1


async def test_a_refusal_is_shown_with_its_reason() -> None:
    async with asked(PAY, says("well")) as (one, bank, turn_id):
        await one.answer(approve=False, reason="too much")
        assert (await one.wait(turn_id)).status == "completed"
        assert bank.paid == []
        [result] = shown(one)
        assert "too much" in result.content
        assert result.is_error


async def test_changed_arguments_are_run_and_shown() -> None:
    async with asked(PAY, says("done")) as (one, bank, turn_id):
        [question] = await one.constellation.approvals.list(9)
        before = await one.events(turn_id)
        with pytest.raises(InvalidInput, match="amount"):
            await one.answer(arguments={"to": "bob"})
        approval = await one.answer(arguments={"to": "bob", "amount": 3})
        assert (approval.id, approval.status.value) == (question.id, "edited")
        await one.wait(turn_id)
        assert bank.paid == [("bob", 3)]
        assert "changed arguments" in shown(one)[0].content and EDITED in shown(one)[0].content
        [call] = (await one.database.read(facts.calls_of, 1)).values()
        assert call.result == "paid", "as rules read it"
        assert (await one.events(turn_id))[: len(before)] == before, "the call reads later as it did live"


async def test_siblings_do_not_wait() -> None:
    both = together(calls("note", {"text": "x"}), PAY, calls("pay", {"to": "eve", "amount": 0}))
    async with asked(both, says("done")) as (one, bank, turn_id):
        assert bank.paid == [("eve", 0)]
        assert "noted" in await one.names(turn_id)
        await one.answer()
        await one.wait(turn_id)
        assert bank.paid == [("eve", 0), ("bob", 5)]
        assert len(shown(one)) == 3


async def test_other_turns_of_the_agent_go_on_meanwhile() -> None:
    async with asked(PAY, says("hello"), says("done"), says("again")) as (one, bank, turn_id):
        assert (await one.say("how are you?")).status == "completed"
        await one.answer()
        assert (await one.wait(turn_id)).status == "completed"
        # What is asked last stands last: the turn that waited is shown after the one that overtook it.
        texts = [message.text for message in one.provider.requests[-1].messages if message.role == "user"]
        assert texts == ["how are you?", "go"]
        assert (await one.say("and now?")).status == "completed"
        assert bank.paid == [("bob", 5)]


async def test_what_a_turn_says_after_it_waited_belongs_to_it() -> None:
    """Also where other turns overtook it, and what it says through a tool."""
    send = calls("send_message", {"content": "Paid."})
    async with asked(PAY, says("hello"), send, says("done"), tools=[send_message]) as (one, _bank, turn_id):
        between = await one.say("meanwhile")
        await one.answer()
        view = await one.wait(turn_id)
        assert [message.batch_type for message in between.messages] == ["user_request"] * 2
        assert [message.batch_type for message in view.messages[:2]] == ["user_request"] * 2
        assert {message.batch_type for message in view.messages[2:]} == {"continuation"}
        assert [message.content for message in view.messages if message.source == "send_message"] == ["Paid."]
        assert (view.messages[0].source, view.messages[-1].content) == ("user", "done")


@pytest.mark.parametrize(
    ("said", "repeats", "others"),
    [
        ({"scope": "once"}, False, False),
        ({"scope": "same"}, True, False),
        ({"scope": "always"}, True, True),
        ({"scope": "time", "seconds": 60}, True, True),
    ],
)
async def test_consent_holds_as_long_as_was_said(said: dict[str, object], repeats: bool, others: bool) -> None:
    other = calls("pay", {"to": "eve", "amount": 7})
    async with asked(PAY, says("1"), PAY, says("2"), other, says("3")) as (one, _bank, turn_id):
        await one.answer(**said)
        await one.wait(turn_id)
        again = await one.say("again")
        assert (again.status == "completed") is repeats
        if not repeats:
            await one.answer(approve=False)
            await one.wait(again.id)
        assert ((await one.say("other")).status == "completed") is others


async def test_a_question_that_expires_is_refused(autojump_clock: trio.testing.MockClock) -> None:
    clock = StoppedClock()
    async with asked(PAY, says("well"), clock=clock, limits=Limits(approval_expiry_s=60)) as (one, bank, turn_id):
        clock.advance(61_000)
        await trio.sleep(3_700)
        assert (await one.wait(turn_id)).status == "completed"
        assert "no answer in time" in shown(one)[0].content
        assert bank.paid == []
        with pytest.raises(Conflict, match="it expired"):
            [question] = await one.constellation.approvals.list(9, status=None)
            await one.constellation.approvals.decide(question.id, ApprovalAnswer(approve=True, by=USER))


async def test_a_cancelled_turn_takes_its_questions_back() -> None:
    async with asked(PAY, says("hello")) as (one, bank, turn_id):
        [question] = await one.constellation.approvals.list(9)
        assert await one.constellation.cancel(turn_id)
        assert (await one.constellation.turn(turn_id)).status == "cancelled"
        with pytest.raises(Conflict, match="its turn was stopped"):
            await one.constellation.approvals.decide(question.id, ApprovalAnswer(approve=True, by=USER))
        assert await one.database.read(rows, "SELECT status FROM effect") == [("cancelled",)]
        assert (await one.say("hi")).status == "completed"
        assert bank.paid == []


@pytest.mark.parametrize("later", range(3))
async def test_a_turn_that_is_cancelled_as_a_person_answers_leaves_no_call_open(later: int) -> None:
    for _attempt in range(5):  # trio runs tasks in any order
        async with asked(PAY, otherwise=says("hello")) as (one, _bank, turn_id):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(one.answer)
                for _step in range(later):
                    await trio.lowlevel.checkpoint()
                nursery.start_soon(one.constellation.cancel, turn_id)
            await one.wait(turn_id)
            assert (await one.say("hi")).status == "completed"
            called, answered = (
                [
                    part.call_id
                    for message in one.provider.requests[-1].messages
                    for part in message.parts
                    if type(part) is kind
                ]
                for kind in (ToolCall, ToolResult)
            )
            assert called == answered


async def test_questions_are_bounded() -> None:
    async with asked(PAY, PAY, says("well"), limits=Limits(approvals_pending_max=1)) as (one, bank, _turn_id):
        assert (await one.say("again")).status == "completed"
        assert "needs a person" in shown(one)[-1].content
        assert bank.paid == []
        assert one.constellation.pending_approvals == 1


MONEY, TRADE = ({"tool": "pay", "type": "requires_consent", "scope": scope} for scope in ("money", "trade"))


async def test_each_scope_is_agreed_to_by_itself() -> None:
    async with asked(PAY, PAY, PAY, says("done"), rules=[MONEY, TRADE]) as (one, bank, turn_id):
        first = await one.answer(scope="always")
        assert (await one.wait(turn_id)).status == "waiting"
        second = await one.answer(scope="always")
        assert [approval.request["subject"] for approval in (first, second)] == ["scope:money", "scope:trade"]
        assert (await one.wait(turn_id)).status == "completed"
        assert len(bank.paid) == 3  # the third one needed nobody


def test_rules_read_a_result_without_the_note_of_its_changed_arguments() -> None:
    row = EffectRow(1, 1, 0, "call_1", "pay", "{}", b"h" * 16, "unsafe", "key")
    for note_of in ("", f"{EDITED}{{}}]\n"):
        assert JudgedCall.of(row, {}, result=note_of + "paid\ntwice").result == "paid\ntwice"
