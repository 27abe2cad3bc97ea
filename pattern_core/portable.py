"""Constellations, groups and agents as archives: everything of them in one file, for another server.

Version 4. The root is the manifest; its `data_cid` names a node with the tables, each with its columns and the CIDs of
its chunks; a chunk is a list of rows. A cell is the stored value. Bytes are a CID; what is too long for its place is
`{"bytes": [CID, …]}` or `{"text": [CID, …]}`. The same content gives the same archive, byte by byte.

The fields of the manifest are those of version 3, of the system that this one follows. Source: its
`docs/car-format.md`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Literal

from pattern_core.car import ArchiveInvalid, CarReader, CarWriter, Cid, Node, pieces, text_of
from pattern_core.errors import InvalidInput
from pattern_core.legacy.archive import NEWEST, Old, read_old, version_in
from pattern_core.legacy.letta import is_letta, read_letta, root_of
from pattern_core.legacy.letta_writer import LettaWriter
from pattern_core.legacy.writer import OldWriter
from pattern_db import portable
from pattern_db.connection import Connection, Value, opened_at
from pattern_db.migrate import migrations_of
from pattern_db.portable import Cut, Difference, Rows
from pattern_db.tables import imports

Kind = Literal["agent", "group", "constellation"]
Format = Literal["car", "letta"]
VERSION = 4
CHUNK_BYTES, CHUNK_ROWS = 900_000, 1_000
READ_AT_ONCE_BYTES = 8 * 1024 * 1024
TEXT_BYTES_MAX = 32 * 1024  # of a text within its row
CELL_BYTES_MAX = 64 * 1024 * 1024
GROWTH_MAX = 20  # how many times larger its rows may be than an archive, which holds equal bytes once …
START_BYTES = 64  # that tell an agent file from an archive
GROWTH_FREE = 16 * 1024 * 1024  # … beyond this
NO_TIME = "1970-01-01T00:00:00.000Z"
ArchiveImport = imports.ArchiveImport
list_imports, find_import, record_import = imports.page, imports.complete, imports.add
_COUNTS = {
    "agent_count": "agents",
    "group_count": "agent_groups",
    "message_count": "messages",
    "memory_block_count": "memory_blocks",
    "archival_entry_count": "archival_entries",
    "archive_summary_count": "archive_summaries",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What an archive says of itself. `rows` are numbers by table, `cut` the references that it lost, by column.

    `root` is its CID as text. `exported_at` is the newest time in it, `schema_version` that of the database that its
    tables are from (None: it has records of other systems), `blocks` and `bytes` count all blocks but the manifest. An
    agent file of Letta names no `version`.
    """

    format: Format
    version: int | None
    root: str
    kind: str
    name: str
    exported_at: str
    schema_version: int | None
    rows: Mapping[str, int]
    blocks: int
    bytes: int
    cut: Mapping[str, int]


def write(copy: Path, file: BinaryIO, *, kind: Kind, id_or_name: str, version: int | None = VERSION) -> Manifest:
    """Write the archive of a constellation, or of the agent or group in it with this id or name, to an empty file.

    `copy` is a private copy of the database; it is used up. What version 3, or an agent file of Letta (None), has no
    record for is counted in `cut`.

    Raises:
        RowNotFound: there is no such agent or group.
        ArchiveInvalid: a record is too large for version 3.
        DocumentDamaged: a memory document cannot be read for version 3.
        StorageFailed: the disk is full or failed.
    """
    with opened_at(copy) as connection:
        owners, name = None, id_or_name
        if kind != "constellation":
            own_id, name = portable.find(connection, kind, id_or_name)
            owners = [own_id] if kind == "agent" else portable.owners_of(connection, own_id)
        cut = _numbered(portable.reduce(connection, owners))
        if version is None:
            return _write_letta(connection, file, kind, name)
        if version == NEWEST:
            return _write_old(connection, CarWriter(file, with_blake3=True), kind, name)
        return _write(connection, CarWriter(file), kind, name, cut)


