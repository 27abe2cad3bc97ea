from __future__ import annotations

from dataclasses import replace

import pytest

from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.errors import Conflict, NotFound
from pattern_db.registry import LocalRegistry, Registry
from pattern_db.tables.constellations import ConstellationRow
from pattern_db.tables.tokens import TokenRow
from pattern_db.tables.users import UserRow

HASH = b"\x01" * 32


async def test_users(global_db: Connection, now: str) -> None:
    registry: Registry = LocalRegistry(Database.in_memory(global_db))
    row = UserRow(id="usr_ann", username="ann", created_at=now, updated_at=now)
    await registry.add_user(row)
    with pytest.raises(Conflict):
        await registry.add_user(replace(row, id="usr_2"))
    await registry.set_password("usr_ann", "hash", now)
    await registry.set_disabled("usr_ann", now, now)
    assert await registry.find_user("ann") == replace(row, password_hash="hash", disabled_at=now)
    assert [item.username for item in await registry.list_users()] == ["ann", "eve", "root"]


async def test_tokens_come_with_their_user(global_db: Connection, now: str) -> None:
    registry = LocalRegistry(Database.in_memory(global_db))
    token = TokenRow(id="tok_1", user_id="usr_eve", name="t", scopes=("read",), created_at=now)
    await registry.add_token(token, HASH)
    found = await registry.find_token(HASH)
    assert found is not None
    assert (found[0], found[1].username) == (token, "eve")
    assert await registry.find_token(b"\x02" * 32) is None
    await registry.touch_token("tok_1", now)
    await registry.revoke_token("tok_1", now)
    assert await registry.list_tokens("usr_eve") == [replace(token, last_used_at=now, revoked_at=now)]


async def test_constellations(global_db: Connection, now: str) -> None:
    registry = LocalRegistry(Database.in_memory(global_db))
    row = ConstellationRow(
        id="cst_2", owner_id="usr_eve", name="den", db_path="d", created_at=now, last_accessed_at=now
    )
    await registry.add_constellation(row)
    await registry.rename_constellation("cst_2", "cave")
    await registry.touch_constellation("cst_2", "2027-01-01T00:00:00.000Z")
    assert (await registry.find_constellation("cave", "usr_eve")).id == "cst_2"
    with pytest.raises(NotFound):
        await registry.find_constellation("cave", "usr_root")
    assert [item.id for item in await registry.list_constellations()] == ["cst_2", "cst_home"]
    await registry.remove_constellation("cst_2")
    assert await registry.list_constellations("usr_eve") == []
