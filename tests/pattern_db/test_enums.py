"""The enums and the CHECKs of the migrations hold the same lists."""

from __future__ import annotations

import re
from enum import StrEnum

import pytest

from pattern_db import enums
from pattern_db.connection import Connection

COLUMNS = {
    ("agents", "status"): enums.AgentStatus,
    ("messages", "role"): enums.Role,
    ("messages", "batch_type"): enums.BatchType,
    ("memory_blocks", "block_type"): enums.BlockType,
    ("memory_blocks", "permission"): enums.Permission,
    ("memory_blocks", "snapshot_encoding"): enums.Encoding,
    ("memory_block_checkpoints", "encoding"): enums.Encoding,
    ("memory_block_updates", "source"): enums.UpdateSource,
    ("memory_block_history", "kind"): enums.HistoryKind,
    ("memory_block_segments", "encoding"): enums.Encoding,
    ("memory_block_damaged", "encoding"): enums.Encoding,
    ("memory_block_damaged", "part"): enums.DamagedPart,
    ("shared_block_agents", "permission"): enums.Permission,
    ("turn", "status"): enums.TurnStatus,
    ("effect", "class"): enums.EffectClass,
    ("effect", "status"): enums.EffectStatus,
    ("approval", "kind"): enums.ApprovalKind,
    ("approval", "status"): enums.ApprovalStatus,
    ("outbox", "status"): enums.OutboxStatus,
    ("blob", "encoding"): enums.Encoding,
    ("tasks", "status"): enums.TaskStatus,
    ("coordination_tasks", "status"): enums.TaskStatus,
    ("event_occurrences", "status"): enums.OccurrenceStatus,
    ("folders", "path_type"): enums.PathType,
    ("folder_attachments", "access"): enums.FolderAccess,
    ("embedding_indexes", "state"): enums.IndexState,
}
EMBEDDED_TABLES = ("embeddings", "embedding_cursors", "embedding_changes", "embedding_refusals")


@pytest.mark.parametrize(("place", "enum"), COLUMNS.items(), ids=lambda item: getattr(item, "__name__", str(item)))
def test_the_check_lists_the_enum(db: Connection, place: tuple[str, str], enum: type[StrEnum]) -> None:
    assert listed(db, *place) == {item.value for item in enum}


@pytest.mark.parametrize("table", EMBEDDED_TABLES)
def test_the_check_lists_what_has_vectors(db: Connection, table: str) -> None:
    assert listed(db, table, "kind") == {kind.value for kind in enums.EMBEDDED}


def listed(db: Connection, table: str, column: str) -> set[str]:
    sql = str(db.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (table,)).fetchall()[0][0])
    found = re.search(rf"CHECK \({column} IN \(([^)]*)\)\)", sql)
    assert found is not None, sql
    return set(re.findall(r"'([^']*)'", found[1]))


def test_ranks_are_in_order() -> None:
    assert enums.Priority.LOW < enums.Priority.MEDIUM < enums.Priority.HIGH < enums.Priority.URGENT
    assert enums.Importance.LOW < enums.Importance.MEDIUM < enums.Importance.HIGH < enums.Importance.CRITICAL
