"""Access control: users, tokens, and the constellation that a name means for a caller.

A token is shown once, when it is created; only its SHA-256 is stored. The secrets have 256 random bits, so a plain
digest is as hard to invert as a slow one, and costs a microsecond per request. A sign-in (`sign_in.py`) is a token,
too: it is used with signed access tokens that name it, and ends as other tokens do.

Scopes include weaker ones: `admin` ⊃ `write` ⊃ `read`, and `chat` ⊃ `read`. An administrator's token with the scope
`admin` reaches every constellation; all other tokens reach those of their user, and a token for one constellation that
one alone. What a token cannot reach is reported as not found.
"""

from __future__ import annotations

import hmac
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Literal, get_args

import trio

from pattern_core.errors import Conflict, InvalidInput, NotFound, PatternError, PermissionDenied, instead_of
from pattern_core.ids import Ids, new_secret, now_text
from pattern_core.runtime import Runtime
from pattern_db.columns import iso
from pattern_db.connection import Connection
from pattern_db.errors import DatabaseError, RowConflict, RowNotFound
from pattern_db.tables import constellations, sign_ins, users
from pattern_db.tables.constellations import ConstellationRow
from pattern_db.tables.users import TokenRow, UserRow
from pattern_server.audit import Audit
from pattern_server.credentials import LEEWAY_S, read_access
from pattern_server.global_database import GlobalDatabase

