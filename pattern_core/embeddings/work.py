"""One batch of the embedding queue, as functions of a connection: what lacks a vector, and storing what was made.

Between the two the model works, and anything may happen to the texts. So storing looks at each text again, within its
transaction: a vector is stored only for the text as it is at that moment, and one that is gone leaves none. Killed in
between, nothing is lost but the vectors of one batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pattern_core.embeddings.texts import Piece, pieces_of
from pattern_db import vectors
from pattern_db.connection import Connection
from pattern_db.enums import IndexState, SearchKind
from pattern_db.tables import embedding_indexes as indexes
from pattern_db.tables import embedding_refusals as refusals
from pattern_db.tables import embedding_sources as sources
from pattern_db.tables.embedding_indexes import Cursor, IndexRow
from pattern_db.tables.embedding_sources import Source
from pattern_db.vectors import Embedding

BATCH_ROWS = 32  # rows that one batch looks at
BATCH_PIECES = 64  # pieces after which it takes no further row; a single long text may have more
# The past, worked off one kind after the other: what agents keep before what they said.
_PAST = (SearchKind.BLOCK, SearchKind.ARCHIVAL, SearchKind.SUMMARY, SearchKind.MESSAGE, SearchKind.FILE)

Ref = tuple[SearchKind, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Texts to bring up to date in `index`, and the cursor's move that they stand for.

    `missing` maps the hashes of pieces without a vector to their texts; `known` those that have one already, perhaps
    as part of another text, to it.
    """

    index: IndexRow
    refs: Sequence[Ref]
    missing: Mapping[str, str]
    known: Mapping[str, bytes]
    move: tuple[Cursor, Cursor] | None = None


@dataclass(frozen=True, slots=True)
class Coverage:
    """How many of how many rows an index has looked at; rows without words count as looked at.

    `refused`: how many of those that are done have a piece that the model gave no vector for.
    """

    done: int
    total: int
    refused: int = 0


def gather(connection: Connection, index: IndexRow) -> Batch | None:
    """The next batch: what changed, then what is new, then the past, newest first; None if all is up to date."""
    changed = indexes.changes(connection, index.id, BATCH_ROWS)
    if changed:
        return _batch(connection, index, [(0, ref) for ref in changed])
    cursors = indexes.cursors(connection, index.id)
    for kind, cursor in cursors.items():
        rows = sources.newer(connection, kind, cursor.high, BATCH_ROWS)
        if rows:
            return _batch(connection, index, [(row, (kind, ref)) for row, ref in rows], cursor)
    for kind in _PAST:
        if kind in cursors and cursors[kind].low > 0:
            rows = sources.older(connection, kind, cursors[kind].low, BATCH_ROWS)
            return _batch(connection, index, [(row, (kind, ref)) for row, ref in rows], cursors[kind])
    return None


def store(
    connection: Connection, batch: Batch, made: Mapping[str, bytes], now: str, refused: Mapping[str, str] | None = None
) -> bool:
    """Store the vectors of a batch, `made` by hash; False if its index was given up meanwhile, and nothing is stored.

    `refused` are the pieces without one, each with its reason; they count as done. What changed meanwhile is noted to
    be looked at again.

    Raises:
        ValueError: a vector does not have the dimension of the index; nothing is stored.
    """
    index = batch.index
    if indexes.find(connection, index.id).state is IndexState.RETIRED:
        return False
    have, reasons = {**batch.known, **made}, refused or {}
    done: list[Ref] = []
    again: list[Ref] = []
    for kind, ref in batch.refs:
        source = sources.get(connection, kind, ref)
        pieces = pieces_of(source)
        if _is_current(connection, index, (kind, ref), source, pieces):
            done.append((kind, ref))
        elif all(piece.content_hash in have or piece.content_hash in reasons for piece in pieces):
            embeddings = [] if source is None else _embeddings(source, pieces, have, now)
            hashes = {piece.content_hash for piece in pieces}
            left_out = {key: reason for key, reason in reasons.items() if key in hashes}
            vectors.replace(connection, index, kind, ref, embeddings, refused=left_out)
            scope = "" if source is None else source.scope
            refusals.replace(connection, index.id, kind, ref, scope=scope, reasons=left_out)
            done.append((kind, ref))
        else:
            again.append((kind, ref))
    indexes.forget_changes(connection, index.id, done)
    if batch.move is not None:
        before, after = batch.move
        rows = sources.newer(connection, before.kind, before.high, BATCH_ROWS) if after.high > before.high else []
        # A removed row's number may have been given again since the batch was gathered.
        again += [(before.kind, ref) for row, ref in rows if row <= after.high and (before.kind, ref) not in done]
        indexes.move(connection, index.id, before, after)
    indexes.note_changes(connection, index.id, again)
    return True


