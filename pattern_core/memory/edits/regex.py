"""Regular expressions from a model, run in a process of their own.

Python's matcher can take exponential time, holds the interpreter all the while and cannot be interrupted, so neither
a thread nor a timeout helps; and no check of the pattern finds all slow ones (`(a|a)*b` nests no quantifier in sight
of a simple rule, `a*a*a*b` nests none at all). A child with bounded processor time costs some 20 ms and always ends.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import trio

from pattern_core.errors import InvalidInput

PATTERN_CHARS_MAX = 1_000
MATCH_TIMEOUT_S = 10.0  # of wall time; the child bounds its own processor time
_CHILD = Path(__file__).with_name("regex_child.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Where the pattern matched (code points) and what shall stand there instead."""

    start: int
    end: int
    text: str


async def replace_first_match(pattern: str, template: str, text: str) -> Match | None:
    r"""The first match of `pattern` (syntax of Python's `re`) in `text`, with `template` expanded (`\1`, `\g<name>`).

    None if nothing matches.

    Raises:
        InvalidInput: the pattern or template is malformed or too long, or matching takes too long.
    """
    if len(pattern) > PATTERN_CHARS_MAX:
        raise InvalidInput(f"the pattern has {len(pattern)} characters; at most {PATTERN_CHARS_MAX} are taken")
    question = json.dumps({"pattern": pattern, "template": template, "text": text}).encode()
    with trio.move_on_after(MATCH_TIMEOUT_S):  # cancelling kills the child
        done = await trio.run_process(
            # Isolated and without site-packages: it needs the standard library only, and starts in a third of the time.
            [sys.executable, "-I", "-S", str(_CHILD)],
            stdin=question,
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
        if done.returncode == 0:
            return _answer(done.stdout, pattern)
    raise InvalidInput(f"the pattern {pattern!r} takes too long to match; make it simpler or replace plain text")


def _answer(data: bytes, pattern: str) -> Match | None:
    answer = json.loads(data)
    if answer is None:
        return None
    if "error" in answer:
        raise InvalidInput(f"the pattern {pattern!r} or its replacement is malformed: {answer['error']}")
    return Match(start=answer["start"], end=answer["end"], text=answer["text"])
