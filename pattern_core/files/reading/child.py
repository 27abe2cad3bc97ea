"""The child process that reads formats which can hurt: `python -m pattern_core.files.reading.child html|pdf|docx`.

The file's bytes come on standard input; the answer is JSON on standard output, `{"text", "pages"}`. A file made to
exhaust memory or time, or one that trips a parser, ends this process and nothing else.

Exit codes: 0 done, 3 the file cannot be read, with the reason on standard error; anything else is the parser's death.
"""

from __future__ import annotations

import json
import resource
import sys
from contextlib import suppress

from pattern_core.files.disk import UnreadableFile
from pattern_core.files.reading.document import Reader, clean
from pattern_core.files.reading.readers import read_docx, read_html, read_pdf

ADDRESS_SPACE_BYTES = 1024 * 1024 * 1024
CPU_SECONDS = 30
REFUSED = 3


def main(arguments: list[str]) -> int:
    """Read what standard input holds by the named reader and return the exit code."""
    limit_resources()
    try:
        text, pages = read(Reader(arguments[0]), sys.stdin.buffer.read())
    except UnreadableFile as error:
        sys.stderr.write(error.message)
        return REFUSED
    sys.stdout.buffer.write(json.dumps({"text": text, "pages": pages}).encode())
    return 0


def read(reader: Reader, data: bytes) -> tuple[str, list[int]]:
    """The text of `data`, and the first line of every page where there are pages.

    Raises:
        UnreadableFile: it cannot be read.
        ValueError: the reader is none of this process's.
    """
    match reader:
        case Reader.HTML:
            return clean(read_html(data)), []
        case Reader.DOCX:
            return clean(read_docx(data)), []
        case Reader.PDF:
            text, pages = read_pdf(data)
            return clean(text), pages
        case Reader.TEXT:
            raise ValueError("text is read without a child process")


def limit_resources() -> None:
    """Bound this process's memory, processor time, files and dumps for good. What the system cannot bound stays so."""
    for kind, bound in (
        (resource.RLIMIT_AS, ADDRESS_SPACE_BYTES),
        (resource.RLIMIT_CPU, CPU_SECONDS),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        with suppress(ValueError, OSError):  # macOS has no bound on the address space
            resource.setrlimit(kind, (bound, bound))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
