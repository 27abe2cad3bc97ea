"""Sign-ins as time passes, and the keys that a server starts with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from pattern_core.errors import InvalidInput, Overloaded, PermissionDenied
from pattern_core.ids import seeded_randomness
from pattern_core.runtime import Runtime
from pattern_core.testing import StoppedClock
from pattern_db.database import DatabaseThreads
from pattern_db.tables import sign_ins
from pattern_db.tables.sign_ins import SigningKeyRow
from pattern_server.accounts import DAY_MS, Accounts, Unauthorized
from pattern_server.credentials import ACCESS_S, LEEWAY_S, Passwords
from pattern_server.global_database import open_global
from pattern_server.sections import PasswordsConfig
from pattern_server.sign_in import SIGN_IN_DAYS, SignIns

NOW = "2026-11-21T00:00:00.000Z"
SECRET = "correct horse"


@dataclass
class Door:
    accounts: Accounts
    sign_ins: SignIns
    clock: StoppedClock


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    """A registry with the user ann, who has a password."""
    clock = StoppedClock(1_795_000_000_000)
    runtime = Runtime(clock=clock, randomness=seeded_randomness(1))
    with DatabaseThreads() as threads:
        async with open_global(tmp_path / "global.db", threads, now=NOW) as database:
            accounts = Accounts(database, runtime, local_token="local")
            made = SignIns(accounts, runtime, Passwords(PasswordsConfig(memory_kib=64, passes=1, lanes=1)))
            await accounts.bootstrap()
            await accounts.create_user("ann")
            await made.set_password(await accounts.authenticate("local"), "ann", SECRET, None)
            yield Door(accounts, made, clock)


async def test_access_ends_after_its_time_and_a_leeway(door: Door) -> None:
    pair = await door.sign_ins.sign_in("ann", SECRET, address="::1")
    door.clock.advance((ACCESS_S + LEEWAY_S) * 1_000 - 1)
    await door.accounts.authenticate(pair.access_token)
    door.clock.advance(1)
    with pytest.raises(Unauthorized, match="expired"):
        await door.accounts.authenticate(pair.access_token)
    await door.accounts.authenticate((await door.sign_ins.refresh(pair.refresh_token, address="::1")).access_token)


async def test_a_sign_in_ends_however_often_it_is_refreshed(door: Door) -> None:
    pair = await door.sign_ins.sign_in("ann", SECRET, address="127.0.0.1")
    for _ in range(SIGN_IN_DAYS - 1):
        door.clock.advance(DAY_MS)
        pair = await door.sign_ins.refresh(pair.refresh_token, address="::1")
    door.clock.advance(DAY_MS - 1_000)
    pair = await door.sign_ins.refresh(pair.refresh_token, address="::1")
    await door.accounts.authenticate(pair.access_token)
    door.clock.advance(1_000)
    with pytest.raises(Unauthorized, match="expired"):
        await door.accounts.authenticate(pair.access_token)
    with pytest.raises(Unauthorized, match="sign in again"):
        await door.sign_ins.refresh(pair.refresh_token, address="::1")


async def test_what_is_made_with_access_outlives_the_sign_in_not(door: Door) -> None:
    pair = await door.sign_ins.sign_in("ann", SECRET, address="127.0.0.1")
    caller = await door.accounts.authenticate(pair.access_token)
    make = partial(door.accounts.create_token_for, caller, name="t", scopes=["read"], user=None, constellation=None)
    row, _ = await make(days=SIGN_IN_DAYS)
    assert row.expires_at == caller.expires_at
    with pytest.raises(PermissionDenied, match="cannot expire later"):
        await make(days=SIGN_IN_DAYS + 1)


async def test_a_person_proves_the_password_before_changing_it(door: Door) -> None:
    pair = await door.sign_ins.sign_in("ann", SECRET, address="127.0.0.1")
    ann = await door.accounts.authenticate(pair.access_token)
    for current in (None, "wrong horse"):
        with pytest.raises(PermissionDenied, match="current password"):
            await door.sign_ins.set_password(ann, "ann", "another horse", current)
    with pytest.raises(PermissionDenied, match="administrator"):
        await door.sign_ins.set_password(ann, "admin", "another horse", SECRET)
    await door.sign_ins.set_password(ann, "ann", "another horse", SECRET)
    await door.sign_ins.sign_in("ann", "another horse", address="127.0.0.1")


async def test_a_short_key_is_refused_until_it_is_replaced(door: Door) -> None:
    await door.sign_ins.check_keys()
    short = SigningKeyRow("key_short", b"short", NOW)
    await door.accounts.database.write(sign_ins.rotate_keys, short, retires_at="2030-01-01T00:00:00.000Z", bytes_min=1)
    with pytest.raises(InvalidInput, match=r"key_short .* 5 bytes.*\s*.*pattern user rotate-keys"):
        await door.sign_ins.check_keys()
    await door.sign_ins.rotate_keys()
    await door.sign_ins.check_keys()


async def test_neighbours_in_an_ipv6_network_share_their_attempts(door: Door) -> None:
    for number in range(30):
        with pytest.raises(Unauthorized):
            await door.sign_ins.sign_in(f"nobody{number}", SECRET, address=f"2001:db8::{number:x}")
    with pytest.raises(Overloaded):
        await door.sign_ins.sign_in("ann", SECRET, address="2001:db8::ffff")
    await door.sign_ins.sign_in("ann", SECRET, address="2001:db8:0:1::1")
