"""Approvals and grants: questions to people, and their standing answers.

A question is stored in the transaction that needs it and answered once, by any client, before it expires. Nothing waits
for an answer: the agent continues, and the action is done when a person approves, in the same transaction as the
answer, so exactly once or not at all. An answer may also be a grant: what an agent may do without asking again, for a
time, with the same arguments, or always.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pattern_core.errors import Conflict, InvalidInput, NotFound, Overloaded
from pattern_core.limits import Limits
from pattern_core.timers import Timers
from pattern_core.unit_of_work import Storage, UnitOfWork, given_or_alone
from pattern_db import errors
from pattern_db.columns import Json, iso, to_json
from pattern_db.enums import ApprovalKind, ApprovalStatus
from pattern_db.journal import approvals
from pattern_db.journal.approvals import ApprovalRow, GrantRow
from pattern_db.tables.timers import TimerRow

_BECAME = {
    ApprovalStatus.APPROVED: "already approved",
    ApprovalStatus.EDITED: "already approved (with changed arguments)",
    ApprovalStatus.DENIED: "already denied",
    ApprovalStatus.EXPIRED: "it expired",
    ApprovalStatus.CANCELLED: "its turn was stopped",
}

GRANT_SECONDS_MAX = 10 * 365 * 24 * 3600

Approval = ApprovalRow
Grant = GrantRow
Scope = Literal["once", "time", "same", "always"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalAnswer:
    """A person's answer. An approval is for this question only (`once`), or a grant: for any arguments for a `time` (of
    `seconds`), for the `same` arguments, or `always`; the last two may have `seconds` too.

    `arguments` replace the requested ones, if the question allows it; the agent reads `reason`. `result` is that of a
    call that its client ran.
    """

    approve: bool
    by: str
    scope: Scope = "once"
    seconds: float | None = None
    arguments: Mapping[str, object] | None = None
    reason: str | None = None
    result: str | None = None


Perform: TypeAlias = Callable[[Approval, ApprovalAnswer, UnitOfWork], Awaitable[str]]
"""Adds the requested action to a unit of work that commits together with the answer; returns a text about it for the
person who approved. Raises a PatternError if it is no longer possible; the approval stays open.
"""
Refuse = Callable[[Approval, UnitOfWork], None]
"""Adds the consequences of a denial or expiry to a unit of work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalQuestion:
    """A question to store: `request` is a JSON object with everything that the action needs, `audience` who should
    answer, `turn_id` the turn that asks.

    A request with `agent_id`, `subject` and `digest` can be answered with a grant. The subject is the agent's tool
    (`tool:{name}`) or block (`block:{label}`); the digest, 16 bytes in hex, identifies the arguments.
    """

    kind: ApprovalKind
    request: Mapping[str, Json]
    audience: str
    turn_id: str | None = None


