"""Documents as tests write them: step by step, and committed when the test says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Self

from pattern_core.memory.document import (
    TEXT,
    AddCount,
    BlockDocument,
    PutField,
    SpliceRun,
    UpdateText,
    Write,
)
from pattern_db.columns import Json


class Pen(BlockDocument):
    """A document with a method for each write."""

    @property
    def length(self) -> int:
        return self._doc.get_text(TEXT).len_unicode

    def append(self, text: str) -> None:
        self.splice(self.length, 0, text)

    def splice(self, at: int, delete: int, insert: str, container: str = TEXT) -> None:
        self.apply([SpliceRun(container=container, at=at, delete=delete, insert=insert)])

    def set_text(self, text: str, container: str = TEXT) -> None:
        self.apply([UpdateText(container=container, text=text)])

    def put_field(self, container: str, key: str, value: Json) -> None:
        self.apply([PutField(container=container, key=key, value=value)])

    def splice_items(self, container: str, at: int, delete: int, insert: Sequence[Json]) -> None:
        self.apply([SpliceRun(container=container, at=at, delete=delete, insert=tuple(insert))])

    def add(self, container: str, delta: float) -> None:
        self.apply([AddCount(container=container, delta=delta)])

    def commit(self, author: str, cause: Mapping[str, str], *, now_ms: int) -> None:
        self.sign({}, (), author, cause, now_ms=now_ms)

    def doing(self, edit: Callable[[Self], object]) -> Iterator[Write]:
        """No writes, but `edit` is done where they would be made: within `sign`."""
        edit(self)
        yield from ()

    def is_at(self, version: bytes) -> bool:
        """Whether the document has seen exactly what `version` says, whose bytes come in no fixed order."""
        seen = self._doc.oplog_vv
        return seen == type(seen).decode(version)
