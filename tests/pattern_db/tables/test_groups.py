from __future__ import annotations

from dataclasses import replace

import apsw
import pytest

from pattern_db.connection import Connection
from pattern_db.errors import RowNotFound
from pattern_db.tables import groups
from pattern_db.tables.groups import GroupRow, Member
from tests.pattern_db.conftest import LATER, NOW

DESK = GroupRow("group_desk", "desk", "round_robin", NOW, NOW, pattern_config={"start_at": 1})


def member(name: str, role: str | None = None) -> Member:
    return Member(f"agt_{name}", name, role, capabilities=("tea",))


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
    rows = [member("bob", "observer"), member("ada")]
    groups.replace_members(db, DESK.id, rows, NOW)
    assert groups.members(db, DESK.id) == rows
    assert groups.members(db, "group_2") == []
    db.execute("UPDATE agents SET status = 'archived' WHERE id = 'agt_ada'")
    groups.replace_members(db, DESK.id, [member("ada", "specialist")], LATER)
    assert groups.members(db, DESK.id) == [replace(member("ada", "specialist"), is_active=False)]
    assert db.execute("SELECT joined_at FROM group_members").get == NOW
    with pytest.raises(apsw.ConstraintError):
        groups.replace_members(db, DESK.id, [member("nobody")], LATER)
    groups.delete(db, DESK.id)
    assert groups.members(db, DESK.id) == []
