from __future__ import annotations

import pytest

from pattern_db.connection import Connection, fetch_all
from pattern_db.errors import RowNotFound
from pattern_db.journal import turns
from pattern_db.journal.turns import Started
from pattern_db.tables import agents, handoffs
from pattern_db.tables.handoffs import READ_KEPT, HandoffRow
from tests.pattern_db.conftest import LATER, NOW, MakeTurn

ADA, BOB = "agt_ada", "agt_bob"


def leave(db: Connection, note_id: str, *, by: str | None = None, to: str | None = None) -> HandoffRow:
    row = HandoffRow(note_id, f"agent:{by}" if by else "user:u", f"Words of {note_id}.", NOW, by, to)
    handoffs.add(db, row)
    return row


def ids(found: list[tuple[HandoffRow, str | None]]) -> list[str]:
    return [note.id for note, _name in found]


def test_an_agent_claims_its_notes_and_those_for_any_agent_but_its_own(db: Connection) -> None:
    for note_id, by, to in (("1", ADA, BOB), ("2", None, None), ("3", ADA, None), ("4", BOB, None), ("5", None, ADA)):
        leave(db, note_id, by=by, to=to)
    assert [handoffs.count_unread(db, to) for to in (ADA, BOB, None)] == [1, 1, 3]
    found = handoffs.claim(db, BOB, 2)
    assert [(note.id, note.to_agent, name) for note, name in found] == [("1", BOB, "ada"), ("2", BOB, None)]
    assert ids(handoffs.claim(db, BOB, 9)) == ["1", "2", "3"], "claimed ones are shown again until they are read"
    assert ids(handoffs.claim(db, ADA, 9)) == ["4", "5"]
    handoffs.mark_read(db, ["1", "3"], LATER)
    assert ids(handoffs.claim(db, BOB, 9)) == ["2"]
    assert [note.id for note in handoffs.page(db, 2, before="5")] == ["4", "3"]
    assert [note.id for note in handoffs.page(db, 9, to_agent=BOB, unread=True)] == ["2"]
    assert handoffs.find(db, "3") is not None and handoffs.find(db, "6") is None


def test_what_is_discarded_with_its_turn_is_unread_again(db: Connection, make_turn: MakeTurn) -> None:
    for note_id in "12":
        leave(db, note_id, to=ADA)
    handoffs.mark_read(db, ["1"], "2026-11-21T22:00:00.000Z")
    key = make_turn("one", agent="ada")
    turns.start(db, key, Started(batch_id="1", epoch=1, started_at=NOW, deadline_at=None))
    handoffs.mark_read(db, ["2"], LATER)
    handoffs.mark_unread(db, key)
    assert ids(handoffs.claim(db, ADA, 9)) == ["2"]


def test_a_note_outlives_its_author_and_is_for_any_agent_if_its_receiver_is_deleted(db: Connection) -> None:
    leave(db, "1", by=ADA, to=BOB)
    leave(db, "2", by=BOB, to=ADA)
    agents.delete(db, ADA)
    assert [(note.id, note.author, note.from_agent, name) for note, name in handoffs.claim(db, BOB, 9)] == [
        ("1", "agent:agt_ada", None, None)
    ]
    assert [note.to_agent for note in handoffs.page(db, 9)] == [None, BOB]


def test_read_notes_are_bounded_and_unread_ones_stay(db: Connection) -> None:
    leave(db, "0000", to=BOB)
    for number in range(1, READ_KEPT + 3):
        leave(db, f"{number:04}", to=ADA)
        handoffs.mark_read(db, [f"{number:04}"], NOW)
    leave(db, "9999", to=ADA)
    assert fetch_all(db, "SELECT count(*), min(id) FROM handoff_notes WHERE read_at IS NOT NULL") == [
        (READ_KEPT, "0003")
    ]
    handoffs.delete(db, "0000")
    with pytest.raises(RowNotFound, match="there is no note 0000"):
        handoffs.delete(db, "0000")
