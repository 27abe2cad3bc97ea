"""Questions to people: asked within the asker's transaction, answered once, by any client, until they expire.

Nothing waits for an answer: the asker goes on, and what was asked for is done when a person agrees, in the same
transaction as the answer, so it happens exactly once or not at all.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import trio

from pattern_core.consent_grants import ConsentGrants, Scope, Subject, check_scope
from pattern_core.errors import Conflict, InvalidInput, NotFound, Overloaded
from pattern_core.ids import Clock, Ids, now_text
from pattern_core.limits import Limits
from pattern_core.unit_of_work import UnitOfWork
from pattern_db import errors as storage
from pattern_db.columns import Json, iso, to_json, unix_ms
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.enums import ApprovalKind, ApprovalStatus
from pattern_db.journal import approvals
from pattern_db.journal.approvals import ApprovalRow

EXPIRY_LOOK_S = 3600.0  # how long to wait for an end at most before looking at the clock again
EXPIRY_STEP_S = 0.01  # and at least: text has milliseconds
_BECAME = {
    ApprovalStatus.APPROVED: "somebody agreed",
    ApprovalStatus.EDITED: "somebody agreed, with other arguments",
    ApprovalStatus.DENIED: "somebody said no",
    ApprovalStatus.EXPIRED: "nobody answered in time",
    ApprovalStatus.CANCELLED: "its turn was stopped",
}

Approval = ApprovalRow
Commit = Callable[[UnitOfWork], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalAnswer:
    """What a person said. A yes may be limited to the question (`once`), or remembered: see `ConsentGrants.add`.

    `arguments` replace those that were asked for, where the question allows it; `reason` is told to the agent.
    """

    approve: bool
    by: str
    scope: Scope = "once"
    seconds: float | None = None
    arguments: Mapping[str, object] | None = None
    reason: str | None = None


class Grant(Protocol):
    """Does what an approval asks for, within a unit of work that commits together with the answer."""

    async def __call__(self, approval: Approval, answer: ApprovalAnswer, work: UnitOfWork) -> str:
        """Add the effect to `work`; return words about it for the person who agreed.

        Raises:
            PatternError: it cannot be done any more; the approval stays open.
        """
        ...


Refuse = Callable[[Approval, UnitOfWork], None]
"""Adds to a unit of work what follows a refusal: denied or expired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalQuestion:
    """What to ask whom: `request` is a JSON object with everything that a grant needs, `audience` who should answer,
    `turn_id` the turn that asks.

    A request with `agent_id`, `subject` and `digest` (of `consent_grants.Subject`, in hex) can be answered for longer
    than once.
    """

    kind: ApprovalKind
    request: Mapping[str, Json]
    audience: str
    turn_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """An answered approval, and words about what followed."""

    approval: Approval
    note: str


