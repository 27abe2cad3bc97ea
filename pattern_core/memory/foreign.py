"""Documents from outside (imports, peers): opened in a child process before this one touches them.

Of some 150,000 mutated inputs one aborted the process: it asked for 270 GB. No code here can catch that, so a child
with bounded memory and time opens the bytes and hands back a snapshot that the library made itself.
"""

from __future__ import annotations

import sys
from pathlib import Path

import trio

from pattern_core.errors import InvalidInput
from pattern_core.memory.document_check import REFUSED

FOREIGN_BYTES_MAX = 8 * 1024 * 1024
SNAPSHOT_BYTES_MAX = 32 * 1024 * 1024
CHECK_TIMEOUT_S = 20.0  # of wall time; the child bounds its own processor time far below
_CHECK = "pattern_core.memory.document_check"
_ROOT = Path(__file__).resolve().parents[2]  # where `-m` finds our packages, in a checkout as in site-packages


async def validate_foreign(data: bytes) -> bytes:
    """A clean snapshot of the document in `data` (a snapshot or all its updates), safe to load in this process.

    Raises:
        InvalidInput: `data` is too long, is no whole document, or the check died or took too long over it.
    """
    if len(data) > FOREIGN_BYTES_MAX:
        raise InvalidInput(f"the document has {len(data)} bytes; at most {FOREIGN_BYTES_MAX} are taken")
    with trio.move_on_after(CHECK_TIMEOUT_S):  # cancelling kills the child
        done = await trio.run_process(
            [sys.executable, "-m", _CHECK], stdin=data, capture_stdout=True, capture_stderr=True, check=False, cwd=_ROOT
        )
        if done.returncode == REFUSED:
            raise InvalidInput(f"these bytes are not a document: {done.stderr.decode(errors='replace')[:300]}")
        if done.returncode != 0:
            raise InvalidInput("these bytes are not a document: opening them in a separate process ended that process")
        if len(done.stdout) > SNAPSHOT_BYTES_MAX:
            raise InvalidInput(
                f"the document unfolds to {len(done.stdout)} bytes; at most {SNAPSHOT_BYTES_MAX} are taken"
            )
        return bytes(done.stdout)
    raise InvalidInput(f"opening the document took longer than {CHECK_TIMEOUT_S:.0f} s")
