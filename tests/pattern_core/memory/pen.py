"""Documents as tests write them: step by step, and committed when the test says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Self

from pattern_core.memory.document import (
    TEXT,
    BlockDocument,
    Count,
    Keys,
    Signed,
    Splice,
    Spliced,
    state_of,
)
from pattern_db.columns import Json


class _Steps(Mapping[str, str]):
    """No writes, but `edit` is done where they would be made."""

    def __init__(self, edit: Callable[[], object]) -> None:
        self._edit = edit

    def __iter__(self) -> Iterator[str]:
        self._edit()
        return iter(())

    def __len__(self) -> int:
        return 0

    def __getitem__(self, key: str) -> str:
        raise KeyError(key)


class Pen(BlockDocument):
    """A document with a method for each write."""

    @property
    def length(self) -> int:
        return self._doc.get_text(TEXT).len_unicode

    def append(self, text: str) -> None:
        self.splice(self.length, 0, text)

    def splice(self, at: int, delete: int, insert: str, container: str = TEXT) -> None:
        self.apply({container: Spliced(True, (Splice(at, "?" * delete, insert),))})

    def set_text(self, text: str, container: str = TEXT) -> None:
        self.apply({container: text})

    def put_field(self, container: str, key: str, value: Json) -> None:
        self.apply({container: Keys({key: (None, value)})})

    def splice_items(self, container: str, at: int, delete: int, insert: Sequence[Json]) -> None:
        self.apply({container: Spliced(False, (Splice(at, (None,) * delete, tuple(insert)),))})

    def add(self, container: str, delta: float) -> None:
        self.apply({container: Count(delta)})

    def commit(self, author: str, cause: Mapping[str, str], *, now_ms: int) -> None:
        self.sign({}, {}, author, cause, now_ms=now_ms)

    def signed(self, edit: Callable[[Self], object], author: str) -> Signed:
        """Make an edit of several steps and commit it as one change."""
        return self.sign(state_of(self), _Steps(lambda: edit(self)), author, {}, now_ms=0)

    def is_at(self, version: bytes) -> bool:
        """Whether the document has seen exactly what `version` says, whose bytes come in no fixed order."""
        seen = self._doc.oplog_vv
        return seen == type(seen).decode(version)
