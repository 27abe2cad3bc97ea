"""Sign-ins with a password, and the keys that sign their access tokens, in the global database.

A sign-in is a row of `tokens` with a `refresh_hash`. Its refresh tokens share a first half, which finds the row; only
the newest one matches `refresh_hash`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pattern_db.connection import Connection, Table
from pattern_db.tables import users
from pattern_db.tables.users import TokenRow


@dataclass(frozen=True, slots=True)
class SigningKeyRow:
    """A key of at least 32 bytes. `retires_at` is None for the one that signs."""

    id: str
    secret: bytes
    created_at: str
    retires_at: str | None = None


_KEYS = Table("signing_keys", SigningKeyRow)


def keys(connection: Connection, now: str) -> list[SigningKeyRow]:
    """Return the keys that have not retired, the one that signs first."""
    where = "WHERE retires_at IS NULL OR retires_at > ? ORDER BY retires_at IS NOT NULL"
    return _KEYS.select(connection, where, (now,))


def rotate_keys(connection: Connection, key: SigningKeyRow, *, retires_at: str, bytes_min: int) -> None:
    """Sign with another key from now on. What the former one signed is valid until `retires_at`; keys that have
    retired, or have less than `bytes_min` bytes, are deleted.
    """
    connection.execute(
        "DELETE FROM signing_keys WHERE retires_at <= ? OR length(secret) < ?", (key.created_at, bytes_min)
    )
    connection.execute("UPDATE signing_keys SET retires_at = ? WHERE retires_at IS NULL", (retires_at,))
    _KEYS.insert(connection, [key])


def begin(
    connection: Connection, row: TokenRow, token_hash: bytes, refresh_hash: bytes, new_key: SigningKeyRow
) -> SigningKeyRow:
    """Add a sign-in, delete those of its user that ended before it, and return the key that signs: `new_key` if there
    is none yet.
    """
    connection.execute(
        "DELETE FROM tokens WHERE user_id = ? AND refresh_hash IS NOT NULL AND (expires_at <= ? OR revoked_at <= ?)",
        (row.user_id, row.created_at, row.created_at),
    )
    users.create_token(connection, replace(row, refresh_hash=refresh_hash), token_hash)
    return _signing(connection, new_key)


def rotate(connection: Connection, row: TokenRow, refresh_hash: bytes, new_key: SigningKeyRow) -> SigningKeyRow:
    """Replace the refresh token of a sign-in; return the key that signs, as `begin`."""
    connection.execute("UPDATE tokens SET refresh_hash = ? WHERE id = ?", (refresh_hash, row.id))
    return _signing(connection, new_key)


def revoke_of(connection: Connection, user_id: str, revoked_at: str) -> None:
    """Revoke all sign-ins of a user."""
    connection.execute(
        "UPDATE tokens SET revoked_at = ? WHERE user_id = ? AND refresh_hash IS NOT NULL AND revoked_at IS NULL",
        (revoked_at, user_id),
    )


def _signing(connection: Connection, new_key: SigningKeyRow) -> SigningKeyRow:
    found = _KEYS.first(connection, "WHERE retires_at IS NULL", ())
    if found is None:
        _KEYS.insert(connection, [new_key])
    return found or new_key
