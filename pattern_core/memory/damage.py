"""Documents that may be damaged. Those from outside (imports, peers) are first opened in a child process; there blocks
with damaged documents are found, and repaired at a person's request.

Of some 150,000 mutated inputs one aborted the process: it asked for 270 GB. That cannot be caught in this process, so a
child with bounded memory and time opens the bytes.

A repair starts from the newest part that opens and continues with the recorded changes of the history; for a text block
the text in lists and search decides. Unreadable bytes are stored separately, never deleted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from pattern_core.children import ChildFailed, Work, run_child
from pattern_core.errors import Conflict
from pattern_core.ids import now_text
from pattern_core.limits import MemoryLimits
from pattern_core.memory.block import SYSTEM, Attribution, BlockRow, Operation, schema_of
from pattern_core.memory.changes import applied
from pattern_core.memory.checkpoint import LIMITS, store_checkpoint, unpack
from pattern_core.memory.content import rendered, writes_to
from pattern_core.memory.document import (
    TEXT,
    BlockDocument,
    DocumentDamaged,
    HistoryDamaged,
    State,
    framed,
    new_peer,
    opened_parts,
)
from pattern_core.memory.history import changes_between
from pattern_core.memory.opened import OpenBlocks, changed_event, line_of
from pattern_core.memory.plan import Planned
from pattern_core.memory.schema import TextSchema
from pattern_core.unit_of_work import given_or_alone
from pattern_db import errors as storage
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.enums import Encoding, HistoryKind, UpdateSource
from pattern_db.tables import block_checkpoints, block_versions, memory_blocks

BATCH_BYTES_MAX = 4 * 1024 * 1024  # opened by one child, with bounded processor time
BATCH_BLOCKS_MAX = 200
CHECK_TIMEOUT_S, CHECK_CPU_S = 30.0, 2  # of the child that opens documents
CHECK_MEMORY_BYTES = 512 * 1024 * 1024


async def first_unopened(documents: Mapping[str, bytes]) -> tuple[str, str] | None:
    """Return the key of the first document from outside that cannot be opened, and the reason; None if all can."""
    keys, batch, size = list[str](), list[list[bytes]](), 0
    for number, (key, data) in enumerate(documents.items(), 1):
        keys.append(key)
        batch.append([data])
        size += len(data)
        if size < BATCH_BYTES_MAX and len(batch) < BATCH_BLOCKS_MAX and number < len(documents):
            continue
        for name, (_count, reason) in zip(keys, await _opened(batch), strict=True):
            if reason:
                return name, reason
        keys, batch, size = [], [], 0
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedBlock:
    """A block that cannot be opened, the reason, and its readable parts (a snapshot or nothing, then updates), each
    with the version after it.
    """

    block: BlockRow
    reason: str
    sound: tuple[tuple[int, bytes], ...]

    @property
    def version(self) -> int:
        """The newest version that can be opened; -1 if none."""
        return self.sound[-1][0] if self.sound else -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """A block after its repair, at `version`. If not `is_exact`, its last content is uncertain."""

    version: int
    is_exact: bool
    note: str


async def damaged_blocks(database: Database, *, with_past: bool = False) -> Sequence[DamagedBlock]:
    """Return every active block of the file with a document that cannot be opened or lacks updates. `with_past` looks
    at inactive blocks, earlier checkpoints and segments too: whatever a file from outside may have this process open.

    Nothing is changed, and no damaged bytes are opened in this process.
    """
    found: list[DamagedBlock] = []
    batch: list[DamagedBlock] = []
    size = 0
    for row in await database.read(partial(memory_blocks.list_all, include_inactive=with_past)):
        stored = await database.read_aside(_read_all if with_past else _read_newest, row.id)
        batch += stored
        size += sum(len(part) for one in stored for _, part in one.sound)
        if size >= BATCH_BYTES_MAX or len(batch) >= BATCH_BLOCKS_MAX:
            found += await _checked(batch)
            batch, size = [], 0
    return found + await _checked(batch)


async def damage_of(database: Database, block_id: str) -> DamagedBlock:
    """Return the readable parts of a damaged block, else the newest earlier checkpoint that opens; nothing is changed.

    Raises:
        NotFound: (of storage) there is no such block.
        Conflict: its document opens; there is nothing to repair.
    """
    [stored] = await database.read_aside(_read_newest, block_id)
    found = await _checked([stored])
    if not found:
        raise Conflict(f"the block {stored.block.label} can be opened; there is nothing to repair")
    if found[0].sound:
        return found[0]
    for stamp in await database.read(block_checkpoints.list_stamps, block_id):
        with suppress(DocumentDamaged):
            snapshot = unpack(*await database.read_aside(block_checkpoints.snapshot_of, stamp.id))
            if (await _opened([[snapshot]]))[0] == (1, ""):
                return replace(found[0], sound=((stamp.up_to_seq, snapshot),))
    return found[0]


def _read_newest(connection: Connection, block_id: str) -> list[DamagedBlock]:
    return [_read(connection, memory_blocks.get(connection, block_id))]


def _read_all(connection: Connection, block_id: str) -> list[DamagedBlock]:
    """Return the block's stored parts; then each checkpoint, and what its history is built from, in the same way."""
    row = memory_blocks.get(connection, block_id, include_inactive=True)
    updates = [
        (one.seq, one.update_blob, Encoding.RAW) for one in block_versions.get_updates_since(connection, row.id, 0)
    ]
    past = [(one.last_seq, one.data, one.encoding) for one in block_checkpoints.segments_of(connection, row.id)]
    checkpoints = block_checkpoints.list_checkpoints(connection, row.id)
    found = [_read(connection, row)]
    for packed in (
        *([(one.up_to_seq, one.snapshot, one.encoding)] for one in checkpoints),
        [*past, *updates] if past else [],
    ):
        try:
            sound = tuple((seq, unpack(data, encoding)) for seq, data, encoding in packed)
            found.append(DamagedBlock(block=row, reason="", sound=sound))
        except DocumentDamaged as error:
            found.append(DamagedBlock(block=row, reason=error.message, sound=()))
    return found


