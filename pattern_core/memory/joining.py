"""Joins what two files have of one block, after one was copied from the other: what was added there becomes versions of
the block here, each with its author, time and cause.

Documents that began as one merge; others must not, since their words would be there twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pattern_core.errors import InvalidInput
from pattern_core.limits import MemoryLimits
from pattern_core.memory.block import SYSTEM, Attribution, schema_of
from pattern_core.memory.checkpoint import LIMITS, store_checkpoint, whole_document
from pattern_core.memory.content import rendered
from pattern_core.memory.document import DocumentDamaged
from pattern_core.memory.opened import line_of
from pattern_core.memory.plan import Planned
from pattern_db.connection import Connection
from pattern_db.enums import HistoryKind, UpdateSource
from pattern_db.tables import block_checkpoints, block_versions, memory_blocks
from pattern_db.tables.block_versions import HistoryRow

VERSIONS_MAX = 1_000  # that are added one by one; those before them become one
_ALL = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedBlock:
    """A block after the merge: its label, how many `versions` were added, and whether its text `is_too_long` now."""

    label: str
    versions: int
    is_too_long: bool


def are_related(here: Connection, there: Connection, block_id: str) -> bool:
    """Return whether a block that both files have can be merged: same schema, and documents that began as one."""
    try:
        schemas = [schema_of(memory_blocks.get(one, block_id).metadata) for one in (here, there)]
        documents = [whole_document(one, block_id) for one in (here, there)]
    except (DocumentDamaged, InvalidInput):
        return False
    return schemas[0] == schemas[1] and documents[0].has_common_history(documents[1])


def join_block(
    here: Connection,
    there: Connection,
    block_id: str,
    ids: Mapping[str, str],
    now: str,
    limits: MemoryLimits = LIMITS,
) -> JoinedBlock:
    """Add to a block what the file `there` has of it, in the order of its versions there; the same again adds nothing.

    The two must be related. `ids` are new ones of what authors and causes refer to. Nothing is cut: a text may become
    longer than its block allows.

    Raises:
        DocumentDamaged: one of the documents cannot be read.
    """
    document, other = whole_document(here, block_id), whole_document(there, block_id)
    based, base = document.version(), block_checkpoints.get_checkpoint_and_updates(here, block_id)[0]
    row, versions = memory_blocks.get(here, block_id), 0
    lines = block_versions.between(there, block_id, -1, _ALL, limit=VERSIONS_MAX)
    state = document.state()
    for line in [*lines, None]:
        if line is not None and not isinstance(line.frontiers, str):
            continue  # what it added comes with the next one
        signed = document.join(other, None if line is None else bytes.fromhex(str(line.frontiers)), state)
        if signed is None:
            continue
        state, versions = document.state(), versions + 1
        by, planned = _told(line, ids)
        shown = rendered(row, state)
        seq = block_versions.store_update(
            here, block_id, signed.update, UpdateSource.SYNC, now, signed.frontier, by, shown
        )
        row = replace(row, last_seq=seq, frontier=signed.frontier, content_preview=shown)
        row = replace(row, updated_at=now if line is None else line.timestamp)
        block_versions.append(here, line_of(row, by, planned, signed.change))
    if versions:  # an update from before the newest checkpoint could not be opened on top of it
        store_checkpoint(here, block_id, document, base, based, row.last_seq, now, limits)
    return JoinedBlock(label=row.label, versions=versions, is_too_long=len(row.content) > row.char_limit)


def _told(line: HistoryRow | None, ids: Mapping[str, str]) -> tuple[Attribution, Planned]:
    """Return who made the change of a line, and what it was; None: of changes without a line."""
    if line is None:
        return SYSTEM, Planned(writes={}, note="Merged", kind=HistoryKind.MERGE)
    kind, _, name = line.changed_by.partition(":")
    cause = {key: ids.get(value, value) for key, value in line.cause.items()} if isinstance(line.cause, dict) else None
    by = Attribution(author=f"{kind}:{ids.get(name, name)}" if name else kind, cause=cause)
    return by, Planned(writes={}, note=line.change_summary or "", kind=HistoryKind.MERGE)
