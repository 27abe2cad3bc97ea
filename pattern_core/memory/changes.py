"""The last steps of a change: into the open document, and into the unit of work that stores it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pattern_core.ids import Ids
from pattern_core.memory.delta import packed
from pattern_core.memory.document import Document, recorded
from pattern_core.memory.hot import Hot
from pattern_core.memory.shapes.containers import Write, apply
from pattern_core.memory.shapes.render import entry_text
from pattern_core.memory.shapes.schema import TIMESTAMP, LogSchema
from pattern_core.memory.stored import StoredEdit, store_edit
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.columns import Json, canonical, iso
from pattern_db.enums import HistoryKind
from pattern_db.tables import archival
from pattern_db.tables.archival import ArchivalRow
from pattern_db.tables.block_versions import HistoryRow
from pattern_db.tables.memory_blocks import Attribution, BlockRow, VisibleBlock


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """A change that the open document holds already: the update that carries it, and what it took and put (packed;
    None where that has no recorded form).
    """

    update: bytes
    change: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A signed change as it is stored: the plain rendering after it, and what its line of history says."""

    signed: Signed
    plain: str
    note: str
    kind: HistoryKind = HistoryKind.EDIT
    stack: str | None = None
    reverts: int | None = None


def sign(document: Document, edit: Callable[[Document], None], by: Attribution, now_ms: int) -> Signed:
    """Let `edit` change the open document, commit that and return it.

    Raises:
        DocumentDamaged: the change does not fit, or the library failed. Drop the document.
    """
    version = document.version()
    with recorded(document) as recording:
        edit(document)
        document.commit(by.author, by.cause or {}, now_ms=now_ms)
    return Signed(update=document.export_since(version), change=packed(recording.change))


def make(document: Document, writes: Sequence[Write], by: Attribution, now_ms: int) -> Signed:
    """Make the planned changes in the open document, commit them and return them.

    Raises:
        DocumentDamaged: they do not fit, or the library failed. Drop the document.
    """
    return sign(document, lambda opened: apply(opened, writes), by, now_ms)


def opened(hot: Hot) -> Document:
    """The document of a block that was opened for its holder."""
    if hot.document is None:
        raise RuntimeError("the block was held but not opened")
    return hot.document


def record(visible: VisibleBlock, hot: Hot, made: Made, by: Attribution, now_ms: int, work: UnitOfWork) -> VisibleBlock:
    """Have `work` store what the held block's document holds; return the block as it is then.

    `hot.is_changed` and `hot.author` must be set before the document is touched, so that one that failed half way is
    dropped. Nothing may wait between that and here: the document and the unit of work change together.
    """
    row = replace(
        visible.block,
        content_preview=made.plain,
        frontier=opened(hot).frontier(),
        last_seq=visible.block.last_seq + 1,
        updated_at=iso(now_ms),
    )
    hot.row, hot.seq = row, row.last_seq
    if hot.pending is not None:
        hot.pending.add(len(made.signed.update), now_ms)
    line = HistoryRow(
        block_id=row.id,
        seq=row.last_seq,
        frontiers=None if row.frontier is None else row.frontier.hex(),
        changed_by=by.author,
        timestamp=row.updated_at,
        change_summary=made.note,
        cause=by.cause,
        kind=made.kind,
        stack=made.stack,
        reverts=made.reverts,
        change=made.signed.change,
    )
    work.store(store_edit, StoredEdit(row=row, update=made.signed.update, by=by, line=line))
    work.event("memory.changed", told(row, by))
    return replace(visible, block=row)


def created(row: BlockRow, signed: Signed | None, by: Attribution) -> HistoryRow:
    """The first line of a block's history; `signed` is what it began with, if anything."""
    return HistoryRow(
        block_id=row.id,
        seq=0,
        frontiers=None if row.frontier is None else row.frontier.hex(),
        changed_by=by.author,
        timestamp=row.created_at,
        change_summary="Created",
        cause=by.cause,
        kind=HistoryKind.CREATE,
        change=packed({}) if signed is None else signed.change,
    )


def archive(row: BlockRow, schema: LogSchema, entries: Sequence[Json], ids: Ids, work: UnitOfWork) -> None:
    """Have `work` keep entries that a log has no room for in its owner's archive, where search finds them."""
    for entry in entries:
        kept = ArchivalRow(
            id=ids.new("arch"),
            agent_id=row.agent_id,
            content=entry_text(entry, schema),
            created_at=_time_of(entry) or row.updated_at,
            metadata={"from_block": row.label, "block_id": row.id},
        )
        work.store(archival.insert, kept)


def told(row: BlockRow, by: Attribution) -> dict[str, object]:
    """What the event `memory.changed` says: which block, its owner, its version, and who changed it."""
    return {
        "block_id": row.id,
        "label": row.label,
        "agent_id": row.agent_id,
        "version": row.last_seq,
        "by": by.author,
    }


def _time_of(entry: Json) -> str | None:
    """The stored time of an entry; None for one without, or with something else in its place."""
    try:
        return canonical(entry[TIMESTAMP])
    except (KeyError, TypeError, ValueError):
        return None
