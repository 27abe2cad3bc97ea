from __future__ import annotations

from dataclasses import replace

import apsw
import pytest

from pattern_db.connection import Connection
from pattern_db.errors import NotFound
from pattern_db.tables import users
from pattern_db.tables.users import UserRow

ROW = UserRow(
    id="usr_ann",
    username="ann",
    email="ann@example.org",
    password_hash="argon2",
    is_admin=True,
    created_at="2026-11-21T22:24:40.123Z",
    updated_at="2026-11-21T22:24:40.123Z",
)
LATER = "2027-01-01T00:00:00.000Z"


def test_a_user_comes_back_as_stored(global_db: Connection) -> None:
    users.create(global_db, ROW)
    assert users.get(global_db, "usr_ann") == ROW
    assert users.find(global_db, "ANN") == users.find(global_db, "usr_ann") == ROW
    assert [row.username for row in users.list_all(global_db)] == ["ann", "eve", "root"]


def test_names_are_unique_in_any_case(global_db: Connection) -> None:
    with pytest.raises(apsw.ConstraintError):
        users.create(global_db, replace(ROW, username="ROOT"))


def test_changes(global_db: Connection) -> None:
    users.create(global_db, ROW)
    users.set_password(global_db, ROW.id, None, LATER)
    users.set_admin(global_db, ROW.id, False, LATER)
    users.set_disabled(global_db, ROW.id, LATER, LATER)
    assert users.get(global_db, ROW.id) == replace(
        ROW, password_hash=None, is_admin=False, disabled_at=LATER, updated_at=LATER
    )
    users.set_disabled(global_db, ROW.id, None, LATER)
    assert users.get(global_db, ROW.id).disabled_at is None


def test_what_is_not_there(global_db: Connection) -> None:
    for act in (
        lambda: users.get(global_db, "x"),
        lambda: users.find(global_db, "x"),
        lambda: users.set_password(global_db, "x", None, LATER),
        lambda: users.set_admin(global_db, "x", True, LATER),
        lambda: users.set_disabled(global_db, "x", None, LATER),
    ):
        with pytest.raises(NotFound):
            act()
