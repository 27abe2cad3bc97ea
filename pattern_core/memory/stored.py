"""What the memory store asks of storage: functions of a connection that each are one read or part of one write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from pattern_core.errors import NotFound
from pattern_core.memory.authors import AGENT as AGENT
from pattern_core.memory.authors import is_agent
from pattern_core.memory.checkpoint import pack
from pattern_db import errors as storage
from pattern_db.connection import Connection
from pattern_db.enums import UpdateSource
from pattern_db.tables import agents, block_checkpoints, block_versions, memory_blocks
from pattern_db.tables.block_checkpoints import Checkpoint
from pattern_db.tables.block_versions import HistoryRow, Update, UpdateStats
from pattern_db.tables.memory_blocks import Attribution, BlockChanges, BlockRow, Via, VisibleBlock

LABELS_SHOWN_MAX = 50  # of an agent's blocks, in the answer to a wrong label


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEdit:
    """What one edit writes: the block after it, its update, and its line of history."""

    row: BlockRow
    update: bytes
    by: Attribution
    line: HistoryRow


def distinct(visible: Sequence[VisibleBlock]) -> Sequence[VisibleBlock]:
    """Of each label the first, which is the one that the label means."""
    first: dict[str, VisibleBlock] = {}
    for one in visible:
        first.setdefault(one.block.label, one)
    return list(first.values())


def with_owners(connection: Connection, agent_id: str) -> tuple[list[VisibleBlock], dict[str, str]]:
    """What the agent sees, and the names of those who lent it blocks, by id; a group lends without a name."""
    visible = memory_blocks.list_visible(connection, agent_id)
    names: dict[str, str] = {}
    for owner in {one.block.agent_id for one in visible if one.via is Via.ATTACHED}:
        with suppress(storage.NotFound):
            names[owner] = agents.get(connection, owner).name
    return visible, names


def resolve(connection: Connection, agent_id: str, label: str) -> VisibleBlock:
    """The block that the agent means by the label.

    Raises:
        NotFound: it sees none; the message lists what it sees.
    """
    try:
        return memory_blocks.resolve_label(connection, agent_id, label)
    except storage.NotFound:
        there = distinct(memory_blocks.list_visible(connection, agent_id))
        labels = ", ".join([one.block.label for one in there[:LABELS_SHOWN_MAX]]) or "none"
        raise NotFound(f"there is no memory block {label!r}; there are: {labels}") from None


def load(connection: Connection, block_id: str) -> tuple[Checkpoint | None, list[Update], UpdateStats]:
    """What a block's document is made of, and what its updates since the checkpoint come to.

    Raises:
        NotFound: (of storage) there is no such block.
    """
    checkpoint, updates = block_checkpoints.get_checkpoint_and_updates(connection, block_id)
    return checkpoint, updates, block_versions.get_pending_update_stats(connection, block_id)


def store_block(connection: Connection, row: BlockRow, snapshot: bytes, line: HistoryRow) -> None:
    """Add a block and its first line of history; empty bytes for one whose first write will be an update.

    Raises:
        Conflict: (of storage) the owner has an active block of that label.
    """
    data, encoding = pack(snapshot)
    with _label_taken(row.label), storage.translated():
        memory_blocks.create(connection, row, data, encoding=encoding)
    block_versions.append(connection, line)


def store_settings(connection: Connection, block_id: str, changes: BlockChanges, updated_at: str) -> None:
    """Change a block's settings.

    Raises:
        NotFound: (of storage) the block was deleted meanwhile.
        Conflict: (of storage) the owner has another active block of the new label.
    """
    with _label_taken(changes.label), storage.translated():
        memory_blocks.update_config(connection, block_id, changes, updated_at)


@contextmanager
def _label_taken(label: str | None) -> Iterator[None]:
    try:
        yield
    except storage.Conflict as error:
        raise storage.Conflict(f"there is a block {label!r} already; edit it or choose another label") from error


def store_edit(connection: Connection, edit: StoredEdit) -> None:
    """Store the update, the text for search and lists, and the line of history.

    Raises:
        NotFound: (of storage) the block was deleted meanwhile.
        Conflict: (of storage) another writer was first.
    """
    row = edit.row
    source = UpdateSource.AGENT if is_agent(edit.by.author) else UpdateSource.MANUAL
    seq = block_versions.store_update(connection, row.id, edit.update, source, row.updated_at, row.frontier, edit.by)
    if seq != row.last_seq:  # others wait for the block, so nobody else may have given out that number
        raise storage.Conflict(f"the block {row.label} was changed by another writer; read it again")
    memory_blocks.update_content(connection, row.id, row.content_preview, row.frontier, row.updated_at)
    block_versions.append(connection, edit.line)
