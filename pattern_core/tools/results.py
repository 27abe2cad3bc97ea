"""Results of tools as text. Of one that is too long the model is shown both ends, and can read the rest later.

The whole text is stored in the unit of work of the call that made it, so it exists exactly if the result does.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import trio
import zstandard

from pattern_core.errors import InvalidInput, NotFound
from pattern_core.limits import RESULT_STORED_CHARS_MAX, RESULTS_BYTES_MAX, RESULTS_MAX
from pattern_core.unit_of_work import Storage, UnitOfWork
from pattern_db.tables import tool_state
from pattern_db.tables.tool_state import ToolResultRow

PIECE_CHARS_MAX = 16_000  # below what a result may hold, so that reading on is never shortened itself
FOUND_MAX = 20  # places shown for one pattern
PATTERN_CHARS_MAX = 500
AROUND_CHARS = 120  # shown on each side of a place
TAIL_SHARE = 4  # of what is shown, one part in so many is the end: errors stand there
_LEVEL = 3
_INLINE_CHARS_MAX = 100_000  # compressing more takes a millisecond or more: that is done on a thread
_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=str).encode


def to_text(result: object, chars_max: int | None = None) -> str:
    """Return a tool's result as text: a string as it is, nothing as `done`, anything else as compact JSON.

    What JSON has no form for is written as Python shows it: the call has happened, and a badly written tool must cost
    neither the result nor the turn. A text of more than `chars_max` code points, if that is given, is cut in the
    middle and says so.
    """
    match result:
        case None:
            text = "done"
        case str():
            text = result
        case _:
            try:
                text = _to_json(result)
            except (TypeError, ValueError, RecursionError):  # keys that are no text, a value within itself, too deep
                text = reprlib.repr(result)
    # A result may hold halves of characters (a file's name, say), which neither storage nor vendors accept.
    text = text.encode(errors="replace").decode()
    return text if chars_max is None or len(text) <= chars_max else _shown(text, chars_max)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The call that made a result. `reader` is the tool by which the agent can read it on, None if it has none."""

    agent_id: str
    tool: str
    call_id: str
    reader: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Extract:
    """Characters `offset` to `offset + len(text)` of a stored result of `total` characters."""

    id: str
    tool: str
    created_at: str
    text: str
    offset: int
    total: int

    @property
    def next_offset(self) -> int | None:
        """Where the next piece begins; None at the end."""
        end = self.offset + len(self.text)
        return end if end < self.total else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPlace:
    """A place that matches: its offset in characters, and the text around it."""

    offset: int
    around: str


class Results:
    """The long results of one constellation's agents."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    async def shorten(self, text: str, *, limit: int, origin: Origin, work: UnitOfWork) -> str:
        """`text` if it has at most `limit` code points, else its beginning and end, and how to read on.

        The whole of a longer text is added to `work`, except where it could not be read: the agent has no reader, or
        the reader itself returned the text.
        """
        if len(text) <= limit:
            return text
        if origin.reader is None or origin.reader == origin.tool:
            return _shown(text, limit)
        kept = text[:RESULT_STORED_CHARS_MAX]
        row = ToolResultRow(
            id=self._storage.ids.new("res"),
            agent_id=origin.agent_id,
            tool=origin.tool,
            call_id=origin.call_id,
            chars=len(kept),
            created_at=self._storage.now(),
            data=await _packed(kept),
        )
        work.store(tool_state.add_result, row, count_max=RESULTS_MAX, bytes_max=RESULTS_BYTES_MAX)
        lost = f"; only the first {RESULT_STORED_CHARS_MAX} are stored" if len(kept) < len(text) else ""
        read_on = f"; read them with the tool {origin.reader}: op=read, id={row.id}, offset="
        return _shown(text, limit, read_on, lost)

    async def read(self, agent_id: str, result_id: str, *, offset: int = 0, limit: int = PIECE_CHARS_MAX) -> Extract:
        """Return at most `limit` characters (and never more than `PIECE_CHARS_MAX`) of a stored result from `offset`
        on.

        Raises:
            InvalidInput: `offset` is not within the text, or `limit` is not positive.
            NotFound: the agent has no such result, or it was removed for newer ones.
        """
        row, text = await self._whole(agent_id, result_id)
        if not 0 <= offset < max(len(text), 1) or limit < 1:
            raise InvalidInput(f"{result_id} has {len(text)} characters; offset counts from 0, limit from 1")
        piece = text[offset : offset + min(limit, PIECE_CHARS_MAX)]
        return Extract(id=row.id, tool=row.tool, created_at=row.created_at, text=piece, offset=offset, total=len(text))

    async def find(
        self, agent_id: str, result_id: str, pattern: str, *, offset: int = 0
    ) -> tuple[list[FoundPlace], bool]:
        """Return the first `FOUND_MAX` places from `offset` on that hold `pattern` (plain words, in any case).

        The second value says whether there are more.

        Raises:
            InvalidInput: the pattern is empty or longer than `PATTERN_CHARS_MAX`, or `offset` is negative.
            NotFound: the agent has no such result, or it was removed for newer ones.
        """
        if not 0 < len(pattern) <= PATTERN_CHARS_MAX or offset < 0:
            raise InvalidInput(f"a pattern has 1 to {PATTERN_CHARS_MAX} characters, and offset counts from 0")
        _row, text = await self._whole(agent_id, result_id)
        found = _places(text, pattern, offset)
        places = [place for place, _ in zip(found, range(FOUND_MAX), strict=False)]
        return places, next(found, None) is not None

    async def _whole(self, agent_id: str, result_id: str) -> tuple[ToolResultRow, str]:
        row = await self._storage.database.read(tool_state.get_result, agent_id, result_id)
        if row.chars <= _INLINE_CHARS_MAX:
            return row, _unpacked(row.data)
        return row, await trio.to_thread.run_sync(_unpacked, row.data)


def _shown(text: str, limit: int, read_on: str = "", lost: str = "") -> str:
    """Return the beginning and the end of `text`, at most `limit` characters with the note between them."""

    def note(start: int, stop: int) -> str:
        how = f"{read_on}{start}" if read_on else ""
        return f"\n[… {len(text)} characters in all, {start} to {stop} are left out here{how}{lost} …]\n"

    # No place has more digits than the length.
    kept = max(limit - len(note(len(text), len(text))), 0)
    end = kept // TAIL_SHARE
    return (text[: kept - end] + note(kept - end, len(text) - end) + text[len(text) - end :])[:limit]


def _places(text: str, pattern: str, offset: int) -> Iterator[FoundPlace]:
    for match in re.compile(re.escape(pattern), re.IGNORECASE).finditer(text, offset):
        start, end = max(match.start() - AROUND_CHARS, 0), min(match.end() + AROUND_CHARS, len(text))
        around = ("…" if start else "") + text[start:end] + ("…" if end < len(text) else "")
        yield FoundPlace(offset=match.start(), around=around)


async def _packed(text: str) -> bytes:
    data = text.encode()
    if len(text) <= _INLINE_CHARS_MAX:
        return zstandard.compress(data, _LEVEL)
    return await trio.to_thread.run_sync(partial(zstandard.compress, data, _LEVEL))


def _unpacked(data: bytes) -> str:
    try:
        # A file may come from elsewhere: a small frame that says it holds gigabytes is not opened.
        if 0 <= zstandard.get_frame_parameters(data).content_size <= 4 * RESULT_STORED_CHARS_MAX:
            return zstandard.decompress(data).decode()
    except (zstandard.ZstdError, UnicodeDecodeError):
        pass
    raise NotFound("what is stored of this result is damaged; call the tool again")
