"""Questions to people: asked with a transaction, answered once, done exactly with the answer; and grants."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from pattern_core.approvals import (
    GRANT_SECONDS_MAX,
    Approval,
    ApprovalAnswer,
    ApprovalQuestion,
    Approvals,
    Grants,
    requested,
)
from pattern_core.errors import Conflict, InvalidInput, NotFound, Overloaded
from pattern_core.ids import Ids, seeded_randomness
from pattern_core.limits import Limits
from pattern_core.testing import StoppedClock
from pattern_core.timers import Timers
from pattern_core.unit_of_work import Storage, UnitOfWork
from pattern_db.enums import ApprovalKind, ApprovalStatus
from pattern_db.journal import approvals
from tests.pattern_core.turns.rig import ADA, Rig, accepted
from tests.support import USER, Running, rows, running, until

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
        ids = Ids(self.clock, seeded_randomness(5))
        storage = Storage(database=self.running.database, commit=self.commit, clock=self.clock, ids=ids)
        self.approvals = Approvals(storage, Limits(approvals_pending_max=2, approval_expiry_s=60), Timers(storage))
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


async def test_a_question_is_an_event_with_its_end() -> None:
    async with world() as here:
        approval = await here.approvals.get(await here.ask())
        [event] = [one for one in await here.running.events() if one.name == "approval.requested"]
        assert event.data == {
            "approval_id": approval.id, "kind": "memory", "audience": "partner", "request": dict(QUESTION.request),
            "expires_at": "2026-01-01T00:01:00.000Z",
        }  # fmt: skip
        stored = await here.running.database.read(approvals.get, approval.id)
        assert requested(stored) == event.data


async def test_the_timers_know_how_many_questions_are_open() -> None:
    async with running() as one:
        asked, timers = one.constellation.approvals, one.constellation.timers
        work = UnitOfWork()
        question = await asked.ask(QUESTION, work)
        await one.constellation.memory.blocks.commit(work)
        await until(lambda: timers.approvals == 1)
        assert timers.next_ms is not None
        await asked.decide(question, ApprovalAnswer(approve=NO, by=USER))
        await until(lambda: timers.approvals == 0)
        assert timers.next_ms is None


async def test_a_yes_does_it_once() -> None:
    async with world() as here:
        asked = await here.ask()
        [listed] = await here.approvals.list(10)
        assert (listed.id, listed.request, listed.audience) == (asked, dict(QUESTION.request), "partner")
        decided = await here.approvals.decide(asked, ApprovalAnswer(approve=YES, by="user:usr_1"))
        assert (decided.status, decided.decision) == (ApprovalStatus.APPROVED, {"note": "Changed human"})
        assert here.done == [f"user:usr_1 {asked}"]
        with pytest.raises(Conflict, match="already approved"):
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


async def test_what_cannot_be_done_stays_open() -> None:
    async with world() as here:
        asked = await here.ask()
        here.refuses = True
        with pytest.raises(InvalidInput, match="gone"):
            await here.approvals.decide(asked, ApprovalAnswer(approve=YES, by="user:usr_1"))
        assert (await here.approvals.get(asked)).status is ApprovalStatus.PENDING
        decided = await here.approvals.decide(asked, ApprovalAnswer(approve=NO, by="user:usr_1"))
        assert (decided.status, here.done) == (ApprovalStatus.DENIED, [])


async def test_the_same_is_not_asked_twice_until_it_is_over_and_questions_are_bounded() -> None:
    async with world() as here:
        first = await here.ask()
        assert await here.ask() == first
        here.clock.advance(61_000)
        second = await here.ask()
        assert second != first
        assert [one.id for one in await here.approvals.list(10)] == [second]
        with pytest.raises(Conflict, match="it expired"):
            await here.approvals.decide(first, ApprovalAnswer(approve=YES, by="user:usr_1"))
        await here.ask(other(1))
        with pytest.raises(Overloaded, match="already open"):
            await here.ask(other(2))


CALL = ApprovalQuestion(
    kind=ApprovalKind.MEMORY,
    request={"arguments": {"to": "bob"}, "agent_id": "agt_1", "subject": "tool:pay", "digest": "00" * 16},
    audience="human",
)


@pytest.mark.parametrize(
    ("question", "said", "says"),
    [
        (CALL, {"scope": "same", "arguments": {"to": "eve"}}, "cannot change the arguments"),
        (CALL, {"approve": NO, "scope": "always"}, "a denial is only for this question"),
        (CALL, {"approve": NO, "arguments": {}}, "a denial is only for this question"),
        (CALL, {"scope": "time"}, "needs `seconds`"),
        (CALL, {"scope": "once", "seconds": 60}, "has no `seconds`"),
        (CALL, {"scope": "same", "seconds": 0}, "more than 0"),
        (CALL, {"scope": "always", "seconds": -1}, "more than 0"),
        (CALL, {"scope": "time", "seconds": GRANT_SECONDS_MAX + 1}, "at most"),
        (CALL, {"scope": "time", "seconds": float("nan")}, "more than 0"),
        (QUESTION, {"arguments": {"text": "Eve"}}, "only the arguments of a tool call"),
        (QUESTION, {"scope": "always"}, "only be approved once"),
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


PAY: dict[str, Any] = {"agent_id": ADA.id, "subject": "tool:pay", "digest": "aa" * 16}
OTHER_ARGUMENTS = {**PAY, "digest": "bb" * 16}


@asynccontextmanager
async def given() -> AsyncIterator[tuple[Rig, Grants]]:
    async with accepted() as rig:
        yield rig, Grants(Storage(database=rig.database, commit=rig.journal.commit_work, clock=rig.clock, ids=rig.ids))


async def agree(rig: Rig, grants: Grants, request: dict[str, Any] = PAY, **said: Any) -> None:
    approval = Approval(
        id="apr_1",
        kind=ApprovalKind.MEMORY,
        request=request,
        args_hash=bytes.fromhex(request["digest"]),
        created_at="2026-11-21T00:00:00.000Z",
        audience="partner",
        expires_at=None,
    )
    work = UnitOfWork()
    grants.add(work, approval, ApprovalAnswer(approve=YES, by=USER, **said))
    await rig.journal.commit_work(work)


@pytest.mark.parametrize(
    ("said", "same", "others"),
    [
        ({"scope": "once"}, False, False),
        ({"scope": "same"}, True, False),
        ({"scope": "time", "seconds": 60}, True, True),
        ({"scope": "always"}, True, True),
    ],
)
async def test_what_an_answer_covers(said: dict[str, Any], same: bool, others: bool) -> None:
    async with given() as (rig, grants):
        await agree(rig, grants, **said)
        assert await grants.covers(PAY) is same
        assert await grants.covers(OTHER_ARGUMENTS) is others
        assert not await grants.covers({**PAY, "subject": "tool:mail"})
        assert not await grants.covers({**PAY, "agent_id": "agent_other"})
        assert ("consent.granted" in await rig.names()) is same


@pytest.mark.parametrize("scope", ["time", "same", "always"])
async def test_it_ends_with_its_time(scope: str) -> None:
    async with given() as (rig, grants):
        await agree(rig, grants, scope=scope, seconds=60)
        rig.clock.advance(59_999)
        assert await grants.covers(PAY)
        rig.clock.advance(1)
        assert not await grants.covers(PAY)
        assert await grants.list(9) == []
        # The next one clears away what no longer holds.
        await agree(rig, grants, OTHER_ARGUMENTS, scope="same")
        assert len(await rig.rows("SELECT id FROM consent_grant")) == 1


async def test_it_is_listed_in_pages_and_revoked_once() -> None:
    async with given() as (rig, grants):
        for request in (PAY, OTHER_ARGUMENTS):
            await agree(rig, grants, request, scope="same")
            rig.clock.advance(1)
        newest, oldest = await grants.list(9)
        assert (newest.args_hash, oldest.args_hash) == (b"\xbb" * 16, b"\xaa" * 16)
        shown = (oldest.subject, oldest.granted_by, oldest.approval_id, oldest.expires_at)
        assert shown == ("tool:pay", USER, "apr_1", None)
        assert await grants.list(1) == [newest]
        assert await grants.list(9, before=newest.id) == [oldest]
        await grants.revoke(oldest.id, by=USER)
        assert (await grants.covers(PAY), await grants.covers(OTHER_ARGUMENTS)) == (False, True)
        assert (await rig.names())[-1] == "consent.revoked"
        with pytest.raises(NotFound, match=oldest.id):
            await grants.revoke(oldest.id, by=USER)
        assert (await rig.names()).count("consent.revoked") == 1
