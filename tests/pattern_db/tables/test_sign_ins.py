from __future__ import annotations

from dataclasses import replace

import apsw
import pytest

from pattern_db.connection import Connection
from pattern_db.tables import sign_ins, users
from pattern_db.tables.sign_ins import SigningKeyRow
from pattern_db.tables.users import TokenRow
from tests.pattern_db.conftest import LATER, NOW

ROW = TokenRow("tok_1", "usr_eve", "sign-in", ("read",), NOW, expires_at="2026-12-21T00:00:00.000Z")
HASH, REFRESH, NEXT = b"\x01" * 32, b"\x02" * 32, b"\x03" * 32
KEY, OTHER = SigningKeyRow("key_1", b"k" * 32, NOW), SigningKeyRow("key_2", b"l" * 32, LATER)


def test_the_first_sign_in_stores_the_key(global_db: Connection) -> None:
    assert sign_ins.begin(global_db, ROW, HASH, REFRESH, KEY) == KEY
    found = users.find_token(global_db, HASH)
    assert found == users.get_token(global_db, "tok_1") == replace(ROW, refresh_hash=REFRESH)
    assert sign_ins.rotate(global_db, found, NEXT, OTHER) == KEY
    assert users.get_token(global_db, "tok_1") == replace(ROW, refresh_hash=NEXT)
    assert sign_ins.keys(global_db, LATER) == [KEY]
    with pytest.raises(apsw.ConstraintError):
        sign_ins.rotate(global_db, found, b"short", OTHER)


def test_a_sign_in_deletes_those_that_ended_and_no_api_token(global_db: Connection) -> None:
    users.create_token(global_db, replace(ROW, id="tok_api", expires_at=NOW), b"\x09" * 32)
    ended = replace(ROW, expires_at=NOW), replace(ROW, revoked_at=NOW)
    for number, row in enumerate((*ended, replace(ROW, user_id="usr_root"), ROW)):
        row = replace(row, id=f"tok_{number}")
        sign_ins.begin(global_db, row, bytes([number]) * 32, REFRESH, KEY)
    sign_ins.begin(global_db, replace(ROW, id="tok_new", created_at=LATER), b"\x08" * 32, REFRESH, KEY)
    assert {row.id for row in users.list_tokens(global_db)} >= {"tok_api", "tok_2", "tok_3", "tok_new"}
    assert not {"tok_0", "tok_1"} & {row.id for row in users.list_tokens(global_db)}
    sign_ins.revoke_of(global_db, "usr_eve", LATER)
    revoked = {row.id for row in users.list_tokens(global_db) if row.revoked_at is not None}
    assert revoked == {"tok_3", "tok_new"}


def test_keys_rotate_with_an_overlap(global_db: Connection) -> None:
    short = replace(KEY, id="key_0", secret=b"short")
    for key in (short, KEY, OTHER):
        sign_ins.rotate_keys(global_db, key, retires_at=LATER, bytes_min=32)
    assert [key.id for key in sign_ins.keys(global_db, NOW)] == ["key_2", "key_1"]
    assert sign_ins.keys(global_db, LATER) == [OTHER]
    after = replace(OTHER, id="key_3", created_at="2027-01-01T00:00:00.000Z")
    sign_ins.rotate_keys(global_db, after, retires_at="2027-01-02T00:00:00.000Z", bytes_min=32)
    assert [key.id for key in sign_ins.keys(global_db, NOW)] == ["key_3", "key_2"]
