"""Files of folders: their rows, the result of reading them, and the content of uploaded ones."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from pattern_db.connection import Connection, Table, fetch_all
from pattern_db.enums import SearchKind
from pattern_db.errors import RowNotFound
from pattern_db.tables import embeddings


@dataclass(frozen=True, slots=True)
class FileRow:
    """A file without its content. `name` is its path within the folder, with slashes.

    `status` is "indexed", or "unreadable" with the reason in `error`. `mtime_ns` is a local file's modification time, a
    remote one's a digest of its ETag; `content_hash` shows whether its bytes changed.
    """

    id: str
    folder_id: str
    name: str
    uploaded_at: str
    status: str
    content_type: str | None = None
    size_bytes: int | None = None
    indexed_at: str | None = None
    error: str | None = None
    mtime_ns: int | None = None
    content_hash: bytes | None = None
    line_count: int = 0
    passage_count: int = 0


_FILES = Table(
    "folder_files",
    FileRow,
    "file {}",
    source="folder_files LEFT JOIN file_index ON file_id = id",
    columns={
        "status": "coalesce(status, 'unreadable')",
        "line_count": "coalesce(line_count, 0)",
        "passage_count": "coalesce(passage_count, 0)",
    },
)


def put(connection: Connection, row: FileRow, content: bytes | None = None) -> None:
    """Store a file; it replaces one with the same id. `content` None keeps the old content.

    Raises:
        apsw.ConstraintError: the folder is missing or another file has the name (translated to `RowConflict`).
    """
    values = {**asdict(row), "content": content}
    connection.execute(
        "INSERT INTO folder_files (id, folder_id, name, content_type, size_bytes, uploaded_at, indexed_at, content)"
        " VALUES (:id, :folder_id, :name, :content_type, :size_bytes, :uploaded_at, :indexed_at, :content)"
        " ON CONFLICT (id) DO UPDATE SET content_type = excluded.content_type,"
        " size_bytes = excluded.size_bytes, uploaded_at = excluded.uploaded_at, indexed_at = excluded.indexed_at,"
        " content = coalesce(excluded.content, content)",
        values,
    )
    connection.execute(
        "INSERT INTO file_index (file_id, status, error, mtime_ns, content_hash, line_count, passage_count)"
        " VALUES (:id, :status, :error, :mtime_ns, :content_hash, :line_count, :passage_count)"
        " ON CONFLICT (file_id) DO UPDATE SET status = excluded.status, error = excluded.error,"
        " mtime_ns = excluded.mtime_ns, content_hash = excluded.content_hash,"
        " line_count = excluded.line_count, passage_count = excluded.passage_count",
        values,
    )


def touch(connection: Connection, file_id: str, mtime_ns: int) -> None:
    """Note that a local file was written again with the same bytes."""
    connection.execute("UPDATE file_index SET mtime_ns = ? WHERE file_id = ?", (mtime_ns, file_id))


def find(connection: Connection, folder_id: str, name: str) -> FileRow:
    """Return the file of this name (or id) in the folder.

    Raises:
        RowNotFound: there is none.
    """
    return _FILES.one(
        connection,
        "WHERE folder_id = ?1 AND (name = ?2 OR id = ?2)",
        (folder_id, name),
        f"file {name!r} in this folder",
    )


def list_in(
    connection: Connection, folder_id: str, *, limit: int | None = None, after: str | None = None
) -> list[FileRow]:
    """Return the files of a folder by name: the first `limit` with names after `after`."""
    return _FILES.select(
        connection,
        "WHERE folder_id = ?1 AND (?2 IS NULL OR name > ?2) ORDER BY name LIMIT coalesce(?3, -1)",
        (folder_id, after, limit),
    )


def count(connection: Connection, folder_id: str) -> int:
    """Return how many files the folder has."""
    return _FILES.count(connection, "WHERE folder_id = ?", (folder_id,))


def content(connection: Connection, file_id: str) -> bytes:
    """Return the bytes of an uploaded or a remote file.

    Raises:
        RowNotFound: there is no such file, it is in a local folder, or it could not be read.
    """
    rows = fetch_all(connection, "SELECT content FROM folder_files WHERE id = ? AND content IS NOT NULL", (file_id,))
    if not rows:
        raise RowNotFound(f"there is no stored content of the file {file_id}")
    return bytes(rows[0][0])


def delete(connection: Connection, file_id: str) -> None:
    """Delete a file's row with its passages and their vectors.

    Raises:
        RowNotFound: there is no such file.
    """
    for (passage_id,) in fetch_all(connection, "SELECT id FROM file_passages WHERE file_id = ?", (file_id,)):
        embeddings.delete(connection, SearchKind.FILE, passage_id)
    _FILES.delete(connection, file_id)
