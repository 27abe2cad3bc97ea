"""API tokens, in the global database. The secret itself is never stored, only its SHA-256."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pattern_db.columns import from_json, to_json
from pattern_db.connection import Connection
from pattern_db.errors import NotFound


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """One token. `constellation_id` is None for all that its user may see; `expires_at` None for never."""

    id: str
    user_id: str
    name: str
    scopes: Sequence[str]
    created_at: str
    constellation_id: str | None = None
    expires_at: str | None = None
    last_used_at: str | None = None
    revoked_at: str | None = None


def create(connection: Connection, row: TokenRow, token_hash: bytes) -> None:
    """Add a token by the SHA-256 (32 bytes) of its secret.

    Raises:
        apsw.ConstraintError: the hash is taken, or user or constellation are missing (`Conflict` once translated).
    """
    connection.execute(
        "INSERT INTO tokens (id, user_id, name, token_hash, scopes, constellation_id, created_at, expires_at,"
        " last_used_at, revoked_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            row.id,
            row.user_id,
            row.name,
            token_hash,
            to_json(list(row.scopes)),
            row.constellation_id,
            row.created_at,
            row.expires_at,
            row.last_used_at,
            row.revoked_at,
        ),
    )


def find_by_hash(connection: Connection, token_hash: bytes) -> TokenRow | None:
    """The token with this hash, whatever its state: revoked, expired, of a disabled user; or None."""
    found = _select(connection, "WHERE token_hash = ?", (token_hash,))
    return found[0] if found else None


def get(connection: Connection, token_id: str) -> TokenRow:
    """The token with this id.

    Raises:
        NotFound: there is none.
    """
    found = _select(connection, "WHERE id = ?", (token_id,))
    if not found:
        raise NotFound(f"there is no token {token_id}")
    return found[0]


def list_all(connection: Connection, *, user_id: str | None = None) -> list[TokenRow]:
    """All tokens (of one user), oldest first, revoked ones included."""
    return _select(connection, "WHERE ?1 IS NULL OR user_id = ?1 ORDER BY created_at, id", (user_id,))


def revoke(connection: Connection, token_id: str, revoked_at: str) -> None:
    """End the token's validity; again it changes nothing.

    Raises:
        NotFound: there is none.
    """
    connection.execute("UPDATE tokens SET revoked_at = coalesce(revoked_at, ?) WHERE id = ?", (revoked_at, token_id))
    if connection.changes() == 0:
        raise NotFound(f"there is no token {token_id}")


def touch(connection: Connection, token_id: str, last_used_at: str) -> None:
    """Remember when the token was last used; nothing happens if it is gone."""
    connection.execute("UPDATE tokens SET last_used_at = ? WHERE id = ?", (last_used_at, token_id))


def _select(connection: Connection, where: str, values: tuple[str | bytes | None, ...]) -> list[TokenRow]:
    rows = connection.execute(
        "SELECT id, user_id, name, scopes, created_at, constellation_id, expires_at, last_used_at, revoked_at"
        f" FROM tokens {where}",
        values,
    )
    return [
        TokenRow(
            id=row[0],
            user_id=row[1],
            name=row[2],
            scopes=tuple(from_json(row[3])),
            created_at=row[4],
            constellation_id=row[5],
            expires_at=row[6],
            last_used_at=row[7],
            revoked_at=row[8],
        )
        for row in rows
    ]
