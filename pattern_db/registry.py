"""Users, tokens and constellations: what one machine keeps in global.db and several machines would share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from pattern_db.connection import Connection
from pattern_db.tables import constellations, tokens, users
from pattern_db.tables.constellations import ConstellationRow
from pattern_db.tables.tokens import TokenRow
from pattern_db.tables.users import UserRow

P = ParamSpec("P")
T = TypeVar("T")


class RegistryDatabase(Protocol):
    """What runs functions of a connection to global.db: `pattern_db.database.Database`."""

    async def write(self, fn: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `fn` in a transaction."""
        ...

    async def read(self, fn: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `fn`, which only reads."""
        ...


class Registry(Protocol):
    """The accounts and constellations of a server. Every method raises `DatabaseError` as its table module says."""

    async def add_user(self, row: UserRow) -> None:
        """Add a user; `Conflict` if the name is taken."""
        ...

    async def find_user(self, id_or_name: str) -> UserRow:
        """The user; `NotFound` if there is none."""
        ...

    async def list_users(self) -> list[UserRow]:
        """All users, by name."""
        ...

    async def set_password(self, user_id: str, password_hash: str | None, now: str) -> None:
        """Store another password's hash, or none."""
        ...

    async def set_disabled(self, user_id: str, disabled_at: str | None, now: str) -> None:
        """Shut a user out, or let them in again."""
        ...

    async def add_token(self, row: TokenRow, token_hash: bytes) -> None:
        """Add a token by the SHA-256 of its secret."""
        ...

    async def find_token(self, token_hash: bytes) -> tuple[TokenRow, UserRow] | None:
        """The token and its user, whatever their state; None if the hash is unknown."""
        ...

    async def list_tokens(self, user_id: str | None = None) -> list[TokenRow]:
        """All tokens (of one user), revoked ones included."""
        ...

    async def revoke_token(self, token_id: str, now: str) -> None:
        """End a token's validity."""
        ...

    async def touch_token(self, token_id: str, now: str) -> None:
        """Remember that a token was used."""
        ...

    async def add_constellation(self, row: ConstellationRow) -> None:
        """Register a constellation; `Conflict` if its owner has one of that name."""
        ...

    async def find_constellation(self, id_or_name: str, owner_id: str | None = None) -> ConstellationRow:
        """The (owner's) constellation; `NotFound` if there is none or it is somebody else's."""
        ...

    async def list_constellations(self, owner_id: str | None = None) -> list[ConstellationRow]:
        """All constellations (of one owner), by name."""
        ...

    async def rename_constellation(self, constellation_id: str, name: str) -> None:
        """Give it another name."""
        ...

    async def touch_constellation(self, constellation_id: str, now: str) -> None:
        """Remember that it was used."""
        ...

    async def remove_constellation(self, constellation_id: str) -> None:
        """Take it off the registry."""
        ...


class LocalRegistry:
    """The registry of one machine, in global.db."""

    def __init__(self, database: RegistryDatabase) -> None:
        self._database = database

    async def add_user(self, row: UserRow) -> None:
        """Add a user; `Conflict` if the name is taken."""
        await self._database.write(users.create, row)

    async def find_user(self, id_or_name: str) -> UserRow:
        """The user; `NotFound` if there is none."""
        return await self._database.read(users.find, id_or_name)

    async def list_users(self) -> list[UserRow]:
        """All users, by name."""
        return await self._database.read(users.list_all)

    async def set_password(self, user_id: str, password_hash: str | None, now: str) -> None:
        """Store another password's hash, or none."""
        await self._database.write(users.set_password, user_id, password_hash, now)

    async def set_disabled(self, user_id: str, disabled_at: str | None, now: str) -> None:
        """Shut a user out, or let them in again."""
        await self._database.write(users.set_disabled, user_id, disabled_at, now)

    async def add_token(self, row: TokenRow, token_hash: bytes) -> None:
        """Add a token by the SHA-256 of its secret."""
        await self._database.write(tokens.create, row, token_hash)

    async def find_token(self, token_hash: bytes) -> tuple[TokenRow, UserRow] | None:
        """The token and its user, whatever their state; None if the hash is unknown."""
        return await self._database.read(_token_and_user, token_hash)

    async def list_tokens(self, user_id: str | None = None) -> list[TokenRow]:
        """All tokens (of one user), revoked ones included."""
        return await self._database.read(tokens.list_all, user_id=user_id)

    async def revoke_token(self, token_id: str, now: str) -> None:
        """End a token's validity."""
        await self._database.write(tokens.revoke, token_id, now)

    async def touch_token(self, token_id: str, now: str) -> None:
        """Remember that a token was used."""
        await self._database.write(tokens.touch, token_id, now)

    async def add_constellation(self, row: ConstellationRow) -> None:
        """Register a constellation; `Conflict` if its owner has one of that name."""
        await self._database.write(constellations.create, row)

    async def find_constellation(self, id_or_name: str, owner_id: str | None = None) -> ConstellationRow:
        """The (owner's) constellation; `NotFound` if there is none or it is somebody else's."""
        return await self._database.read(constellations.find, id_or_name, owner_id=owner_id)

    async def list_constellations(self, owner_id: str | None = None) -> list[ConstellationRow]:
        """All constellations (of one owner), by name."""
        return await self._database.read(constellations.list_all, owner_id=owner_id)

    async def rename_constellation(self, constellation_id: str, name: str) -> None:
        """Give it another name."""
        await self._database.write(constellations.rename, constellation_id, name)

    async def touch_constellation(self, constellation_id: str, now: str) -> None:
        """Remember that it was used."""
        await self._database.write(constellations.touch, constellation_id, now)

    async def remove_constellation(self, constellation_id: str) -> None:
        """Take it off the registry."""
        await self._database.write(constellations.delete, constellation_id)


def _token_and_user(connection: Connection, token_hash: bytes) -> tuple[TokenRow, UserRow] | None:
    token = tokens.find_by_hash(connection, token_hash)
    return None if token is None else (token, users.get(connection, token.user_id))
