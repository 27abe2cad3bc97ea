"""The program of every one-shot child: `python -m pattern_core.child MEMORY_BYTES CPU_S MODULE FUNCTION [ARGUMENT…]`.

It bounds itself, gives the function its standard input and writes what the function returns to standard
output. Exit codes: 0 done, 3 refused, with the reason on standard error; anything else means that the work crashed.

It must start fast, so it imports almost nothing; the imports of the work come with its module. Work that needs only the
standard library is also defined here.
"""

from __future__ import annotations

import importlib
import json
import re
import resource
import sys
from contextlib import suppress

from pattern_core.errors import InvalidInput, PatternError

REFUSED = 3


def main(arguments: list[str]) -> int:
    """Do the work that the arguments name and return the exit code."""
    memory_bytes, cpu_s, module, function, *more = arguments
    bounds = {resource.RLIMIT_CPU: int(cpu_s), resource.RLIMIT_FSIZE: 0, resource.RLIMIT_CORE: 0}
    for kind, bound in {**bounds, resource.RLIMIT_AS: int(memory_bytes)}.items():
        with suppress(ValueError, OSError):  # macOS has no bound on the address space
            resource.setrlimit(kind, (bound, bound))
    work = getattr(importlib.import_module(module), function)
    try:
        result = work(sys.stdin.buffer.read(), *more)
        for piece in [result] if isinstance(result, bytes) else result:
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
    except PatternError as error:
        sys.stderr.write(error.message)
        return REFUSED
    return 0


def first_match(data: bytes) -> bytes:
    """Return the first match of `{"pattern", "template", "text"}` as JSON: `[start, end, replacement]`, or null.

    Raises:
        InvalidInput: the pattern or the template is malformed.
    """
    question = json.loads(data)
    try:
        found = re.search(question["pattern"], question["text"])
        answer = found and [found.start(), found.end(), found.expand(question["template"])]
    except (re.error, IndexError, OverflowError, RecursionError) as error:
        raise InvalidInput(str(error)) from None
    return json.dumps(answer).encode()


def matching_lines(data: bytes) -> bytes:
    """Return the lines that match `{"pattern", "texts", "limit", "ignore_case"}` as JSON: `[text, line, words]` for
    each.

    A text is given as its passages: the number of their first line and their text.

    Raises:
        InvalidInput: the pattern is malformed.
    """
    question = json.loads(data)
    try:
        pattern = re.compile(question["pattern"], re.IGNORECASE if question["ignore_case"] else 0)
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidInput(str(error)) from None
    found: list[tuple[int, int, str]] = []
    for number, passages in enumerate(question["texts"]):
        for first, words in passages:
            for line, text in enumerate(words.split("\n"), start=first):
                if len(found) < question["limit"] and pattern.search(text):
                    found.append((number, line, text))
    return json.dumps(found).encode()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
