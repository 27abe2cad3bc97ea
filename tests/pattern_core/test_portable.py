"""Archives of whole constellations, agents and groups: what travels, twice the same, and nothing of a damaged one."""

from __future__ import annotations

import hashlib
import io
import random
import re
import shutil
import tracemalloc
from contextlib import closing
from pathlib import Path
from typing import Any

import dag_cbor
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from multiformats import CID, multihash, varint

from pattern_core.car import BLOCK_BYTES_MAX, ArchiveInvalid, CarReader, CarWriter, pieces, raw_cid, text_of
from pattern_core.errors import InvalidInput
from pattern_core.portable import Kind, Manifest, compare, manifest_of, read, verify, write
from pattern_db import backup, portable, template
from pattern_db.connection import Connection, fetch_all, open_connection
from pattern_db.errors import BackupInvalid, DatabaseError, SchemaTooNew
from pattern_db.migrate import migrations_of
from tests.pattern_core.mutated import blocks_of, sections, tree_of

NOW = "2026-02-03T04:05:06.007Z"
ROWS = 3
OLDER = 30  # a schema in which tables lack columns that they have now
ALL = migrations_of("constellation")
JSON = '[{"a": "ü"}]'
# Values that no rule of the schema says in a form that can be read from it.
GIVEN: dict[str, dict[str, Any]] = {
    "guidance": {"state": "active", "merged_into": None},
    "archival_entries": {"tags": JSON, "source": '{"turn": "t"}', "valid_from": NOW, "valid_to": None},
    "budget": {"scope": "agent"},
    "file_index": {"error": None},
    "schedule": {"status": "paused"},
    "tasks": {"parent_task_id": None, "status": "blocked"},
}


def made_value(connection: Connection, table: str, column: tuple[Any, ...], number: int, rng: random.Random) -> Any:
    """A value that the column's own rules allow, as far as they can be read."""
    _, name, kind, *_ = column
    schema = connection.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (table,)).get
    line = next((line for line in schema.splitlines() if re.match(rf"\s*{name}\s", line)), "")
    if found := re.search(r"IN \(('[^']*)'", line):
        return found[1].strip("'")
    if found := re.search(r"IN \((\d+)", line):
        return int(found[1])
    if "json_valid" in line:
        return JSON
    if found := re.search(r"length\(\w+\) = (\d+)", line):
        length = int(found[1])
        time = f"{NOW[:-4]}{number:03}Z"
        return rng.randbytes(length) if kind == "BLOB" else time if length == len(NOW) else f"{number:0{length}}"
    return {"INTEGER": number, "REAL": number / 2, "BLOB": rng.randbytes(40)}.get(kind, f"{table}.{name} {number} ü")


def corrected(row: dict[str, Any], error: str, number: int) -> bool:
    """Change what a refusal of the schema names; False if it names nothing."""
    if found := re.search(r"(\w+) IN \('([^']+)'", error):
        row[found[1]] = found[2]
    elif found := re.search(r"(\w+) IN \((\d+)", error):
        row[found[1]] = int(found[2])
    elif found := re.search(r"json_valid\((\w+)\)", error):
        row[found[1]] = JSON
    elif found := re.search(r"length\((\w+)\) = (\d+)", error):
        length = int(found[2])
        row[found[1]] = f"{NOW[:-4]}{number:03}Z" if length == len(NOW) else bytes([number]) * length
    elif found := re.search(r"\(\w+ IS NULL\) <> \((\w+) IS NULL\)", error):
        row[found[1]] = None
    else:
        return False
    return True