def _read(connection: Connection, row: BlockRow) -> DamagedBlock:
    """Return the block's stored parts; `reason` is set if some are missing."""
    checkpoint, updates = block_checkpoints.get_checkpoint_and_updates(connection, row.id)
    start = 0 if checkpoint is None else checkpoint.up_to_seq
    try:
        snapshot = b"" if checkpoint is None else unpack(checkpoint.snapshot, checkpoint.encoding)
    except DocumentDamaged as error:
        return DamagedBlock(block=row, reason=error.message, sound=())
    parts = [(start, snapshot), *((update.seq, update.update_blob) for update in updates)]
    there = [part for number, part in enumerate(parts, start) if part[0] == number]
    is_whole = len(there) == len(parts) and parts[-1][0] == row.last_seq
    return DamagedBlock(block=row, reason="" if is_whole else "updates are missing", sound=tuple(there))


async def _checked(batch: Sequence[DamagedBlock]) -> list[DamagedBlock]:
    """Return the blocks that cannot be opened, with their readable parts."""
    answers = await _opened([[part for _, part in one.sound] for one in batch])
    return [
        replace(one, reason=one.reason or reason, sound=one.sound[:count])
        for one, (count, reason) in zip(batch, answers, strict=True)
        if one.reason or reason
    ]


async def _opened(documents: Sequence[Sequence[bytes]]) -> list[tuple[int, str]]:
    """Return the child's answer for each document; one that crashes the child is tried again, alone."""
    answers: list[tuple[int, str]] = []
    while len(answers) < len(documents):
        answers += await _asked(documents[len(answers) :])
        if len(answers) < len(documents):
            answers += await _asked([documents[len(answers)]]) or [(0, "opening it ended a separate process")]
    return answers


async def _in_child(work: Work, data: bytes) -> bytes:
    return await run_child(work, data, timeout_s=CHECK_TIMEOUT_S, cpu_s=CHECK_CPU_S, memory_bytes=CHECK_MEMORY_BYTES)


