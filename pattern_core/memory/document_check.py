"""The child process in which bytes that may be damaged are opened first: `python -m …memory.document_check [parts]`.

Rare bytes make the document library ask for hundreds of gigabytes and abort the process; here that ends only the child.

Without an argument standard input is one document from outside, and standard output a clean snapshot of it. Exit codes:
0 done, 3 the bytes are no document; anything else (also a signal) is the library's death.

With `parts` standard input is any number of stored documents: per document a count of parts and per part a length (each
4 bytes, big endian) and its bytes: a snapshot or nothing, then updates. Standard output is, per document and at once,
one line of JSON, `[parts that opened, reason]`, with the reason empty if all did. If the library dies, the lines end
before the document that did it.
"""

from __future__ import annotations

import json
import resource
import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import BinaryIO

from pattern_core.memory.document import READER_PEER, BlockDocument, DocumentDamaged, state_of

ADDRESS_SPACE_BYTES = 512 * 1024 * 1024
CPU_SECONDS = 2
PARTS = "parts"
REFUSED = 3
_COUNT = struct.Struct(">I")


def main() -> int:
    """Check what standard input holds and return the exit code."""
    limit_resources()
    if sys.argv[1:] == [PARTS]:
        for parts in read_frames(sys.stdin.buffer):
            line = json.dumps(opened(parts), ensure_ascii=False)
            sys.stdout.buffer.write(f"{line}\n".encode())
            sys.stdout.buffer.flush()
        return 0
    try:
        snapshot = clean_snapshot(sys.stdin.buffer.read())
    except DocumentDamaged as error:
        sys.stderr.write(error.message)
        return REFUSED
    sys.stdout.buffer.write(snapshot)
    return 0


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


def clean_snapshot(data: bytes) -> bytes:
    """The snapshot that this library itself makes of the document in `data`.

    Raises:
        DocumentDamaged: `data` is no whole document.
    """
    return BlockDocument.load(data, peer=READER_PEER).snapshot()


def opened(parts: Sequence[bytes]) -> tuple[int, str]:
    """How many of the parts, in order, make a document, and why the next one does not; empty if all do."""
    document, count = BlockDocument(READER_PEER), 0
    try:
        for part in parts:
            if part:
                document.import_update(part)
                state_of(document)  # a part may be found damaged only when it is read
            count += 1
    except DocumentDamaged as error:
        return count, error.message
    return count, ""


def frame(parts: Sequence[bytes]) -> bytes:
    """One document as the child reads it."""
    pieces = [_COUNT.pack(len(parts))]
    for part in parts:
        pieces += [_COUNT.pack(len(part)), part]
    return b"".join(pieces)


def read_frames(stream: BinaryIO) -> Iterator[list[bytes]]:
    """The documents that `stream` holds."""
    while head := stream.read(_COUNT.size):
        yield [_read_part(stream) for _ in range(_COUNT.unpack(head)[0])]


def _read_part(stream: BinaryIO) -> bytes:
    return stream.read(_COUNT.unpack(stream.read(_COUNT.size))[0])


if __name__ == "__main__":
    raise SystemExit(main())
