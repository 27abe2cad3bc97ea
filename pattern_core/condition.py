"""How a constellation's contents are, from its file alone, which may be read while it is asleep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pattern_db.connection import Connection
from pattern_db.tables import embedding_indexes, folders
from pattern_db.tables.embedding_indexes import IndexRow
from pattern_db.tables.folders import FolderRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """`index` is the one that search by meaning answers from, None before the first text; `done` of `total` texts have
    been looked at for it. `unavailable` are the folders that could not be read when they were looked through last.
    """

    index: IndexRow | None
    done: int
    total: int
    unavailable: Sequence[FolderRow]


def condition(connection: Connection) -> Condition:
    """Look at the file; reads a handful of rows."""
    active = embedding_indexes.active(connection)
    coverage = embedding_indexes.coverage(connection, active)
    unavailable = [folder for folder in folders.list_all(connection) if folder.status != "ready"]
    return Condition(index=active, done=coverage.done, total=coverage.total, unavailable=unavailable)
