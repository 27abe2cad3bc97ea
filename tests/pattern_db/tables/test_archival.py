from __future__ import annotations

import apsw
import pytest

from pattern_db.connection import Connection
from pattern_db.enums import SearchKind
from pattern_db.errors import RowNotFound
from pattern_db.tables import archival
from pattern_db.tables.archival import ArchivalRow
from tests.pattern_db import vector_rows
from tests.pattern_db.conftest import LATER
from tests.pattern_db.vector_rows import VectorRow


def about(entry_id: str, content: str, **fields: object) -> ArchivalRow:
    values: dict[str, object] = {"agent_id": "agt_ada", "created_at": "2026-11-21T22:00:00.000Z", **fields}
    return ArchivalRow(id=entry_id, content=content, **values)  # type: ignore[arg-type]  # as the test names them


def entry(number: int, *, agent: str = "agt_ada", parent: str | None = None) -> ArchivalRow:
    return about(
        f"arc_{number}",
        f"entry {number}",
        agent_id=agent,
        metadata={"topic": "zebra", "n": number},
        chunk_index=0 if parent is None else 1,
        parent_entry_id=parent,
        created_at=f"2026-11-21T22:24:{number:02d}.000Z",
    )


def test_list_is_newest_first_pages_and_keeps_agents_apart(db: Connection) -> None:
    for number in range(1, 5):
        archival.insert(db, entry(number))
    archival.insert(db, entry(5, agent="agt_bob"))
    archival.insert(db, entry(6, agent="_constellation_"))
    assert [row.id for row in archival.list_for_agent(db, "agt_ada", 2)] == ["arc_4", "arc_3"]
    older = archival.list_for_agent(db, "agt_ada", 2, before=(entry(3).created_at, "arc_3"))
    assert [row.id for row in older] == ["arc_2", "arc_1"]
    assert archival.count_rows(db, "agt_ada") == 4


def test_chunks_are_read_and_deleted_with_their_entry(db: Connection) -> None:
    archival.insert(db, about("arc_1", "one "))
    archival.insert(db, about("arc_2", "alone"))
    for number, text in ((2, "three"), (1, "two ")):
        archival.insert(db, about(f"arc_1.{number}", text, chunk_index=number, parent_entry_id="arc_1"))
    contents = archival.contents(db, ["arc_1", "arc_2", "arc_3"])
    assert contents == {"arc_1": ["one ", "two ", "three"], "arc_2": ["alone"]}
    for ref in ("arc_1", "arc_1.2", "arc_2"):
        vector_rows.insert(db, VectorRow(kind=SearchKind.ARCHIVAL, ref=ref, scope="agt_ada"))
    archival.delete(db, "arc_1")
    assert (archival.count_rows(db, "agt_ada"), vector_rows.count(db, SearchKind.ARCHIVAL)) == (1, 1)


def test_what_is_not_there(db: Connection) -> None:
    with pytest.raises(RowNotFound):
        archival.get(db, "arc_1")
    with pytest.raises(RowNotFound):
        archival.delete(db, "arc_1")
    with pytest.raises(apsw.ConstraintError):
        archival.insert(db, entry(2, parent="arc_1"))


def test_all_columns_come_back(db: Connection) -> None:
    archival.insert(db, entry(1))
    row = about(
        "arc_2",
        "words",
        tags=["a", "b"],
        workspace="w",
        valid_from=LATER,
        valid_to=LATER,
        superseded_by="arc_1",
        source={"message": "msg_1"},
        content_hash=b"h" * 16,
    )
    archival.insert(db, row)
    assert archival.get(db, "arc_2") == row
    for column, value in (("tags", "{}"), ("source", "[]"), ("valid_to", "soon"), ("content_hash", b"short")):
        with pytest.raises(apsw.ConstraintError):
            db.execute(f"UPDATE archival_entries SET {column} = ?", (value,))


