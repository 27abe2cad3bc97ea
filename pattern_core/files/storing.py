"""Reading a file into passages, and storing both in one transaction."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import trio

from pattern_core.errors import Conflict, LimitReached
from pattern_core.files.disk import FILES_MAX, UnreadableFile
from pattern_core.files.passages import split
from pattern_core.files.reading.read import read_document
from pattern_core.ids import Ids
from pattern_db.connection import Connection
from pattern_db.errors import NotFound as RowNotFound
from pattern_db.tables import files, passages
from pattern_db.tables.files import FileRow
from pattern_db.tables.passages import Piece


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A file that was read: its text and passages, or the `error` why it could not be."""

    name: str
    size: int
    content_hash: bytes | None
    text: str = ""
    content_type: str | None = None
    pieces: Sequence[Piece] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """What one transaction stores of one file. `content` is kept for virtual folders only; with `expected_hash` the
    file must still be the one with these bytes.
    """

    folder_id: str
    prepared: Prepared
    file_id: str  # if the file is new
    passage_ids: Sequence[str]
    now: str
    content: bytes | None = None
    mtime_ns: int | None = None
    expected_hash: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A file's row after it was stored, and whether it is new."""

    file: FileRow
    is_new: bool


def hash_of(data: bytes) -> bytes:
    """What tells whether a file's bytes changed: their SHA-256."""
    return hashlib.sha256(data).digest()


async def prepare(name: str, data: bytes) -> Prepared:
    """Read `data`; what cannot be read comes back with its error."""
    try:
        document = await read_document(name, data)
        pieces = await trio.to_thread.run_sync(partial(split, name, document))
    except UnreadableFile as error:
        return Prepared(name=name, size=len(data), content_hash=hash_of(data), error=error.message)
    return Prepared(
        name=name,
        size=len(data),
        content_hash=hash_of(data),
        text=document.text,
        content_type=document.content_type,
        pieces=pieces,
    )


def refused(name: str, size: int, error: UnreadableFile) -> Prepared:
    """A file that was not even looked into."""
    return Prepared(name=name, size=size, content_hash=None, error=error.message)


def put_of(
    prepared: Prepared,
    *,
    folder_id: str,
    ids: Ids,
    now: str,
    content: bytes | None = None,
    mtime_ns: int | None = None,
    expected_hash: bytes | None = None,
) -> Put:
    """A `Put` with the ids that it may need."""
    return Put(
        folder_id=folder_id,
        prepared=prepared,
        file_id=ids.new("file"),
        passage_ids=[ids.new("psg") for _piece in prepared.pieces],
        now=now,
        content=content,
        mtime_ns=mtime_ns,
        expected_hash=expected_hash,
    )


def store(connection: Connection, put: Put) -> Stored:
    """Store the file and its passages. Passages with the same words keep their ids and vectors.

    Raises:
        Conflict: the file is not the expected one any more.
        LimitReached: the folder is full.
        apsw.ConstraintError: the folder is gone (a `Conflict` once translated).
    """
    prepared = put.prepared
    try:
        known = files.find(connection, put.folder_id, prepared.name)
    except RowNotFound:
        known = None
    if put.expected_hash is not None and (known is None or known.content_hash != put.expected_hash):
        raise Conflict(f"{prepared.name} was changed by somebody else meanwhile; read it again")
    if known is None and files.count(connection, put.folder_id) >= FILES_MAX:
        raise LimitReached(f"the folder holds {FILES_MAX} files, which is all it may; remove some first")
    row = FileRow(
        id=put.file_id if known is None else known.id,
        folder_id=put.folder_id,
        name=prepared.name,
        content_type=prepared.content_type,
        size_bytes=prepared.size,
        uploaded_at=put.now if known is None or known.content_hash != prepared.content_hash else known.uploaded_at,
        indexed_at=put.now,
        status="indexed" if prepared.error is None else "unreadable",
        error=prepared.error,
        mtime_ns=put.mtime_ns,
        content_hash=prepared.content_hash,
        line_count=prepared.text.count("\n") + (not prepared.text.endswith("\n")) if prepared.text else 0,
        passage_count=len(prepared.pieces),
    )
    is_new = files.put(connection, row, put.content)
    unused = iter(put.passage_ids)
    passages.replace(connection, row.id, prepared.pieces, new_id=unused.__next__, now=put.now)
    return Stored(file=row, is_new=is_new)
