from __future__ import annotations

from dataclasses import replace

import apsw
import pytest

from pattern_db.connection import Connection
from pattern_db.errors import NotFound
from pattern_db.tables import constellations

LATER = "2027-01-01T00:00:00.000Z"


def test_found_by_id_and_name_and_only_by_the_owner(global_db: Connection) -> None:
    home = constellations.get(global_db, "cst_home")
    assert constellations.find(global_db, "home") == home
    assert constellations.find(global_db, "cst_home", owner_id="usr_root") == home
    for name in ("home", "cst_home"):
        with pytest.raises(NotFound):
            constellations.find(global_db, name, owner_id="usr_eve")


def test_names_are_unique_for_one_owner_only(global_db: Connection) -> None:
    home = constellations.get(global_db, "cst_home")
    with pytest.raises(apsw.ConstraintError):
        constellations.create(global_db, replace(home, id="cst_2"))
    eves = replace(home, id="cst_eve", owner_id="usr_eve")
    constellations.create(global_db, eves)
    assert constellations.find(global_db, "home", owner_id="usr_eve") == eves
    with pytest.raises(NotFound, match="give its id"):
        constellations.find(global_db, "home")
    assert constellations.find(global_db, "cst_eve") == eves
    assert constellations.list_all(global_db) == [eves, home]
    assert constellations.list_all(global_db, owner_id="usr_eve") == [eves]


def test_rename_touch_delete(global_db: Connection) -> None:
    constellations.rename(global_db, "cst_home", "house")
    constellations.touch(global_db, "cst_home", LATER)
    row = constellations.find(global_db, "house")
    assert (row.name, row.last_accessed_at) == ("house", LATER)
    constellations.delete(global_db, "cst_home")
    constellations.touch(global_db, "cst_home", LATER)
    for act in (
        lambda: constellations.get(global_db, "cst_home"),
        lambda: constellations.rename(global_db, "cst_home", "x"),
        lambda: constellations.delete(global_db, "cst_home"),
    ):
        with pytest.raises(NotFound):
            act()


def test_an_owner_must_exist(global_db: Connection) -> None:
    home = constellations.get(global_db, "cst_home")
    with pytest.raises(apsw.ConstraintError):
        constellations.create(global_db, replace(home, id="cst_2", owner_id="usr_none"))