def test_candidates_hold_all_words_of_a_group_and_are_valid_and_about_as_long(db: Connection) -> None:
    archival.insert(db, about("arc_1", "green tea from Assam"))
    archival.insert(db, about("arc_2", "black tea from Assam", valid_to=LATER))
    archival.insert(db, about("arc_3", "tea from Assam, " * 9))
    archival.insert(db, about("arc_4", "nothing about it", metadata={"tea": "assam"}))
    archival.insert(db, about("arc_5", "tea from Assam too", agent_id="agt_bob"))

    def found(*groups: list[str], longest: int = 40) -> list[str]:
        return archival.candidates(db, "agt_ada", groups, LATER, chars=range(5, longest), limit=9)

    assert found(["tea", "assam"]) == ["arc_1"]
    assert found(["tea", "assam", "coffee"]) == []
    assert found(["coffee"], ["green", "tea"]) == ["arc_1"]
    assert sorted(found(["tea"], longest=400)) == ["arc_1", "arc_3"]
    assert found(['"', 'te"a', "NEAR("]) == found([]) == found() == []


def test_an_entry_is_superseded_once_with_all_its_chunks(db: Connection) -> None:
    for number, parent in ((1, None), (2, "arc_1"), (3, None), (4, None)):
        archival.insert(db, entry(number, parent=parent))
    archival.supersede(db, "arc_1", by="arc_3", valid_to=LATER)
    assert [archival.get(db, one).valid_to for one in ("arc_1", "arc_2", "arc_3")] == [LATER, LATER, None]
    archival.supersede(db, "arc_1", by="arc_4", valid_to="2026-11-21T22:00:00.000Z")
    assert (archival.get(db, "arc_1").superseded_by, archival.get(db, "arc_1").valid_to) == ("arc_3", LATER)
    archival.supersede(db, "arc_3", by="arc_4", valid_to=LATER)
    for one in ("arc_1", "arc_3", "arc_4"):
        assert [row.id for row in archival.versions(db, one, 9)] == ["arc_1", "arc_3", "arc_4"]
    assert [row.id for row in archival.versions(db, "arc_1", 2)] == ["arc_1", "arc_3"]
    archival.update(db, "arc_4", {"valid_to": "2026-11-21T22:00:00.000Z"})
    archival.insert(db, entry(5))
    archival.supersede(db, "arc_4", by="arc_5", valid_to=LATER)
    assert archival.get(db, "arc_4").valid_to == "2026-11-21T22:00:00.000Z"  # it had ended before


def test_what_is_filtered_by_changes_in_every_chunk(db: Connection) -> None:
    archival.insert(db, entry(1))
    archival.insert(db, entry(2, parent="arc_1"))
    archival.update(db, "arc_1", {"tags": ("x",), "workspace": "w", "metadata": None, "valid_from": LATER})
    first, second = archival.get(db, "arc_1"), archival.get(db, "arc_2")
    assert (first.tags, first.workspace, first.valid_from, first.metadata) == (["x"], "w", LATER, None)
    assert (second.tags, second.workspace, second.valid_from, second.metadata) == (["x"], "w", LATER, entry(2).metadata)
    archival.update(db, "arc_1", {"tags": None})
    assert archival.get(db, "arc_2").tags is None
    with pytest.raises(RowNotFound):
        archival.update(db, "arc_9", {"tags": None})
    with pytest.raises(KeyError):
        archival.update(db, "arc_1", {"content": "other"})


def test_the_same_is_found_among_the_valid_entries_of_its_owner(db: Connection) -> None:
    archival.insert(db, about("arc_1", "x", content_hash=b"h" * 16, valid_to=LATER))
    assert archival.same(db, "agt_ada", b"h" * 16, LATER) is None
    archival.insert(db, about("arc_2", "x", content_hash=b"h" * 16))
    assert archival.same(db, "agt_ada", b"h" * 16, LATER) == archival.get(db, "arc_2")
    assert archival.same(db, "agt_bob", b"h" * 16, LATER) is None
