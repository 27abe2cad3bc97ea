"""`pattern logs`: the log of a server in the background, as people read it; its lines are JSON or text."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import click
import trio

from pattern_core.errors import NotFound
from pattern_server.cli.child import LOG_FILE
from pattern_server.cli.client import Json
from pattern_server.cli.command import ExitCode, local
from pattern_server.cli.output import DONE, Output
from pattern_server.config import Config

BLOCK_BYTES = 64 * 1024
LINES_MAX = 100_000
POLL_S = 0.25
LEVELS = ("debug", "info", "warning", "error")
_TEXT = re.compile(r"(\d{4}-\S+Z) \[(\w+) *\] ?(.*)")
_BEFORE = ("time", "level", "event", "exception")  # they have their own places


@click.command(epilog="Example: pattern logs -n 50 --level warning")
@click.option("-n", "--lines", type=click.IntRange(0, LINES_MAX), default=100, show_default=True, help="How many.")
@click.option("-f", "--follow", is_flag=True, help="Continue with new lines, until it is stopped.")
@click.option("--level", type=click.Choice(LEVELS), default="debug", help="Only what is at least so important.")
@local
def logs(config: Config, output: Output, lines: int, follow: bool, level: str) -> ExitCode:
    """Show the end of the log of a server that `pattern up` or `pattern chat` started.

    A line that is neither JSON nor text of the server, such as one of a traceback, counts as an error. With --json and
    --follow, there is one document for each line.
    """
    path, least = config.data_dir / LOG_FILE, _number(level)
    if not path.is_file():
        raise NotFound(
            f"there is no {path}; `pattern up` starts a server that writes one. A server in the foreground writes to"
            " its terminal, a service of systemd to: journalctl -u pattern"
        )
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        if follow:  # a line that is being written is shown when it is complete
            file.seek(max(0, end - BLOCK_BYTES))
            end -= len(file.read().rpartition(b"\n")[2])
        wanted = (line for line in map(parsed, _backwards(file, end)) if _number(line["level"]) >= least)
        found = [*islice(wanted, lines)][::-1]
        if not follow:
            output.data(found)
        for line in found:
            _show(output, line, is_stream=follow)

    def show(text: bytes) -> None:
        if _number((line := parsed(text))["level"]) >= least:
            _show(output, line, is_stream=True)

    if follow:
        trio.run(followed, path, end, show)
    return DONE


def _show(output: Output, line: Json, *, is_stream: bool) -> None:
    if is_stream:
        output.data(line)
    words = [f"{line['time']} [{line['level']:8}]"] if line["time"] else []
    words += [line["event"], *(f"{name}={value!r}" for name, value in line.items() if name not in _BEFORE)]
    output.say(" ".join(words))
    for more in str(line.get("exception", "")).splitlines():
        output.say(more)


def parsed(line: bytes) -> Json:
    """Return a line's `time`, `level` and `event`, with further fields if it is JSON."""
    text = line.decode(errors="replace")
    with suppress(ValueError):
        fields = json.loads(text)
        if isinstance(fields, dict) and {"time", "level", "event"} <= fields.keys():
            about = {name: str(fields.pop(name)) for name in ("time", "level", "event")}
            return about | fields
    found = _TEXT.fullmatch(text)
    time, level, event = found.groups() if found else (None, "error", text)
    return {"time": time, "level": level, "event": event}


def _number(level: str) -> int:
    return logging.getLevelNamesMapping().get(level.upper(), logging.ERROR)


def _backwards(file: BinaryIO, end: int) -> Iterator[bytes]:
    """Yield the lines before a place, the last one first, without empty ones."""
    rest = b""
    while end:
        start = max(0, end - BLOCK_BYTES)
        file.seek(start)
        rest, *lines = (file.read(end - start) + rest).split(b"\n")
        yield from filter(None, reversed(lines))
        end = start
    if rest:
        yield rest


async def followed(path: Path, place: int, show: Callable[[bytes], None]) -> None:
    """Show the lines of a log that are added behind a place, until cancelled; all of a file that replaces it, or of one
    that was emptied.
    """
    begun, known = b"", path.stat().st_ino
    while True:
        added = b""
        with suppress(FileNotFoundError), path.open("rb") as file:  # it may be about to be created
            state = os.fstat(file.fileno())
            if state.st_ino != known or state.st_size < place:
                begun, known, place = b"", state.st_ino, 0
            file.seek(place)
            added = file.read(BLOCK_BYTES)
        place += len(added)
        *lines, begun = (begun + added).split(b"\n")
        for line in filter(None, lines):
            show(line)
        await trio.sleep(0 if added else POLL_S)
