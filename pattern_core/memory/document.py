"""Mergeable documents: writes, and the changes of their versions. The only module that knows Loro.

A `Change` has the removed and the added content of each container, as plain values: for applying it, inverting it,
transforming it against other changes (`memory.changes`), and reading older versions.

The wheel's errors are bare `BaseException`s, which would cancel a nursery, and a panic makes its document unusable;
both become `DocumentDamaged` here, and the document must be dropped.

Positions are Unicode code points. What a document holds is in named root containers: texts, maps, lists of JSON
values, and counters; `memory.content` knows those of a schema. A document's state is a value per
container: text, list of JSON values, map without nulls, or count; containers that are empty are left out.

Packed, a change is JSON, `{container: part}`: text and lists as `[["t" or "l"], [skip, removed, added], …]`, maps as
`{key: [before, after]}`, counts as a number; over 200 bytes it is a zstd frame.
Source: loro 1.x encoding; containers as in the memory design, so that documents of other implementations open.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self, TypeAlias

import zstandard
from loro import (
    ContainerID,
    ContainerType,
    Diff,
    DiffEvent,
    ExportMode,
    Frontiers,
    ListDiffItem,
    LoroDoc,
    LoroList,
    LoroText,
    TextDelta,
    VersionVector,
)

from pattern_core.errors import PatternError
from pattern_core.ids import Randomness
from pattern_db.columns import Json, to_json
from pattern_db.tables.memory_blocks import Attribution

PEER_BITS = 63  # a peer is a u64; the greatest value is reserved
READER_PEER = 0  # for read-only copies; never used for writes
UPDATE_TIMEOUT_MS = 20.0  # for a minimal difference; it blocks the interpreter, so nothing else runs
TEXT = "content"  # the container of a text document's text
COMPRESS_ABOVE_BYTES = 200  # smaller changes cannot be compressed
DECOMPRESSED_BYTES_MAX = 256 * 1024 * 1024
_LEVEL = 3

Run: TypeAlias = "str | tuple[Json, ...]"  # a piece of a text or of a list
State: TypeAlias = "dict[str, Json]"


class DocumentDamaged(PatternError):
    """The bytes are not a document or update, or do not belong together, or the library failed."""

    code = "document_damaged"
    remedy = "Repair the block: `pattern memory repair LABEL`."


class HistoryDamaged(PatternError):
    """A recorded change cannot be read, or does not match the state that it is applied to."""

    code = "history_damaged"
    remedy = "Show or restore another version; the newest one is not affected."


@dataclass(frozen=True, slots=True)
class Splice:
    """After `skip` unchanged elements, `removed` was replaced by `added`."""

    skip: int
    removed: Run
    added: Run


@dataclass(frozen=True, slots=True)
class Spliced:
    """A change of a text or a list. No two splices touch, none is empty; an empty list's runs are `()`."""

    is_text: bool
    splices: tuple[Splice, ...]


@dataclass(frozen=True, slots=True)
class Keys:
    """A change of a map: each key's value before and after; None for no value."""

    values: Mapping[str, tuple[Json, Json]]


@dataclass(frozen=True, slots=True)
class Count:
    """A change of a counter."""

    by: float


