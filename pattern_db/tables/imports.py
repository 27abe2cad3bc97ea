"""Imports of archives into a constellation: a row for each, with all decisions."""

from __future__ import annotations

from dataclasses import dataclass

from pattern_db.columns import Json
from pattern_db.connection import Connection, Table


@dataclass(frozen=True, slots=True)
class ArchiveImport:
    """One import. `issues_found` counts what needed a decision, `issues_resolved` those that were made.

    `source_version` is 0 if the format has no versions. `audit_log` is a JSON object: the `format`, the CID of the
    archive's `root`, how many rows were `added` and already `present`, by table, `owners`, the ids of the imported
    agents and groups, and the `decisions`.
    """

    id: str
    imported_at: str
    source_file: str
    source_version: int
    issues_found: int
    issues_resolved: int
    audit_log: Json

    @property
    def source_format(self) -> str | None:
        """The format of what was imported; None: it was not recorded."""
        found: str | None = self.audit_log.get("format") or self.audit_log.get("system")
        return found


_IMPORTS = Table("migration_audit", ArchiveImport, "import {}", json=("audit_log",))
add = _IMPORTS.create


def page(connection: Connection, limit: int, *, before: str | None = None) -> list[ArchiveImport]:
    """Return imports, newest first; before an id, if given."""
    return _IMPORTS.select(connection, "WHERE ?1 IS NULL OR id < ?1 ORDER BY id DESC LIMIT ?2", (before, limit))


def complete(connection: Connection, root: str) -> ArchiveImport | None:
    """Return the newest import of the archive with this root, if its agents and groups are still there."""
    return _IMPORTS.first(
        connection,
        "WHERE audit_log ->> '$.root' = ? AND NOT EXISTS (SELECT 1 FROM json_each(audit_log, '$.owners') AS owner"
        " WHERE owner.value NOT IN (SELECT id FROM agents UNION ALL SELECT id FROM agent_groups))"
        " ORDER BY id DESC LIMIT 1",
        (root,),
    )
