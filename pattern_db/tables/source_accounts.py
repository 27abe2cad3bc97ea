"""Accounts of sources and channels in the global database: the constellation of each, and when it is asked next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pattern_db.connection import Connection, Table


@dataclass(frozen=True, slots=True)
class SourceAccountRow:
    """An account of a constellation. `next_at` is when its service is asked next; None: the service calls."""

    id: str
    constellation_id: str
    next_at: str | None = None


_ACCOUNTS = Table("source_accounts", SourceAccountRow, "source {!r}", order="next_at, id")
get, list_all = _ACCOUNTS.get, _ACCOUNTS.list_all


def replace(connection: Connection, constellation_id: str, accounts: Mapping[str, str | None]) -> None:
    """Store the accounts of a constellation: when each new one is asked (None: never). What is known stays."""
    known = [one.id for one in _ACCOUNTS.select(connection, "WHERE constellation_id = ?", (constellation_id,))]
    connection.executemany("DELETE FROM source_accounts WHERE id = ?", [(one,) for one in known if one not in accounts])
    rows = [SourceAccountRow(one, constellation_id, at) for one, at in accounts.items() if one not in known]
    _ACCOUNTS.insert(connection, rows, "ON CONFLICT (id) DO UPDATE SET constellation_id = excluded.constellation_id")


def set_next(connection: Connection, account_id: str, next_at: str) -> None:
    """Remember when an account is asked next; nothing happens if it is gone."""
    connection.execute("UPDATE source_accounts SET next_at = ? WHERE id = ?", (next_at, account_id))