def fill(connection: Connection) -> None:
    """Give every table that travels some rows, that refer to one another as the schema says."""
    rng = random.Random(7)
    ids: dict[str, list[Any]] = {}
    connection.execute("PRAGMA foreign_keys = 0").fetchall()
    for table in portable.TRAVELS:
        parents = {key[3]: key[2] for key in fetch_all(connection, f"PRAGMA foreign_key_list({table})")}
        columns = [one for one in fetch_all(connection, f"PRAGMA table_info({table})") if one[1] != "row"]
        for number in range(1, ROWS + 1):
            row: dict[str, Any] = {}
            for column in columns:
                known = ids.get(parents.get(column[1], ""), [])
                row[column[1]] = (
                    known[(number - 1) % len(known)]
                    if known
                    else None
                    if column[1] in parents and not column[3]
                    else made_value(connection, table, column, number, rng)
                )
            row |= GIVEN.get(table, {})
            for _ in range(9):
                try:
                    named, marks = ", ".join(row), ", ".join("?" * len(row))
                    connection.execute(f"INSERT INTO {table} ({named}) VALUES ({marks})", list(row.values()))
                    break
                except Exception as error:
                    if not corrected(row, str(error), number):
                        raise AssertionError(f"{table}: {error}: {row}") from error
            if "id" in row:
                ids.setdefault(table, []).append(row["id"])
    owner = ids["agents"][0]
    connection.execute("UPDATE memory_blocks SET agent_id = ? WHERE rowid = 1", (owner,))
    connection.execute("PRAGMA foreign_keys = 1").fetchall()


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A constellation with rows in every table that travels."""
    path = tmp_path_factory.mktemp("full") / "full.db"
    template.create(path, ALL, now=NOW)
    with closing(open_connection(path)) as connection:
        fill(connection)
        assert backup.check_integrity(connection) == []
    return path


def exported(source: Path, folder: Path, kind: Kind = "constellation", name: str = "home") -> tuple[Path, Manifest]:
    """The archive of a database."""
    folder.mkdir(exist_ok=True)
    copy, archive = folder / "copy.db", folder / "made.car"
    shutil.copyfile(source, copy)
    archive.unlink(missing_ok=True)
    with archive.open("xb") as file:
        return archive, write(copy, file, kind=kind, id_or_name=name)


def imported(archive: Path, folder: Path) -> Path:
    """The database made of an archive."""
    target = folder / "new.db"
    for suffix in ("", "-wal", "-shm"):
        target.with_name(target.name + suffix).unlink(missing_ok=True)
    read(archive, target, now=NOW)
    return target


def test_everything_arrives_and_leaves_again_the_same(full: Path, tmp_path: Path) -> None:
    archive, manifest = exported(full, tmp_path)
    assert set(manifest.rows) == set(portable.TRAVELS)
    assert manifest.cut == {}
    assert verify(archive)[0] == manifest
    new = imported(archive, tmp_path)
    again, _ = exported(new, tmp_path / "again")
    assert again.read_bytes() == archive.read_bytes()
    with closing(open_connection(full)) as old, closing(open_connection(new)) as made:
        for table in portable.TRAVELS:
            columns = ", ".join(
                name for (name,) in fetch_all(old, "SELECT name FROM pragma_table_info(?)", (table,)) if name != "row"
            )
            every = f"SELECT {columns} FROM {table}"
            assert fetch_all(made, every) == fetch_all(old, every), table
        assert backup.check_integrity(made) == []
        found = fetch_all(made, "SELECT count(*) FROM message_fts WHERE message_fts MATCH 'content'")
        assert found == [(ROWS,)]  # search knows them, too


def test_an_agent_takes_along_what_is_its_own(full: Path, tmp_path: Path) -> None:
    with closing(open_connection(full)) as connection:
        own_id, name = fetch_all(connection, "SELECT id, name FROM agents LIMIT 1")[0]
    archive, manifest = exported(full, tmp_path, "agent", name)
    assert manifest.rows["agents"] == 1
    assert "coordination_state" not in manifest.rows
    with closing(open_connection(imported(archive, tmp_path))) as made:
        assert fetch_all(made, "SELECT DISTINCT agent_id FROM messages") == [(own_id,)]
        assert fetch_all(made, "SELECT count(*) FROM memory_block_history") == [(1,)]
        assert backup.check_integrity(made) == []


def test_references_to_what_stays_behind_are_cut_and_counted(full: Path, tmp_path: Path) -> None:
    source = tmp_path / "source.db"
    shutil.copyfile(full, source)
    with closing(open_connection(source)) as connection:
        first, second, _ = (row for (row,) in fetch_all(connection, "SELECT id FROM tasks ORDER BY id"))
        connection.execute("UPDATE tasks SET parent_task_id = ? WHERE id = ?", (second, first))
        agent = fetch_all(connection, "SELECT agent_id FROM tasks WHERE id = ?", (first,))[0][0]
    archive, manifest = exported(source, tmp_path, "agent", agent)
    assert manifest.cut["tasks.parent_task_id"] == 1
    with closing(open_connection(imported(archive, tmp_path))) as made:
        assert fetch_all(made, "SELECT id, parent_task_id FROM tasks") == [(first, None)]


def test_an_older_schema_is_built_and_can_be_migrated(tmp_path: Path) -> None:
    version = ALL.newest - 3
    source = tmp_path / "old.db"
    template.create(source, ALL.up_to(version), now=NOW)
    with closing(open_connection(source)) as connection:
        connection.execute("INSERT INTO coordination_state (key, value, updated_at) VALUES ('k', '1', ?)", (NOW,))
    archive, manifest = exported(source, tmp_path)
    assert manifest.schema_version == version
    new = imported(archive, tmp_path)
    ALL.migrate(new, backup_to=None, now=NOW)
    with closing(open_connection(new)) as made:
        assert fetch_all(made, "SELECT key, value FROM coordination_state") == [("k", "1")]


def test_large_values_lie_in_blocks_of_their_own(tmp_path: Path) -> None:
    source = tmp_path / "large.db"
    template.create(source, ALL, now=NOW)
    text, data = "ü" * 1_200_000, random.Random(1).randbytes(2_500_000)
    with closing(open_connection(source)) as connection:
        connection.execute("INSERT INTO blob VALUES (?, 'raw', ?, ?, ?)", (bytes(32), len(data), data, NOW))
        connection.execute(
            "INSERT INTO constellation_summaries VALUES ('s', ?, ?, ?, NULL, NULL, ?)", (NOW, NOW, text, NOW)
        )
    archive, _ = exported(source, tmp_path)
    with closing(open_connection(imported(archive, tmp_path))) as made:
        assert fetch_all(made, "SELECT data FROM blob") == [(data,)]
        assert fetch_all(made, "SELECT summary FROM constellation_summaries") == [(text,)]


def test_many_images_are_read_in_little_memory(tmp_path: Path) -> None:
    source, count, size = tmp_path / "images.db", 60, 1_000_000
    template.create(source, ALL, now=NOW)
    rng = random.Random(1)
    with closing(open_connection(source)) as connection:
        for _ in range(count):
            row = (rng.randbytes(32), size, rng.randbytes(size), NOW)
            connection.execute("INSERT INTO blob VALUES (?, 'raw', ?, ?, ?)", row)
    archive, _ = exported(source, tmp_path)
    tracemalloc.start()
    try:
        new = imported(archive, tmp_path)
        assert tracemalloc.get_traced_memory()[1] < count * size / 3
    finally:
        tracemalloc.stop()
    with closing(open_connection(new)) as made, closing(open_connection(source)) as old:
        assert fetch_all(made, "SELECT * FROM blob") == fetch_all(old, "SELECT * FROM blob")


def test_json_that_is_too_deep_to_be_shown_is_refused_but_a_text_may_look_like_it(full: Path, tmp_path: Path) -> None:
    deep = "[" * 70 + "]" * 70
    source = tmp_path / "deep.db"
    shutil.copyfile(full, source)
    with closing(open_connection(source)) as connection:
        connection.execute("UPDATE messages SET content = ?", (deep,))
    imported(exported(source, tmp_path)[0], tmp_path)
    with closing(open_connection(source)) as connection:
        connection.execute("UPDATE agents SET config = ?", (deep,))
    with pytest.raises(BackupInvalid, match="JSON"):
        imported(exported(source, tmp_path)[0], tmp_path)


def rebuilt(archive: Path, **changes: Any) -> Path:
    """The archive with another manifest."""
    with archive.open("rb") as file:
        car = CarReader(file)
        root = {**car.node(car.root), **changes}
        blocks = [car._block(cid, cid[:2]) for cid in car._places]
        codecs = [cid[1:2] for cid in car._places]
    made = archive.with_name("other.car")
    with made.open("wb") as out:
        writer = CarWriter(out)
        for codec, data in zip(codecs, blocks, strict=True):
            writer._store(b"\x01" + codec, data)
        writer.close(writer.node(root))
    return made


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"version": 5}, "version 5, which is newer"),
        ({"version": 3}, "version 3"),
        ({"version": "4"}, "no version"),
        ({"rows": {"agents": 99}}, "does not have the rows"),
        ({"rows": [1]}, "malformed"),
        ({"data_cid": None}, "lacks a block"),
        ({"stats": {}}, "malformed"),
    ],
)
def test_a_manifest_that_lies_is_refused(full: Path, tmp_path: Path, changes: dict[str, Any], error: str) -> None:
    archive = rebuilt(exported(full, tmp_path)[0], **changes)
    with pytest.raises(ArchiveInvalid, match=error):
        read(archive, tmp_path / "no.db", now=NOW)


def test_a_newer_schema_is_refused_by_its_number(full: Path, tmp_path: Path) -> None:
    archive = rebuilt(exported(full, tmp_path)[0], schema=ALL.newest + 1)
    with pytest.raises(SchemaTooNew, match=str(ALL.newest + 1)):
        read(archive, tmp_path / "no.db", now=NOW)


def test_an_archive_that_grows_without_end_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "bomb.car"
    with archive.open("wb") as file:
        car = CarWriter(file)
        large = car.raw(bytes(900_000))
        rows = [[f"s{n}", NOW, NOW, {"text": [large] * 50}, None, None, NOW] for n in range(300)]
        columns = ["id", "period_start", "period_end", "summary", "key_decisions", "open_threads", "created_at"]
        chunk = car.node({"table": "constellation_summaries", "rows": rows})
        table = {"table": "constellation_summaries", "columns": columns, "chunks": [chunk]}
        data = car.node({"tables": [table]})
        stats = {"total_blocks": car.blocks, "total_bytes": car.bytes}
        about = {"export_type": "Constellation", "exported_at": NOW, "name": "x", "schema": ALL.newest}
        root = {"version": 4, **about, "stats": stats, "rows": {}, "cut": {}, "data_cid": data}
        car.close(car.node(root))
    with pytest.raises(ArchiveInvalid, match="grow too large"):
        verify(archive)


def test_every_changed_or_missing_byte_is_noticed(full: Path, tmp_path: Path) -> None:
    """A flipped bit may only be missed where it changes nothing that is read: nowhere."""
    content = exported(full, tmp_path)[0].read_bytes()
    rng = random.Random(3)
    damaged = tmp_path / "damaged.car"
    for number in range(400):
        at = rng.randrange(len(content))
        kind = number % 4
        if kind == 0:
            changed = content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]
        elif kind == 1:
            changed = content[:at]
        elif kind == 2:
            changed = content[:at] + rng.randbytes(5) + content[at:]
        else:
            end = rng.randrange(at, min(len(content), at + 300)) + 1
            changed = content[:at] + content[end:]
        damaged.write_bytes(changed)
        with pytest.raises(ArchiveInvalid):
            verify(damaged)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_lying_archive_is_refused_or_harmless(data: st.DataObject) -> None:
    """Blocks with right digests and wrong content: nothing but the expected errors."""
    value = st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=8,
    )
    file = io.BytesIO()
    car = CarWriter(file)
    fields = ["export_type", "exported_at", "name", "schema", "stats", "rows", "cut"]
    root = {field: data.draw(value) for field in fields} | {"version": 4, "data_cid": car.node(data.draw(value))}
    car.close(car.node(root))
    file.seek(0)
    with pytest.raises((ArchiveInvalid, DatabaseError)):
        reader = CarReader(file)
        manifest_of(reader)
        raise ArchiveInvalid("its manifest is right, and so may be its tables")


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({"version": 1, "roots": []}, "names no root"),
        ({"version": 1, "roots": ["x"]}, "names no root"),
        ({"version": 2, "roots": [b"x"]}, "does not begin with the header"),
        ({"version": 1, "roots": b"x"}, "does not begin with the header"),
        ([1], "does not begin with the header"),
    ],
)
def test_an_archive_begins_with_its_root(tmp_path: Path, header: Any, words: str) -> None:
    part = dag_cbor.encode(header)
    (tmp_path / "x.car").write_bytes(varint.encode(len(part)) + part)
    with (tmp_path / "x.car").open("rb") as file, pytest.raises(ArchiveInvalid, match=words):
        CarReader(file)


@pytest.mark.parametrize("lie", ["no link", "no name", "no chunk"])
def test_tables_without_links_or_a_name_are_refused(full: Path, tmp_path: Path, lie: str) -> None:
    tree = tree_of(exported(full, tmp_path)[0].read_bytes())
    table = tree["data_cid"]["/"]["tables"][0]
    if lie == "no link":
        table["chunks"].append({})
    elif lie == "no chunk":
        table["chunks"].append({"/": 7})
    else:
        del table["table"], table["chunks"][0]["/"]["table"]
    parts = blocks_of(tree, with_blake3=False)
    (tmp_path / "lie.car").write_bytes(b"".join(varint.encode(len(part)) + part for part in parts))
    with pytest.raises((ArchiveInvalid, BackupInvalid)):
        imported(tmp_path / "lie.car", tmp_path)
    with pytest.raises(ArchiveInvalid):
        verify(tmp_path / "lie.car")


def decoded(block: bytes) -> Any:
    """A node, as the other library reads it."""
    return dag_cbor.decode(block)


def test_an_independent_library_reads_every_block_and_computes_the_same_cids(full: Path, tmp_path: Path) -> None:
    archive, manifest = exported(full, tmp_path)
    header, *blocks = sections(archive.read_bytes())
    by_cid: dict[CID, bytes] = {}
    for section in blocks:
        cid = CID.decode(section[:36])
        assert cid == CID("base32", 1, cid.codec, multihash.digest(section[36:], "sha2-256"))
        by_cid[cid] = section[36:]
    assert len(by_cid) == manifest.blocks + 1
    assert decoded(header)["roots"][0].encode("base32") == manifest.root
    root = decoded(by_cid[decoded(header)["roots"][0]])
    assert (root["version"], root["export_type"], root["stats"]["agent_count"]) == (4, "Constellation", ROWS)
    data = decoded(by_cid[root["data_cid"]])
    agents = next(table for table in data["tables"] if table["table"] == "agents")
    rows = [row for chunk in agents["chunks"] for row in decoded(by_cid[chunk])["rows"]]
    with closing(open_connection(full)) as connection:
        names = fetch_all(connection, "SELECT name FROM agents ORDER BY rowid")
    assert [(row[agents["columns"].index("name")],) for row in rows] == names
    for cid, block in by_cid.items():  # what it writes is what we wrote
        assert cid.encode("base32") == text_of(bytes(cid))
        if cid.codec.name == "dag-cbor":
            assert dag_cbor.encode(dag_cbor.decode(block)) == block


def test_what_an_independent_library_wrote_is_imported(tmp_path: Path) -> None:
    blocks: dict[CID, bytes] = {}

    def node(value: Any) -> CID:
        data = dag_cbor.encode(value)
        cid = CID("base32", 1, "dag-cbor", multihash.digest(data, "sha2-256"))
        blocks[cid] = data
        return cid

    columns = ["key", "value", "updated_at", "version"]
    chunk = node({"table": "coordination_state", "rows": [["k", "[1]", NOW, 1]]})
    data = node({"tables": [{"table": "coordination_state", "columns": columns, "chunks": [chunk]}]})
    about = {"export_type": "Constellation", "exported_at": NOW, "name": "theirs", "schema": ALL.newest}
    counts = {"stats": {"total_blocks": 2, "total_bytes": 99}, "rows": {"coordination_state": 1}, "cut": {}}
    root = node({"version": 4, **about, **counts, "data_cid": data})
    archive = tmp_path / "theirs.car"
    parts = [dag_cbor.encode({"version": 1, "roots": [root]})]
    parts += [bytes(cid) + block for cid, block in reversed(blocks.items())]  # in any order
    archive.write_bytes(b"".join(varint.encode(len(part)) + part for part in parts))
    with closing(open_connection(imported(archive, tmp_path))) as made:
        assert fetch_all(made, "SELECT key, value FROM coordination_state") == [("k", "[1]")]


def test_case_197_equal_data_has_one_cid_and_bytes_are_in_pieces_of_a_block(tmp_path: Path) -> None:
    with (tmp_path / "one.car").open("xb") as file:
        car = CarWriter(file)
        assert car.raw(b"words") == raw_cid(hashlib.sha256(b"words").digest())
        first, same, other = (car.node({"said": text}) for text in ("tea", "tea", "coffee"))
    assert (first == same, first == other, CID.decode(first).codec.name) == (True, False, "dag-cbor")
    for count, sizes in (
        (0, []),
        (2 * BLOCK_BYTES_MAX, [BLOCK_BYTES_MAX] * 2),
        (BLOCK_BYTES_MAX + 7, [BLOCK_BYTES_MAX, 7]),
    ):
        data = random.Random(count).randbytes(count)
        found = list(pieces(data))
        assert ([len(piece) for piece in found], b"".join(found) == data) == (sizes, True)


def test_differences_are_found_in_every_table(full: Path, tmp_path: Path) -> None:
    changed, keys = tmp_path / "changed.db", {}
    shutil.copyfile(full, changed)
    with closing(open_connection(changed)) as connection:
        connection.execute("PRAGMA foreign_keys = 0").fetchall()
        for (trigger,) in fetch_all(connection, "SELECT name FROM sqlite_schema WHERE type = 'trigger'"):
            connection.execute(f'DROP TRIGGER "{trigger}"')
        for table in portable.TRAVELS:
            named = fetch_all(connection, "SELECT name FROM pragma_table_info(?) WHERE name <> 'row'", (table,))
            keys[table] = fetch_all(connection, f"SELECT {named[0][0]} FROM {table} ORDER BY 1")[0][0]
            connection.execute(f"DELETE FROM {table} WHERE {named[0][0]} = ?", (keys[table],))
        connection.execute("UPDATE messages SET content = 'Tea?', role = 'user' WHERE id LIKE '% 2 %'")
    before, after = [exported(source, tmp_path / source.stem)[0] for source in (full, changed)]
    assert list(compare(before, before, emptied(tmp_path), now=NOW)) == []
    there = list(compare(before, after, emptied(tmp_path), now=NOW))
    assert {one.table for one in there if one.change == "removed"} == set(portable.TRAVELS)
    [message] = [one for one in there if one.change == "changed" and one.table == "messages"]
    assert set(message.fields) >= {"content"} and " 2 " in message.id
    back = list(compare(after, before, emptied(tmp_path), now=NOW))
    swapped = {"added": "removed", "removed": "added", "changed": "changed"}
    assert sorted((one.table, one.id, swapped[one.change]) for one in back) == sorted(
        (one.table, one.id, one.change) for one in there
    )
    [agent] = [one for one in there if one.table == "agents"]
    assert (agent.change, agent.id, agent.name) == ("removed", keys["agents"], "agents.name 1 ü")


def emptied(folder: Path) -> Path:
    shutil.rmtree(folder / "work", ignore_errors=True)
    (folder / "work").mkdir()
    return folder / "work"


def test_archives_of_two_schemas_are_compared_at_the_newest(tmp_path: Path) -> None:
    archives = []
    for version in (OLDER, ALL.newest):
        source = tmp_path / f"{version}.db"
        template.create(source, ALL.up_to(version), now=NOW)
        with closing(open_connection(source)) as connection:
            insert = "INSERT INTO coordination_state (key, value, updated_at) VALUES (?, '1', ?)"
            connection.executemany(insert, [("same", NOW), (f"of {version}", NOW)])
        archives.append(exported(source, tmp_path / str(version))[0])
    found = {(one.id, one.change) for one in compare(archives[0], archives[1], emptied(tmp_path), now=NOW)}
    assert found == {(f"of {OLDER}", "removed"), (f"of {ALL.newest}", "added")}
    back = {(one.id, one.change) for one in compare(archives[1], archives[0], emptied(tmp_path), now=NOW)}
    assert back == {(f"of {OLDER}", "added"), (f"of {ALL.newest}", "removed")}


def test_archives_of_other_systems_are_not_compared(full: Path, tmp_path: Path) -> None:
    letta, ours = tmp_path / "ada.af", exported(full, tmp_path / "ours")[0]
    letta.write_text('{"name": "ada", "agent_type": "memgpt_agent"}')
    assert verify(letta)[0].version is None and verify(letta)[0].format == "letta"
    for pair in ((letta, ours), (ours, letta)):
        with pytest.raises(InvalidInput, match=r"ada\.af is of another system"):
            list(compare(*pair, emptied(tmp_path), now=NOW))
