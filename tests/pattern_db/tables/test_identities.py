"""Identities at other providers: each is of one user."""

from __future__ import annotations

import apsw
import pytest

from pattern_db.connection import Connection
from pattern_db.errors import RowNotFound
from pattern_db.tables import identities, users
from pattern_db.tables.identities import IdentityRow
from pattern_db.tables.users import TokenRow, UserRow

NOW = "2026-11-21T22:24:40.123Z"


def identity(id_: str, user_id: str = "user_a", provider: str = "home", who: str = "1") -> IdentityRow:
    return IdentityRow(id_, user_id, provider, who, NOW)


@pytest.fixture
def registry(global_db: Connection) -> Connection:
    for name in ("a", "b"):
        users.create(global_db, UserRow(f"user_{name}", name, NOW, NOW))
    return global_db


def test_an_identity_is_of_one_user(registry: Connection) -> None:
    row = identity("i1")
    identities.create(registry, row)
    identities.create(registry, identity("i2", provider="work"))
    for taken in (identity("i3"), identity("i3", "user_b")):
        with pytest.raises(apsw.ConstraintError):
            identities.create(registry, taken)
    assert identities.find(registry, "home", "1") == row
    assert identities.find(registry, "home", "2") is identities.find(registry, "elsewhere", "1") is None
    assert [one.id for one in identities.list_of(registry, "user_a")] == ["i1", "i2"]
    assert identities.list_of(registry, "user_b") == []
    users.delete(registry, "user_a")
    assert identities.find(registry, "home", "1") is None


def test_unlinking_ends_the_sign_ins_of_its_user(registry: Connection) -> None:
    identities.create(registry, identity("i1"))
    for number, (user, refresh) in enumerate((("user_a", b"r" * 32), ("user_a", None), ("user_b", b"s" * 32))):
        row = TokenRow(f"t{number}", user, "", ("read",), NOW, refresh_hash=refresh)
        users.create_token(registry, row, bytes([number]) * 32)
    with pytest.raises(RowNotFound):
        identities.delete(registry, "user_b", "i1", NOW)
    identities.delete(registry, "user_a", "i1", NOW)
    assert identities.list_of(registry, "user_a") == []
    assert [row.revoked_at for row in users.list_tokens(registry)] == [NOW, None, None]