def coverage(connection: Connection, index: IndexRow) -> Coverage:
    """How far the index has got. Reads a handful of rows, whatever their number is."""
    newest = indexes.newest_rows(connection)
    cursors = indexes.cursors(connection, index.id)
    left = indexes.count_changes(connection, index.id)
    for kind, cursor in cursors.items():
        left += max(newest[kind] - cursor.high, 0) + cursor.low
    total = sum(newest.values())
    return Coverage(max(total - left, 0), total, refusals.count(connection, index.id))


def is_covered(connection: Connection, index: IndexRow) -> bool:
    """Whether every text has its vectors at this moment."""
    newest = indexes.newest_rows(connection)
    cursors = indexes.cursors(connection, index.id)
    return (
        bool(cursors)
        and all(cursor.low == 0 and cursor.high >= newest[kind] for kind, cursor in cursors.items())
        and not indexes.changes(connection, index.id, 1)
    )


def _batch(
    connection: Connection, index: IndexRow, rows: Sequence[tuple[int, Ref]], cursor: Cursor | None = None
) -> Batch:
    refs: dict[Ref, None] = {}
    missing: dict[str, str] = {}
    known: dict[str, bytes] = {}
    last = 0
    for row, ref in rows:
        if refs and len(missing) + len(known) >= BATCH_PIECES:
            break
        last = row
        for each in _with_successor(connection, ref):
            if each not in refs:
                refs[each] = None
                _look_at(connection, index, each, missing, known)
    return Batch(index=index, refs=list(refs), missing=missing, known=known, move=_move(cursor, last))


def _move(cursor: Cursor | None, last: int) -> tuple[Cursor, Cursor] | None:
    if cursor is None:
        return None
    if last > cursor.high:
        return cursor, Cursor(kind=cursor.kind, low=cursor.low, high=last)
    # Downwards; without a row left there (0), the past is done.
    return cursor, Cursor(kind=cursor.kind, low=max(last - 1, 0), high=cursor.high)


def _with_successor(connection: Connection, ref: Ref) -> Iterable[Ref]:
    """The text and, for a message, the one that is embedded with it as what was said before."""
    yield ref
    kind, message_id = ref
    if kind is SearchKind.MESSAGE:
        following = sources.successor(connection, message_id)
        if following is not None:
            yield kind, following


def _look_at(
    connection: Connection, index: IndexRow, ref: Ref, missing: dict[str, str], known: dict[str, bytes]
) -> None:
    source = sources.get(connection, *ref)
    pieces = pieces_of(source)
    if _is_current(connection, index, ref, source, pieces):
        return
    known.update(vectors.by_hash(connection, index.id, [piece.content_hash for piece in pieces]))
    missing.update({piece.content_hash: piece.text for piece in pieces if piece.content_hash not in known})


def _is_current(
    connection: Connection, index: IndexRow, ref: Ref, source: Source | None, pieces: Sequence[Piece]
) -> bool:
    scope = "" if source is None else source.scope
    refused = refusals.hashes(connection, index.id, *ref)
    if not refused <= {piece.content_hash for piece in pieces}:
        return False  # a refusal is out of date
    hashes = [piece.content_hash for piece in pieces if piece.content_hash not in refused]
    return vectors.is_current(connection, index.id, *ref, scope=scope, hashes=hashes)


def _embeddings(source: Source, pieces: Sequence[Piece], have: Mapping[str, bytes], now: str) -> list[Embedding]:
    return [
        Embedding(
            kind=source.kind,
            ref=source.ref,
            scope=source.scope,
            parent=source.parent,
            chunk_index=number,
            vector=have[piece.content_hash],
            content_hash=piece.content_hash,
            created_at=now,
        )
        for number, piece in enumerate(pieces)
        if piece.content_hash in have
    ]
