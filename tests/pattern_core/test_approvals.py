"""Questions to people: asked with a transaction, answered once, done exactly with the answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import trio

from pattern_core.approvals import Approval, ApprovalAnswer, ApprovalQuestion, Approvals
from pattern_core.errors import Conflict, InvalidInput, NotFound, Overloaded
from pattern_core.ids import Ids, seeded_randomness
from pattern_core.limits import Limits
from pattern_core.testing.clock import StoppedClock
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.enums import ApprovalKind, ApprovalStatus
from tests.support import Running, rows, running

QUESTION = ApprovalQuestion(kind=ApprovalKind.MEMORY, request={"label": "human", "text": "Ada"}, audience="partner")
YES, NO = True, False


@dataclass
class World:
    """Approvals over a running constellation, whose grants note what they did."""

    running: Running
    clock: StoppedClock
    approvals: Approvals = field(init=False)
    done: list[str] = field(default_factory=list)
    refuses: bool = False

    def __post_init__(self) -> None:
        self.approvals = Approvals(
            database=self.running.database,
            clock=self.clock,
            ids=Ids(self.clock, seeded_randomness(5)),
            limits=Limits(approvals_pending_max=2, approval_expiry_s=60),
            commit=self.commit,
        )
        self.approvals.on_answer(ApprovalKind.MEMORY, self.grant)

    async def commit(self, work: UnitOfWork) -> None:
        await self.running.constellation.memory.blocks.commit(work)

    async def grant(self, approval: Approval, answer: ApprovalAnswer, work: UnitOfWork) -> str:
        if self.refuses:
            raise InvalidInput("the text is gone")
        work.when_settled(lambda committed: self.done.append(f"{answer.by} {approval.id}") if committed else None)
        return "Changed human"

    async def ask(self, question: ApprovalQuestion = QUESTION) -> str:
        work = UnitOfWork()
        approval_id = await self.approvals.ask(question, work)
        await self.commit(work)
        return approval_id


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    clock = StoppedClock()
    async with running(clock=clock) as one:
        yield World(one, clock)


def other(number: int) -> ApprovalQuestion:
    return ApprovalQuestion(kind=ApprovalKind.MEMORY, request={"number": number}, audience="human")


async def test_a_yes_does_it_once() -> None:
    async with world() as here:
        asked = await here.ask()
        [listed] = await here.approvals.list(10)
        assert (listed.id, listed.request, listed.audience) == (asked, dict(QUESTION.request), "partner")
        decided = await here.approvals.decide(asked, ApprovalAnswer(approve=YES, by="user:usr_1"))
        assert decided.approval.status is ApprovalStatus.APPROVED
        assert decided.note == "Changed human"
        assert here.done == [f"user:usr_1 {asked}"]
        with pytest.raises(Conflict, match="somebody agreed"):
            await here.approvals.decide(asked, ApprovalAnswer(approve=YES, by="user:usr_2"))
        assert len(here.done) == 1
        names = [event.name for event in await here.running.events()]
        assert names[-2:] == ["approval.requested", "approval.decided"]


@pytest.mark.parametrize(
    ("said", "stored"),
    [
        ({}, {}),
        ({"scope": "time", "seconds": 60.0}, {"scope": "time", "seconds": 60.0}),
        ({"arguments": {"to": "eve"}, "reason": "better so"}, {"arguments": {"to": "eve"}, "reason": "better so"}),
    ],
)
async def test_an_answer_is_stored_as_it_was_given(said: dict[str, Any], stored: dict[str, Any]) -> None:
    async with world() as here:
        agent = await here.running.agent()
        asked = await here.ask(replace(CALL, request={**CALL.request, "agent_id": agent.id}))
        await here.approvals.decide(asked, ApprovalAnswer(approve=YES, by="user:usr_1", **said))
        [(decision,)] = await here.running.database.read(rows, "SELECT decision FROM approval WHERE id = ?", asked)
        assert json.loads(str(decision)) == {"note": "Changed human", **stored}


async def test_a_no_does_nothing() -> None:
    async with world() as here:
        asked = await here.ask()
        decided = await here.approvals.decide(asked, ApprovalAnswer(approve=NO, by="user:usr_1"))
        assert decided.approval.status is ApprovalStatus.DENIED
        assert here.done == []


async def test_two_answers_at_once_are_one() -> None:
    async with world() as here:
        asked = await here.ask()
        refused: list[Conflict] = []

        async def answer() -> None:
            try:
                await here.approvals.decide(asked, ApprovalAnswer(approve=YES, by="user:usr_1"))
            except Conflict as error:
                refused.append(error)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(answer)
        assert (len(here.done), len(refused)) == (1, 2)


async def test_what_cannot_be_done_stays_open() -> None:
    async with world() as here:
        asked = await here.ask()
        here.refuses = True
        with pytest.raises(InvalidInput, match="gone"):
            await here.approvals.decide(asked, ApprovalAnswer(approve=YES, by="user:usr_1"))
        assert (await here.approvals.get(asked)).status is ApprovalStatus.PENDING
        await here.approvals.decide(asked, ApprovalAnswer(approve=NO, by="user:usr_1"))


async def test_the_same_is_not_asked_twice_until_it_is_over() -> None:
    async with world() as here:
        first = await here.ask()
        assert await here.ask() == first
        here.clock.advance(61_000)
        second = await here.ask()
        assert second != first
        assert [one.id for one in await here.approvals.list(10)] == [second]
        with pytest.raises(Conflict, match="nobody answered in time"):
            await here.approvals.decide(first, ApprovalAnswer(approve=YES, by="user:usr_1"))


async def test_questions_are_bounded() -> None:
    async with world() as here:
        await here.ask(other(1))
        await here.ask(other(2))
        with pytest.raises(Overloaded, match="open already"):
            await here.ask(other(3))


async def test_an_unknown_approval() -> None:
    async with world() as here:
        with pytest.raises(NotFound):
            await here.approvals.decide("apr_nowhere", ApprovalAnswer(approve=YES, by="user:usr_1"))


CALL = ApprovalQuestion(
    kind=ApprovalKind.MEMORY,
    request={"arguments": {"to": "bob"}, "agent_id": "agt_1", "subject": "tool:pay", "digest": "00" * 16},
    audience="human",
)


@pytest.mark.parametrize(
    ("question", "said", "says"),
    [
        (CALL, {"scope": "same", "arguments": {"to": "eve"}}, "cannot change them"),
        (CALL, {"approve": NO, "scope": "always"}, "a no is for this question alone"),
        (CALL, {"approve": NO, "arguments": {}}, "a no is for this question alone"),
        (CALL, {"scope": "time"}, "needs `seconds`"),
        (QUESTION, {"arguments": {"text": "Eve"}}, "only the arguments of a tool call"),
        (QUESTION, {"scope": "always"}, "only be answered for once"),
    ],
)
async def test_an_answer_that_does_not_fit_decides_nothing(
    question: ApprovalQuestion, said: dict[str, Any], says: str
) -> None:
    async with world() as here:
        asked = await here.ask(question)
        with pytest.raises(InvalidInput, match=says):
            await here.approvals.decide(asked, ApprovalAnswer(**{"approve": YES, "by": "user:usr_1", **said}))
        assert (await here.approvals.get(asked)).status is ApprovalStatus.PENDING
        assert here.done == []
        assert await here.approvals.grants.list(9) == []
