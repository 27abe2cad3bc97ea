"""Tokens, scopes and who reaches which constellation."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pattern_core.errors import Conflict, InvalidInput, NotFound
from pattern_core.ids import seeded_randomness
from pattern_core.runtime import Runtime
from pattern_core.testing import StoppedClock
from pattern_db.database import DatabaseThreads
from pattern_db.errors import RowNotFound
from pattern_db.tables import users
from pattern_db.tables.constellations import ConstellationRow
from pattern_server.accounts import NAME_CHARS_MAX, TOUCH_AFTER_MS, Accounts, Principal, Unauthorized, check_name
from pattern_server.global_database import GlobalDatabase, open_global

NOW = "2026-11-21T00:00:00.000Z"
START_MS = 1_795_000_000_000


@dataclass
class Place:
    accounts: Accounts
    clock: StoppedClock
    database: GlobalDatabase

    async def principal(self, name: str, *scopes: str, constellation_id: str | None = None) -> Principal:
        known = {user.username: user for user in await self.database.read(users.list_all)}
        user = known.get(name) or await self.accounts.create_user(name)
        _, secret = await self.accounts.create_token(
            user, name="t", scopes=scopes or ["write", "chat"], constellation_id=constellation_id
        )
        return await self.accounts.authenticate(secret)

    async def constellation(self, owner: Principal, id_: str, name: str) -> ConstellationRow:
        row = ConstellationRow(id_, owner.user_id, name, db_path=id_, created_at=NOW, last_accessed_at=NOW)
        await self.accounts.register(row)
        return row


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    clock = StoppedClock(START_MS)
    runtime = Runtime(clock=clock, randomness=seeded_randomness(1))
    with DatabaseThreads() as threads:
        async with open_global(tmp_path / "global.db", threads, now=NOW) as database:
            yield Place(Accounts(database, runtime, local_token="local"), clock, database)


async def test_first_start_makes_admin_and_one_token(place: Place) -> None:
    secret = await place.accounts.bootstrap()
    assert secret is not None
    principal = await place.accounts.authenticate(secret)
    assert (principal.username, principal.is_admin, principal.reaches_all) == ("admin", True, True)
    assert await place.accounts.bootstrap() is None
    assert len(await place.database.read(users.list_tokens)) == 1
    assert secret not in repr(await place.database.read(users.list_tokens))


async def test_a_crash_between_user_and_token_is_repaired(place: Place) -> None:
    await place.accounts.create_user("admin", is_admin=True)
    assert await place.accounts.bootstrap() is not None


async def test_the_local_token_is_admin_of_this_run(place: Place) -> None:
    with pytest.raises(Unauthorized):
        await place.accounts.authenticate("local")
    await place.accounts.bootstrap()
    assert (await place.accounts.authenticate("local")).reaches_all


@pytest.mark.parametrize("secret", ["", "nonsense", "é" * 100])
async def test_unknown_tokens_are_refused(place: Place, secret: str) -> None:
    with pytest.raises(Unauthorized, match="unknown"):
        await place.accounts.authenticate(secret)


async def test_revocation_holds_at_once(place: Place) -> None:
    principal = await place.principal("ann")
    _, secret = await place.accounts.create_token(
        await place.database.read(users.find, "ann"), name="other", scopes=["read"]
    )
    other = await place.accounts.authenticate(secret)
    assert other.token_id != principal.token_id
    await place.accounts.revoke_token(str(other.token_id))
    with pytest.raises(Unauthorized, match="revoked"):
        await place.accounts.authenticate(secret)
    with pytest.raises(RowNotFound):
        await place.accounts.revoke_token("token_none")


async def test_revocation_by_another_process_is_noticed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    user = await place.accounts.create_user("ann")
    secrets = [(await place.accounts.create_token(user, name="t", scopes=["read"]))[1] for _ in range(2)]
    await place.accounts.authenticate(secrets[0])
    monkeypatch.setattr("pattern_server.accounts.RECHECK_S", 0)
    await place.accounts.authenticate(secrets[1])
    for token in await place.database.read(users.list_tokens):
        await place.database.write(users.revoke_token, token.id, NOW)
    await place.accounts.authenticate(secrets[0])  # what was just looked up is believed for a moment
    with pytest.raises(Unauthorized, match="revoked"):
        await place.accounts.authenticate(secrets[1])


async def test_nobody_revokes_anothers_token_but_an_administrator(place: Place) -> None:
    await place.accounts.bootstrap()
    admin = await place.accounts.authenticate("local")
    ann, bob = await place.principal("ann"), await place.principal("bob")
    with pytest.raises(NotFound, match="there is no token"):
        await place.accounts.revoke_token_for(bob, str(ann.token_id))
    await place.accounts.revoke_token_for(ann, str(ann.token_id))
    await place.accounts.revoke_token_for(admin, str(bob.token_id))
    assert {row.revoked_at is None for row in await place.database.read(users.list_tokens, user_id=bob.user_id)} == {
        False
    }


async def test_disabled_users_are_out_until_enabled(place: Place) -> None:
    await place.accounts.bootstrap()
    user = await place.accounts.create_user("ann")
    _, secret = await place.accounts.create_token(user, name="t", scopes=["read"])
    await place.accounts.authenticate(secret)
    await place.accounts.change_user(user.id, disabled=True)
    with pytest.raises(Unauthorized, match="disabled"):
        await place.accounts.authenticate(secret)
    await place.accounts.change_user("ann", disabled=False)
    await place.accounts.authenticate(secret)
    with pytest.raises(RowNotFound):
        await place.accounts.change_user("user_none", disabled=True)


async def test_tokens_expire_even_when_known(place: Place) -> None:
    user = await place.accounts.create_user("ann")
    _, secret = await place.accounts.create_token(
        user, name="t", scopes=["read"], expires_at="2026-11-18T12:00:00.000Z"
    )
    await place.accounts.authenticate(secret)
    place.clock.advance(86_400_000 * 10)
    with pytest.raises(Unauthorized, match="expired"):
        await place.accounts.authenticate(secret)


async def test_only_so_many_tokens_are_kept_at_hand(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pattern_server.accounts.CACHED_MAX", 2)
    user = await place.accounts.create_user("ann")
    secrets = [(await place.accounts.create_token(user, name=name, scopes=["read"]))[1] for name in "abc"]
    asked: list[bytes] = []
    read = place.database.read

    async def counted(fn: object, *args: object, **kwargs: object) -> object:
        asked.extend(one for one in args if isinstance(one, bytes))
        return await read(fn, *args, **kwargs)  # type: ignore[arg-type]  # as `read` takes them

    monkeypatch.setattr(place.database, "read", counted)
    for secret in secrets:
        await place.accounts.authenticate(secret)
    for secret, looked_up in ((secrets[2], 3), (secrets[1], 3), (secrets[0], 4), (secrets[2], 5)):
        await place.accounts.authenticate(secret)
        assert len(asked) == looked_up


async def test_use_is_remembered_seldom(place: Place) -> None:
    user = await place.accounts.create_user("ann")
    _, secret = await place.accounts.create_token(user, name="t", scopes=["read"])
    used = []
    for step in (0, 1_000, TOUCH_AFTER_MS):
        place.clock.advance(step)
        await place.accounts.authenticate(secret)
        used.append((await place.database.read(users.list_tokens))[0].last_used_at)
    assert used[0] == used[1]
    assert str(used[2]) > str(used[1])


@pytest.mark.parametrize(
    ("given", "held"),
    [
        (["read"], {"read"}),
        (["chat"], {"read", "chat"}),
        (["write"], {"read", "write"}),
        (["write", "chat"], {"read", "write", "chat"}),
        (["admin"], {"read", "write", "chat", "admin"}),
    ],
)
async def test_scopes_include_weaker_ones(place: Place, given: list[str], held: set[str]) -> None:
    principal = await place.principal("ann", *given)
    assert principal.scopes == held
    assert not principal.reaches_all


@pytest.mark.parametrize("scopes", [[], ["root"], ["read", "root"]])
async def test_unknown_scopes_and_second_users_of_a_name_are_refused(place: Place, scopes: list[str]) -> None:
    user = await place.accounts.create_user("ann")
    with pytest.raises(Conflict):
        await place.accounts.create_user("ann")
    with pytest.raises(InvalidInput, match="read, chat, write, admin"):
        await place.accounts.create_token(user, name="t", scopes=scopes)


@pytest.mark.parametrize("name", ["", "x" * (NAME_CHARS_MAX + 1), "a/b", " a", "a ", "a\n", "a\x00b", ".", ".."])
def test_names_that_do_not_fit_a_path_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="the name of a user has 1 to 100"):
        check_name(name, "a user")


def test_other_names_are_kept() -> None:
    for name in ("x", "x" * NAME_CHARS_MAX, "Zoë Ångström", "...", "a.b"):
        assert check_name(name, "a user") == name


async def test_others_constellations_do_not_exist(place: Place) -> None:
    ann, bob = await place.principal("ann"), await place.principal("bob")
    home = await place.constellation(ann, "con_1", "home")
    assert await place.accounts.constellation_for(ann, "home") == home
    assert await place.accounts.constellation_for(ann, "con_1") == home
    answers = set()
    for name in ("home", "con_1", "nothing"):
        with pytest.raises(NotFound) as caught:
            await place.accounts.constellation_for(bob, name)
        answers.add(caught.value.message.replace(repr(name), ""))
    assert len(answers) == 1
    assert await place.accounts.constellations_of(bob) == []


async def test_administrators_reach_all_own_ones_first(place: Place) -> None:
    await place.accounts.bootstrap()
    admin = await place.accounts.authenticate("local")
    ann, bob = await place.principal("ann"), await place.principal("bob")
    await place.constellation(ann, "con_1", "home")
    assert (await place.accounts.constellation_for(admin, "home")).id == "con_1"
    await place.constellation(bob, "con_2", "home")
    with pytest.raises(NotFound):
        await place.accounts.constellation_for(admin, "home")  # two users have one
    assert (await place.accounts.constellation_for(admin, "con_2")).id == "con_2"
    await place.constellation(admin, "con_3", "home")
    assert (await place.accounts.constellation_for(admin, "home")).id == "con_3"
    assert len(await place.accounts.constellations_of(admin)) == 3


async def test_a_disk_that_cannot_be_written_refuses_no_token(place: Place) -> None:
    user = await place.accounts.create_user("ann")
    _, secret = await place.accounts.create_token(user, name="t", scopes=["read"])
    await place.database.read(lambda connection: connection.execute("PRAGMA query_only = 1").fetchall())
    assert (await place.accounts.authenticate(secret)).username == "ann"
    assert (await place.database.read(users.list_tokens))[0].last_used_at is None
