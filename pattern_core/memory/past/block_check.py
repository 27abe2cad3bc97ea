"""The child process in which stored documents are opened to see whether they can be: `python -m …past.block_check`.

Standard input: per document a count of parts and per part a length (each 4 bytes, big endian) and its bytes: a snapshot
or nothing, then updates. Standard output, per document and at once: one line of JSON, `[parts that opened, reason]`,
with the reason empty if all did. Rare bytes abort the library; then the lines end before the document that did it.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from pattern_core.memory.document import READER_PEER, Document, DocumentDamaged, state_of
from pattern_core.memory.document_check import limit_resources

_COUNT = struct.Struct(">I")


def main() -> int:
    """Check what standard input holds; return the exit code."""
    limit_resources()
    for parts in read_frames(sys.stdin.buffer):
        line = json.dumps(opened(parts), ensure_ascii=False)
        sys.stdout.buffer.write(f"{line}\n".encode())
        sys.stdout.buffer.flush()
    return 0


def opened(parts: Sequence[bytes]) -> tuple[int, str]:
    """How many of the parts, in order, make a document, and why the next one does not; empty if all do."""
    document, count = Document(READER_PEER), 0
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
