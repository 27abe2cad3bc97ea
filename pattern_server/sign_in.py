"""Signing in: a name and a password, or an identity elsewhere (`identities.py`), give an access token, which is valid
for 15 minutes, and a refresh token, which gives the next pair once.

A refresh token that is used a second time was copied: its sign-in is revoked. Attempts are limited per address and per
user, so that passwords cannot be guessed; API tokens are not affected by that.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256

from pattern_core.errors import Conflict, InvalidInput, PermissionDenied
from pattern_core.ids import Ids, new_secret, now_text
from pattern_core.runtime import Runtime
from pattern_db.columns import iso
from pattern_db.connection import Connection
from pattern_db.errors import RowNotFound
from pattern_db.tables import audit_log, sign_ins, users
from pattern_db.tables.audit_log import AuditRow
from pattern_db.tables.sign_ins import SigningKeyRow
from pattern_db.tables.users import TokenRow, UserRow
from pattern_server.accounts import DAY_MS, Accounts, Principal, Unauthorized
from pattern_server.credentials import ACCESS_S, KEY_BYTES_MIN, LEEWAY_S, AccessClaims, Passwords, sign_access
from pattern_server.rates import Rate, network_of

SIGN_IN_DAYS = 30
SIGN_IN_NAME = "sign-in"

SigningKey = SigningKeyRow

_ATTEMPTS = "attempts to sign in"
_REFRESH_TOKEN = re.compile(r"ref_([0-9a-f]{64})[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """A pair of tokens. `expires_in` is the access token's time in seconds."""

    access_token: str
    refresh_token: str
    token_type: str = "Bearer"
    expires_in: int = ACCESS_S


