"""Identities at other providers that users can sign in with, in the global database. No token of a provider is stored:
the columns for them stay NULL.
"""

from __future__ import annotations

from dataclasses import dataclass

from pattern_db.connection import Connection, Table, require_change
from pattern_db.tables import sign_ins


@dataclass(frozen=True, slots=True)
class IdentityRow:
    """One identity: `provider` is a name in the configuration, `provider_id` what the provider calls the person."""

    id: str
    user_id: str
    provider: str
    provider_id: str
    created_at: str


_IDENTITIES = Table("user_identities", IdentityRow)


def create(connection: Connection, row: IdentityRow) -> None:
    """Add an identity.

    Raises:
        apsw.ConstraintError: a user has it, or there is no such user (translated to `RowConflict`).
    """
    _IDENTITIES.insert(connection, [row])


def find(connection: Connection, provider: str, provider_id: str) -> IdentityRow | None:
    """Return the row of this identity, or None if no user has it."""
    return _IDENTITIES.first(connection, "WHERE provider = ? AND provider_id = ?", (provider, provider_id))


def list_of(connection: Connection, user_id: str) -> list[IdentityRow]:
    """Return the identities of a user, oldest first."""
    return _IDENTITIES.select(connection, "WHERE user_id = ? ORDER BY created_at, id", (user_id,))


def delete(connection: Connection, user_id: str, identity_id: str, now: str) -> None:
    """Delete an identity of a user and revoke all their sign-ins.

    Raises:
        RowNotFound: the user has none with this id.
    """
    connection.execute("DELETE FROM user_identities WHERE id = ? AND user_id = ?", (identity_id, user_id))
    require_change(connection, f"identity {identity_id}")
    sign_ins.revoke_of(connection, user_id, now)
