"""The audit log: what was done with users, tokens, approvals and data, by whom and from where. It holds no texts.

An action is two entries: one before it, with the status `BEGUN`, and one with the status of its answer. So nothing is
done without an entry, in whichever file it is done; an action without a second entry was interrupted, and may have been
done. A sign-in is one entry, in the transaction that stores it; refused ones are entries, too, and are limited
(`sign_in.py`), so strangers cannot fill the disk.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import asdict
from enum import Enum

import trio

from pattern_core.ids import Clock, now_text
from pattern_db.errors import DatabaseError
from pattern_db.tables import audit_log
from pattern_db.tables.audit_log import AuditRow, AuditState
from pattern_server.global_database import GlobalDatabase

# What is changed below these tags of the API, and every deletion, is an entry.
TAGS = frozenset({"users", "tokens", "auth", "identities", "approvals", "constellations"})
BEGUN = 102  # RFC 2518, section 10.1: accepted, and not yet completed
CONCLUDE_TIMEOUT_S = 5.0
OBJECT_CHARS_MAX = 500
CHECKED_AT_ONCE = 5_000  # rows, in one visit to the database

AuditEntry = AuditRow

_log = logging.getLogger("pattern.audit")


def is_audited(methods: Collection[str], tags: Collection[str | Enum]) -> bool:
    """Return whether requests of a route with these methods and tags are entries: the end of an MCP session is not."""
    return ("GET" not in methods and not TAGS.isdisjoint(tags)) or ("DELETE" in methods and "mcp" not in tags)


class Audit:
    """Reads and writes the log."""

    def __init__(self, database: GlobalDatabase, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def entry(
        self, action: str, obj: str, *, status: int, address: str, user_id: str | None, token_id: str | None = None
    ) -> AuditEntry:
        """Return a new entry, for the transaction of what it is about."""
        return AuditRow(now_text(self._clock), action, obj[:OBJECT_CHARS_MAX], status, user_id, token_id, address)

    async def add(self, entry: AuditEntry) -> None:
        """Add an entry.

        Raises:
            DatabaseError: it cannot be stored, so what it is about must not be done.
        """
        await self._database.write(audit_log.append, entry)

    async def conclude(self, entry: AuditEntry) -> None:
        """Add the entry of what has been done, also if its client has left. If it cannot be stored, it is in the
        server's log.
        """
        try:
            with trio.move_on_after(CONCLUDE_TIMEOUT_S, shield=True):
                await self.add(entry)
        except DatabaseError as error:
            _log.error("audit entry not stored", {"reason": error.message, **asdict(entry)})

    async def page(self, *, before: int | None, limit: int) -> list[AuditEntry]:
        """Return up to `limit` entries, newest first; `before` is the number that all are below."""
        return await self._database.read(audit_log.page, before=before, limit=limit)

    async def verify(self) -> AuditState:
        """Check the whole chain.

        That rows were removed at its end does not show by itself: compare `head` with an earlier one.
        """
        state = AuditState()
        while True:
            after = await self._database.read(audit_log.follow, state, CHECKED_AT_ONCE)
            if after == state or after.broken_at is not None:
                return after
            state = after
