"""Users of the server and their tokens, in the global database.

The secret of a token is never stored, only its SHA-256.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pattern_db.columns import from_json
from pattern_db.connection import Connection, NamedTable, Table
from pattern_db.errors import RowNotFound


@dataclass(frozen=True, slots=True)
class UserRow:
    """One user. `password_hash` is None for users who only use tokens; `disabled_at` is None while they are enabled."""

    id: str
    username: str
    created_at: str
    updated_at: str
    email: str | None = None
    password_hash: str | None = None
    is_admin: bool = False
    disabled_at: str | None = None


_USERS = NamedTable("users", UserRow, "user {}", name_in="username", types={"is_admin": bool})
create, get, find = _USERS.create, _USERS.get, _USERS.find  # a name in any case


def list_all(connection: Connection) -> list[UserRow]:
    """Return all users, by name."""
    return _USERS.select(connection, "ORDER BY username")


def update(connection: Connection, row: UserRow) -> None:
    """Store all fields of a user but `created_at`.

    Raises:
        RowNotFound: there is no such user.
        apsw.ConstraintError: the name or address is another user's (translated to `RowConflict`).
    """
    _USERS.update(connection, row, f"user {row.id}")


def delete(connection: Connection, user_id: str) -> None:
    """Delete a user with tokens and identities.

    Raises:
        RowNotFound: there is no such user.
        apsw.ConstraintError: they own constellations (translated to `RowConflict`).
    """
    _USERS.delete(connection, "WHERE id = ?", (user_id,), f"user {user_id}")


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One token. `constellation_id` is None for all of its user's constellations; `expires_at` None for never;
    `refresh_hash` None for API tokens (see `sign_ins`).
    """

    id: str
    user_id: str
    name: str
    scopes: Sequence[str]
    created_at: str
    constellation_id: str | None = None
    expires_at: str | None = None
    last_used_at: str | None = None
    revoked_at: str | None = None
    refresh_hash: bytes | None = None


_TOKENS = Table("tokens", TokenRow, json=("scopes",), types={"scopes": lambda text: tuple(from_json(text))})


def create_token(connection: Connection, row: TokenRow, token_hash: bytes) -> None:
    """Add a token by the SHA-256 (32 bytes) of its secret.

    Raises:
        apsw.ConstraintError: the hash is in use, or user or constellation are missing (translated to `RowConflict`).
    """
    connection.execute(
        f"INSERT INTO tokens ({_TOKENS.columns}, token_hash) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*_TOKENS.values(row), token_hash),
    )


def find_token(connection: Connection, token_hash: bytes) -> TokenRow | None:
    """Return the token with this hash, even if it is revoked, expired or of a disabled user; or None."""
    return _TOKENS.first(connection, "WHERE token_hash = ?", (token_hash,))


def get_token(connection: Connection, token_id: str) -> TokenRow | None:
    """Return the token with this id, in whatever state it is; or None."""
    return _TOKENS.first(connection, "WHERE id = ?", (token_id,))


def list_tokens(connection: Connection, *, user_id: str | None = None) -> list[TokenRow]:
    """Return all tokens (of one user), oldest first, revoked ones included."""
    return _TOKENS.select(connection, "WHERE ?1 IS NULL OR user_id = ?1 ORDER BY created_at, id", (user_id,))


def revoke_token(connection: Connection, token_id: str, revoked_at: str) -> None:
    """Revoke the token; a second call changes nothing.

    Raises:
        RowNotFound: there is none.
    """
    connection.execute("UPDATE tokens SET revoked_at = coalesce(revoked_at, ?) WHERE id = ?", (revoked_at, token_id))
    if connection.changes() == 0:
        raise RowNotFound(f"there is no token {token_id}")


def touch_token(connection: Connection, token_id: str, last_used_at: str) -> None:
    """Store when the token was last used; do nothing if it does not exist."""
    connection.execute("UPDATE tokens SET last_used_at = ? WHERE id = ?", (last_used_at, token_id))
