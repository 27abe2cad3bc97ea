"""Regular expressions that agents write, matched in a child process.

Python's matcher can need exponential time, blocks the interpreter and cannot be interrupted, so neither a thread nor a
time-out helps; and no check of the pattern finds all slow ones (`(a|a)*b` nests no quantifier that a simple check would
see, `a*a*a*b` nests none at all). A child with bounded processor time costs some 30 ms and always ends.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pattern_core import child
from pattern_core.children import ChildFailed, ChildRefused, Work, run_child
from pattern_core.errors import InvalidInput

PATTERN_CHARS_MAX = 1_000
MATCH_TIMEOUT_S = 15.0  # of wall time
MEMORY_BYTES = 512 * 1024 * 1024


async def first_match(pattern: str, template: str, text: str) -> tuple[int, int, str] | None:
    r"""Return where `pattern` (syntax of Python's `re`) first matches in `text` (code points), and its replacement:
    `template` with `\1` and `\g<name>` filled in. None if nothing matches.

    Raises:
        InvalidInput: the pattern or template is malformed or too long, or matching is too slow.
    """
    advice = "make it simpler or replace plain text"
    found = await _ask(child.first_match, pattern, {"template": template, "text": text}, 1, advice)
    return None if found is None else (found[0], found[1], found[2])


async def matching_lines(
    pattern: str, texts: Sequence[Sequence[tuple[int, str]]], *, limit: int, ignore_case: bool
) -> list[tuple[int, int, str]]:
    """Return the first `limit` matching lines in order: the index of their text, their number and their text.

    A text is given as its passages: the number of their first line and their text.

    Raises:
        InvalidInput: the pattern is malformed or too long, or matching is too slow.
    """
    more = {"texts": texts, "limit": limit, "ignore_case": ignore_case}
    advice = "make it simpler, or name one file"
    return [(number, line, text) for number, line, text in await _ask(child.matching_lines, pattern, more, 3, advice)]


async def _ask(work: Work, pattern: str, more: dict[str, object], cpu_s: int, advice: str) -> Any:  # Any: JSON
    if len(pattern) > PATTERN_CHARS_MAX:
        raise InvalidInput(f"the pattern has {len(pattern)} characters; at most {PATTERN_CHARS_MAX} are allowed")
    question = json.dumps({"pattern": pattern, **more}).encode()
    try:
        return json.loads(
            await run_child(work, question, timeout_s=MATCH_TIMEOUT_S, cpu_s=cpu_s, memory_bytes=MEMORY_BYTES)
        )
    except ChildRefused as error:
        raise InvalidInput(f"the pattern {pattern!r} or its replacement is malformed: {error.reason}") from None
    except ChildFailed:
        raise InvalidInput(f"the pattern {pattern!r} takes too long to match; {advice}") from None
