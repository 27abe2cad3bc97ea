from __future__ import annotations

import pytest

from pattern_db.connection import Connection
from pattern_db.errors import RowNotFound
from pattern_db.tables import shared_state
from pattern_db.tables.shared_state import SharedValue
from tests.pattern_db.conftest import NOW


def test_values_are_listed_by_key_and_a_version_is_never_used_again(db: Connection) -> None:
    for key, version in (("b", 1), ("a", 1), ("a", 2), ("c", 1)):
        shared_state.put(db, SharedValue(key, {"is": version}, version, NOW, "user:u"))
    assert [one.key for one in shared_state.page(db, 2)] == ["a", "b"]
    assert [one.key for one in shared_state.page(db, 9, "b")] == ["c"]
    assert shared_state.count(db) == 3
    assert shared_state.find(db, "a") == SharedValue("a", {"is": 2}, 2, NOW, "user:u")
    assert shared_state.find(db, "d") is None
    assert [shared_state.versions(db, key) for key in "abd"] == [(2, 3), (1, 2), (0, 1)]
    for key in "ab":
        shared_state.delete(db, key)
    assert [shared_state.versions(db, key) for key in "abd"] == [(0, 3), (0, 3), (0, 3)]
    with pytest.raises(RowNotFound, match="there is no key a"):
        shared_state.delete(db, "a")
