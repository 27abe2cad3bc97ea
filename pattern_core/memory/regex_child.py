"""The child process of `regex.py`: one question on standard input, one answer on standard output, both JSON.

Run by its path, without our packages and without site-packages, so it imports the standard library only.
"""

from __future__ import annotations

import json
import re
import resource
import sys
from contextlib import suppress

ADDRESS_SPACE_BYTES = 512 * 1024 * 1024
CPU_SECONDS = 1


def answer(pattern: str, template: str, text: str) -> dict[str, object] | None:
    """The first match as `{"start", "end", "text"}`, None if there is none, `{"error"}` if the pattern is malformed."""
    try:
        found = re.search(pattern, text)
        return found and {"start": found.start(), "end": found.end(), "text": found.expand(template)}
    except (re.error, IndexError, OverflowError, RecursionError) as error:
        return {"error": str(error)}


def main() -> int:
    """Answer the one question; the system kills this process when its time is up."""
    for kind, bound in ((resource.RLIMIT_AS, ADDRESS_SPACE_BYTES), (resource.RLIMIT_CPU, CPU_SECONDS)):
        with suppress(ValueError, OSError):  # macOS has no bound on the address space
            resource.setrlimit(kind, (bound, bound))
    question = json.load(sys.stdin.buffer)
    json.dump(answer(question["pattern"], question["template"], question["text"]), sys.stdout)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