async def _asked(documents: Sequence[Sequence[bytes]]) -> list[tuple[int, str]]:
    """Return the answers of one child until it ended."""
    try:
        output = await _in_child(opened_parts, framed(documents))
    except ChildFailed as error:
        output = error.output[: error.output.rfind(b"\n") + 1]
    return [(count, reason) for count, reason in map(json.loads, output.splitlines())]


def store_repair(
    connection: Connection, damage: DamagedBlock, now: str, peer: int, limits: MemoryLimits = LIMITS
) -> Repaired:
    """Repair the block from its readable parts, as a new version. It must not be open.

    `peer` is a number that no document knows yet.

    Raises:
        NotFound: (of storage) the block has been deleted.
        Conflict: (of storage) another writer changed it.
    """
    row, sound, at = memory_blocks.get(connection, damage.block.id), damage.sound, damage.version
    if row.last_seq != damage.block.last_seq:
        raise storage.RowConflict(f"the block {row.label} was changed by another writer; try again")
    parts = [part for _, part in sound if part]
    document = BlockDocument.load(None, parts[:1], peer=peer)
    based = document.version()
    for part in parts[1:]:
        document.import_update(part)
    held = document.state()
    state, is_exact = _last_known(connection, row, held, at)
    signed = document.sign(held, writes_to(held, state), SYSTEM, now_ms=0)
    block_checkpoints.put_aside(connection, row.id, at, now, damage.reason)
    shown = rendered(row, document.state())
    seq = block_versions.store_update(
        connection, row.id, signed.update, UpdateSource.MIGRATION, now, signed.frontier, SYSTEM, shown
    )
    base = block_checkpoints.get_checkpoint_and_updates(connection, row.id)[0] if sound else None
    store_checkpoint(connection, row.id, document, base, based, seq, now, limits)
    note = f"Repaired: {damage.reason}; " + ("nothing was lost" if is_exact else "the last changes may be lost")
    planned = Planned(writes={}, note=note, kind=HistoryKind.REPAIR)
    row = replace(row, last_seq=seq, frontier=signed.frontier, updated_at=now)
    block_versions.append(connection, line_of(row, SYSTEM, planned, {} if is_exact else None))
    return Repaired(version=seq, is_exact=is_exact, note=note)


def _last_known(connection: Connection, row: BlockRow, state: State, at: int) -> tuple[State, bool]:
    """Return the block's newest content, starting from the version `at`, and whether it is certain."""
    try:
        for seq, change in changes_between(connection, row.id, at, row.last_seq):
            state, at = applied(state, change), seq
    except HistoryDamaged:
        at = -1
    is_exact = at == row.last_seq
    if isinstance(schema_of(row.metadata), TextSchema) and row.content_preview is not None:
        is_exact = is_exact and state.get(TEXT, "") == row.content_preview
        rest = {name: value for name, value in state.items() if name != TEXT}
        state = {**rest, TEXT: row.content_preview} if row.content_preview else rest
    return state, is_exact


async def repair_block(blocks: OpenBlocks, agent_id: str, label: str, by: Attribution) -> Repaired:
    """Repair a damaged block from its readable parts, as a new version; unreadable bytes are stored separately in the
    same transaction.

    Raises:
        NotFound: there is no such block.
        PermissionDenied: the permission does not allow an agent to overwrite.
        Conflict: the block can be opened; there is nothing to repair.
    """
    async with given_or_alone(None, blocks.commit) as unit:
        opened = await blocks.hold(agent_id, label, by, Operation.OVERWRITE, unit)
        damage = await damage_of(blocks.database, opened.row.id)
        now, peer, limits = now_text(blocks.clock), new_peer(blocks.randomness), blocks.limits.memory
        done: list[Repaired] = []
        unit.store(lambda connection: done.append(store_repair(connection, damage, now, peer, limits)))
        row = replace(opened.row, last_seq=opened.row.last_seq + 1)
        unit.event("memory.changed", {**changed_event(row, by), "repaired": True})
        unit.when_settled(blocks.stored)
    return done[-1]
