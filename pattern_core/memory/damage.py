"""Documents that may not open. Those from outside (imports, peers) are opened in a child process before this one
touches them; blocks whose stored documents cannot be opened are found there, and repaired when a person asks for it.

Of some 150,000 mutated inputs one aborted the process: it asked for 270 GB. No code here can catch that, so a child
with bounded memory and time opens the bytes.

A repair starts from the newest part that opens and goes on with the recorded changes of the history; for a text block
the text that lists and search show decides. What could not be read is put aside, never thrown away.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import trio

from pattern_core.errors import Conflict, InvalidInput
from pattern_core.ids import now_text
from pattern_core.limits import MemoryLimits
from pattern_core.memory.block import Attribution, BlockRow, Operation, schema_of
from pattern_core.memory.changes import applied, writes_to
from pattern_core.memory.checkpoint import LIMITS, store_checkpoint, unpack
from pattern_core.memory.content import plain, value_of
from pattern_core.memory.document import (
    TEXT,
    BlockDocument,
    DocumentDamaged,
    HistoryDamaged,
    State,
    new_peer,
    packed,
    state_of,
    unpacked,
)
from pattern_core.memory.document_check import PARTS, REFUSED, frame
from pattern_core.memory.opened import OpenBlocks, told
from pattern_core.memory.schema import SchemaKind
from pattern_core.unit_of_work import given_or_alone
from pattern_db import errors as storage
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.enums import HistoryKind, UpdateSource
from pattern_db.tables import block_checkpoints, block_versions, memory_blocks
from pattern_db.tables.block_checkpoints import Checkpoint
from pattern_db.tables.block_versions import HistoryRow

BATCH_BYTES_MAX = 4 * 1024 * 1024  # opened by one child, whose processor time is bounded
BATCH_BLOCKS_MAX = 200
FOREIGN_BYTES_MAX = 8 * 1024 * 1024
SNAPSHOT_BYTES_MAX = 32 * 1024 * 1024
# Of wall time; the child bounds its own processor time far below.
FOREIGN_TIMEOUT_S = 20.0
STORED_TIMEOUT_S = 30.0
_CHECK = "pattern_core.memory.document_check"
_ROOT = Path(__file__).resolve().parents[2]  # where `-m` finds our packages, in a checkout as in site-packages
_BY = "system"
_DIED = "opening it ended a separate process"


async def validate_foreign(data: bytes) -> bytes:
    """A clean snapshot of the document in `data` (a snapshot or all its updates), safe to load in this process.

    Raises:
        InvalidInput: `data` is too long, is no whole document, or the check died or took too long over it.
    """
    if len(data) > FOREIGN_BYTES_MAX:
        raise InvalidInput(f"the document has {len(data)} bytes; at most {FOREIGN_BYTES_MAX} are taken")
    with trio.move_on_after(FOREIGN_TIMEOUT_S):
        done = await _run_check(data)
        if done.returncode == REFUSED:
            raise InvalidInput(f"these bytes are not a document: {done.stderr.decode(errors='replace')[:300]}")
        if done.returncode != 0:
            raise InvalidInput("these bytes are not a document: opening them in a separate process ended that process")
        if len(done.stdout) > SNAPSHOT_BYTES_MAX:
            raise InvalidInput(
                f"the document unfolds to {len(done.stdout)} bytes; at most {SNAPSHOT_BYTES_MAX} are taken"
            )
        return bytes(done.stdout)
    raise InvalidInput(f"opening the document took longer than {FOREIGN_TIMEOUT_S:.0f} s")


async def _run_check(data: bytes, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """What the child says of `data`; cancelling kills it."""
    command = [sys.executable, "-m", _CHECK, *arguments]
    return await trio.run_process(command, stdin=data, capture_stdout=True, capture_stderr=True, check=False, cwd=_ROOT)


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedBlock:
    """A block that cannot be opened, and why. `version` is the newest version that can be; -1 if none."""

    block: BlockRow
    reason: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """A block after its repair, at `version`. Not `is_exact`: what it was last could not be told for certain."""

    block_id: str
    version: int
    is_exact: bool
    note: str


@dataclass(frozen=True, slots=True)
class _Stored:
    row: BlockRow
    checkpoint: Checkpoint | None
    seqs: tuple[int, ...]  # of the parts: the snapshot's (0 for the one at creation), then the updates'
    parts: tuple[bytes, ...]
    reason: str = ""


async def damaged_blocks(database: Database) -> Sequence[DamagedBlock]:
    """Every active block of the file whose document cannot be opened, or lacks updates; the others are sound.

    Nothing is changed, and no damaged byte is opened in this process.
    """
    found: list[DamagedBlock] = []
    batch: list[_Stored] = []
    size = 0
    for row in await database.read(memory_blocks.list_all):
        stored = await database.read_aside(_read, row.id)
        batch.append(stored)
        size += sum(map(len, stored.parts))
        if size >= BATCH_BYTES_MAX or len(batch) >= BATCH_BLOCKS_MAX:
            found += await _checked(batch)
            batch, size = [], 0
    return found + await _checked(batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mending:
    """What a repair starts from: the damage, and the parts that open, with the newest version in each."""

    damage: DamagedBlock
    sound: tuple[tuple[int, bytes], ...]


async def prepare(database: Database, block_id: str) -> Mending:
    """Find what is left of a damaged block; nothing is changed.

    Raises:
        NotFound: (of storage) there is no such block.
        Conflict: its document opens; there is nothing to repair.
    """
    stored = await database.read_aside(_read, block_id)
    damage = await _checked([stored])
    if not damage:
        raise Conflict(f"the block {stored.row.label} can be opened; there is nothing to repair")
    sound = [(seq, part) for seq, part in zip(stored.seqs, stored.parts, strict=True) if seq <= damage[0].version]
    if not sound:
        sound = await _earlier(database, block_id)
    return Mending(damage=damage[0], sound=tuple(sound))


async def _earlier(database: Database, block_id: str) -> list[tuple[int, bytes]]:
    """The newest earlier checkpoint that opens; nothing if none does."""
    for stamp in await database.read(block_checkpoints.list_stamps, block_id):
        data, encoding = await database.read_aside(block_checkpoints.snapshot_of, stamp.id)
        try:
            snapshot = unpack(data, encoding)
        except DocumentDamaged:
            continue
        if (await _opened([[snapshot]]))[0] == (1, ""):
            return [(stamp.up_to_seq, snapshot)]
    return []


def _read(connection: Connection, block_id: str) -> _Stored:
    row = memory_blocks.get(connection, block_id)
    checkpoint, updates = block_checkpoints.get_checkpoint_and_updates(connection, block_id)
    start = 0 if checkpoint is None else checkpoint.up_to_seq
    seqs = (start, *(update.seq for update in updates))
    blobs = tuple(update.update_blob for update in updates)
    if list(seqs) != list(range(start, row.last_seq + 1)):
        last = next((seq for number, seq in enumerate(seqs) if seq != start + number), seqs[-1] + 1) - 1
        count = last - start
        return _Stored(
            row, checkpoint, seqs[: count + 1], (_snapshot(checkpoint), *blobs[:count]), "updates are missing"
        )
    try:
        return _Stored(row, checkpoint, seqs, (_snapshot(checkpoint), *blobs))
    except DocumentDamaged as error:
        return _Stored(row, checkpoint, (), (), error.message)


def _snapshot(checkpoint: Checkpoint | None) -> bytes:
    return b"" if checkpoint is None else unpack(checkpoint.snapshot, checkpoint.encoding)


async def _checked(batch: Sequence[_Stored]) -> list[DamagedBlock]:
    found = []
    for stored, (count, reason) in zip(batch, await _opened([one.parts for one in batch]), strict=True):
        if reason or stored.reason:
            version = stored.seqs[count - 1] if count else -1
            found.append(DamagedBlock(block=stored.row, reason=stored.reason or reason, version=version))
    return found


async def _opened(documents: Sequence[Sequence[bytes]]) -> list[tuple[int, str]]:
    """What the child says of each document; the one that it dies of is tried once more, alone."""
    answers: list[tuple[int, str]] = []
    while len(answers) < len(documents):
        answers += await _asked(documents[len(answers) :])
        if len(answers) < len(documents):
            answers += await _asked([documents[len(answers)]]) or [(0, _DIED)]
    return answers


async def _asked(documents: Sequence[Sequence[bytes]]) -> list[tuple[int, str]]:
    """The answers of one child, as far as it came."""
    with trio.move_on_after(STORED_TIMEOUT_S):
        done = await _run_check(b"".join(map(frame, documents)), PARTS)
        return [(count, reason) for count, reason in map(json.loads, done.stdout.splitlines())]
    return []


def mend(connection: Connection, mending: Mending, now: str, peer: int, limits: MemoryLimits = LIMITS) -> Repaired:
    """Make the block one that opens again, from what is known of it, as a new version. Nobody may have it open.

    `peer` is a number that no document knows yet.

    Raises:
        NotFound: (of storage) the block has been deleted.
        Conflict: (of storage) it was changed meanwhile.
    """
    damage, sound = mending.damage, mending.sound
    row = memory_blocks.get(connection, damage.block.id)
    if row.last_seq != damage.block.last_seq:
        raise storage.Conflict(f"the block {row.label} was changed meanwhile; try again")
    at = sound[-1][0] if sound else -1
    parts = [part for _, part in sound if part]
    document = BlockDocument.load(None, parts[:1], peer=peer)
    based = document.version()
    for part in parts[1:]:
        document.import_update(part)
    held = state_of(document)
    state, is_exact = _last_known(connection, row, held if sound else {}, at)
    signed = document.sign(held, writes_to(held, state), _BY, {}, now_ms=0)
    block_checkpoints.put_aside(connection, row.id, at, now, damage.reason)
    schema = schema_of(row.metadata)
    shown = plain(value_of(state_of(document), schema), schema)
    by = Attribution(author=_BY)
    seq = block_versions.store_update(
        connection, row.id, signed.update, UpdateSource.MIGRATION, now, signed.frontier, by, shown
    )
    base = block_checkpoints.get_checkpoint_and_updates(connection, row.id)[0] if sound else None
    store_checkpoint(connection, row.id, document, base, based, seq, now, limits)
    note = f"Repaired: {damage.reason}; " + ("nothing was lost" if is_exact else "the last changes may be lost")
    line = HistoryRow(
        block_id=row.id,
        frontiers=signed.frontier.hex(),
        changed_by=_BY,
        timestamp=now,
        seq=seq,
        change_summary=note,
        kind=HistoryKind.REPAIR,
        change=packed({}) if is_exact else None,
    )
    block_versions.append(connection, line)
    return Repaired(block_id=row.id, version=seq, is_exact=is_exact, note=note)


def _last_known(connection: Connection, row: BlockRow, state: State, at: int) -> tuple[State, bool]:
    """The block's newest content, from what it was at the version `at` on, and whether it is certain."""
    try:
        for seq, data in block_versions.changes(connection, row.id, at, row.last_seq):
            if data is None or seq != at + 1:
                break
            state, at = applied(state, unpacked(data)), seq
    except HistoryDamaged:
        at = -1
    is_exact = at == row.last_seq
    if schema_of(row.metadata).kind is SchemaKind.TEXT and row.content_preview is not None:
        is_exact = is_exact and state.get(TEXT, "") == row.content_preview
        rest = {name: value for name, value in state.items() if name != TEXT}
        state = {**rest, TEXT: row.content_preview} if row.content_preview else rest
    return state, is_exact


class Repairs:
    """Repair, over the blocks that a `MemoryStore` works on."""

    def __init__(self, blocks: OpenBlocks) -> None:
        self._blocks = blocks

    async def repair(self, agent_id: str, label: str, by: Attribution) -> Repaired:
        """Make a damaged block one that opens, from what is known of it, as a new version; what cannot be read is put
        aside in the same transaction.

        Raises:
            NotFound: there is no such block.
            PermissionDenied: the permission does not let an agent overwrite.
            Conflict: the block can be opened; there is nothing to repair.
        """
        blocks = self._blocks
        async with given_or_alone(None, blocks.commit) as unit:
            opened = await blocks.hold(agent_id, label, by, Operation.OVERWRITE, unit)
            mending = await prepare(blocks.database, opened.row.id)
            opened.author = by.author
            now, peer = now_text(blocks.clock), new_peer(blocks.randomness)
            done: list[Repaired] = []
            unit.store(lambda connection: done.append(mend(connection, mending, now, peer, blocks.limits.memory)))
            row = replace(opened.row, last_seq=opened.row.last_seq + 1)
            unit.event("memory.changed", {**told(row, by), "repaired": True})
        return done[-1]
