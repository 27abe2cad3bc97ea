from __future__ import annotations

import copy
import errno
import json
import re
from contextlib import closing
from enum import StrEnum
from pathlib import Path

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_db import columns, enums, errors
from pattern_db.columns import (
    JSON_DEPTH_MAX,
    Json,
    check_depth,
    from_json,
    refuse_constant,
    strict_json,
    time_in,
    to_json,
)
from pattern_db.connection import Connection, open_connection, open_in_memory
from pattern_db.errors import (
    Busy,
    Corrupt,
    DatabaseError,
    DiskFull,
    IOFailed,
    OwnedElsewhere,
    RowConflict,
    StorageFailed,
    translate,
    translated,
)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=50, deadline=None)
@given(VALUES)
def test_there_and_back(value: Json) -> None:
    assert from_json(to_json(value)) == value


def test_text_costs_its_own_bytes_and_sqlite_takes_it() -> None:
    text = to_json({"grüße": "🌍", "n": [1, None]})
    assert text == '{"grüße":"🌍","n":[1,null]}'
    with closing(open_in_memory()) as connection:
        assert connection.execute("SELECT json_valid(?)", (text,)).get == 1


def test_what_json_does_not_have() -> None:
    assert from_json(None) is None
    with pytest.raises(ValueError):
        to_json(float("nan"))
    with pytest.raises(TypeError):
        to_json(b"bytes")


def test_constants_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="NaN is not a JSON number"):
        json.loads("[NaN]", parse_constant=refuse_constant)


def test_depth_is_bounded() -> None:
    def nested(depth: int) -> Json:
        return {"a": nested(depth - 1)} if depth % 2 else [1, nested(depth - 1)] if depth else "leaf"

    check_depth("leaf")
    check_depth(nested(JSON_DEPTH_MAX))
    with pytest.raises(ValueError, match="64 levels deep"):
        check_depth(nested(JSON_DEPTH_MAX + 1))


