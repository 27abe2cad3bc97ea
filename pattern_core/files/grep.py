"""Lines that match a regular expression, found in a process of its own: a pattern may take exponential time."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import trio

from pattern_core.errors import InvalidInput
from pattern_core.memory.text_edits import PATTERN_CHARS_MAX

MATCH_TIMEOUT_S = 15.0  # of wall time; the child bounds its own processor time
_CHILD = Path(__file__).with_name("grep_child.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """A text to look through: its passages as the number of their first line and their words."""

    name: str
    passages: Sequence[tuple[int, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line that matches: whose it is, its number from 1, and its words."""

    name: str
    line: int
    text: str


async def grep(pattern: str, texts: Sequence[Searched], *, limit: int, ignore_case: bool) -> list[Line]:
    """The first `limit` matching lines (`pattern` in the syntax of Python's `re`), in order.

    Raises:
        InvalidInput: the pattern is empty, malformed or too long, or matching takes too long.
    """
    if not pattern or len(pattern) > PATTERN_CHARS_MAX:
        raise InvalidInput(f"the pattern has {len(pattern)} characters; between 1 and {PATTERN_CHARS_MAX} are taken")
    question = {
        "pattern": pattern,
        "texts": [list(text.passages) for text in texts],
        "limit": limit,
        "ignore_case": ignore_case,
    }
    with trio.move_on_after(MATCH_TIMEOUT_S):  # cancelling kills the child
        done = await trio.run_process(
            # Isolated and without site-packages: it needs the standard library only, and starts in a third of the time.
            [sys.executable, "-I", "-S", str(_CHILD)],
            stdin=json.dumps(question).encode(),
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
        if done.returncode == 0:
            answer = json.loads(done.stdout)
            if "error" in answer:
                raise InvalidInput(f"the pattern {pattern!r} is malformed: {answer['error']}")
            return [Line(name=texts[number].name, line=line, text=text) for number, line, text in answer["matches"]]
    raise InvalidInput(f"the pattern {pattern!r} takes too long to match; make it simpler, or name one file")
