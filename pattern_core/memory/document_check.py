"""The child process in which bytes from outside are opened first: `python -m pattern_core.memory.document_check`.

Reads the bytes from standard input and writes a clean snapshot of what they make to standard output. Rare bytes make
the document library ask for hundreds of gigabytes and abort the process; here that ends only the child.

Exit codes: 0 done, 3 the bytes are no document; anything else (also a signal) is the library's death.
"""

from __future__ import annotations

import resource
import sys
from contextlib import suppress

from pattern_core.memory.document import READER_PEER, Document, DocumentDamaged

ADDRESS_SPACE_BYTES = 512 * 1024 * 1024
CPU_SECONDS = 2
REFUSED = 3


def main() -> int:
    """Check what standard input holds and return the exit code."""
    limit_resources()
    try:
        snapshot = clean_snapshot(sys.stdin.buffer.read())
    except DocumentDamaged as error:
        sys.stderr.write(error.message)
        return REFUSED
    sys.stdout.buffer.write(snapshot)
    return 0


def clean_snapshot(data: bytes) -> bytes:
    """The snapshot that this library itself makes of the document in `data`.

    Raises:
        DocumentDamaged: `data` is no whole document.
    """
    return Document.load(data, peer=READER_PEER).snapshot()


def limit_resources() -> None:
    """Bound this process's memory, processor time and dumps for good. What the system cannot bound stays unbounded."""
    for kind, bound in (
        (resource.RLIMIT_AS, ADDRESS_SPACE_BYTES),
        (resource.RLIMIT_CPU, CPU_SECONDS),
        (resource.RLIMIT_CORE, 0),
    ):
        # macOS has no bound on the address space; the parent's time limit holds there all the same.
        with suppress(ValueError, OSError):
            resource.setrlimit(kind, (bound, bound))


if __name__ == "__main__":
    raise SystemExit(main())