Part: TypeAlias = "Spliced | Keys | Count"
Change: TypeAlias = "Mapping[str, Part]"
# The writes to each container. For a text its new content is enough: the document finds the smallest difference. For a
# part only positions and added content count, so the removed content need not be known.
Writes: TypeAlias = "Mapping[str, Part | str]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """An edit that is in the document: its update, the document's newest changes after it (`frontier`), and its change;
    None if it touched a container of a kind without such a form.
    """

    update: bytes
    frontier: bytes
    change: Change | None


def new_peer(randomness: Randomness) -> int:
    """Return a peer number for one process: random, so that it is practically unique.

    One for all edits of a process keeps version vectors short; two writers must never share one.
    """
    return randomness.getrandbits(PEER_BITS)


class BlockDocument:
    """A document with its history. Not for use by two tasks at once."""

    __slots__ = ("_doc",)

    def __init__(self, peer: int) -> None:
        with _translated("a new document"):
            self._doc = LoroDoc()
            self._doc.peer_id = peer

    @classmethod
    def load(cls, snapshot: bytes | None, updates: Iterable[bytes] = (), *, peer: int) -> Self:
        """Return the document of `snapshot` (None: an empty one) and `updates`.

        Only for bytes that this program stored: those from outside go through `damage.first_unopened` first, because
        rare bytes abort the process.

        Raises:
            DocumentDamaged: bytes are damaged, or updates are missing in between.
        """
        document = cls(peer)
        if snapshot is not None:
            document.import_update(snapshot)
        for update in updates:
            document.import_update(update)
        return document

    def state(self) -> State:
        """Return the document's content by root container, without empty ones."""
        with _translated("reading"):
            whole: Json = self._doc.get_deep_value()  # always an object for a document
        return {name: value for name, value in whole.items() if value}

    def sign(self, before: State, writes: Writes, by: Attribution, *, now_ms: int) -> Signed:
        """Apply the writes to the document, which has the content `before`, and commit them as one change.

        The document's history stores the second, and the author and the cause as JSON.

        Raises:
            DocumentDamaged: they do not match the content, or the library failed. Drop the document.
        """
        message = json.dumps({"by": by.author, **(by.cause or {})}, ensure_ascii=False, separators=(",", ":"))
        with _translated("an edit"), self._signing(before) as signed:
            self.apply(writes)
            self._doc.set_next_commit_message(message)
            self._doc.set_next_commit_timestamp(now_ms // 1000)
            self._doc.commit()
        return signed[0]

    def join(self, other: BlockDocument, frontier: bytes | None, before: State) -> Signed | None:
        """Merge what `other` had at `frontier` (None: has now) as one change of this document, which has the content
        `before`; None: it has all of that.

        Both must have their whole history.

        Raises:
            DocumentDamaged: `frontier` is not one of `other`. Drop the document.
        """
        with _translated("a merge"):
            newest = other._doc.oplog_frontiers if frontier is None else Frontiers.decode(frontier)
            version = other._doc.frontiers_to_vv(newest)
            if version is None:
                raise DocumentDamaged("a version is not in the history of its document")
            missing = self._doc.oplog_vv.get_missing_span(version)
            if not missing:
                return None
            with self._signing(before) as signed:
                self.import_update(other._doc.export(ExportMode.UpdatesInRange(missing)))
        return signed[0]

    @contextmanager
    def _signing(self, before: State) -> Iterator[list[Signed]]:
        """Yield a list that has, after the block, what the block did to the document."""
        events: list[DiffEvent] = []
        signed: list[Signed] = []
        version = self._doc.oplog_vv
        subscription = self._doc.subscribe_root(events.append)  # it must not raise, and appending does not
        yield signed
        del subscription  # which ends it
        parts = [(one.target, one.diff) for event in events for one in event.events]
        change = _change(parts, before) if len(events) <= 1 else None
        update, frontier = self._doc.export(ExportMode.Updates(version)), self._doc.oplog_frontiers.encode()
        signed.append(Signed(update=update, frontier=frontier, change=change))

    def has_common_history(self, other: BlockDocument) -> bool:
        """Return whether both began as one document, or one of them is empty, so that a merge repeats nothing."""
        with _translated("reading"):
            mine, theirs = self._doc.oplog_vv, other._doc.oplog_vv
            empty = VersionVector()
            return mine.intersection(theirs) != empty or empty in (mine, theirs)

    def apply(self, writes: Writes) -> None:
        """Apply the writes; counters change by `sign` times the amount.

        If two writers set a field concurrently, one wins on all copies; concurrent additions to a counter are added up.

        Raises:
            DocumentDamaged: they do not match the content. Drop the document.
        """
        with _translated("an edit"):
            for name, write in writes.items():
                match write:
                    case str():
                        _update(self._doc.get_text(name), write)
                    case Spliced():
                        _splice(self._doc.get_text(name) if write.is_text else self._doc.get_list(name), write)
                    case Keys():
                        fields = self._doc.get_map(name)
                        for key, (_before, value) in write.values.items():
                            if value is not None:
                                fields.insert(key, value)
                            elif fields.get(key) is not None:
                                fields.delete(key)
                    case Count():
                        self._doc.get_counter(name).increment(write.by)

    def version(self) -> bytes:
        """Return the version vector of the document, for `export_since`; its parts have no fixed order."""
        with _translated("a version"):
            return self._doc.oplog_vv.encode()

    def frontier(self) -> bytes:
        """Return the newest changes, which identify this state of the document: a few bytes."""
        with _translated("a frontier"):
            return self._doc.oplog_frontiers.encode()

    def export_since(self, version: bytes | None) -> bytes:
        """Return the operations after `version` (None: all), as bytes for `import_update`. Never empty.

        Raises:
            DocumentDamaged: `version` is not a version.
        """
        with _translated("an export"):
            since = VersionVector() if version is None else VersionVector.decode(version)
            return self._doc.export(ExportMode.Updates(since))

    def snapshot(self) -> bytes:
        """Return everything, with the whole history: a holder of an older copy can still merge."""
        with _translated("a snapshot"):
            return self._doc.export(ExportMode.Snapshot())

    def state_snapshot(self) -> bytes:
        """Return the document's current state and enough of its version to continue, without its history."""
        with _translated("a snapshot"):
            return self._doc.export(ExportMode.ShallowSnapshot(self._doc.oplog_frontiers))

    def has_whole_history(self) -> bool:
        """Return whether the document has its complete history."""
        with _translated("reading"):
            return not self._doc.is_shallow()

    def at(self, frontier: bytes) -> BlockDocument:
        """Return the document as it was at `frontier`. Slow for a long history, and it blocks the interpreter.

        Raises:
            DocumentDamaged: `frontier` is invalid, or older than the document's history.
        """
        with _translated("an earlier version"):
            earlier = self._doc.fork_at(Frontiers.decode(frontier)).export(ExportMode.Snapshot())
        return BlockDocument.load(earlier, peer=READER_PEER)

    def import_update(self, update: bytes) -> None:
        """Merge an update or snapshot. Independent ones can be merged in any order, and repeatedly.

        Raises:
            DocumentDamaged: the bytes are damaged, or an update that they depend on is missing. Drop the document.
        """
        with _translated("an import"):
            status = self._doc.import_(update)
        if status.pending is not None:
            raise DocumentDamaged("an update depends on a missing one; restore the block from a backup")


def _splice(held: LoroText | LoroList, change: Spliced) -> None:
    at = 0
    for one in change.splices:
        at += one.skip
        if one.removed:
            held.delete(at, len(one.removed))
        for offset, piece in enumerate((one.added,) if change.is_text and one.added else one.added):
            held.insert(at + offset, piece)
        at += len(one.added)


def _update(held: LoroText, text: str) -> None:
    """Set the text to `text` with the fewest changes, so that concurrent changes survive the merge.

    If finding the fewest is too slow, whole lines are replaced, and at worst everything between the common start and
    end.
    """
    for update in (held.update, held.update_by_line):
        try:
            update(text, timeout_ms=UPDATE_TIMEOUT_MS)
        except ValueError:  # the wheel's error for a time-out; nothing was changed
            continue
        return
    before = held.to_string()
    start, end = common_ends(before, text)
    if start + end < len(before):
        held.delete(start, len(before) - end - start)
    if start + end < len(text):
        held.insert(start, text[start : len(text) - end])


def common_ends(left: Sequence[Json], right: Sequence[Json]) -> tuple[int, int]:
    """Return how many elements (of two texts, or two lists) are equal at the start, and then at the end."""
    start = _common(left, right)
    return start, _common(left[start:][::-1], right[start:][::-1])


def _common(left: Sequence[Json], right: Sequence[Json]) -> int:
    """Return the length of the common start. By halves: comparing slices is a hundred times faster than elements."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


@contextmanager
def _translated(doing: str) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        # The wheel fails with exactly BaseException; a panic has its own class, which cannot be imported.
        if type(error) is BaseException or type(error).__name__ == "PanicException":
            raise DocumentDamaged(f"the document library refused {doing}: {error}") from None
        raise


# Versions of documents: changes, earlier states, and snapshots to continue from.


def _change(parts: Iterable[tuple[ContainerID, Diff]], before: State) -> Change | None:
    change: dict[str, Part] = {}
    for target, diff in parts:
        if not isinstance(target, ContainerID.Root) or isinstance(target.container_type, ContainerType.MovableList):
            return None
        held = before.get(target.name)
        match diff:
            case Diff.Text():
                change[target.name] = spliced(True, _pieces(diff.diff, held or ""))
            case Diff.List():
                change[target.name] = spliced(False, _pieces(diff.diff, tuple(held or ())))
            case Diff.Map():
                old = held or {}
                new = {key: getattr(value, "value", None) for key, value in diff.diff.updated.items()}
                change[target.name] = Keys({key: (old.get(key), value) for key, value in new.items()})
            case Diff.Counter():
                change[target.name] = Count(diff.diff)
            case _:
                return None
    return cleaned(change)


def _pieces(items: Iterable[TextDelta | ListDiffItem], before: Json) -> Iterator[tuple[str, Run | int]]:
    """Yield the library's difference of a text or a list, as pieces: a string or a tuple."""
    at = 0
    for item in items:
        match item:
            case TextDelta.Retain() | ListDiffItem.Retain():
                yield "keep", item.retain
                at += item.retain
            case TextDelta.Delete() | ListDiffItem.Delete():
                yield "remove", before[at : at + item.delete]
                at += item.delete
            case TextDelta.Insert():
                yield "add", item.insert
            case ListDiffItem.Insert():
                yield "add", tuple(getattr(one, "value", None) for one in item.insert)


def spliced(is_text: bool, pieces: Iterable[tuple[str, Run | int]]) -> Spliced:
    """Return a change from `("keep", n)`, `("remove", run)` and `("add", run)` in the order of the document before
    it.
    """
    empty: Json = "" if is_text else ()
    splices: list[Splice] = []
    skip, removed, added = 0, empty, empty
    for what, piece in pieces:
        if isinstance(piece, int):
            if piece and (removed or added):
                splices.append(Splice(skip, removed, added))
                skip, removed, added = 0, empty, empty
            skip += piece
        elif what == "remove":
            removed += piece
        else:
            added += piece
    if removed or added:
        splices.append(Splice(skip, removed, added))
    return Spliced(is_text, tuple(splices))


def cleaned(change: Change) -> Change:
    """Return the change without parts that change nothing."""
    kept: dict[str, Part] = {}
    for name, part in change.items():
        match part:
            case Keys(values):
                if real := {key: (old, new) for key, (old, new) in values.items() if not same(old, new)}:
                    kept[name] = Keys(real)
            case Spliced(_, splices) if any(not same(one.removed, one.added) for one in splices):
                kept[name] = part
            case Count(by) if by:
                kept[name] = part
    return kept


def same(left: Json, right: Json) -> bool:
    """Return whether two JSON values are equal; unlike with `==` true is not 1."""
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)


