"""Questions to people: asked within the transaction of whoever asks, answered once, by any client, until they expire.

Nothing waits for an answer: who asked goes on, and what was asked for is done when somebody agrees, in the same
transaction as the answer, so it happens exactly once or not at all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pattern_core.clock import Clock, now_text
from pattern_core.errors import Conflict, NotFound, Overloaded
from pattern_core.ids import Ids
from pattern_core.limits import Limits
from pattern_core.unit_of_work import UnitOfWork
from pattern_db import errors as storage
from pattern_db.columns import Json, to_json
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.enums import ApprovalKind, ApprovalStatus
from pattern_db.journal import approvals
from pattern_db.journal.approvals import ApprovalRow
from pattern_db.timestamps import iso

Approval = ApprovalRow
Commit = Callable[[UnitOfWork], Awaitable[None]]


class Grant(Protocol):
    """Does what an approval asks for, within a unit of work that commits together with the answer."""

    async def __call__(self, approval: Approval, *, by: str, work: UnitOfWork) -> str:
        """Add the effect to `work`; return words about it for whoever agreed.

        Raises:
            PatternError: it cannot be done any more; the approval stays open.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What to ask whom: `request` is a JSON object with everything that a grant needs, `audience` who should answer,
    `turn_id` the turn that asks.
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
    """The questions of one constellation. Who asks questions of a kind also says, by `on_grant`, what a yes does."""

    def __init__(
        self,
        *,
        database: Database,
        clock: Clock,
        ids: Ids,
        limits: Limits,
        commit: Commit,
    ) -> None:
        self._database = database
        self._clock = clock
        self._ids = ids
        self._limits = limits
        self._commit = commit
        self._grants: dict[ApprovalKind, Grant] = {}

    def on_grant(self, kind: ApprovalKind, grant: Grant) -> None:
        """Have `grant` do what questions of this kind ask for."""
        self._grants[kind] = grant

    async def ask(self, question: Question, work: UnitOfWork) -> str:
        """Ask within `work`, and return the approval's id; what is being asked already is not asked twice.

        Raises:
            Overloaded: too many questions are open.
        """
        row = self._row(question)
        known, count = await self._database.read(_open, row.args_hash, row.created_at)
        if known is not None:
            return known
        if count >= self._limits.approvals_pending_max:
            raise Overloaded(f"{count} questions to people are open already; they must answer some of them first")
        work.store(approvals.insert, row, turn_id=question.turn_id)
        work.event(
            "approval.requested",
            {
                "approval_id": row.id,
                "kind": row.kind.value,
                "audience": question.audience,
                "request": dict(question.request),
                "expires_at": row.expires_at,
            },
        )
        return row.id

    def _row(self, question: Question) -> ApprovalRow:
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

    async def decide(self, approval_id: str, *, approve: bool, by: str) -> Decided:
        """Answer a question; on a yes, what it asks for is done in the same transaction.

        Raises:
            NotFound: there is no such approval.
            Conflict: it was answered already, or its time is over.
            PatternError: it cannot be done any more; it stays open, and can still be denied.
        """
        approval = await self.get(approval_id)
        if approval.status is not ApprovalStatus.PENDING:
            raise Conflict(
                f"the approval {approval_id} is {approval.status.value} already", status=approval.status.value
            )
        work, note, finished = UnitOfWork(), "Denied; nothing was done", False
        try:
            if approve:
                note = await self._grants[approval.kind](approval, by=by, work=work)
            self._answer(work, approval, approve=approve, by=by, note=note)
            finished = True
        finally:
            if not finished:
                work.settle(committed=False)
        try:
            await self._commit(work)
        except storage.Conflict as error:
            raise Conflict(error.message) from error
        return Decided(approval=await self.get(approval_id), note=note)

    def _answer(self, work: UnitOfWork, approval: Approval, *, approve: bool, by: str, note: str) -> None:
        status = ApprovalStatus.APPROVED if approve else ApprovalStatus.DENIED
        work.store(
            approvals.decide, approval.id, status=status, by=by, decision={"note": note}, at=now_text(self._clock)
        )
        work.event("approval.decided", {"approval_id": approval.id, "status": status.value, "by": by})

    async def _expire(self) -> None:
        """Close what is over. A question that nobody looks at may stay open in the file; nobody can say yes to it."""
        now = now_text(self._clock)
        first = await self._database.read(approvals.first_expiry)
        if first is not None and first <= now:
            await self._database.write(approvals.expire, now)


def _open(connection: Connection, args_hash: bytes, now: str) -> tuple[str | None, int]:
    """The open question for the same thing, and how many questions are open."""
    known = approvals.find_pending(connection, args_hash)
    is_over = known is not None and known.expires_at is not None and known.expires_at <= now
    return (None if known is None or is_over else known.id), approvals.count_pending(connection)