class Approvals:
    """The questions of one constellation. Who asks questions of a kind also says, by `on_answer`, what follows."""

    def __init__(
        self,
        *,
        database: Database,
        clock: Clock,
        ids: Ids,
        limits: Limits,
        commit: Commit,
    ) -> None:
        self.grants = ConsentGrants(database=database, clock=clock, ids=ids, commit=commit)
        self._database = database
        self._clock = clock
        self._ids = ids
        self._limits = limits
        self._commit = commit
        self._grants: dict[ApprovalKind, Grant] = {}
        self._refusals: dict[ApprovalKind, Refuse] = {}
        self._asked = trio.Event()

    def on_answer(self, kind: ApprovalKind, grant: Grant, refuse: Refuse = lambda _approval, _work: None) -> None:
        """Have `grant` do what questions of this kind ask for, and `refuse` what follows a refusal."""
        self._grants[kind] = grant
        self._refusals[kind] = refuse

    async def run(self) -> None:
        """Close questions when their time is over, until cancelled.

        Raises:
            StorageFailed: the disk failed.
        """
        while True:
            self._asked = trio.Event()
            first = await self._expire()
            left_s = math.inf if first is None else (unix_ms(first) - self._clock.now_ms()) / 1000
            # The wall clock may be set while this waits: a long wait is looked at again.
            with trio.move_on_after(min(max(left_s, EXPIRY_STEP_S), EXPIRY_LOOK_S) if first is not None else math.inf):
                await self._asked.wait()

    async def ask(self, question: ApprovalQuestion, work: UnitOfWork) -> str:
        """Ask within `work`, and return the approval's id; what is being asked already is not asked twice.

        Raises:
            Overloaded: too many questions are open.
        """
        row = self.row(question)
        known, count = await self._database.read(_open, row.args_hash, row.created_at)
        if known is not None:
            return known
        self._check_room(count)
        work.store(approvals.insert, row, turn_id=question.turn_id)
        work.event("approval.requested", requested(row))
        work.when_settled(lambda _committed: self._asked.set())
        return row.id

    async def room(self, wanted: int) -> None:
        """See that so many more questions may be asked.

        Raises:
            Overloaded: too many questions are open.
        """
        self._check_room(await self._database.read(approvals.count_pending) + wanted - 1)

    def told(self) -> None:
        """Say that another transaction stored a question: its time runs."""
        self._asked.set()

    def _check_room(self, count: int) -> None:
        if count >= self._limits.approvals_pending_max:
            raise Overloaded(f"{count} questions to people are open already; they must answer some of them first")

    def row(self, question: ApprovalQuestion) -> ApprovalRow:
        """The question as it will be stored, pending."""
        now_ms = self._clock.now_ms()
        return ApprovalRow(
            id=self._ids.new("apr"),
            kind=question.kind,
            request=dict(question.request),
            args_hash=hashlib.sha256(to_json([question.kind.value, dict(question.request)]).encode()).digest(),
            created_at=iso(now_ms),
            audience=question.audience,
            expires_at=iso(now_ms + round(self._limits.approval_expiry_s * 1000)),
        )

    async def list(
        self, limit: int, *, status: ApprovalStatus | None = ApprovalStatus.PENDING, before: str | None = None
    ) -> Sequence[Approval]:
        """The newest questions (of one status), newest first; those whose time is over are closed first."""
        await self._expire()
        return await self._database.read(approvals.recent, limit, status=status, before=before)

    async def get(self, approval_id: str) -> Approval:
        """The question with this id.

        Raises:
            NotFound: there is none.
        """
        await self._expire()
        try:
            return await self._database.read(approvals.get, approval_id)
        except storage.NotFound as error:
            raise NotFound(error.message) from None

    async def decide(self, approval_id: str, answer: ApprovalAnswer) -> Decided:
        """Answer a question; on a yes, what it asks for is done in the same transaction.

        Raises:
            NotFound: there is no such approval.
            Conflict: it was answered already, or its time is over.
            InvalidInput: the answer's parts do not fit the question or each other.
            PatternError: it cannot be done any more; it stays open, and can still be denied.
        """
        approval = await self.get(approval_id)
        if approval.status is not ApprovalStatus.PENDING:
            raise Conflict(
                f"the approval {approval_id} can be answered no more: {_BECAME[approval.status]}",
                status=approval.status.value,
            )
        _check(approval, answer)
        work, note, finished = UnitOfWork(), "Denied; nothing was done", False
        status = ApprovalStatus.DENIED
        try:
            if answer.approve:
                note = await self._grants[approval.kind](approval, answer, work)
                self._remember(approval, answer, work)
                status = ApprovalStatus.APPROVED if answer.arguments is None else ApprovalStatus.EDITED
            else:
                self._refusals[approval.kind](approval, work)
            self._close(work, approval, status, by=answer.by, decision=_decision(answer, note))
            finished = True
        finally:
            if not finished:
                work.settle(committed=False)
        try:
            await self._commit(work)
        except storage.Conflict as error:
            raise Conflict(error.message) from error
        return Decided(approval=await self.get(approval_id), note=note)

    def _remember(self, approval: Approval, answer: ApprovalAnswer, work: UnitOfWork) -> None:
        if answer.scope == "once":
            return
        name, digest = approval.request.get("subject"), approval.request.get("digest")
        if not name or not digest:
            raise InvalidInput("this question can only be answered for once; leave out `scope`, or make it once")
        subject = Subject(agent_id=approval.request["agent_id"], name=name, args_hash=bytes.fromhex(digest))
        self.grants.add(
            work, subject, scope=answer.scope, seconds=answer.seconds, by=answer.by, approval_id=approval.id
        )

    def _close(
        self, work: UnitOfWork, approval: Approval, status: ApprovalStatus, *, by: str, decision: Mapping[str, Json]
    ) -> None:
        work.store(approvals.decide, approval.id, status=status, by=by, decision=decision, at=now_text(self._clock))
        work.event("approval.decided", {"approval_id": approval.id, "status": status.value, "by": by})

    async def _expire(self) -> str | None:
        """Close what is over; returns when the next question's time ends."""
        now = now_text(self._clock)
        first = await self._database.read(approvals.first_expiry)
        if first is None or first > now:
            return first
        for approval in await self._database.read(approvals.due, now):
            work = UnitOfWork()
            self._refusals[approval.kind](approval, work)
            self._close(
                work, approval, ApprovalStatus.EXPIRED, by="system", decision={"note": "Nobody answered in time"}
            )
            with suppress(storage.Conflict):  # a person answered in this moment
                await self._commit(work)
        return await self._database.read(approvals.first_expiry)


def _check(approval: Approval, answer: ApprovalAnswer) -> None:
    """Whether the parts of an answer go together, and with the question.

    Raises:
        InvalidInput: they do not; the message says what to leave out or to say.
    """
    check_scope(answer.scope, answer.seconds)
    if not answer.approve:
        if answer.scope != "once" or answer.arguments is not None:
            raise InvalidInput(
                "a no is for this question alone: leave out `scope` and `arguments`, and say in `reason` what you want"
            )
        return
    if answer.arguments is None:
        return
    if "arguments" not in approval.request:
        raise InvalidInput(
            "only the arguments of a tool call can be changed; leave out `arguments`, or deny and say why in `reason`"
        )
    if answer.scope == "same":
        raise InvalidInput(
            "consent for the same arguments cannot change them: agree once, or for a time or always, which is for any"
        )


def requested(row: ApprovalRow) -> dict[str, object]:
    """What the event `approval.requested` tells of a question."""
    return {
        "approval_id": row.id,
        "kind": row.kind.value,
        "audience": row.audience,
        "request": row.request,
        "expires_at": row.expires_at,
    }


def _decision(answer: ApprovalAnswer, note: str) -> dict[str, Json]:
    """What is stored of an answer: `{note, scope?, seconds?, arguments?, reason?}`."""
    told: dict[str, Json] = {"note": note}
    if answer.approve and answer.scope != "once":
        told["scope"] = answer.scope
    if answer.seconds is not None:
        told["seconds"] = answer.seconds
    if answer.arguments is not None:
        told["arguments"] = dict(answer.arguments)
    if answer.reason:
        told["reason"] = answer.reason
    return told


def _open(connection: Connection, args_hash: bytes, now: str) -> tuple[str | None, int]:
    """The open question for the same thing, and how many questions are open."""
    known = approvals.find_pending(connection, args_hash)
    is_over = known is not None and known.expires_at is not None and known.expires_at <= now
    return (None if known is None or is_over else known.id), approvals.count_pending(connection)
