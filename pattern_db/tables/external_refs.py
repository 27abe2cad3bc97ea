"""What rows are called by another system: the numbers by which its programs know them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pattern_db.columns import Json, to_json
from pattern_db.connection import Connection, Table, fetch_all


class ExternalRef(NamedTuple):
    """What a row is called. `content_hash` (16 bytes) and `raw` are of what was imported, if it was: where it came
    from, and the row.
    """

    system: str
    kind: str
    workspace: str
    number: int
    local_id: str
    content_hash: bytes | None = None
    raw: Json = None


_REFS = Table("external_refs", ExternalRef, json=("raw",))
add = _REFS.create


def change(connection: Connection, ref: ExternalRef) -> None:
    """Store what was imported again for a row that has this number."""
    connection.execute(
        "UPDATE external_refs SET content_hash = ?, raw = ? WHERE system = ? AND local_id = ?",
        (ref.content_hash, to_json(ref.raw), ref.system, ref.local_id),
    )


def remove(connection: Connection, system: str, local_id: str) -> None:
    """Forget what a row is called; its number may be used again."""
    connection.execute("DELETE FROM external_refs WHERE system = ? AND local_id = ?", (system, local_id))


def of_workspace(connection: Connection, system: str, workspace: str) -> list[ExternalRef]:
    """Return what all rows of a workspace are called."""
    return _REFS.select(connection, "WHERE system = ? AND workspace = ?", (system, workspace))


def numbers(connection: Connection, system: str, ids: Sequence[str]) -> dict[str, int]:
    """Return, by id, the numbers of the rows that have one."""
    found = fetch_all(
        connection,
        "SELECT local_id, number FROM external_refs WHERE system = ? AND local_id IN (SELECT value FROM json_each(?))",
        (system, to_json(list(ids))),
    )
    return dict(found)


def assign(connection: Connection, system: str, kind: str, workspace: str, ids: Sequence[str]) -> None:
    """Give each row that has no number the next one; those of deleted rows are not used again."""
    connection.executemany(
        "INSERT INTO external_refs (system, kind, workspace, number, local_id) SELECT ?1, ?2, ?3, 1 + coalesce((SELECT"
        " max(number) FROM external_refs WHERE system = ?1 AND kind = ?2 AND workspace = ?3), 0), ?4"
        " WHERE true ON CONFLICT (system, local_id) DO NOTHING",
        [(system, kind, workspace, local_id) for local_id in ids],
    )


def find(connection: Connection, system: str, kind: str, workspace: str, number: int) -> str | None:
    """Return the id of the row with this number; it may have been deleted."""
    found = connection.execute(
        "SELECT local_id FROM external_refs WHERE system = ? AND kind = ? AND workspace = ? AND number = ?",
        (system, kind, workspace, number),
    ).fetchone()
    return None if found is None else str(found[0])