Scope = Literal["read", "chat", "write", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
ADMIN_NAME = "admin"
MAKE_ONE = "create one with `pattern token create`"
DAY_MS = 86_400_000
CACHED_MAX = 1_024
# Another process may revoke a token, or disable its user, in global.db. A lookup is cached for this time, and a
# stream checks at this interval: together within 5 s.
RECHECK_S = 2.4
TOUCH_AFTER_MS = 3_600_000  # resolution of `last_used_at`, so that a request rarely writes
NAME_CHARS_MAX = 100

_IMPLIED: dict[str, frozenset[str]] = {
    "admin": frozenset({"admin", "write", "chat", "read"}),
    "write": frozenset({"write", "read"}),
    "chat": frozenset({"chat", "read"}),
    "read": frozenset({"read"}),
}

Constellation = ConstellationRow
Token = TokenRow
User = UserRow


class Unauthorized(PatternError):
    """No token, or none that is valid."""

    code = "unauthorized"
    remedy = "Send `Authorization: Bearer TOKEN` with a valid token; `pattern token create` makes one."


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """The caller. `scopes` includes implied ones. `constellation_id` is the only constellation of the token,
    `expires_at` when it (for an access token: its sign-in) expires; None: no restriction. `has_signed_in`: with an
    access token.
    """

    user_id: str
    username: str
    is_admin: bool
    scopes: frozenset[str]
    constellation_id: str | None = None
    token_id: str | None = None
    expires_at: str | None = None
    has_signed_in: bool = False

    @property
    def reaches_all(self) -> bool:
        """Whether other users' constellations can be reached."""
        return self.is_admin and "admin" in self.scopes and self.constellation_id is None

    def require_unbound(self) -> None:
        """Refuse a request that a token for one constellation may not make.

        Raises:
            PermissionDenied: the token is for one constellation.
        """
        if self.constellation_id is not None:
            raise PermissionDenied("this token is for one constellation; use a token for all constellations")

    @property
    def author(self) -> str:
        """The name under which this user's messages and changes are stored."""
        return f"user:{self.user_id}"

    @property
    def sender(self) -> str:
        """The sender of this caller's messages: as `author`, or one who may only chat."""
        return f"user:{self.user_id}" if "write" in self.scopes else f"conversant:{self.user_id}"


@dataclass(slots=True)
class _Known:
    """A token that was looked up, while it is cached."""

    principal: Principal
    expires_at: str | None
    fresh_until: float  # by trio's clock
    touched_ms: int


class Accounts:
    """Users and tokens of this server. `local_token` is valid for this run only and has all rights of `admin`."""

    def __init__(self, database: GlobalDatabase, runtime: Runtime, *, local_token: str) -> None:
        self.database = database
        self.audit = Audit(database, runtime.clock)
        self._clock = runtime.clock
        self._ids = Ids(runtime.clock, runtime.randomness)
        self._local_digest = sha256(local_token.encode()).digest()
        self._local: Principal | None = None
        self._known: OrderedDict[bytes, _Known] = OrderedDict()

    async def bootstrap(self, given: str | None = None, *, with_token: bool = True) -> str | None:
        """Create the user `admin` and a token, if there are none. Return the token's secret if it was created here.

        `given` is the secret to use instead of a random one; it is then not returned. `with_token` False is for callers
        that cannot show it. Safe to repeat after a crash.
        """
        known = await self.users()
        admin = next((user for user in known if user.username == ADMIN_NAME), None)
        made: str | None = None
        if admin is None and not known:
            admin = await self.create_user(ADMIN_NAME, is_admin=True)
        if with_token and admin is not None and not await self.database.read(users.list_tokens, user_id=admin.id):
            _row, made = await self.create_token(admin, name="first start", scopes=["admin"], secret=given)
        await self._users_changed()
        return None if given else made

    async def _users_changed(self) -> None:
        """Look up every token again, and let the local token act for an administrator who is not disabled."""
        self.forget()
        admins = [user for user in await self.users() if user.is_admin]
        if admins:
            owner = min(admins, key=lambda user: (user.disabled_at is not None, user.username != ADMIN_NAME))
            self._local = _principal(owner, ["admin"])

    async def users(self) -> list[User]:
        """Return all users, by name."""
        return await self.database.read(users.list_all)

    async def create_user(self, username: str, *, is_admin: bool = False, **more: str | None) -> User:
        """Create a user; `more` are `email` and `password_hash`.

        Raises:
            InvalidInput: the name is invalid.
            Conflict: it, or the address, is taken.
        """
        now = now_text(self._clock)
        row = UserRow(
            id=self._ids.new("user"),
            username=check_name(username, "a user"),
            is_admin=is_admin,
            created_at=now,
            updated_at=now,
            **more,
        )
        with _taken(row):
            await self.database.write(users.create, row)
        return row

    async def change_user(self, user: str, **changes: Any) -> User:
        """Change fields of a user, by id or name; `disabled` disables or enables them.

        Disabling holds at once for all tokens; open streams end within 5 s.

        Raises:
            InvalidInput: the new name is invalid.
            RowNotFound: there is no such user.
            Conflict: the name or address is taken, or no administrator would be left.
        """
        if "username" in changes:
            check_name(changes["username"], "a user")
        now = now_text(self._clock)
        if "disabled" in changes:
            changes["disabled_at"] = now if changes.pop("disabled") else None
        before = await self.database.read(users.find, user)
        with _taken(replace(before, **changes)):
            after = await self.database.write(_changed, before.id, {**changes, "updated_at": now})
        await self._users_changed()
        return after

    async def delete_user(self, user_id: str, heir: str | None) -> None:
        """Delete a user with all tokens; their constellations then belong to the `heir` (id or name).

        Raises:
            RowNotFound: there is no such user, or heir.
            Conflict: no administrator would be left; without an heir: the user has constellations; or the heir has one
                of the same name.
        """
        await self.database.write(_deleted, user_id, heir)
        await self._users_changed()

    async def create_token(
        self,
        user: UserRow,
        *,
        name: str,
        scopes: Collection[str],
        constellation_id: str | None = None,
        expires_at: str | None = None,
        secret: str | None = None,
    ) -> tuple[TokenRow, str]:
        """Create a token; return it with its secret, which cannot be shown again.

        Raises:
            InvalidInput: a scope does not exist.
        """
        if not scopes or not set(scopes) <= set(SCOPES):
            raise InvalidInput(f"a token's scopes are one or more of {', '.join(SCOPES)}")
        row = TokenRow(
            id=self._ids.new("token"),
            user_id=user.id,
            name=name,
            scopes=tuple(scopes),
            created_at=now_text(self._clock),
            constellation_id=constellation_id,
            expires_at=expires_at,
        )
        made = secret or f"pat_{new_secret()}"
        await self.database.write(users.create_token, row, sha256(made.encode()).digest())
        return row, made

    async def create_token_for(
        self,
        caller: Principal,
        *,
        name: str,
        scopes: Collection[str],
        user: str | None,
        constellation: str | None,
        days: int | None,
    ) -> tuple[TokenRow, str]:
        """Create a token as `create_token`, for the caller, or for any user (by id or name) if the caller is an
        administrator.

        Its rights are at most those of the caller's own token; without `days` it has the same expiry.

        Raises:
            InvalidInput: a scope does not exist.
            NotFound: the user does not reach such a constellation.
            RowNotFound: there is no such user.
            PermissionDenied: the caller is not an administrator and names another user, or the token would have a scope
                that the caller's lacks, or outlive it.
        """
        owner = await self.user_for(caller, user)
        _check_scopes(scopes, caller)
        expires_at = caller.expires_at if days is None else iso(self._clock.now_ms() + days * DAY_MS)
        if caller.expires_at is not None and str(expires_at) > caller.expires_at:
            raise PermissionDenied(
                f"this token expires at {caller.expires_at}; a token created with it cannot expire later"
            )
        bound = None
        if constellation is not None:
            bound = (await self.constellation_for(_principal(owner, scopes), constellation)).id
        return await self.create_token(owner, name=name, scopes=scopes, constellation_id=bound, expires_at=expires_at)

    async def tokens_of(self, caller: Principal, user: str | None) -> list[TokenRow]:
        """Return the caller's tokens, or any user's if the caller is an administrator, oldest first, with revoked ones.

        Raises:
            RowNotFound: there is no such user.
            PermissionDenied: the caller is not an administrator and names another user.
        """
        owner = await self.user_for(caller, user)
        rows = await self.database.read(users.list_tokens, user_id=owner.id)
        return [row for row in rows if caller.constellation_id in (None, row.constellation_id)]

    async def revoke_token_for(self, caller: Principal, token_id: str) -> None:
        """Revoke one of the caller's tokens, or any user's if the caller is an administrator.

        Raises:
            NotFound: the caller sees none with this id.
            PermissionDenied: it has a scope that the caller's token lacks.
        """
        seen = await self.database.read(users.list_tokens, user_id=None if caller.reaches_all else caller.user_id)
        found = next((row for row in seen if row.id == token_id), None)
        if found is None:
            raise NotFound(f"there is no token {token_id!r}; `pattern token list` shows them")
        _check_scopes(found.scopes, caller)
        await self.revoke_token(token_id)

    async def user_for(self, caller: Principal, user: str | None) -> UserRow:
        """Return the caller's user, or any (by id or name) if the caller is an administrator.

        Raises:
            RowNotFound: there is none.
            PermissionDenied: the caller is not an administrator and names another user.
        """
        if user not in (None, caller.user_id, caller.username) and not caller.reaches_all:
            raise PermissionDenied("only an administrator's token may name another user; leave the user out")
        return await self.database.read(users.find, user or caller.user_id)

    async def revoke_token(self, token_id: str) -> None:
        """Revoke a token; the next request with it is refused.

        Raises:
            RowNotFound: there is none.
        """
        await self.database.write(users.revoke_token, token_id, now_text(self._clock))
        self.forget()

    def forget(self) -> None:
        """Look up every token again: users or tokens have changed."""
        self._known.clear()

    async def authenticate(self, secret: str) -> Principal:
        """Return the principal of this token.

        Raises:
            Unauthorized: it is unknown, revoked or expired, or its user is disabled.
        """
        digest = sha256(secret.encode()).digest()
        if self._local is not None and hmac.compare_digest(digest, self._local_digest):
            return self._local
        known = self._known.get(digest)
        if known is None or known.fresh_until <= trio.current_time():
            known = await self._look_up(secret, digest)
        if known.expires_at is not None and known.expires_at <= now_text(self._clock):
            raise Unauthorized(f"the token has expired; {MAKE_ONE}")
        self._known.move_to_end(digest)
        await self._touch(known)
        return known.principal

    async def loopback_principal(self) -> Principal:
        """Return the principal of a request without a token, where the operator allows that: an administrator, without
        an administrator's rights.

        Raises:
            Unauthorized: there is none.
        """
        if self._local is None:
            raise Unauthorized(f"there is no administrator; {MAKE_ONE}")
        return replace(self._local, is_admin=False, scopes=_IMPLIED["write"] | _IMPLIED["chat"])

    async def _look_up(self, secret: str, digest: bytes) -> _Known:
        found = await self.database.read(_found, secret, digest, self._clock.now_ms())
        before = self._known.pop(digest, None)
        if found is None:
            raise Unauthorized(f"the token is unknown; {MAKE_ONE}")
        token, user, expires_at = found
        if token.revoked_at is not None:
            raise Unauthorized(f"the token was revoked; {MAKE_ONE}")
        if user.disabled_at is not None:
            raise Unauthorized("the token's user is disabled; ask an administrator")
        fresh_until = trio.current_time() + RECHECK_S
        principal = _principal(user, token.scopes, token)
        known = _Known(principal, expires_at, fresh_until, before.touched_ms if before else 0)
        self._known[digest] = known
        while len(self._known) > CACHED_MAX:
            self._known.popitem(last=False)
        return known

    async def _touch(self, known: _Known) -> None:
        now_ms = self._clock.now_ms()
        if known.principal.token_id is not None and now_ms - known.touched_ms >= TOUCH_AFTER_MS:
            known.touched_ms = now_ms
            # A full disk, which cannot store the use of a token, is not a reason to refuse it.
            with suppress(DatabaseError):
                await self.database.write(users.touch_token, known.principal.token_id, now_text(self._clock))

    async def constellation_for(self, principal: Principal, id_or_name: str) -> Constellation:
        """Return the constellation that this id or name means for the caller: their own first; for administrators then
        any user's, by id or by a name that only one user has.

        Raises:
            NotFound: there is none, or it belongs to another user.
        """
        row = await self._find(id_or_name, principal.user_id)
        if row is None and principal.reaches_all:
            row = await self._find(id_or_name, None)
        if row is None or principal.constellation_id not in (None, row.id):
            raise NotFound(f"there is no constellation {id_or_name!r}; `pattern constellation list` shows yours")
        return row

    async def _find(self, id_or_name: str, owner_id: str | None) -> Constellation | None:
        try:
            return await self.database.read(constellations.find, id_or_name, owner_id=owner_id)
        except RowNotFound:
            return None

    async def constellations_of(self, principal: Principal) -> list[Constellation]:
        """Return all constellations that the caller reaches, by name, then id."""
        owner_id = None if principal.reaches_all else principal.user_id
        rows = await self.database.read(constellations.list_all, owner_id=owner_id)
        return [row for row in rows if principal.constellation_id in (None, row.id)]

    async def every_constellation(self) -> list[Constellation]:
        """Return all constellations of all users, for the server's own work."""
        return await self.database.read(constellations.list_all)

    async def register(self, row: Constellation) -> None:
        """Add a new constellation to the registry.

        Raises:
            Conflict: its owner already has one of that name.
        """
        try:
            await self.database.write(constellations.create, row)
        except RowConflict:
            raise Conflict(f"you already have a constellation named {row.name!r}; choose another name") from None

    async def rename(self, constellation_id: str, name: str) -> None:
        """Rename a constellation.

        Raises:
            InvalidInput: the name is invalid.
            Conflict: its owner has another one of that name.
        """
        with instead_of(RowConflict, Conflict(f"a constellation named {name!r} already exists; choose another name")):
            await self.database.write(constellations.rename, constellation_id, check_name(name, "a constellation"))

    async def unregister(self, constellation_id: str) -> None:
        """Remove a constellation from the registry; its files stay."""
        await self.database.write(constellations.delete, constellation_id)


def check_name(name: str, whose: str) -> str:
    """Return `name` if it is valid for a user or constellation.

    Raises:
        InvalidInput: it is empty, too long, or invalid in a path.
    """
    fits = 0 < len(name) <= NAME_CHARS_MAX and name.isprintable() and name.strip() == name and "/" not in name
    if not fits or name in (".", ".."):
        raise InvalidInput(
            f"the name of {whose} has 1 to {NAME_CHARS_MAX} printable characters, no slash and no space at its ends"
        )
    return name


def _check_scopes(scopes: Collection[str], caller: Principal) -> None:
    """Refuse a token with scopes that the caller's token lacks.

    Raises:
        PermissionDenied: there is one.
    """
    beyond = _implied(scopes) - caller.scopes
    if beyond:
        raise PermissionDenied(
            f"this token lacks the scope {', '.join(sorted(beyond))}, so it can neither create nor revoke tokens "
            f"that have it"
        )


def _implied(scopes: Collection[str]) -> frozenset[str]:
    return frozenset().union(*(_IMPLIED.get(scope, frozenset()) for scope in scopes))


@contextmanager
def _taken(row: User) -> Iterator[None]:
    """Translate the failure to store a row.

    Raises:
        Conflict: another user has its name or address.
    """
    try:
        yield
    except RowConflict:
        email = "" if row.email is None else f" or the address {row.email!r}"
        raise Conflict(f"a user named {row.username!r}{email} already exists; choose another one") from None


def _changed(connection: Connection, user_id: str, changes: Mapping[str, Any]) -> User:
    row = replace(users.get(connection, user_id), **changes)
    users.update(connection, row)
    require_admin(connection)
    return row


def _deleted(connection: Connection, user_id: str, heir: str | None) -> None:
    if heir is not None:
        given = constellations.list_all(connection, owner_id=user_id)
        to = users.find(connection, heir)
        names = {row.name for row in given} & {row.name for row in constellations.list_all(connection, owner_id=to.id)}
        if names or to.id == user_id:
            raise Conflict(f"{to.username} already has {', '.join(sorted(names))}; rename one of each")
        constellations.give(connection, user_id, to.id)
    if constellations.list_all(connection, owner_id=user_id):
        raise Conflict("the user has constellations; name the user who gets them, or delete them, too")
    users.delete(connection, user_id)
    require_admin(connection)


def require_admin(connection: Connection) -> None:
    """Refuse a change that leaves no enabled administrator.

    Raises:
        Conflict: there is none.
    """
    if not any(user.is_admin and user.disabled_at is None for user in users.list_all(connection)):
        raise Conflict("no administrator would be left; make another user an administrator first")


def _found(
    connection: Connection, secret: str, digest: bytes, now_ms: int
) -> tuple[TokenRow, UserRow, str | None] | None:
    """Return the row and the user of an API token, or of the sign-in of an access token, and when it expires."""
    token = users.find_token(connection, digest)
    if token is not None and token.refresh_hash is None:
        return token, users.get(connection, token.user_id), token.expires_at
    access = read_access(secret, sign_ins.keys(connection, iso(now_ms)), now_ms=now_ms)
    token = None if access is None else users.get_token(connection, access.sign_in_id)
    if access is None or token is None or token.refresh_hash is None or token.user_id != access.user_id:
        return None
    expires_at = min(str(token.expires_at), iso(access.expires_ms + LEEWAY_S * 1_000))
    return token, users.get(connection, token.user_id), expires_at


def _principal(user: UserRow, scopes: Collection[str], token: TokenRow | None = None) -> Principal:
    return Principal(
        user_id=user.id,
        username=user.username,
        is_admin=user.is_admin,
        scopes=_implied(scopes),
        constellation_id=None if token is None else token.constellation_id,
        token_id=None if token is None else token.id,
        expires_at=None if token is None else token.expires_at,
        has_signed_in=token is not None and token.refresh_hash is not None,
    )
