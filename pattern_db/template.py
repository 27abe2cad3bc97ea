"""New databases as copies of a prepared one: writing a few hundred KB is much faster than running the schema.

The template is built once per process and schema, in memory. Its header already says WAL, so that the first opening
does not change the file.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from pattern_db import columns, files
from pattern_db.connection import Connection, open_in_memory
from pattern_db.errors import RowConflict, translated
from pattern_db.migrate import Migrations

# Bytes 18 and 19 of the header are the write and read versions; 2 is WAL.
# Source: "Database File Format", sqlite.org/fileformat2.html, section 1.3.3.
_VERSIONS = slice(18, 20)
_WAL = b"\x02\x02"
# Placeholder in the template for the time of the copy; equally long, so that it can be replaced in the bytes.
_SOME_TIME = "0000-00-00T00:00:00.000Z"


def create(path: Path, migrations: Migrations, *, now: str) -> None:
    """Create a database at the newest version at `path`.

    It is on the disk when this returns. It has no id yet: see `tables.meta.initialise`. `now` is a time as stored.

    Raises:
        RowConflict: there is already a file.
        StorageFailed: the disk is full or failed.
    """
    content = bytearray(_copy(migrations, now))
    content[_VERSIONS] = _WAL
    with translated(), files.written(path) as new:
        if path.exists():
            raise RowConflict(f"{path} already exists")
        new.write_bytes(content)


def in_memory(migrations: Migrations, *, now: str) -> Connection:
    """Return the same database in memory, for tests: the settings of a file, the schema, and nothing on the disk."""
    connection = open_in_memory()
    connection.deserialize("main", _copy(migrations, now))
    return connection


def _copy(migrations: Migrations, now: str) -> bytes:
    if len(now) != columns.TIME_CHARS:
        raise ValueError(f"{now!r} is not a time in the stored format")
    return _template(migrations).replace(_SOME_TIME.encode(), now.encode())


@lru_cache(maxsize=8)
def _template(migrations: Migrations) -> bytes:
    connection = open_in_memory()
    try:
        migrations.apply(connection, now=_SOME_TIME)
        connection.execute("VACUUM").fetchall()
        return connection.serialize("main")
    finally:
        connection.close()