class SignIns:
    """Sign-ins of the users of `accounts`, and the keys of their access tokens."""

    def __init__(self, accounts: Accounts, runtime: Runtime, passwords: Passwords) -> None:
        self._accounts = accounts
        self._database = accounts.database
        self._clock = runtime.clock
        self._ids = Ids(runtime.clock, runtime.randomness)
        self.passwords = passwords
        self._of_address = Rate(30, 10.0, _ATTEMPTS)
        self._of_user = Rate(10, 60.0, _ATTEMPTS)
        self._refreshes = Rate(100, 1.0, _ATTEMPTS)  # of an address

    async def sign_in(self, username: str, password: str, *, address: str) -> Granted:
        """Sign a user in.

        Raises:
            Unauthorized: there is no such user, the password is wrong, or the user is disabled: the same answer, after
                the same time.
            Overloaded: there were too many attempts from this address or for this user.
        """
        self.limit(address)
        user = await self._user(username)
        name = username.casefold() if user is None else user.id
        self._of_user.use(name)
        is_right = await self.passwords.matches(password, None if user is None else user.password_hash)
        if user is None or not is_right or user.disabled_at is not None:
            await self.refuse(user, address=address)
            raise Unauthorized("the user name or the password is wrong; an administrator can set another password")
        self._of_user.forget(name)
        return await self.admit(user, address=address)

    def limit(self, address: str) -> None:
        """Count an attempt from this address.

        Raises:
            Overloaded: there were too many.
        """
        self._of_address.use(network_of(address))

    async def admit(self, user: UserRow, *, address: str) -> Granted:
        """Sign in a user who has proved who they are."""
        now_ms = self._clock.now_ms()
        first = new_secret()
        refresh = f"ref_{first}{new_secret()}"
        row = TokenRow(
            id=self._ids.new("token"),
            user_id=user.id,
            name=SIGN_IN_NAME,
            scopes=("admin",) if user.is_admin else ("write", "chat"),
            created_at=iso(now_ms),
            expires_at=iso(now_ms + SIGN_IN_DAYS * DAY_MS),
        )
        entry = self._entry("auth.login", 200, address, user.id, row.id)
        key = await self._database.write(_begun, row, _digest(first), _digest(refresh), self._new_key(), entry)
        return self._granted(row, key, refresh)

    async def refuse(self, user: UserRow | None, *, address: str) -> None:
        """Store that a sign-in was refused; None: of a user who is not known."""
        await self._accounts.audit.add(self._entry("auth.login", 401, address, None if user is None else user.id))

    async def refresh(self, secret: str, *, address: str) -> Granted:
        """Exchange a refresh token for another pair.

        Raises:
            Unauthorized: it is unknown, expired or revoked, or was used before, which revokes the sign-in.
            Overloaded: there were too many attempts from this address.
        """
        self._refreshes.use(network_of(address))
        found = _REFRESH_TOKEN.fullmatch(secret)
        if found is None:
            raise Unauthorized("this is not a refresh token; sign in again")
        refresh = f"ref_{found[1]}{new_secret()}"
        new_key, entry = self._new_key(), partial(self._entry, "auth.refresh", 401, address)
        rotated = await self._database.write(_rotated, found[1], secret, refresh, new_key, entry)
        if rotated is None:
            raise Unauthorized("the refresh token is unknown, expired or revoked; sign in again")
        row, key = rotated
        if key is None:
            self._accounts.forget()
            raise Unauthorized("the refresh token was used before, so the sign-in was revoked; sign in again")
        return self._granted(row, key, refresh)

    def _entry(
        self, action: str, status: int, address: str, user_id: str | None, token_id: str | None = None
    ) -> AuditRow:
        obj = "/users" if user_id is None else f"/users/{user_id}"  # never a wrong name: it may be a password
        return self._accounts.audit.entry(
            action, obj, status=status, address=address, user_id=user_id, token_id=token_id
        )

    def _granted(self, row: TokenRow, key: SigningKeyRow, refresh: str) -> Granted:
        now_ms = self._clock.now_ms()
        access = AccessClaims(user_id=row.user_id, sign_in_id=row.id, expires_ms=now_ms + ACCESS_S * 1_000)
        token = sign_access(key, access, jti=self._ids.new("jti"), now_ms=now_ms)
        return Granted(access_token=token, refresh_token=refresh)

    async def sign_out(self, caller: Principal) -> None:
        """Revoke the caller's sign-in, or API token.

        Raises:
            Conflict: the token is the one of this run, which ends with it.
        """
        if caller.token_id is None:
            raise Conflict("the server's own token ends when it stops; there is nothing to sign out of")
        await self._accounts.revoke_token(caller.token_id)

    async def set_password(self, caller: Principal, user: str, password: str, current: str | None) -> None:
        """Set the password of the caller, who knows the current one, or of any user if the caller is an administrator.
        All sign-ins of the user are revoked.

        A token alone sets no password: it would then outlive its expiry.

        Raises:
            InvalidInput: it is too short or too long.
            PermissionDenied: the current password is wrong, or the caller may not name this user.
            Overloaded: there were too many attempts.
        """
        owner = await self._accounts.user_for(caller, user)
        if not caller.reaches_all:
            self._of_user.use(owner.id)
            if not await self.passwords.matches(current or "", owner.password_hash):
                raise PermissionDenied(
                    "the current password is missing or wrong; send it as `current`. The first one is set by an"
                    " administrator"
                )
            self._of_user.forget(owner.id)
        hashed = await self.passwords.hash(password)
        await self._database.write(_set_password, owner.id, hashed, now_text(self._clock))
        self._accounts.forget()

    async def rotate_keys(self) -> SigningKey:
        """Sign with another key from now on. AccessClaims tokens of the former one stay valid until they expire."""
        key = self._new_key()
        retires_at = iso(self._clock.now_ms() + (ACCESS_S + LEEWAY_S) * 1_000)
        await self._database.write(sign_ins.rotate_keys, key, retires_at=retires_at, bytes_min=KEY_BYTES_MIN)
        self._accounts.forget()
        return key

    async def check_keys(self) -> None:
        """Refuse to work with a key that can be guessed.

        Raises:
            InvalidInput: one is too short.
        """
        for key in await self._database.read(sign_ins.keys, now_text(self._clock)):
            if len(key.secret) < KEY_BYTES_MIN:
                raise InvalidInput(
                    f"the signing key {key.id} in global.db has {len(key.secret)} bytes, fewer than {KEY_BYTES_MIN}. "
                    "Replace it: pattern user rotate-keys"
                )

    def _new_key(self) -> SigningKeyRow:
        return SigningKeyRow(self._ids.new("key"), bytes.fromhex(new_secret()), now_text(self._clock))

    async def _user(self, username: str) -> UserRow | None:
        try:
            return await self._database.read(users.find, username)
        except RowNotFound:
            return None


def _begun(
    connection: Connection, row: TokenRow, first: bytes, refresh: bytes, new_key: SigningKeyRow, entry: AuditRow
) -> SigningKeyRow:
    audit_log.append(connection, entry)
    return sign_ins.begin(connection, row, first, refresh, new_key)


def _rotated(
    connection: Connection,
    first: str,
    presented: str,
    refresh: str,
    new_key: SigningKeyRow,
    entry: Callable[[str, str], AuditRow],
) -> tuple[TokenRow, SigningKeyRow | None] | None:
    """Rotate a sign-in's refresh token. If the presented one is not the newest, revoke the sign-in, which is an `entry`
    of the audit log; there is no key.
    """
    now = new_key.created_at
    row = users.find_token(connection, _digest(first))
    if row is None or row.refresh_hash is None or row.revoked_at is not None or str(row.expires_at) <= now:
        return None
    if users.get(connection, row.user_id).disabled_at is not None:
        return None
    if row.refresh_hash != _digest(presented):
        users.revoke_token(connection, row.id, now)
        audit_log.append(connection, entry(row.user_id, row.id))
        return row, None
    return row, sign_ins.rotate(connection, row, _digest(refresh), new_key)


def _set_password(connection: Connection, user_id: str, hashed: str, now: str) -> None:
    users.update(connection, replace(users.get(connection, user_id), password_hash=hashed, updated_at=now))
    sign_ins.revoke_of(connection, user_id, now)


def _digest(secret: str) -> bytes:
    return sha256(secret.encode()).digest()
