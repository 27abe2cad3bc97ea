"""A document that merges. The only module that knows Loro.

The wheel's errors are bare `BaseException`s, which would tear down a nursery, and a panic poisons the document that
it happened in; both become `DocumentDamaged` here, and the document must be dropped.

Positions are Unicode code points. Containers by schema: the text of a text document is the root container `content`.
Source: loro 1.x encoding; containers as in the memory design, so that documents of other implementations open.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from loro import ExportMode, LoroDoc, LoroText, VersionVector

from pattern_core.errors import PatternError
from pattern_core.ids import Randomness

PEER_BITS = 63  # a peer is a u64 whose greatest value is reserved
READER_PEER = 0  # for copies that are only read; nothing is ever written under it
UPDATE_TIMEOUT_MS = 20.0  # for a minimal difference; it holds the interpreter, so nothing else runs meanwhile
_TEXT = "content"


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


class Document:
    """A text document with its history. Not for use by two tasks at once; edits count from `commit` on."""

    __slots__ = ("_doc", "_text")

    def __init__(self, peer: int) -> None:
        with _translated("a new document"):
            self._doc = LoroDoc()
            self._doc.peer_id = peer
            self._text: LoroText = self._doc.get_text(_TEXT)

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

    @property
    def text(self) -> str:
        """The whole text."""
        with _translated("reading"):
            return self._text.to_string()

    @property
    def length(self) -> int:
        """Code points of the text, without making it."""
        return self._text.len_unicode

    def splice(self, at: int, delete: int, insert: str) -> None:
        """Replace `delete` code points from `at` on by `insert`.

        Raises:
            DocumentDamaged: the range is not within the text: the caller counted in another text.
        """
        with _translated("an edit"):
            if delete:
                self._text.delete(at, delete)
            if insert:
                self._text.insert(at, insert)

    def append(self, text: str) -> None:
        """Add `text` at the end."""
        self.splice(self.length, 0, text)

    def set_text(self, text: str) -> None:
        """Make the text `text` by the fewest changes, so that what others change meanwhile survives the merge.

        Where the fewest would take too long to find, whole lines are replaced, and at worst all that lies between
        the common start and the common end.
        """
        with _translated("an edit"):
            for update in (self._text.update, self._text.update_by_line):
                try:
                    update(text, timeout_ms=UPDATE_TIMEOUT_MS)
                except ValueError:  # the wheel's word for a timeout; nothing was changed
                    continue
                return
        start, end, middle = _difference(self.text, text)
        self.splice(start, end - start, middle)

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
