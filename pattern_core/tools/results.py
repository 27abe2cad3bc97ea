"""Results of tools as text. For a result that is too long the model is shown both ends, and can read the rest later.

The whole text is stored in the unit of work of the call that made it, so it exists exactly if the result does.
"""

from __future__ import annotations

import json
import re
import reprlib
from contextlib import suppress
from itertools import islice

import trio
import zstandard

from pattern_core.errors import InvalidInput, NotFound
from pattern_core.limits import RESULT_STORED_CHARS_MAX, RESULTS_BYTES_MAX, RESULTS_MAX
from pattern_core.tools.tool import ToolContext
from pattern_db.connection import Connection
from pattern_db.journal.steps import EffectRow
from pattern_db.tables import tool_state
from pattern_db.tables.tool_state import ToolResultRow

PIECE_CHARS_MAX = 16_000  # below what a result may hold, so that reading on is never shortened itself
FOUND_MAX = 20  # places shown for one pattern
PATTERN_CHARS_MAX = 500
AROUND_CHARS = 120  # shown on each side of a place
TAIL_SHARE = 4  # of what is shown, one part in so many is the end: errors are there
_LEVEL = 3
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
            except (TypeError, ValueError, RecursionError):  # keys that are not text, a value within itself, too deep
                text = reprlib.repr(result)
    # A result may hold halves of characters (a file's name, say), which neither storage nor vendors accept.
    text = text.encode(errors="replace").decode()
    return text if chars_max is None or len(text) <= chars_max else _shown(text, chars_max)


async def shorten(text: str, call: EffectRow, context: ToolContext, *, limit: int, reader: str | None) -> str:
    """Return the beginning and the end of a result with more than `limit` code points, and how to read on.

    The whole text is added to the call's unit of work, except where it could not be read: the agent has no
    `reader` (a tool that reads results), or the reader itself returned the text.
    """
    if reader is None or reader == call.tool:
        return _shown(text, limit)
    kept = text[:RESULT_STORED_CHARS_MAX]
    row = ToolResultRow(
        id=context.storage.ids.new("res"),
        agent_id=context.agent_id,
        tool=call.tool,
        call_id=call.call_id,
        chars=len(kept),
        created_at=context.storage.now(),
        data=await trio.to_thread.run_sync(zstandard.compress, kept.encode(), _LEVEL),
    )
    context.work.store(tool_state.add_result, row, count_max=RESULTS_MAX, bytes_max=RESULTS_BYTES_MAX)
    lost = f"; only the first {RESULT_STORED_CHARS_MAX} are stored" if len(kept) < len(text) else ""
    return _shown(text, limit, f"; read them with the tool {reader}: op=read, id={row.id}, offset=", lost)


def read(connection: Connection, agent_id: str, result_id: str, *, offset: int, limit: int) -> str:
    """Return at most `limit` characters (and never more than `PIECE_CHARS_MAX`) of a stored result from `offset` on,
    below a line that says which they are.

    Raises:
        InvalidInput: `offset` is not within the text, or `limit` is not positive.
        NotFound: the agent has no such result, or it was removed for newer ones.
    """
    row, text = _whole(connection, agent_id, result_id)
    if not 0 <= offset < max(len(text), 1) or limit < 1:
        raise InvalidInput(f"{result_id} has {len(text)} characters; offset counts from 0, limit from 1")
    end = min(offset + min(limit, PIECE_CHARS_MAX), len(text))
    more = f"read on with offset={end}" if end < len(text) else "this is the end"
    place = f"Characters {offset} to {end} of {len(text)} of a result of {row.tool}, {row.created_at}"
    return f"{place}; {more}:\n{text[offset:end]}"


def find(connection: Connection, agent_id: str, result_id: str, pattern: str, *, offset: int) -> str:
    """Return the first `FOUND_MAX` places from `offset` on that hold `pattern` (plain words, in any case), a line each,
    and where to find more.

    Raises:
        InvalidInput: the pattern is empty or longer than `PATTERN_CHARS_MAX`, or `offset` is negative.
        NotFound: the agent has no such result, or it was removed for newer ones.
    """
    if not 0 < len(pattern) <= PATTERN_CHARS_MAX or offset < 0:
        raise InvalidInput(f"a pattern has 1 to {PATTERN_CHARS_MAX} characters, and offset counts from 0")
    _row, text = _whole(connection, agent_id, result_id)
    matches = re.compile(re.escape(pattern), re.IGNORECASE).finditer(text, offset)
    places = [match.span() for match in islice(matches, FOUND_MAX)]
    if not places:
        return f"Nothing in {result_id} holds {pattern!r} from offset {offset} on."
    lines = [f"{len(places)} places, each with up to {AROUND_CHARS} characters around it:"]
    for start, end in places:
        first, last = max(start - AROUND_CHARS, 0), end + AROUND_CHARS
        cut = "…" if last < len(text) else ""
        lines.append(f"[offset {start}] {'…' if first else ''}{text[first:last]}{cut}")
    if next(matches, None) is not None:
        lines.append(f"There are more: find again from offset {places[-1][0] + 1}.")
    return "\n".join(lines)


def _whole(connection: Connection, agent_id: str, result_id: str) -> tuple[ToolResultRow, str]:
    row = tool_state.get_result(connection, agent_id, result_id)
    with suppress(zstandard.ZstdError, UnicodeDecodeError):
        # A file may be untrusted: a small frame with a declared size of gigabytes is not decompressed.
        if 0 <= zstandard.get_frame_parameters(row.data).content_size <= 4 * RESULT_STORED_CHARS_MAX:
            return row, zstandard.decompress(row.data).decode()
    raise NotFound("what is stored of this result is damaged; call the tool again")


def _shown(text: str, limit: int, read_on: str = "", lost: str = "") -> str:
    """Return the beginning and the end of `text`, at most `limit` characters with the note between them."""

    def note(start: int, stop: int) -> str:
        how = f"{read_on}{start}" if read_on else ""
        return f"\n[… {len(text)} characters in all, {start} to {stop} are left out here{how}{lost} …]\n"

    # No place has more digits than the length.
    kept = max(limit - len(note(len(text), len(text))), 0)
    end = kept // TAIL_SHARE
    return (text[: kept - end] + note(kept - end, len(text) - end) + text[len(text) - end :])[:limit]