def compressed(data: bytes, above: int) -> bytes:
    """Return `data`, as a zstd frame if it is longer than `above`."""
    # The module's function, never a shared compressor: one used by two threads crashes the process.
    return data if len(data) <= above else zstandard.compress(data, _LEVEL)


def decompressed(frame: bytes) -> bytes:
    """Return the content of a zstd frame.

    Raises:
        ValueError: it is not a frame, or claims to be larger than any document or change.
    """
    try:
        size = zstandard.get_frame_parameters(frame).content_size
        if size > DECOMPRESSED_BYTES_MAX:  # also if the frame has no size: those of `compressed` have one
            raise ValueError(f"it claims {size} bytes")
        return zstandard.decompress(frame)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from None


def packed(change: Change | None) -> bytes | None:
    """Return the change as it is stored; None stays None."""
    if change is None:
        return None
    parts: dict[str, Json] = {}
    for name, part in change.items():
        match part:
            case Spliced(is_text, splices):
                parts[name] = ["t" if is_text else "l", *([one.skip, one.removed, one.added] for one in splices)]
            case Keys(values):
                parts[name] = dict(values)
            case Count(by):
                parts[name] = by
    return compressed(to_json(parts).encode(), COMPRESS_ABOVE_BYTES)


def unpacked(data: bytes) -> Change:
    """Return the inverse of `packed`.

    Raises:
        HistoryDamaged: the bytes are not a packed change.
    """
    try:
        data = data if data.startswith(b"{") else decompressed(data)
        return {name: _from_json(part) for name, part in json.loads(data).items()}
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise HistoryDamaged(f"a recorded change cannot be read ({error})") from None


