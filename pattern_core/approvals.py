"""Approvals and grants: questions to people, and their standing answers.

A question is asked within the asker's transaction and answered once, by any client, until it expires. Nothing waits for
an answer: the asker continues, and what was asked for is done when a person agrees, in the same transaction as the
answer, so it happens exactly once or not at all. An answer may also be a grant: what an agent may do without asking
again, for a time, with the same arguments, or always.
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
    ApprovalStatus.APPROVED: "a person agreed already",
    ApprovalStatus.EDITED: "a person agreed already, with other arguments",
    ApprovalStatus.DENIED: "a person refused already",
    ApprovalStatus.EXPIRED: "it was not answered in time",
    ApprovalStatus.CANCELLED: "its turn was stopped",
}

GRANT_SECONDS_MAX = 10 * 365 * 24 * 3600

Approval = ApprovalRow
Grant = GrantRow
Scope = Literal["once", "time", "same", "always"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalAnswer:
    """What a person said. A yes is for the question alone (`once`), or a grant: for any arguments for a `time` (of
    `seconds`), for the `same` arguments, or `always`; the last two may have `seconds` too.

    `arguments` replace those that were asked for, where the question allows it; the agent reads `reason`.
    """

    approve: bool
    by: str
    scope: Scope = "once"
    seconds: float | None = None
    arguments: Mapping[str, object] | None = None
    reason: str | None = None


Perform: TypeAlias = Callable[[Approval, ApprovalAnswer, UnitOfWork], Awaitable[str]]
"""Adds what an approval asks for to a unit of work that commits together with the answer; returns words about it for
the person who agreed. Raises a PatternError if it cannot be done any more; the approval stays open.
"""
Refuse = Callable[[Approval, UnitOfWork], None]
"""Adds to a unit of work what follows a refusal: denied or expired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalQuestion:
    """What to ask whom: `request` is a JSON object with everything that is needed to do it, `audience` who should
    answer, `turn_id` the turn that asks.

    A request with `agent_id`, `subject` and `digest` can be answered with a grant. The subject is what that is about:
    the agent's tool (`tool:{name}`) or block (`block:{label}`); the digest, 16 bytes in hex, names the arguments.
    """

    kind: ApprovalKind
    request: Mapping[str, Json]
    audience: str
    turn_id: str | None = None


class Approvals:
    """The questions of one constellation. Who asks questions of a kind also says, by `on_answer`, what follows."""

    def __init__(self, storage: Storage, limits: Limits, timers: Timers) -> None:
        self.grants = Grants(storage)
        self._storage = storage
        self._limits = limits
        self._answers: dict[ApprovalKind, tuple[Perform, Refuse]] = {}
        self.asked = timers.changed  # call it when another transaction stored a question: its time runs
        timers.on_due(approvals.TIMER, self._time_out)

    def on_answer(self, kind: ApprovalKind, perform: Perform, refuse: Refuse = lambda _approval, _work: None) -> None:
        """Have `perform` do what questions of this kind ask for, and `refuse` what follows a refusal."""
        self._answers[kind] = perform, refuse

    async def ask(self, question: ApprovalQuestion, work: UnitOfWork) -> str:
        """Ask within `work`, and return the approval's id; what is being asked already is not asked twice.

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
        work.when_settled(lambda _committed: self.asked())
        return row.id

    async def full(self, wanted: int = 1) -> str | None:
        """Return why so many more questions cannot be asked now; None if they can."""
        count = await self._storage.database.read(approvals.count_pending) + wanted - 1
        if count < self._limits.approvals_pending_max:
            return None
        return f"{count} questions to people are open already; they must answer some of them first"

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
        """Return the newest questions (of one status), newest first; those whose time is over are closed first."""
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
        """Answer a question and return it as it is then; on a yes, what it asks for is done in the same transaction.

        Raises:
            NotFound: there is no such approval, or what it was about has been deleted.
            Conflict: it was answered already, or its time is over.
            InvalidInput: the answer's parts do not fit the question or each other.
            PatternError: it cannot be done any more; it stays open, and can still be denied.
        """
        approval = await self.get(approval_id)
        if approval.status is not ApprovalStatus.PENDING:
            raise Conflict(
                f"the approval {approval_id} can no longer be answered: {_BECAME[approval.status]}",
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

    async def _close_due(self) -> None:
        """Close what is over, also where the timers are late."""
        for approval in await self._storage.database.read(approvals.due, self._storage.now()):
            work = UnitOfWork()
            self._expire(approval, work)
            with suppress(errors.RowConflict):  # a person answered in this moment
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
    """The standing answers of one constellation."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    async def covers(self, request: Mapping[str, Json]) -> bool:
        """Return whether the agent need not ask."""
        subject = request["agent_id"], request["subject"], bytes.fromhex(request["digest"])
        return await self._storage.database.read(approvals.is_granted, *subject, self._storage.now())

    def add(self, work: UnitOfWork, approval: Approval, answer: ApprovalAnswer) -> None:
        """Store a yes that is for more than its question; one for `once` stores nothing.

        Raises:
            InvalidInput: the question can only be answered for once.
        """
        if answer.scope == "once":
            return
        subject, digest = approval.request.get("subject"), approval.request.get("digest")
        if not subject or not digest:
            raise InvalidInput("this question can only be answered for once; leave out `scope`, or make it once")
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
        """Return the newest grants that hold, newest first; only those with ids smaller than `before`, if given."""
        now = self._storage.now()
        return await self._storage.database.read(approvals.standing_grants, now, limit=limit, before=before)

    async def revoke(self, grant_id: str, *, by: str) -> None:
        """Have the agent ask again.

        Raises:
            NotFound: there is no such grant.
        """
        async with given_or_alone(None, self._storage.commit) as work:
            work.store(approvals.delete_grant, grant_id)
            work.event("consent.revoked", {"id": grant_id, "by": by})


def _check(approval: Approval, answer: ApprovalAnswer) -> None:
    """Pass if the parts of an answer fit together, and the question.

    Raises:
        InvalidInput: they do not; the message says what to leave out or to say.
    """
    seconds, scope, changes = answer.seconds, answer.scope, answer.arguments is not None
    wrong = {
        "consent for a time needs `seconds`, how long it holds": scope == "time" and seconds is None,
        "consent for once has no `seconds`; use the scope time, same or always with them": (
            scope == "once" and seconds is not None
        ),
        f"`seconds` must be more than 0 and at most {GRANT_SECONDS_MAX} (ten years)": (
            seconds is not None and not 0 < seconds <= GRANT_SECONDS_MAX
        ),
        "a no is for this question alone: leave out `scope` and `arguments`, and say in `reason` what you want": (
            not answer.approve and (scope != "once" or changes)
        ),
        "only the arguments of a tool call can be changed; leave out `arguments`, or deny and say why in `reason`": (
            changes and "arguments" not in approval.request
        ),
        "consent for the same arguments cannot change them: agree once, or for a time or always, which is for any": (
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
    """Return what is stored of an answer: `{note, scope?, seconds?, arguments?, reason?}`."""
    said = {
        "scope": answer.scope if answer.approve and answer.scope != "once" else None,
        "seconds": answer.seconds,
        "arguments": None if answer.arguments is None else dict(answer.arguments),
        "reason": answer.reason or None,
    }
    return {"note": note, **{name: value for name, value in said.items() if value is not None}}