def _write_letta(connection: Connection, file: BinaryIO, kind: Kind, name: str) -> Manifest:
    writer, newest = LettaWriter(connection), portable.newest_time(connection) or NO_TIME
    data = writer.made(newest)
    file.write(data)
    return _letta(root_of(data), kind, name, newest, writer.rows, len(data), writer.left_out)


def _write_old(connection: Connection, car: CarWriter, kind: Kind, name: str) -> Manifest:
    newest = portable.newest_time(connection) or NO_TIME
    writer = OldWriter(connection, car)
    made = writer.write(kind, newest)
    stats = {field: writer.rows[table] for field, table in _COUNTS.items()} | {"chunk_count": made.pop("chunk_count")}
    stats |= {"total_blocks": car.blocks, "total_bytes": car.bytes}
    root = {**made, "exported_at": newest, "stats": stats}
    cid = car.node(root)
    car.close(cid)
    return _manifest(cid, root | {"name": name, "rows": writer.rows, "cut": writer.left_out})


def _write(connection: Connection, car: CarWriter, kind: Kind, name: str, cut: Mapping[str, int]) -> Manifest:
    rows, listed = dict[str, int](), list[Node]()
    for table in portable.tables(connection):
        chunks: list[Cid] = []
        rows[table.table] = 0
        for chunk in _chunks(car, table.rows):
            chunks.append(car.node({"table": table.table, "rows": chunk}))
            rows[table.table] += len(chunk)
        listed.append({"table": table.table, "columns": table.columns, "chunks": chunks})
    data = car.node({"tables": listed})
    stats = {field: rows.get(table, 0) for field, table in _COUNTS.items()}
    chunk_count = sum(len(one["chunks"]) for one in listed)
    root = {
        "version": VERSION,
        "export_type": kind.capitalize(),
        "exported_at": portable.newest_time(connection) or NO_TIME,
        "name": name,
        "schema": portable.version_of(connection),
        "stats": {**stats, "chunk_count": chunk_count, "total_blocks": car.blocks, "total_bytes": car.bytes},
        "rows": rows,
        "cut": dict(cut),
        "data_cid": data,
    }
    cid = car.node(root)
    car.close(cid)
    return _manifest(cid, root)


def _numbered(cut: Sequence[Cut]) -> Mapping[str, int]:
    names = [f"{one.table}.{one.column}" + (" (with its row)" if one.is_lost else "") for one in cut]
    return {name: names.count(name) for name in sorted(set(names))}


def _chunks(car: CarWriter, rows: Any) -> Iterator[list[list[Node]]]:
    chunk: list[list[Node]] = []
    size = 0
    for row in rows:
        cells = [_stored(car, value) for value in row]
        added = sum(9 + (4 * len(cell) if isinstance(cell, str) else 64) for cell in cells)
        if chunk and (size + added > CHUNK_BYTES or len(chunk) == CHUNK_ROWS):
            yield chunk
            chunk, size = [], 0
        chunk.append(cells)
        size += added
    if chunk:
        yield chunk


def _stored(car: CarWriter, value: Value) -> Node:
    if isinstance(value, str) and len(value) * 4 > TEXT_BYTES_MAX and len(data := value.encode()) > TEXT_BYTES_MAX:
        return {"text": [car.raw(piece) for piece in pieces(data)]}
    if isinstance(value, bytes):
        cids = [car.raw(piece) for piece in pieces(value)] or [car.raw(b"")]
        return cids[0] if len(cids) == 1 else {"bytes": cids}
    return value


