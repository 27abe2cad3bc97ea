"""A document that merges. The only module that knows Loro.

The wheel's errors are bare `BaseException`s, which would tear down a nursery, and a panic poisons the document that
it happened in; both become `DocumentDamaged` here, and the document must be dropped.

Positions are Unicode code points. What a document holds stands in named root containers: texts, maps, lists of JSON
values, and counters; which ones there are for a schema says `memory.shapes.containers`.
Source: loro 1.x encoding; containers as in the memory design, so that documents of other implementations open.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from loro import (
    ContainerID,
    ContainerType,
    Diff,
    DiffEvent,
    ExportMode,
    Frontiers,
    ListDiffItem,
    LoroDoc,
    TextDelta,
    VersionVector,
)

from pattern_core.errors import PatternError
from pattern_core.ids import Randomness
from pattern_core.memory.delta import Change, Count, Keys, Part, Run, State, cleaned, spliced
from pattern_db.columns import Json

PEER_BITS = 63  # a peer is a u64 whose greatest value is reserved
READER_PEER = 0  # for copies that are only read; nothing is ever written under it
UPDATE_TIMEOUT_MS = 20.0  # for a minimal difference; it holds the interpreter, so nothing else runs meanwhile
TEXT = "content"  # the container of a text document's text


class DocumentDamaged(PatternError):
    """The bytes are no document or update, or do not fit together, or the library failed within."""

    code = "document_damaged"


def new_peer(randomness: Randomness) -> int:
    """An author's number within documents, for one process: unlikely ever to be drawn again.

    One for all edits of a process keeps version vectors short; two writers must never share one.
    """
    return randomness.getrandbits(PEER_BITS)


def commit_message(author: str, cause: Mapping[str, str]) -> str:
    """Who changed a document and why, as it stays in its history: a JSON object `{"by": author, **cause}`."""
    return json.dumps({"by": author, **cause}, ensure_ascii=False, separators=(",", ":"))


class Contents:
    """What a document holds, by container. Those that nobody wrote to read as empty ones."""

    __slots__ = ("_doc",)

    _doc: LoroDoc

    @property
    def text(self) -> str:
        """The whole text of a text document."""
        return self.text_in(TEXT)

    @property
    def length(self) -> int:
        """Code points of the text of a text document, without making it."""
        return self._doc.get_text(TEXT).len_unicode

    def text_in(self, container: str) -> str:
        """The text in `container`."""
        with _translated("reading"):
            return self._doc.get_text(container).to_string()

    def fields_in(self, container: str) -> dict[str, Json]:
        """The entries of the map `container`, in no fixed order; objects within have their keys in none either."""
        with _translated("reading"):
            found: Json = self._doc.get_map(container).get_deep_value()
        return dict(found)

    def items_in(self, container: str) -> list[Json]:
        """The items of the list `container`; the keys of objects come in no fixed order."""
        with _translated("reading"):
            found: Json = self._doc.get_list(container).get_deep_value()
        return list(found)

    def count_in(self, container: str) -> float:
        """What the counter `container` stands at."""
        with _translated("reading"):
            return self._doc.get_counter(container).value


class Document(Contents):
    """A document with its history. Not for use by two tasks at once; edits count from `commit` on."""

    __slots__ = ()

    def __init__(self, peer: int) -> None:
        with _translated("a new document"):
            self._doc = LoroDoc()
            self._doc.peer_id = peer

    @classmethod
    def load(cls, snapshot: bytes | None, updates: Iterable[bytes] = (), *, peer: int) -> Document:
        """The document that `snapshot` (None: an empty one) and then `updates` make.

        Only for bytes that this program stored: those from outside go through `memory.foreign` first, because rare
        ones abort the process.

        Raises:
            DocumentDamaged: bytes are damaged, or updates are missing in between.
        """
        document = cls(peer)
        if snapshot is not None:
            document.import_update(snapshot)
        for update in updates:
            document.import_update(update)
        return document

    def splice(self, at: int, delete: int, insert: str, container: str = TEXT) -> None:
        """Replace `delete` code points from `at` on by `insert`.

        Raises:
            DocumentDamaged: the range is not within the text: the caller counted in another text.
        """
        with _translated("an edit"):
            text = self._doc.get_text(container)
            if delete:
                text.delete(at, delete)
            if insert:
                text.insert(at, insert)

    def append(self, text: str) -> None:
        """Add `text` at the end of a text document."""
        self.splice(self.length, 0, text)

    def set_text(self, text: str, container: str = TEXT) -> None:
        """Make the text `text` by the fewest changes, so that what others change meanwhile survives the merge.

        Where the fewest would take too long to find, whole lines are replaced, and at worst all that lies between
        the common start and the common end.
        """
        with _translated("an edit"):
            held = self._doc.get_text(container)
            for update in (held.update, held.update_by_line):
                try:
                    update(text, timeout_ms=UPDATE_TIMEOUT_MS)
                except ValueError:  # the wheel's word for a timeout; nothing was changed
                    continue
                return
        start, end, middle = _difference(self.text_in(container), text)
        self.splice(start, end - start, middle, container)

    def put_field(self, container: str, key: str, value: Json) -> None:
        """Set `key` of the map `container`; None removes it. Of two who set it at once one wins, on all copies."""
        with _translated("an edit"):
            fields = self._doc.get_map(container)
            if value is not None:
                fields.insert(key, value)
            elif fields.get(key) is not None:
                fields.delete(key)

    def splice_items(self, container: str, at: int, delete: int, insert: Sequence[Json]) -> None:
        """Replace `delete` items of the list `container` from `at` on (from 0) by those of `insert`.

        Raises:
            DocumentDamaged: the range is not within the list.
        """
        with _translated("an edit"):
            items = self._doc.get_list(container)
            if delete:
                items.delete(at, delete)
            for offset, item in enumerate(insert):
                items.insert(at + offset, item)

    def add(self, container: str, delta: float) -> None:
        """Add `delta` to the counter `container`; what others add at the same time counts as well."""
        with _translated("an edit"):
            self._doc.get_counter(container).increment(delta)

    def commit(self, author: str, cause: Mapping[str, str], *, now_ms: int) -> None:
        """End the edit and sign it; the history keeps the second and `commit_message(author, cause)`."""
        with _translated("a commit"):
            self._doc.set_next_commit_message(commit_message(author, cause))
            self._doc.set_next_commit_timestamp(now_ms // 1000)
            self._doc.commit()

    def version(self) -> bytes:
        """Everything that the document has seen, for `export_since` and `is_at`.

        The same version may come as different bytes: the library writes its parts in no fixed order.
        """
        with _translated("a version"):
            return self._doc.oplog_vv.encode()

    def is_at(self, version: bytes) -> bool:
        """Whether the document has seen exactly what `version` says.

        Raises:
            DocumentDamaged: `version` is not a version.
        """
        with _translated("a version"):
            return self._doc.oplog_vv == VersionVector.decode(version)

    def frontier(self) -> bytes:
        """The newest changes, which name this state of the document: a few bytes."""
        with _translated("a frontier"):
            return self._doc.oplog_frontiers.encode()

    def export_since(self, version: bytes) -> bytes:
        """What came after `version`, as bytes for `import_update`. Never empty: ask `is_at` whether anything did.

        Raises:
            DocumentDamaged: `version` is not a version.
        """
        with _translated("an export"):
            return self._doc.export(ExportMode.Updates(VersionVector.decode(version)))

    def snapshot(self) -> bytes:
        """Everything, with the whole history: whoever holds an older copy can still merge."""
        with _translated("a snapshot"):
            return self._doc.export(ExportMode.Snapshot())

    def import_update(self, update: bytes) -> None:
        """Merge an update or snapshot; in any order of those that do not build on one another, and twice as well.

        Raises:
            DocumentDamaged: the bytes are damaged, or what they build on is missing. Drop the document.
        """
        with _translated("an import"):
            status = self._doc.import_(update)
        if status.pending is not None:
            raise DocumentDamaged("an update builds on another one that is missing; restore the block from a backup")


def _difference(before: str, after: str) -> tuple[int, int, str]:
    """The range of `before` that differs, and what stands there in `after`."""
    start = _common(before, after)
    end = _common(before[start:][::-1], after[start:][::-1])
    return start, len(before) - end, after[start : len(after) - end]


def _common(left: str, right: str) -> int:
    """The length of the common start. By halves: comparing slices is a hundred times faster than characters."""
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
        # Exactly BaseException is the wheel's way to fail; a panic has a class of its own that cannot be imported.
        if type(error) is BaseException or type(error).__name__ == "PanicException":
            raise DocumentDamaged(f"the document library refused {doing}: {error}") from None
        raise


# Versions of documents: what changed, what was, and what is enough to go on from.


@dataclass(slots=True)
class Recording:
    """What was changed while it ran; None where a container of a kind that has no such form was touched."""

    change: Change | None = None


@contextmanager
def recorded(document: Document) -> Iterator[Recording]:
    """Record what is done to the document within, which must end with one `commit` or be one import."""
    recording = Recording()
    before = state_of(document)
    events: list[DiffEvent] = []
    with _translated("a subscription"):
        subscription = document._doc.subscribe_root(events.append)  # it may not raise, and appending does not
    yield recording
    del subscription  # which ends it
    if len(events) <= 1:
        parts = [(one.target, one.diff) for event in events for one in event.events]
        recording.change = _change(parts, before)


def _change(parts: Iterable[tuple[ContainerID, Diff]], before: State) -> Change | None:
    change: dict[str, Part] = {}
    for target, diff in parts:
        if not isinstance(target, ContainerID.Root) or isinstance(target.container_type, ContainerType.MovableList):
            return None
        held = before.get(target.name)
        match diff:
            case Diff.Text():
                change[target.name] = spliced(True, _text_pieces(diff.diff, held or ""))
            case Diff.List():
                change[target.name] = spliced(False, _item_pieces(diff.diff, held or []))
            case Diff.Map():
                old = held or {}
                new = {key: getattr(value, "value", None) for key, value in diff.diff.updated.items()}
                change[target.name] = Keys({key: (old.get(key), value) for key, value in new.items()})
            case Diff.Counter():
                change[target.name] = Count(diff.diff)
            case _:
                return None
    return cleaned(change)


def _text_pieces(items: Iterable[TextDelta], before: str) -> Iterator[tuple[str, Run | int]]:
    at = 0
    for item in items:
        match item:
            case TextDelta.Retain():
                yield "keep", item.retain
                at += item.retain
            case TextDelta.Delete():
                yield "remove", before[at : at + item.delete]
                at += item.delete
            case TextDelta.Insert():
                yield "add", item.insert


def _item_pieces(items: Iterable[ListDiffItem], before: list[Json]) -> Iterator[tuple[str, Run | int]]:
    at = 0
    for item in items:
        match item:
            case ListDiffItem.Retain():
                yield "keep", item.retain
                at += item.retain
            case ListDiffItem.Delete():
                yield "remove", tuple(before[at : at + item.delete])
                at += item.delete
            case ListDiffItem.Insert():
                yield "add", tuple(getattr(one, "value", None) for one in item.insert)


def state_of(document: Document) -> State:
    """What the document holds, by root container; those that are empty are left out."""
    with _translated("reading"):
        whole: Json = document._doc.get_deep_value()  # of a document always an object
    return {name: value for name, value in whole.items() if value}


def copy_of(document: Document) -> Document:
    """Another document with the same content and history, for trying a change out. Never let both be edited."""
    with _translated("a copy"):
        return Document.load(document.snapshot(), peer=document._doc.peer_id)


def document_at(document: Document, frontier: bytes) -> Document:
    """The document as it was at `frontier`; slow where the history is long, and it holds the interpreter meanwhile.

    Raises:
        DocumentDamaged: `frontier` is none, or older than what the document remembers.
    """
    with _translated("an earlier version"):
        earlier = document._doc.fork_at(Frontiers.decode(frontier)).export(ExportMode.Snapshot())
    return Document.load(earlier, peer=READER_PEER)


def state_snapshot(document: Document) -> bytes:
    """What the document holds now and enough of its version to go on from, without its history."""
    with _translated("a snapshot"):
        return document._doc.export(ExportMode.ShallowSnapshot(document._doc.oplog_frontiers))


def has_whole_history(document: Document) -> bool:
    """Whether the document knows its operations from the very first on; `export_since(NOTHING)` then holds it all."""
    with _translated("reading"):
        return not document._doc.is_shallow()


def nothing() -> bytes:
    """The version of an empty document, for `export_since`."""
    return VersionVector().encode()
