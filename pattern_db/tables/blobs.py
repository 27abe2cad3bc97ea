"""Content under its own digest, stored once however many messages show it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