def manifest_of(car: CarReader) -> Manifest:
    """Return what an archive says of itself.

    Raises:
        ArchiveInvalid: it is of a version that is not read, or damaged.
    """
    root = car.node(car.root)
    version = version_in(root)
    if version is None:
        raise ArchiveInvalid("the file is not an archive of agents: its root has no version")
    if version > VERSION:
        raise ArchiveInvalid(
            f"the archive has version {version}, which is newer than {VERSION}, the newest that this server reads;"
            " upgrade the server"
        )
    if version <= NEWEST:
        stats = {"total_blocks": len(car), "total_bytes": 0}
        about = {"name": "", "export_type": "Agent", "exported_at": NO_TIME, "stats": stats} | root
        root = {**about, "version": version, "rows": {}, "cut": {}}
    return _manifest(car.root, root)


def _manifest(cid: Cid, root: Mapping[str, Any]) -> Manifest:
    try:
        return Manifest(
            format="car",
            version=root["version"],
            root=text_of(cid),
            kind=str(root["export_type"]).lower(),
            name=str(root["name"]),
            exported_at=str(root["exported_at"]),
            schema_version=int(root["schema"]) if root["version"] > NEWEST else None,
            rows={str(table): int(count) for table, count in root["rows"].items()},
            blocks=int(root["stats"]["total_blocks"]),
            bytes=int(root["stats"]["total_bytes"]),
            cut={str(name): int(count) for name, count in root["cut"].items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ArchiveInvalid(f"the manifest of the archive is malformed: {error!r}") from error


def read(source: Path, target: Path, *, now: str) -> tuple[Manifest, Old | None]:
    """Make the database of a constellation at `target` of an archive, at the schema of that.

    Its documents are not opened: that is for `damaged_blocks`, in a process of its own. Of version 1 to 3 nothing is
    made; what it holds is returned. An agent file of Letta is treated as such an archive.

    Raises:
        ArchiveInvalid: the archive is damaged, incomplete or too large for what it holds.
        BackupInvalid: its rows break the rules of their schema.
        SchemaTooNew: it comes from a newer server.
        StorageFailed: the disk is full or failed.
    """

    def store(manifest: Manifest, rows: Iterable[Rows]) -> Mapping[str, int]:
        portable.create(target, migrations_of("constellation"), manifest.schema_version or 0, now=now)
        return portable.fill(target, rows)

    return _used(source, store)


def verify(source: Path) -> tuple[Manifest, Old | None]:
    """Read a whole archive, every block against its CID; return what it says of itself, and of version 1 to 3 what it
    holds.

    Raises:
        ArchiveInvalid: as `read`.
    """

    def count(_manifest: Manifest, rows: Iterable[Rows]) -> Mapping[str, int]:
        counts: Counter[str] = Counter()
        for some in rows:
            counts[some.table] += sum(1 for _ in some.rows)
        return counts

    return _used(source, count)


def compare(before: Path, after: Path, folder: Path, *, now: str) -> Iterator[Difference]:
    """Yield how the content of an archive differs from that of an earlier one, by table; at the newest schema if theirs
    are not the same. Needs an empty `folder` to work in.

    Raises:
        InvalidInput: one is of another system: its rows have no ids of ours.
        As `read`.
    """
    versions, paths = set[int | None](), [folder / "before.db", folder / "after.db"]
    for source, path in zip((before, after), paths, strict=True):
        manifest, old = read(source, path, now=now)
        if old is not None:
            raise InvalidInput(f"{source} is of another system. Import it, export that, and compare the export")
        versions.add(manifest.schema_version)
    if len(versions) > 1:
        for path in paths:
            migrations_of("constellation").migrate(path, backup_to=None, now=now)
    yield from portable.differences(*paths)


def _used(source: Path, use: Callable[[Manifest, Iterable[Rows]], Mapping[str, int]]) -> tuple[Manifest, Old | None]:
    """Return what an archive says of itself, after `use` of all its rows, which returns their numbers by table; of
    version 1 to 3, also what it holds.
    """
    with source.open("rb") as file:
        if is_letta(file.read(START_BYTES)):
            old = read_letta(source)
            newest = old.exported_at or NO_TIME
            return _letta(old.root, old.kind, old.name, newest, old.counts(), source.stat().st_size, {}), old
        file.seek(0)
        car = CarReader(file)
        manifest = manifest_of(car)
        if manifest.schema_version is None:
            old = read_old(car)
            return replace(manifest, name=old.name, rows=old.counts()), old
        if use(manifest, _tables(car, _Cells(car, source.stat().st_size))) != manifest.rows:
            raise ArchiveInvalid("the archive does not have the rows that its manifest counts")
    return manifest, None


def _letta(
    root: str, kind: str, name: str, newest: str, rows: Mapping[str, int], size: int, left_out: Mapping[str, int]
) -> Manifest:
    there = {table: count for table, count in rows.items() if count}
    about: dict[str, Any] = {"root": root, "kind": kind, "name": name, "exported_at": newest, "cut": dict(left_out)}
    return Manifest(format="letta", version=None, schema_version=None, rows=there, blocks=0, bytes=size, **about)


class _Cells:
    """Reads cells, as far as an archive of this size may grow."""

    def __init__(self, car: CarReader, size: int) -> None:
        self._car = car
        self._left = GROWTH_MAX * size + GROWTH_FREE

    def value(self, cell: Node) -> Value:
        if isinstance(cell, bytes):
            return self._joined([cell])
        if isinstance(cell, dict) and len(cell) == 1:
            kind, cids = next(iter(cell.items()))
            if kind in ("text", "bytes") and isinstance(cids, list):
                data = self._joined(cids)
                try:
                    return data if kind == "bytes" else data.decode()
                except UnicodeDecodeError as error:
                    raise ArchiveInvalid("a text of the archive is not UTF-8") from error
        if isinstance(cell, bool) or not isinstance(cell, str | int | float | None):
            raise ArchiveInvalid("a cell of the archive has a value of an unknown kind")
        return cell

    def _joined(self, cids: Sequence[object]) -> bytes:
        out = bytearray()
        for cid in cids:
            out += self._car.raw(cid)
            if len(out) > CELL_BYTES_MAX:
                raise ArchiveInvalid(f"a value of the archive is larger than {CELL_BYTES_MAX} bytes")
        self._left -= len(out)
        if self._left < 0:
            raise ArchiveInvalid("the archive would grow too large: it refers to the same bytes again and again")
        return bytes(out)


def _tables(car: CarReader, cells: _Cells) -> Iterator[Rows]:
    """Yield the rows of an archive, chunk by chunk; of a chunk with many bytes, some rows at a time."""
    seen: set[Cid] = set()
    data = car.node(car.node(car.root).get("data_cid"))
    for table in _list(data, "tables"):
        columns = _list(table, "columns")
        for cid in _list(table, "chunks"):
            chunk = car.node(cid)
            if cid in seen:
                raise ArchiveInvalid("the archive lists the same rows twice")
            seen.add(cid)
            listed = _list(chunk, "rows")
            if chunk.get("table") != table.get("table"):
                raise ArchiveInvalid("the archive lists rows of one table under another")
            some = Rows(table=str(table.get("table")), columns=[str(column) for column in columns], rows=())
            rows, size = list[list[Value]](), 0
            for row in listed:
                if not isinstance(row, list) or len(row) != len(columns):
                    raise ArchiveInvalid("a row of the archive does not have the columns of its table")
                rows.append([cells.value(cell) for cell in row])
                size += sum(len(value) for value in rows[-1] if isinstance(value, str | bytes))
                if size > READ_AT_ONCE_BYTES:
                    yield replace(some, rows=rows)
                    rows, size = [], 0
            yield replace(some, rows=rows)


def _list(node: Node, field: str) -> list[Any]:
    found = node.get(field) if isinstance(node, dict) else None
    if not isinstance(found, list):
        raise ArchiveInvalid(f"the archive is malformed: {field!r} is not a list")
    return found
