"""Accounts in the global database: what a constellation reports replaces what it reported before."""

from __future__ import annotations

import pytest

from pattern_db.connection import Connection
from pattern_db.errors import RowNotFound
from pattern_db.tables import constellations, source_accounts, users
from pattern_db.tables.constellations import ConstellationRow
from pattern_db.tables.source_accounts import SourceAccountRow
from pattern_db.tables.users import UserRow
from tests.pattern_db.conftest import NOW


def test_accounts_follow_their_constellation(global_db: Connection) -> None:
    users.create(global_db, UserRow("user_1", "anna", created_at=NOW, updated_at=NOW))
    constellations.create(global_db, ConstellationRow("cst_1", "user_1", "home", "p", NOW, NOW))
    source_accounts.replace(global_db, "cst_1", {"src_1": NOW, "src_2": None})
    later = NOW.replace("2026", "2027")
    source_accounts.set_next(global_db, "src_1", later)
    source_accounts.replace(global_db, "cst_1", {"src_1": NOW, "src_3": NOW})
    assert source_accounts.get(global_db, "src_1") == SourceAccountRow("src_1", "cst_1", later)
    assert [one.id for one in source_accounts.list_all(global_db)] == ["src_3", "src_1"]
    constellations.delete(global_db, "cst_1")
    with pytest.raises(RowNotFound):
        source_accounts.get(global_db, "src_1")
