"""Content under its own digest, stored once however many messages show it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from pattern_db.columns import to_json
from pattern_db.connection import Connection, fetch_all
from pattern_db.errors import NotFound

DIGEST_BYTES = 32  # BLAKE2b-256 of the content before compression

Encoding = Literal["raw", "zstd"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobRow:
    """Some content. `data` is encoded as `encoding` says; `size` is its length in bytes before that."""

    digest: bytes
    size: int
    data: bytes
    created_at: str
    encoding: Encoding = "raw"


def put(connection: Connection, row: BlobRow) -> bool:
    """Store the content; False if it was there already."""
    connection.execute(
        "INSERT INTO blob (digest, encoding, size, data, created_at) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (digest) DO NOTHING",
        (row.digest, row.encoding, row.size, row.data, row.created_at),
    )
    return connection.changes() > 0


def get(connection: Connection, digest: bytes) -> BlobRow:
    """The content with this digest.

    Raises:
        NotFound: there is none.
    """
    rows = fetch_all(connection, "SELECT encoding, size, data, created_at FROM blob WHERE digest = ?", (digest,))
    if not rows:
        raise NotFound(f"there is no stored content {digest.hex()}")
    encoding, size, data, created_at = rows[0]
    return BlobRow(digest=digest, encoding=encoding, size=size, data=bytes(data), created_at=created_at)


def sizes(connection: Connection, digests: list[bytes]) -> dict[bytes, int]:
    """The size of each content that is stored, in bytes before compression, without reading any."""
    found: dict[bytes, int] = {}
    for digest in digests:
        for (size,) in fetch_all(connection, "SELECT size FROM blob WHERE digest = ?", (digest,)):
            found[digest] = size
    return found


def older_than(
    connection: Connection, created_before: str, limit: int, *, after: tuple[str, bytes] = ("", b"")
) -> list[tuple[str, bytes, bytes]]:
    """The oldest `limit` contents stored as they are and created before a time, oldest first: time, digest and their
    first 16 bytes. Begin `after` nothing, and go on with the last one's time and digest.
    """
    return fetch_all(
        connection,
        "SELECT created_at, digest, substr(data, 1, 16) FROM blob WHERE created_at < ? AND encoding = 'raw'"
        " AND (created_at, digest) > (?, ?) ORDER BY created_at, digest LIMIT ?",
        (created_before, *after, limit),
    )


def shown_between(connection: Connection, after: int, to: int) -> set[str]:
    """The digests (hex) of the images in messages with `after` < row <= `to`; what is deleted shows none."""
    rows = fetch_all(
        connection,
        "SELECT DISTINCT part.value ->> '$.digest' FROM messages AS m, json_each(m.parts) AS part"
        f" WHERE m.row > ? AND m.row <= ? AND {_SHOWS}",
        (after, to),
    )
    return {digest for (digest,) in rows}


def newest_message_row(connection: Connection) -> int:
    """The greatest row of a message; 0 if there is none."""
    return int(fetch_all(connection, "SELECT coalesce(max(row), 0) FROM messages")[0][0])


def remove_unused(connection: Connection, digests: Collection[bytes], *, since: str) -> tuple[int, int]:
    """Remove these contents but for those that messages at positions from `since` on show, or messages that wait for
    their turn; return how many there were and their bytes. Who asks has looked through the older messages.
    """
    needed = {
        digest
        for (digest,) in fetch_all(
            connection,
            "SELECT DISTINCT part.value ->> '$.digest' FROM agents AS a CROSS JOIN messages AS m ON m.agent_id = a.id"
            f" AND m.position >= ?1, json_each(m.parts) AS part WHERE {_SHOWS}"
            " UNION SELECT part.value ->> '$.digest' FROM inbox AS i, json_each(i.payload, '$.parts') AS part"
            " WHERE part.value ->> '$.type' = 'image'",
            (since,),
        )
    }
    names = [digest.hex() for digest in digests if digest.hex() not in needed]
    gone = fetch_all(
        connection,
        "DELETE FROM blob WHERE digest IN (SELECT unhex(value) FROM json_each(?)) RETURNING size",
        (to_json(names),),
    )
    return len(gone), sum(size for (size,) in gone)


# `m` is a message that can be read, `part` one of its parts. The text is looked at first: most parts are tool calls.
_SHOWS = (
    "m.is_deleted = 0 AND m.parts IS NOT NULL AND instr(m.parts, '\"digest\"') > 0"
    " AND part.value ->> '$.type' = 'image' AND part.value ->> '$.digest' IS NOT NULL"
)
