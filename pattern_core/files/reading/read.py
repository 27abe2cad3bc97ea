"""Reading one file's bytes: text on a thread, everything else in a child process with bounds."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import trio
from trio.lowlevel import RunVar

from pattern_core.files.disk import FILE_BYTES_MAX, UnreadableFile, too_long
from pattern_core.files.reading.child import REFUSED
from pattern_core.files.reading.document import Document, FileKind, Reader, kind_of
from pattern_core.files.reading.readers import read_text

CHILDREN_MAX = 2  # at once, of all constellations
READ_TIMEOUT_S = 60.0  # of wall time; the child bounds its own processor time
_CHILD = "pattern_core.files.reading.child"
_ROOT = Path(__file__).resolve().parents[3]  # where `-m` finds our packages, in a checkout as in site-packages
_children: RunVar[trio.CapacityLimiter] = RunVar("pattern_core.files.reading.children")


async def read_document(name: str, data: bytes) -> Document:
    """The text of a file with this name and these bytes.

    Raises:
        UnreadableFile: it cannot be read; the message says why.
    """
    kind = kind_of(name)
    if len(data) > FILE_BYTES_MAX:
        raise too_long(len(data))
    if not data:
        raise UnreadableFile("the file is empty: there is nothing in it to read")
    if kind.reader is Reader.TEXT:
        text = await trio.to_thread.run_sync(partial(read_text, data))
        return Document(text=text, syntax=kind.syntax, content_type=kind.content_type)
    async with _limiter():
        return await _in_child(kind, data)


def _limiter() -> trio.CapacityLimiter:
    try:
        return _children.get()
    except LookupError:
        limiter = trio.CapacityLimiter(CHILDREN_MAX)
        _children.set(limiter)
        return limiter


async def _in_child(kind: FileKind, data: bytes) -> Document:
    with trio.move_on_after(READ_TIMEOUT_S):  # cancelling kills the child
        done = await trio.run_process(
            [sys.executable, "-m", _CHILD, kind.reader.value],
            stdin=data,
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            cwd=_ROOT,
        )
        if done.returncode == REFUSED:
            raise UnreadableFile(done.stderr.decode(errors="replace")[-500:])
        if done.returncode != 0:
            raise UnreadableFile(
                f"the {kind.reader.value.upper()} file is damaged or made to do harm: reading it in a separate"
                f" process ended that process ({_last_line(done.stderr) or f'signal {-done.returncode}'})"
            )
        answer = json.loads(done.stdout)
        return Document(
            text=answer["text"], syntax=kind.syntax, content_type=kind.content_type, pages=tuple(answer["pages"])
        )
    raise UnreadableFile(f"reading the {kind.reader.value.upper()} file took longer than {READ_TIMEOUT_S:.0f} s")


def _last_line(stderr: bytes) -> str:
    lines = stderr.decode(errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else ""
