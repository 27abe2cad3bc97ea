"""Imports of past messages: which were made under an idempotency key, and where there is room among what is stored."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from pattern_db.connection import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRow:
    """One import. Both digests have 16 bytes; `positions` are those of its messages, in the order they were sent in."""

    idempotency: bytes
    fingerprint: bytes
    agent_id: str
    positions: Sequence[int]
    created_at: str


def insert(connection: Connection, row: ImportRow) -> None:
    """Note an import.

    Raises:
        apsw.ConstraintError: the key was used, or the agent is missing (a `Conflict` once translated).
    """
    connection.execute(
        "INSERT INTO history_import (idempotency, fingerprint, agent_id, created_at, positions) VALUES (?, ?, ?, ?, ?)",
        (
            row.idempotency,
            row.fingerprint,
            row.agent_id,
            row.created_at,
            struct.pack(f"<{len(row.positions)}q", *row.positions),
        ),
    )


def find(connection: Connection, idempotency: bytes) -> ImportRow | None:
    """The import made under this digest of a key; None if there is none."""
    row = connection.execute(
        "SELECT idempotency, fingerprint, agent_id, created_at, positions FROM history_import WHERE idempotency = ?",
        (idempotency,),
    ).fetchone()
    if row is None:
        return None
    return ImportRow(
        idempotency=row[0],
        fingerprint=row[1],
        agent_id=row[2],
        created_at=row[3],
        positions=struct.unpack(f"<{len(row[4]) // 8}q", row[4]),
    )


def newest_between(connection: Connection, agent_id: str, first: str, last: str) -> str | None:
    """The greatest position from `first` to `last` that is taken; None if none is.

    A message's id is made of its position, so what any agent holds counts; of this agent's messages the position
    itself counts too, for an id may have come from elsewhere.
    """
    row = connection.execute(
        "SELECT max(taken) FROM (SELECT substr((SELECT max(id) FROM messages WHERE id BETWEEN 'msg_' || ?2 AND"
        " 'msg_' || ?3), 5) AS taken UNION ALL"
        " SELECT (SELECT max(position) FROM messages WHERE agent_id = ?1 AND position BETWEEN ?2 AND ?3))",
        (agent_id, first, last),
    ).fetchone()
    return None if row is None else row[0]
