"""The child process that matches patterns: a question on standard input, an answer on standard output, both JSON.

Run by its path, without our packages and without site-packages, so it imports the standard library only.
"""

from __future__ import annotations

import json
import re
import resource
import sys
from contextlib import suppress

ADDRESS_SPACE_BYTES = 512 * 1024 * 1024
CPU_SECONDS = 3


def answer(pattern: str, texts: list[list[tuple[int, str]]], limit: int, *, ignore_case: bool) -> dict[str, object]:
    """Lines that match, in order: `{"matches": [[text, line, words], …]}`, or `{"error"}` for a malformed pattern.

    `texts` holds for each text its passages, as the number of their first line and their words.
    """
    try:
        found = re.compile(pattern, re.IGNORECASE if ignore_case else 0)
    except (re.error, OverflowError, RecursionError) as error:
        return {"error": str(error)}
    matches: list[tuple[int, int, str]] = []
    for number, passages in enumerate(texts):
        for first, words in passages:
            for line, text in enumerate(words.split("\n"), start=first):
                if len(matches) >= limit:
                    return {"matches": matches}
                if found.search(text):
                    matches.append((number, line, text))
    return {"matches": matches}


def main() -> int:
    """Answer the one question; the system kills this process when its time is up."""
    for kind, bound in ((resource.RLIMIT_AS, ADDRESS_SPACE_BYTES), (resource.RLIMIT_CPU, CPU_SECONDS)):
        with suppress(ValueError, OSError):  # macOS has no bound on the address space
            resource.setrlimit(kind, (bound, bound))
    question = json.load(sys.stdin.buffer)
    found = answer(question["pattern"], question["texts"], question["limit"], ignore_case=question["ignore_case"])
    json.dump(found, sys.stdout)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
