"""Standing consent: what an agent may do without asking again, because a person said so when it asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pattern_core.errors import InvalidInput, NotFound
from pattern_core.ids import Clock, Ids, now_text
from pattern_core.unit_of_work import Commit, UnitOfWork, given_or_alone
from pattern_db import errors as storage
from pattern_db.columns import iso
from pattern_db.database import Database
from pattern_db.tables import consent_grants
from pattern_db.tables.consent_grants import GrantRow

ConsentGrant = GrantRow
Scope = Literal["once", "time", "same", "always"]
SECONDS_MAX = 10 * 365 * 24 * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What consent is about: an agent's tool (`tool:{name}`) or block (`block:{label}`), and 16 bytes that name the
    arguments.
    """

    agent_id: str
    name: str
    args_hash: bytes


class ConsentGrants:
    """The standing consent of one constellation."""

    def __init__(self, *, database: Database, clock: Clock, ids: Ids, commit: Commit) -> None:
        self._database = database
        self._clock = clock
        self._ids = ids
        self._commit = commit

    async def covers(self, subject: Subject) -> bool:
        """Whether the agent need not ask."""
        now = now_text(self._clock)
        return await self._database.read(consent_grants.covers, subject.agent_id, subject.name, subject.args_hash, now)

    def add(
        self, work: UnitOfWork, subject: Subject, *, scope: Scope, seconds: float | None, by: str, approval_id: str
    ) -> None:
        """Remember an answer beyond the question: for some `seconds`, for the same arguments, or always.

        `once` remembers nothing. `time` stands for any arguments and needs `seconds`, the others may have them.

        Raises:
            InvalidInput: the scope and the seconds do not go together.
        """
        check_scope(scope, seconds)
        if scope == "once":
            return
        now_ms = self._clock.now_ms()
        row = GrantRow(
            id=self._ids.new("cgr"),
            agent_id=subject.agent_id,
            subject=subject.name,
            args_hash=subject.args_hash if scope == "same" else None,
            approval_id=approval_id,
            granted_by=by,
            expires_at=None if seconds is None else iso(now_ms + round(seconds * 1000)),
            created_at=iso(now_ms),
        )
        work.store(consent_grants.delete_expired, row.created_at)
        work.store(consent_grants.insert, row)
        work.event(
            "consent.granted",
            {"id": row.id, "agent_id": row.agent_id, "subject": row.subject, "expires_at": row.expires_at, "by": by},
        )

    async def list(self, limit: int, *, before: str | None = None) -> Sequence[ConsentGrant]:
        """The newest consents that hold, newest first; only those with ids smaller than `before`, if given."""
        now = now_text(self._clock)
        return await self._database.read(consent_grants.standing, now, limit=limit, before=before)

    async def revoke(self, grant_id: str, *, by: str) -> None:
        """Have the agent ask again.

        Raises:
            NotFound: there is no such consent.
        """
        try:
            async with given_or_alone(None, self._commit) as work:
                work.store(consent_grants.delete, grant_id)
                work.event("consent.revoked", {"id": grant_id, "by": by})
        except storage.NotFound as error:
            raise NotFound(error.message) from None


def check_scope(scope: Scope, seconds: float | None) -> None:
    """Whether a scope and its time go together.

    Raises:
        InvalidInput: they do not; the message says what is missing.
    """
    if scope == "time" and seconds is None:
        raise InvalidInput("consent for a time needs `seconds`, how long it holds")
    if scope == "once" and seconds is not None:
        raise InvalidInput("consent for once has no `seconds`; use the scope time, same or always with them")
    if seconds is not None and not 0 < seconds <= SECONDS_MAX:
        raise InvalidInput(f"`seconds` must be more than 0 and at most {SECONDS_MAX} (ten years)")