def _from_json(part: Json) -> Part:
    if isinstance(part, int | float):
        return Count(part)
    if isinstance(part, dict):
        return Keys({key: (before, after) for key, (before, after) in part.items()})
    if not isinstance(part, list):
        raise ValueError("a part of an unknown kind")
    kind, *splices = part
    run = {"t": str, "l": tuple}[kind]
    return Spliced(kind == "t", tuple(Splice(int(skip), run(removed), run(added)) for skip, removed, added in splices))


def framed(documents: Sequence[Sequence[bytes]]) -> bytes:
    """Return stored documents, each as its parts (a snapshot or nothing, then updates), for `opened_parts`."""
    lengths = json.dumps([[len(part) for part in parts] for parts in documents]).encode()
    return b"\n".join((lengths, b"".join(part for parts in documents for part in parts)))


def opened_parts(data: bytes) -> Iterator[bytes]:
    """Yield how many parts of framed documents open: called in a child process.

    A line of JSON for each, immediately, because the library may crash at the next one: `[parts that opened, reason]`,
    with the reason empty if all did.
    """
    lengths, _, rest = data.partition(b"\n")
    for sizes in json.loads(lengths):
        document, count, reason = BlockDocument(READER_PEER), 0, ""
        parts, rest = rest[: sum(sizes)], rest[sum(sizes) :]
        try:
            for size in sizes:
                part, parts = parts[:size], parts[size:]
                if part:
                    document.import_update(part)
                    document.state()  # a part may be found damaged only when it is read
                count += 1
        except DocumentDamaged as error:
            reason = error.message
        yield json.dumps([count, reason]).encode() + b"\n"
