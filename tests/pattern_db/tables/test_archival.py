from __future__ import annotations

import apsw
import pytest

from pattern_db import vectors
from pattern_db.connection import Connection
from pattern_db.enums import SearchKind
from pattern_db.errors import NotFound
from pattern_db.tables import archival
from pattern_db.tables.archival import ArchivalRow
from pattern_db.vectors import Embedding


def entry(number: int, *, agent: str = "agt_ada", parent: str | None = None) -> ArchivalRow:
    return ArchivalRow(
        id=f"arc_{number}",
        agent_id=agent,
        content=f"entry {number}",
        metadata={"topic": "zebra", "n": number},
        chunk_index=0 if parent is None else 1,
        parent_entry_id=parent,
        created_at=f"2026-11-21T22:24:{number:02d}.000Z",
    )


def test_an_entry_comes_back_as_it_was_stored(db: Connection) -> None:
    archival.insert(db, entry(1))
    archival.insert(db, entry(2, parent="arc_1"))
    assert archival.get(db, "arc_1") == entry(1)
    assert archival.get(db, "arc_2") == entry(2, parent="arc_1")


def test_list_is_newest_first_pages_and_keeps_agents_apart(db: Connection) -> None:
    for number in range(1, 5):
        archival.insert(db, entry(number))
    archival.insert(db, entry(5, agent="agt_bob"))
    archival.insert(db, entry(6, agent="_constellation_"))
    assert [row.id for row in archival.list_for_agent(db, "agt_ada", 2)] == ["arc_4", "arc_3"]
    assert [row.id for row in archival.list_for_agent(db, "agt_ada", 2, before="arc_3")] == ["arc_2", "arc_1"]
    assert archival.count(db, "agt_ada") == 4


def test_delete_takes_chunks_and_vectors_along(db: Connection, now: str) -> None:
    archival.insert(db, entry(1))
    archival.insert(db, entry(2, parent="arc_1"))
    for ref in ("arc_1", "arc_2"):
        vectors.insert(
            db,
            Embedding(
                kind=SearchKind.ARCHIVAL,
                ref=ref,
                scope="agt_ada",
                vector=vectors.packed([1, 0, 0, 0]),
                content_hash="h",
                model="m",
                created_at=now,
            ),
        )
    archival.delete(db, "arc_1")
    assert archival.count(db, "agt_ada") == 0
    assert vectors.counts(db)[SearchKind.ARCHIVAL] == 0


def test_what_is_not_there(db: Connection) -> None:
    with pytest.raises(NotFound):
        archival.get(db, "arc_1")
    with pytest.raises(NotFound):
        archival.delete(db, "arc_1")
    with pytest.raises(apsw.ConstraintError):
        archival.insert(db, entry(2, parent="arc_1"))
