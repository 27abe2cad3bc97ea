"""Documents as tests write them, and a block edited as the store does it, straight on the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from pattern_core.errors import InvalidInput
from pattern_core.memory.checkpoint import Consolidator, unpack
from pattern_core.memory.document import TEXT, BlockDocument, Count, Keys, Splice, Spliced, Writes
from pattern_core.memory.opened import line_of
from pattern_core.memory.plan import Planned
from pattern_core.memory.revisions import UNDO_REACH, plan_merge, plan_revert, plan_rollback
from pattern_core.testing import StoppedClock
from pattern_db.columns import Json
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.enums import HistoryKind
from pattern_db.tables import block_checkpoints, block_versions, memory_blocks
from pattern_db.tables.block_versions import HistoryRow
from pattern_db.tables.memory_blocks import Attribution
from tests.pattern_core.memory.rig import NOW, block_row

CREATED = Planned(writes={}, note="Created", kind=HistoryKind.CREATE)
EDITED = Planned(writes={}, note="Edited")


def splice(at: int, delete: int, insert: str, container: str = TEXT) -> Writes:
    return {container: Spliced(True, (Splice(at, "?" * delete, insert),))}


def put_field(key: str, value: Json) -> Writes:
    return {"fields": Keys({key: (None, value)})}


def splice_items(at: int, delete: int, insert: Sequence[Json]) -> Writes:
    return {"items": Spliced(False, (Splice(at, (None,) * delete, tuple(insert)),))}


def add(delta: float) -> Writes:
    return {"counter_n": Count(delta)}


class Pen(BlockDocument):
    """A document with methods for text."""

    @property
    def length(self) -> int:
        return self._doc.get_text(TEXT).len_unicode

    def append(self, text: str) -> None:
        self.splice(self.length, 0, text)

    @property
    def text(self) -> str:
        text: str = self.state().get(TEXT, "")
        return text

    def splice(self, at: int, delete: int, insert: str) -> None:
        self.apply(splice(at, delete, insert))

    def set_text(self, text: str) -> None:
        self.apply({TEXT: text})

    def commit(self, author: str, *, now_ms: int = 0) -> None:
        self.sign({}, {}, Attribution(author=author), now_ms=now_ms)

    def is_at(self, version: bytes) -> bool:
        """Whether the document has seen exactly what `version` says, whose bytes come in no fixed order."""
        seen = self._doc.oplog_vv
        return seen == type(seen).decode(version)


def create(connection: Connection, content: str = "", block_id: str = "mem_1") -> str:
    """Store a block with its first line of history; return its id."""
    document, by = Pen(1), Attribution(author="user:maker")
    signed = document.sign({}, {TEXT: content}, by, now_ms=0)
    row = block_row(id=block_id, label=block_id, content_preview=content, frontier=signed.frontier)
    memory_blocks.create(connection, row, document.snapshot() if content else b"")
    block_versions.append(connection, line_of(row, by, CREATED, signed.change))
    return block_id


class Life:
    """One open document. `peer` must be another one after each `reopen`. Not `is_indexed`: search does not find it."""

    def __init__(self, connection: Connection, block_id: str, peer: int = 2, *, is_indexed: bool = True) -> None:
        self.connection, self.block_id, self._is_indexed = connection, block_id, is_indexed
        self.reopen(peer)

    def reopen(self, peer: int) -> None:
        checkpoint, updates = block_checkpoints.get_checkpoint_and_updates(self.connection, self.block_id)
        snapshot = None if checkpoint is None else unpack(checkpoint.snapshot, checkpoint.encoding)
        self.document = Pen.load(snapshot, [update.update_blob for update in updates], peer=peer)

    @property
    def version(self) -> int:
        return memory_blocks.get(self.connection, self.block_id).last_seq

    @property
    def text(self) -> str:
        return self.document.text

    def edit(self, author: str, writes: Writes, *, plan: Planned = EDITED) -> bool:
        """Change the document and store it; return whether anything changed."""
        version = self.document.version()
        by = Attribution(author=author, cause={"message": f"msg_{self.version + 1}"})
        signed = self.document.sign(self.document.state(), writes, by, now_ms=0)
        if self.document.is_at(version):
            return False
        assert signed.change is not None
        content = self.document.text if self._is_indexed else None
        block_versions.store_update(
            self.connection, self.block_id, signed.update, None, NOW, signed.frontier, by, content
        )
        row = memory_blocks.get(self.connection, self.block_id)
        block_versions.append(self.connection, line_of(row, by, plan, signed.change))
        return True

    def carry_out(self, author: str, plan: Planned) -> Planned:
        self.edit(author, plan.writes, plan=plan)
        return plan

    async def consolidate(self, database: Database) -> None:
        await Consolidator(database, StoppedClock(0), lambda _: None).consolidate(self.block_id)

    def put(self, author: str, text: str) -> None:
        self.edit(author, {TEXT: text})

    def append(self, author: str, text: str) -> None:
        self.edit(author, splice(self.document.length, 0, text))

    def lines(self, after: int | None = None) -> list[HistoryRow]:
        after = max(self.version - UNDO_REACH, -1) if after is None else after
        return block_versions.between(self.connection, self.block_id, after, self.version, limit=UNDO_REACH)

    def undo(self, author: str, by: str | None = None) -> Planned:
        return self.carry_out(by or author, plan_revert(self.lines(), author, HistoryKind.UNDO))

    def redo(self, author: str) -> Planned:
        return self.carry_out(author, plan_revert(self.lines(), author, HistoryKind.REDO))

    def rollback(self, author: str, then: Mapping[str, object], version: int) -> None:
        with suppress(InvalidInput):
            self.carry_out(author, plan_rollback(self.document.state(), dict(then), version))

    def merge(self, author: str, base: int, writes: Writes) -> None:
        plan = plan_merge(self.lines(base), self.document.state(), writes, base=base, note="Merged")
        if plan.writes:
            self.carry_out(author, plan)
