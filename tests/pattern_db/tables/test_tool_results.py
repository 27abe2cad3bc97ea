from __future__ import annotations

from dataclasses import replace

import pytest

from pattern_db.connection import Connection, fetch_all
from pattern_db.errors import RowConflict, RowNotFound
from pattern_db.tables import messages, tool_state
from pattern_db.tables.messages import BlobRow
from pattern_db.tables.tool_state import ToolResultRow
from tests.pattern_db.conftest import NOW, Say


def add(db: Connection, number: int, *, agent: str = "agt_ada", size: int = 10) -> ToolResultRow:
    row = ToolResultRow(
        id=f"res_{number}",
        agent_id=agent,
        tool="web",
        call_id="call_1",
        chars=1234,
        created_at="2026-11-21T22:24:40.123Z",
        data=b"z" * size,
    )
    tool_state.add_result(db, row, count_max=3, bytes_max=100)
    return row


def kept(db: Connection, agent: str = "agt_ada") -> list[str]:
    return [row[0] for row in db.execute("SELECT id FROM tool_results WHERE agent_id = ? ORDER BY row", (agent,))]


def test_the_oldest_beyond_the_count_go(db: Connection) -> None:
    add(db, 9, agent="agt_bob")
    rows = [add(db, number) for number in range(5)]
    assert kept(db) == ["res_2", "res_3", "res_4"]
    assert tool_state.get_result(db, "agt_ada", "res_4") == rows[4]
    for agent, gone in (("agt_ada", "res_1"), ("agt_bob", "res_4")):
        with pytest.raises(RowNotFound, match="call the tool again"):
            tool_state.get_result(db, agent, gone)
    assert kept(db, "agt_bob") == ["res_9"]


def test_the_oldest_beyond_the_bytes_go_and_the_newest_never(db: Connection) -> None:
    add(db, 1, size=60)
    add(db, 2, size=40)
    assert kept(db) == ["res_1", "res_2"]
    add(db, 3, size=61)
    assert kept(db) == ["res_3"]  # 2 and 3 are 101 bytes
    add(db, 4, size=1000)
    assert kept(db) == ["res_4"]


def put(db: Connection, name: str, value: object, *, agent: str = "agt_ada", tool: str = "calculator") -> None:
    tool_state.put(db, agent, tool, name, value, now="2026-11-21T22:24:40.123Z", names_max=2)


def test_names_are_bounded(db: Connection) -> None:
    put(db, "x", 1)
    put(db, "y", 1)
    with pytest.raises(RowConflict, match="at most 2 names"), db:
        put(db, "z", 1)
    put(db, "y", 2)
    put(db, "x", {"other": True}, agent="agt_bob")
    assert tool_state.read(db, "agt_ada", "calculator") == {"x": 1, "y": 2}
    tool_state.clear(db, "agt_ada", "calculator")
    assert tool_state.read(db, "agt_ada", "calculator") == {}
    assert tool_state.read(db, "agt_bob", "calculator") == {"x": {"other": True}}


def test_content_is_stored_once_under_its_digest(db: Connection) -> None:
    row = BlobRow(digest=b"\x01" * 32, size=3, data=b"abc", created_at=NOW)
    for one in (row, replace(row, data=b"xyz")):
        messages.put_blob(db, one)
    assert messages.get_blob(db, row.digest) == row


def test_old_ones_by_age_without_their_bytes(db: Connection) -> None:
    for number, day in enumerate(("01", "02", "02", "03")):
        created_at = f"2026-01-{day}T00:00:00.000Z"
        messages.put_blob(db, BlobRow(digest=bytes([number]) * 32, size=40, data=b"x" * 40, created_at=created_at))
    messages.put_blob(db, BlobRow(digest=b"\x09" * 32, size=9, data=b"abc", created_at="2026-01-01", encoding="zstd"))
    border = "2026-01-03T00:00:00.000Z"
    found = messages.blobs_older_than(db, border, 2)
    assert [(digest[0], head) for _, digest, head in found] == [(0, b"x" * 16), (1, b"x" * 16)]
    assert [digest[0] for _, digest, _ in messages.blobs_older_than(db, border, 9, after=found[-1][:2])] == [2]
    plan = fetch_all(db, "EXPLAIN QUERY PLAN SELECT digest FROM blob WHERE created_at < '' ORDER BY created_at, digest")
    assert "COVERING INDEX blob_created" in str(plan)


def test_what_messages_show_is_found_by_rows_and_is_not_removed(db: Connection, say: Say) -> None:
    digests = [bytes([number]) * 32 for number in range(4)]
    for number, digest in enumerate(digests):
        messages.put_blob(db, BlobRow(digest=digest, size=3, data=b"abc", created_at="2026-01-01T00:00:00.000Z"))
        if number < 3:
            say(number, "see", parts=[{"type": "image", "media_type": "", "digest": digest.hex()}])
    say(7, "a call", parts=[{"type": "tool_call", "call_id": "c", "tool": "t", "arguments": {"digest": "x"}}])
    messages.tombstone(db, ["msg_" + f"{2:019d}"])
    assert messages.newest_message_row(db) == 4
    assert messages.blobs_shown_between(db, 0, 9) == {digest.hex() for digest in digests[:2]}
    assert messages.blobs_shown_between(db, 1, 2) == {digests[1].hex()}
    assert messages.remove_unused_blobs(db, digests, since=f"{1:019d}") == (3, 9)  # who asks has seen what is older
    assert fetch_all(db, "SELECT digest, size FROM blob") == [(digests[1], 3)]
