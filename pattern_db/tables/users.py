"""Users of the server, in the global database."""

from __future__ import annotations

from dataclasses import dataclass

from pattern_db.connection import Connection
from pattern_db.errors import NotFound


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRow:
    """One user. `password_hash` is None for those who only use tokens; `disabled_at` is None while they may come in."""

    id: str
    username: str
    created_at: str
    updated_at: str
    email: str | None = None
    password_hash: str | None = None
    is_admin: bool = False
    disabled_at: str | None = None


def create(connection: Connection, row: UserRow) -> None:
    """Add a user.

    Raises:
        apsw.ConstraintError: the name (in any case) or address is taken (a `Conflict` once translated).
    """
    connection.execute(
        "INSERT INTO users (id, username, email, password_hash, is_admin, disabled_at, created_at, updated_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            row.id,
            row.username,
            row.email,
            row.password_hash,
            int(row.is_admin),
            row.disabled_at,
            row.created_at,
            row.updated_at,
        ),
    )


def get(connection: Connection, user_id: str) -> UserRow:
    """The user with this id.

    Raises:
        NotFound: there is none.
    """
    found = _select(connection, "WHERE id = ?", (user_id,))
    if not found:
        raise NotFound(f"there is no user {user_id}")
    return found[0]


def find(connection: Connection, id_or_name: str) -> UserRow:
    """The user with this id, else with this name (in any case).

    Raises:
        NotFound: there is none.
    """
    found = _select(connection, "WHERE id = ?1 OR username = ?1 ORDER BY id = ?1 DESC LIMIT 1", (id_or_name,))
    if not found:
        raise NotFound(f"there is no user {id_or_name}")
    return found[0]


def list_all(connection: Connection) -> list[UserRow]:
    """All users, by name."""
    return _select(connection, "ORDER BY username", ())


def set_password(connection: Connection, user_id: str, password_hash: str | None, updated_at: str) -> None:
    """Store another hash, or None: no sign-in by password.

    Raises:
        NotFound: there is no such user.
    """
    connection.execute(
        "UPDATE users SET password_hash = ?, updated_at = ? WHERE id = ?", (password_hash, updated_at, user_id)
    )
    _require_change(connection, user_id)


def set_admin(connection: Connection, user_id: str, is_admin: bool, updated_at: str) -> None:
    """Give or take the right to administer the server.

    Raises:
        NotFound: there is no such user.
    """
    connection.execute("UPDATE users SET is_admin = ?, updated_at = ? WHERE id = ?", (is_admin, updated_at, user_id))
    _require_change(connection, user_id)


def set_disabled(connection: Connection, user_id: str, disabled_at: str | None, updated_at: str) -> None:
    """Shut a user out since `disabled_at`, or let them in again with None.

    Raises:
        NotFound: there is no such user.
    """
    connection.execute(
        "UPDATE users SET disabled_at = ?, updated_at = ? WHERE id = ?", (disabled_at, updated_at, user_id)
    )
    _require_change(connection, user_id)


def _require_change(connection: Connection, user_id: str) -> None:
    if connection.changes() == 0:
        raise NotFound(f"there is no user {user_id}")


def _select(connection: Connection, where: str, values: tuple[str, ...]) -> list[UserRow]:
    rows = connection.execute(
        f"SELECT id, username, email, password_hash, is_admin, disabled_at, created_at, updated_at FROM users {where}",
        values,
    )
    return [
        UserRow(
            id=row[0],
            username=row[1],
            email=row[2],
            password_hash=row[3],
            is_admin=bool(row[4]),
            disabled_at=row[5],
            created_at=row[6],
            updated_at=row[7],
        )
        for row in rows
    ]
