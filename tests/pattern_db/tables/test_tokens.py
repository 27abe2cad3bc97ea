from __future__ import annotations

from dataclasses import replace

import apsw
import pytest

from pattern_db.connection import Connection
from pattern_db.errors import NotFound
from pattern_db.tables import constellations, tokens
from pattern_db.tables.tokens import TokenRow

ROW = TokenRow(
    id="tok_1",
    user_id="usr_root",
    name="laptop",
    scopes=("read", "chat"),
    constellation_id="cst_home",
    created_at="2026-11-21T22:24:40.123Z",
    expires_at="2027-11-21T22:24:40.123Z",
)
HASH = b"\x07" * 32
LATER = "2027-01-01T00:00:00.000Z"


def test_a_token_is_found_by_its_hash(global_db: Connection) -> None:
    tokens.create(global_db, ROW, HASH)
    assert tokens.find_by_hash(global_db, HASH) == tokens.get(global_db, "tok_1") == ROW
    assert tokens.find_by_hash(global_db, b"\x08" * 32) is None


def test_hash_and_user_must_be_right(global_db: Connection) -> None:
    tokens.create(global_db, ROW, HASH)
    for row, digest in (
        (replace(ROW, id="tok_2"), HASH),
        (replace(ROW, id="tok_2"), b"short"),
        (replace(ROW, id="tok_2", user_id="usr_none"), b"\x08" * 32),
        (replace(ROW, id="tok_2", constellation_id="cst_none"), b"\x08" * 32),
    ):
        with pytest.raises(apsw.ConstraintError):
            tokens.create(global_db, row, digest)


def test_revoking_is_for_good_and_remembers_the_first_time(global_db: Connection) -> None:
    tokens.create(global_db, ROW, HASH)
    tokens.touch(global_db, "tok_1", LATER)
    tokens.revoke(global_db, "tok_1", LATER)
    tokens.revoke(global_db, "tok_1", "2028-01-01T00:00:00.000Z")
    assert tokens.find_by_hash(global_db, HASH) == replace(ROW, last_used_at=LATER, revoked_at=LATER)
    tokens.touch(global_db, "tok_none", LATER)
    for act in (lambda: tokens.revoke(global_db, "tok_none", LATER), lambda: tokens.get(global_db, "tok_none")):
        with pytest.raises(NotFound):
            act()


def test_list_by_user(global_db: Connection) -> None:
    tokens.create(global_db, ROW, HASH)
    other = replace(ROW, id="tok_2", user_id="usr_eve", constellation_id=None, created_at=LATER)
    tokens.create(global_db, other, b"\x08" * 32)
    assert tokens.list_all(global_db) == [ROW, other]
    assert tokens.list_all(global_db, user_id="usr_eve") == [other]


def test_a_constellations_tokens_go_with_it(global_db: Connection) -> None:
    tokens.create(global_db, ROW, HASH)
    constellations.delete(global_db, "cst_home")
    assert tokens.list_all(global_db) == []