class Approvals:
    """The approvals of one constellation. The code that asks questions of a kind registers an `on_answer`."""

    def __init__(self, storage: Storage, limits: Limits, timers: Timers) -> None:
        self.grants = Grants(storage)
        self._storage = storage
        self._limits = limits
        self._answers: dict[ApprovalKind, tuple[Perform, Refuse]] = {}
        self.changed = timers.changed  # call it when another transaction stored or closed a question
        timers.on_due(approvals.TIMER, self._time_out)

    def on_answer(self, kind: ApprovalKind, perform: Perform, refuse: Refuse = lambda _approval, _work: None) -> None:
        """Register `perform` for approved questions of this kind, and `refuse` for denied and expired ones."""
        self._answers[kind] = perform, refuse

    async def ask(self, question: ApprovalQuestion, work: UnitOfWork) -> str:
        """Ask within `work`, and return the approval's id; an identical open question is not asked twice.

        Raises:
            Overloaded: too many questions are open.
        """
        row = self.row(question)
        known = await self._storage.database.read(approvals.find_pending, row.args_hash, row.created_at)
        if known is not None:
            return known.id
        if full := await self.full():
            raise Overloaded(full)
        work.store(approvals.insert, row, turn_id=question.turn_id)
        work.event("approval.requested", requested(row))
        work.when_settled(lambda _committed: self.changed())
        return row.id

    async def full(self, wanted: int = 1) -> str | None:
        """Return why this many more questions cannot be asked now; None if they can."""
        count = await self._storage.database.read(approvals.count_pending) + wanted - 1
        if count < self._limits.approvals_pending_max:
            return None
        return f"{count} approvals are already open; a person must answer some of them first"

    def row(self, question: ApprovalQuestion) -> ApprovalRow:
        """Return the question as it will be stored, pending."""
        now_ms = self._storage.clock.now_ms()
        return ApprovalRow(
            id=self._storage.ids.new("apr"),
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
        """Return questions (of one status), newest first; expired ones are closed before."""
        await self._close_due()
        return await self._storage.database.read(approvals.recent, limit, status=status, before=before)

    async def get(self, approval_id: str) -> Approval:
        """Return the question with this id.

        Raises:
            NotFound: there is none.
        """
        await self._close_due()
        try:
            return await self._storage.database.read(approvals.get, approval_id)
        except errors.RowNotFound as error:
            raise NotFound(error.message) from None

    async def decide(self, approval_id: str, answer: ApprovalAnswer) -> Approval:
        """Answer a question and return it with the answer. If approved, the action is done in the same transaction.

        Raises:
            NotFound: there is no such approval, or its subject has been deleted.
            Conflict: it was already answered, or has expired.
            InvalidInput: the parts of the answer contradict the question or each other.
            PatternError: the action is no longer possible; the approval stays open, and can still be denied.
        """
        approval = await self.get(approval_id)
        if approval.status is not ApprovalStatus.PENDING:
            raise Conflict(
                f"the approval {approval_id} cannot be answered: {_BECAME[approval.status]}",
                status=approval.status.value,
            )
        _check(approval, answer)
        note, status = "Denied; nothing was done", ApprovalStatus.DENIED
        perform, refuse = self._answers[approval.kind]
        async with given_or_alone(None, self._storage.commit) as work:
            if answer.approve:
                note = await perform(approval, answer, work)
                self.grants.add(work, approval, answer)
                status = ApprovalStatus.APPROVED if answer.arguments is None else ApprovalStatus.EDITED
            else:
                refuse(approval, work)
            self._close(work, approval, status, by=answer.by, decision=_decision(answer, note))
        return await self.get(approval_id)

    def _close(
        self, work: UnitOfWork, approval: Approval, status: ApprovalStatus, *, by: str, decision: Mapping[str, Json]
    ) -> None:
        work.store(approvals.decide, approval.id, status=status, by=by, decision=decision, at=self._storage.now())
        work.event("approval.decided", {"approval_id": approval.id, "status": status.value, "by": by})
        work.when_settled(lambda _committed: self.changed())

    async def _close_due(self) -> None:
        """Close expired questions, also if the timers are late."""
        for approval in await self._storage.database.read(approvals.due, self._storage.now()):
            work = UnitOfWork()
            self._expire(approval, work)
            with suppress(errors.RowConflict):  # a person has just answered
                await self._storage.commit(work)

    async def _time_out(self, timer: TimerRow, work: UnitOfWork) -> None:
        with suppress(errors.RowNotFound):  # deleted with its agent
            approval = await self._storage.database.read(approvals.get, timer.ref)
            if approval.status is ApprovalStatus.PENDING:
                self._expire(approval, work)

    def _expire(self, approval: Approval, work: UnitOfWork) -> None:
        _perform, refuse = self._answers[approval.kind]
        refuse(approval, work)
        self._close(work, approval, ApprovalStatus.EXPIRED, by="system", decision={"note": "Not answered in time"})


class Grants:
    """The grants of one constellation."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    async def covers(self, request: Mapping[str, Json]) -> bool:
        """Return whether a grant allows this without asking."""
        subject = request["agent_id"], request["subject"], bytes.fromhex(request["digest"])
        return await self._storage.database.read(approvals.is_granted, *subject, self._storage.now())

    def add(self, work: UnitOfWork, approval: Approval, answer: ApprovalAnswer) -> None:
        """Store the grant of an approval; one for `once` stores nothing.

        Raises:
            InvalidInput: the question can only be approved once.
        """
        if answer.scope == "once":
            return
        subject, digest = approval.request.get("subject"), approval.request.get("digest")
        if not subject or not digest:
            raise InvalidInput("this question can only be approved once; leave out `scope`, or set it to once")
        now_ms = self._storage.clock.now_ms()
        row = GrantRow(
            id=self._storage.ids.new("cgr"),
            agent_id=approval.request["agent_id"],
            subject=subject,
            args_hash=bytes.fromhex(digest) if answer.scope == "same" else None,
            approval_id=approval.id,
            granted_by=answer.by,
            expires_at=None if answer.seconds is None else iso(now_ms + round(answer.seconds * 1000)),
            created_at=iso(now_ms),
        )
        work.store(approvals.delete_expired_grants, row.created_at)
        work.store(approvals.insert_grant, row)
        data = {"id": row.id, "agent_id": row.agent_id, "subject": row.subject, "expires_at": row.expires_at}
        work.event("consent.granted", {**data, "by": answer.by})

    async def list(self, limit: int, *, before: str | None = None) -> Sequence[Grant]:
        """Return the valid grants, newest first; with `before` only those with smaller ids."""
        now = self._storage.now()
        return await self._storage.database.read(approvals.standing_grants, now, limit=limit, before=before)

    async def revoke(self, grant_id: str, *, by: str) -> None:
        """Revoke a grant; the agent must ask again.

        Raises:
            NotFound: there is no such grant.
        """
        async with given_or_alone(None, self._storage.commit) as work:
            work.store(approvals.delete_grant, grant_id)
            work.event("consent.revoked", {"id": grant_id, "by": by})


def _check(approval: Approval, answer: ApprovalAnswer) -> None:
    """Check that the parts of an answer match the question and each other.

    Raises:
        InvalidInput: they do not; the message says what to change.
    """
    seconds, scope, changes = answer.seconds, answer.scope, answer.arguments is not None
    wrong = {
        "the scope `time` needs `seconds`; send how long the grant is valid": scope == "time" and seconds is None,
        "the scope `once` has no `seconds`; leave them out, or use the scope time, same or always": (
            scope == "once" and seconds is not None
        ),
        f"`seconds` must be more than 0 and at most {GRANT_SECONDS_MAX} (ten years)": (
            seconds is not None and not 0 < seconds <= GRANT_SECONDS_MAX
        ),
        "a denial is only for this question; leave out `scope` and `arguments`, and say in `reason` what you want": (
            not answer.approve and (scope != "once" or changes)
        ),
        "only the arguments of a tool call can be changed; leave out `arguments`, or deny and say why in `reason`": (
            changes and "arguments" not in approval.request
        ),
        "the scope `same` cannot change the arguments; use once, or time or always, which are for any arguments": (
            changes and scope == "same"
        ),
    }
    if problem := next((message for message, holds in wrong.items() if holds), None):
        raise InvalidInput(problem)


def requested(row: ApprovalRow) -> dict[str, object]:
    """Return the data of the event `approval.requested`."""
    return {
        "approval_id": row.id,
        "kind": row.kind.value,
        "audience": row.audience,
        "request": row.request,
        "expires_at": row.expires_at,
    }


def _decision(answer: ApprovalAnswer, note: str) -> dict[str, Json]:
    """Return the stored form of an answer: `{note, scope?, seconds?, arguments?, reason?, result?}`."""
    said = {
        "scope": answer.scope if answer.approve and answer.scope != "once" else None,
        "seconds": answer.seconds,
        "arguments": None if answer.arguments is None else dict(answer.arguments),
        "reason": answer.reason or None,
        "result": answer.result,
    }
    return {"note": note, **{name: value for name, value in said.items() if value is not None}}
