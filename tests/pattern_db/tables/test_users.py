from __future__ import annotations

from dataclasses import replace

import apsw
import pytest

from pattern_db.connection import Connection
from pattern_db.errors import RowNotFound
from pattern_db.tables import constellations, users
from pattern_db.tables.users import TokenRow, UserRow
from tests.pattern_db.conftest import LATER

ADA = UserRow(
    id="usr_ann",
    username="ann",
    email="ann@example.org",
    password_hash="argon2",
    is_admin=True,
    created_at="2026-11-21T22:24:40.123Z",
    updated_at="2026-11-21T22:24:40.123Z",
)


def test_a_user_comes_back_as_stored(global_db: Connection) -> None:
    users.create(global_db, ADA)
    assert users.get(global_db, "usr_ann") == ADA
    assert users.find(global_db, "ANN") == users.find(global_db, "usr_ann") == ADA
    assert [row.username for row in users.list_all(global_db)] == ["ann", "eve", "root"]
    with pytest.raises(apsw.ConstraintError):
        users.create(global_db, replace(ADA, id="usr_2", email=None, username="ROOT"))


def test_what_is_not_there(global_db: Connection) -> None:
    for act in (
        lambda: users.get(global_db, "x"),
        lambda: users.find(global_db, "x"),
        lambda: users.update(global_db, replace(ADA, id="x")),
        lambda: users.delete(global_db, "x"),
    ):
        with pytest.raises(RowNotFound, match="there is no user x"):
            act()


def test_a_user_changes_and_goes(global_db: Connection) -> None:
    users.create(global_db, ADA)
    changed = replace(ADA, username="anna", disabled_at=LATER, updated_at=LATER)
    users.update(global_db, changed)
    assert users.find(global_db, "anna") == changed
    with pytest.raises(apsw.ConstraintError):
        users.update(global_db, replace(changed, username="EVE"))
    with pytest.raises(apsw.ConstraintError):
        users.delete(global_db, "usr_root")  # who has a constellation
    constellations.give(global_db, "usr_root", "usr_ann")
    assert constellations.find(global_db, "cst_home").owner_id == "usr_ann"
    users.delete(global_db, "usr_root")
    assert [row.username for row in users.list_all(global_db)] == ["anna", "eve"]


TOKEN = TokenRow(
    id="tok_1",
    user_id="usr_root",
    name="laptop",
    scopes=("read", "chat"),
    constellation_id="cst_home",
    created_at="2026-11-21T22:24:40.123Z",
    expires_at="2027-11-21T22:24:40.123Z",
)
HASH = b"\x07" * 32


def test_a_token_is_found_by_its_hash(global_db: Connection) -> None:
    users.create_token(global_db, TOKEN, HASH)
    assert users.find_token(global_db, HASH) == TOKEN
    assert users.find_token(global_db, b"\x08" * 32) is None
    assert users.list_tokens(global_db) == users.list_tokens(global_db, user_id="usr_root") == [TOKEN]
    assert users.list_tokens(global_db, user_id="usr_eve") == []


def test_hash_and_user_must_be_right(global_db: Connection) -> None:
    users.create_token(global_db, TOKEN, HASH)
    for row, digest in (
        (replace(TOKEN, id="tok_2"), HASH),
        (replace(TOKEN, id="tok_2"), b"short"),
        (replace(TOKEN, id="tok_2", user_id="usr_none"), b"\x08" * 32),
        (replace(TOKEN, id="tok_2", constellation_id="cst_none"), b"\x08" * 32),
    ):
        with pytest.raises(apsw.ConstraintError):
            users.create_token(global_db, row, digest)


def test_revoking_is_for_good_and_remembers_the_first_time(global_db: Connection) -> None:
    users.create_token(global_db, TOKEN, HASH)
    users.touch_token(global_db, "tok_1", LATER)
    users.revoke_token(global_db, "tok_1", LATER)
    users.revoke_token(global_db, "tok_1", "2028-01-01T00:00:00.000Z")
    assert users.find_token(global_db, HASH) == replace(TOKEN, last_used_at=LATER, revoked_at=LATER)
    users.touch_token(global_db, "tok_none", LATER)
    with pytest.raises(RowNotFound):
        users.revoke_token(global_db, "tok_none", LATER)


def test_found_by_id_and_name_and_only_by_the_owner(global_db: Connection) -> None:
    home = constellations.find(global_db, "cst_home")
    assert constellations.find(global_db, "home") == home
    assert constellations.find(global_db, "cst_home", owner_id="usr_root") == home
    for name in ("home", "cst_home"):
        with pytest.raises(RowNotFound):
            constellations.find(global_db, name, owner_id="usr_eve")


def test_names_are_unique_for_one_owner_only(global_db: Connection) -> None:
    home = constellations.find(global_db, "cst_home")
    for row in (replace(home, id="cst_2"), replace(home, id="cst_2", owner_id="usr_none", name="other")):
        with pytest.raises(apsw.ConstraintError):
            constellations.create(global_db, row)
    eves = replace(home, id="cst_eve", owner_id="usr_eve")
    constellations.create(global_db, eves)
    assert constellations.find(global_db, "home", owner_id="usr_eve") == eves
    with pytest.raises(RowNotFound, match="use its id"):
        constellations.find(global_db, "home")
    assert constellations.find(global_db, "cst_eve") == eves
    for other in ("cst_a", "cst_z"):  # named like the other one's id, and before or behind it
        constellations.create(global_db, replace(home, id=other, name="cst_eve"))
        assert constellations.find(global_db, "cst_eve") == eves
        constellations.delete(global_db, other)
    assert constellations.list_all(global_db) == [eves, home]
    assert constellations.places(global_db) == [(row.id, row.name, row.db_path) for row in (eves, home)]
    assert constellations.list_all(global_db, owner_id="usr_eve") == [eves]


def test_rename_touch_delete(global_db: Connection) -> None:
    constellations.rename(global_db, "cst_home", "house")
    constellations.set_next_due(global_db, "cst_home", LATER)
    assert constellations.dues(global_db) == {"cst_home": LATER}
    constellations.set_next_due(global_db, "cst_home", None)
    assert constellations.dues(global_db) == {}
    constellations.touch(global_db, "cst_home", LATER)
    row = constellations.find(global_db, "house")
    assert (row.name, row.last_accessed_at) == ("house", LATER)
    constellations.delete(global_db, "cst_home")
    constellations.touch(global_db, "cst_home", LATER)
    for act in (
        lambda: constellations.find(global_db, "cst_home"),
        lambda: constellations.rename(global_db, "cst_home", "x"),
        lambda: constellations.delete(global_db, "cst_home"),
    ):
        with pytest.raises(RowNotFound):
            act()
