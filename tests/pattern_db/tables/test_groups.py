from __future__ import annotations

from dataclasses import replace

import apsw
import pytest

from pattern_db.connection import Connection
from pattern_db.errors import RowNotFound
from pattern_db.tables import groups
from pattern_db.tables.groups import GroupRow, MemberRow
from tests.pattern_db.conftest import LATER, NOW

DESK = GroupRow("group_desk", "desk", "round_robin", NOW, NOW, pattern_config={"start_at": 1})


def member(agent: str, ordinal: int = 0, role: str | None = None) -> MemberRow:
    return MemberRow(DESK.id, f"agt_{agent}", NOW, ordinal, role, capabilities=["tea"])


def test_a_group_is_found_by_id_and_name_and_changed_but_for_its_state(db: Connection) -> None:
    groups.create(db, DESK)
    groups.set_state(db, DESK.id, {"last": "agt_ada"})
    stored = replace(DESK, state={"last": "agt_ada"})
    assert groups.find(db, "desk") == groups.find(db, DESK.id) == stored
    groups.update(db, replace(DESK, name="office", pattern_type="voting", pattern_config={}, updated_at=LATER))
    changed = replace(stored, name="office", pattern_type="voting", pattern_config={}, updated_at=LATER)
    assert groups.list_all(db) == [changed]
    with pytest.raises(apsw.ConstraintError):
        groups.create(db, replace(DESK, id="group_2", name="office"))
    for missing in (
        lambda: groups.find(db, "desk"),
        lambda: groups.set_state(db, "x", {}),
        lambda: groups.delete(db, "x"),
    ):
        with pytest.raises(RowNotFound):
            missing()


def test_members_are_kept_in_their_order_and_go_with_their_group_or_agent(db: Connection) -> None:
    groups.create(db, DESK)
    rows = [member("bob", 0, "observer"), member("ada", 1)]
    groups.replace_members(db, DESK.id, rows)
    assert groups.members(db, DESK.id) == groups.members(db) == rows
    groups.replace_members(db, DESK.id, rows[:1])
    assert groups.members(db) == rows[:1]
    with pytest.raises(apsw.ConstraintError):
        groups.replace_members(db, DESK.id, [member("nobody")])
    groups.delete(db, DESK.id)
    assert groups.members(db) == []