@pytest.mark.parametrize(
    ("text", "words"),
    [("NaN", "NaN is not"), ('{"a": -Infinity}', "-Infinity is not"), ("[" * 100_000, "nested"), ("{", "Expecting")],
)
def test_json_of_others_is_read_strictly(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        strict_json(text)
    assert strict_json('{"a": [1.5, null]}') == strict_json(b'{"a": [1.5, null]}') == {"a": [1.5, None]}


MOMENTS = st.integers(min_value=-62_135_596_800_000, max_value=253_402_300_799_999)


@settings(max_examples=50, deadline=None)
@given(MOMENTS, MOMENTS)
def test_times_there_and_back_in_the_order_of_time(one: int, other: int) -> None:
    text = columns.iso(one)
    assert len(text) == columns.TIME_CHARS
    assert columns.unix_ms(text) == one
    assert (text < columns.iso(other)) == (one < other)


def test_known_moments_and_other_forms() -> None:
    assert columns.iso(-1) == "1969-12-31T23:59:59.999Z"
    assert columns.iso(1_795_299_880_123) == "2026-11-21T22:24:40.123Z"
    with pytest.raises(OverflowError):
        columns.iso(253_402_300_800_000)  # beyond the last year
    assert columns.canonical("2026-11-21T22:24:40Z") == "2026-11-21T22:24:40.000Z"
    assert columns.canonical("2026-11-22T00:24:40.123999+02:00") == "2026-11-21T22:24:40.123Z"


@pytest.mark.parametrize("text", ["", "yesterday", "2026-11-21T22:24:40", "0001-01-01T00:00:00+05:00"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        columns.canonical(text)


# The enums and the CHECKs of the migrations hold the same lists.

COLUMNS = {
    ("agents", "status"): enums.AgentStatus,
    ("messages", "role"): enums.Role,
    ("messages", "batch_type"): enums.BatchType,
    ("memory_blocks", "block_type"): enums.BlockType,
    ("memory_blocks", "permission"): enums.Permission,
    ("memory_blocks", "snapshot_encoding"): enums.Encoding,
    ("memory_block_checkpoints", "encoding"): enums.Encoding,
    ("memory_block_updates", "source"): enums.UpdateSource,
    ("memory_block_history", "kind"): enums.HistoryKind,
    ("memory_block_segments", "encoding"): enums.Encoding,
    ("memory_block_damaged", "encoding"): enums.Encoding,
    ("memory_block_damaged", "part"): enums.DamagedPart,
    ("shared_block_agents", "permission"): enums.Permission,
    ("turn", "status"): enums.TurnStatus,
    ("effect", "class"): enums.EffectClass,
    ("effect", "status"): enums.EffectStatus,
    ("approval", "kind"): enums.ApprovalKind,
    ("approval", "status"): enums.ApprovalStatus,
    ("blob", "encoding"): enums.Encoding,
    ("folders", "path_type"): enums.PathType,
    ("folder_attachments", "access"): enums.FolderAccess,
    ("embedding_indexes", "state"): enums.IndexState,
    ("embeddings", "kind"): enums.SearchKind,
    ("embedding_cursors", "kind"): enums.SearchKind,
    ("embedding_changes", "kind"): enums.SearchKind,
    ("embedding_refusals", "kind"): enums.SearchKind,
}
# What a CHECK still allows and nothing stores any more: it cannot be changed without a copy of the table.
RETIRED = {("turn", "status"): {"parked"}}


@pytest.mark.parametrize(("place", "enum"), COLUMNS.items(), ids=lambda item: getattr(item, "__name__", str(item)))
def test_the_check_lists_the_enum(db: Connection, place: tuple[str, str], enum: type[StrEnum]) -> None:
    table, column = place
    sql = str(db.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (table,)).get)
    found = re.search(rf"CHECK \({column} IN \(([^)]*)\)\)", sql)
    assert found is not None, sql
    assert set(re.findall(r"'([^']*)'", found[1])) == {item.value for item in enum} | RETIRED.get(place, set())


def raised(db: Connection, sql: str) -> BaseException:
    with pytest.raises(apsw.Error) as caught:
        db.execute(sql)
    return caught.value


def test_what_exists_already_or_is_missing_is_a_conflict(db: Connection) -> None:
    twice = raised(db, "INSERT INTO meta (key, value) VALUES ('epoch', '1')")
    assert isinstance(translate(twice), RowConflict)
    orphan = raised(
        db, "INSERT INTO group_members (group_id, agent_id, joined_at) VALUES ('g', 'agt_ada', printf('%24d', 1))"
    )
    known = translate(orphan)
    assert isinstance(known, RowConflict)
    assert "does not exist" in known.message


def test_a_bug_is_not_translated(db: Connection) -> None:
    assert translate(raised(db, "UPDATE agents SET status = 'asleep'")) is None
    assert translate(raised(db, "SELECT nothing FROM nowhere")) is None
    assert translate(ValueError("x")) is None
    assert translate(OSError("without a number")) is None


def test_a_locked_file_is_busy(tmp_path: Path) -> None:
    first, second = (open_connection(tmp_path / "a.db", create=True) for _ in range(2))
    second.set_busy_timeout(0)
    first.execute("BEGIN IMMEDIATE")
    known = translate(raised(second, "BEGIN IMMEDIATE"))
    assert isinstance(known, Busy)
    assert not isinstance(known, StorageFailed)
    first.close()
    second.close()


@pytest.mark.parametrize(
    ("error", "known"),
    [
        (OSError(errno.ENOSPC, "full"), DiskFull),
        (OSError(errno.EDQUOT, "quota"), DiskFull),
        (PermissionError(errno.EACCES, "no"), IOFailed),
        (apsw.FullError("full"), DiskFull),
        (apsw.IOError("disk"), IOFailed),
        (apsw.NotADBError("file is not a database"), Corrupt),
    ],
)
def test_trouble_with_the_disk_is_translated(error: Exception, known: type[DatabaseError]) -> None:
    assert isinstance(translate(error), known)


def test_translated_keeps_the_cause_and_lets_bugs_through() -> None:
    ours = RowConflict("x")
    assert translate(ours) is ours
    with pytest.raises(DiskFull) as caught, translated():
        raise OSError(errno.ENOSPC, "full")
    assert isinstance(caught.value.__cause__, OSError)
    with pytest.raises(apsw.SQLError), translated():
        raise apsw.SQLError("bug")


def test_every_error_has_its_own_code_and_can_be_copied() -> None:
    classes = [item for item in vars(errors).values() if isinstance(item, type) and issubclass(item, DatabaseError)]
    assert len({item.code for item in classes}) == len(classes)
    for item in classes:
        again = copy.copy(item("do this"))
        assert (type(again), str(again), again.message) == (item, "do this", "do this")
    owned = copy.copy(OwnedElsewhere("x", pid=7, url="http://h"))
    assert (owned.pid, owned.url) == (7, "http://h")


def test_a_time_of_another_program_is_one_or_nothing() -> None:
    assert time_in("2026-01-01T01:00:00.5+01:00") == "2026-01-01T00:00:00.500Z"
    assert [time_in(one) for one in ("2026-01-01T01:00:00", "soon", 7, None, "0001-01-01T00:00:00+14:00")] == [None] * 5
