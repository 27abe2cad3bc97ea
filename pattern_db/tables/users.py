"""Users of the server and their tokens, in the global database.

The secret of a token is never stored, only its SHA-256.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pattern_db.columns import from_json
from pattern_db.connection import Connection, Table, require_change


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


_USERS = Table("users", UserRow, "user {}", name_in="username", order="username", types={"is_admin": bool})
create, get, find = _USERS.create, _USERS.get, _USERS.find  # a name in any case
# With a user, tokens and identities are deleted; one who owns constellations is not.
list_all, update, delete = _USERS.list_all, _USERS.update, _USERS.delete


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
    require_change(connection, f"token {token_id}")


def touch_token(connection: Connection, token_id: str, last_used_at: str) -> None:
    """Store when the token was last used; do nothing if it does not exist."""
    connection.execute("UPDATE tokens SET last_used_at = ? WHERE id = ?", (last_used_at, token_id))
