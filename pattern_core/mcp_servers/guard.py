"""The process between the library's transport and an MCP server's program: `guard PLAN`, PLAN in JSON.

The library starts it in the program's place, and it adds what the library does not do:

- The program does not find the environment variables in `hidden`, which the library adds to what is configured. It
  reads the guard's standard input, and writes to the guard's standard error.
- Of its standard output, lines that are objects are passed on: whole, within `line_bytes_max`, and no faster than a
  server may read them. A longer line ends the program; standard error has the reason. Half of a surrogate pair is
  replaced: the library drops a message with one, and its call would wait for its whole time.
- Nothing survives, however it detached itself. When the guard gets SIGTERM, or the server is dead, everything gets
  SIGTERM, and SIGKILL after `grace_s`; what a program leaves behind is killed.

Run without site-packages, so it imports the standard library only.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from threading import Thread

from pattern_core.process_tree import END_S, ProcessTree

LOOK_S = 0.5  # between two checks of the server
UNITS_PER_S = 500  # a line costs one unit, and one more for each PIECE_BYTES of it
PIECE_BYTES = 64 * 1024
CANNOT_START = 127
_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|u[dD][89a-fA-F]..|.)")
_HALF_CHARS = 6  # of an escape such as \ud800; that of a pair has 12; of others the beginning is checked


def main(arguments: Sequence[str]) -> int:
    """Run the plan's command until it ends or has to; returns its exit code, or 128 and the signal that ended it."""
    plan, server = json.loads(arguments[0]), os.getppid()
    reasons: list[str] = []  # to stop the program
    signal.signal(signal.SIGTERM, lambda _number, _frame: reasons.append(""))
    source, sink = os.pipe()
    tree = ProcessTree(partial(_become, plan["command"], plan["hidden"], sink))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # the conversation is the program's
    os.close(sink)
    passing = Thread(target=_pass_on, args=(source, int(plan["line_bytes_max"]), reasons), daemon=True)
    passing.start()
    while not tree.is_over():
        tree.wait(LOOK_S)
        if reasons or os.getppid() != server:
            tree.stop(plan["grace_s"])
    tree.end()
    passing.join(END_S)
    os.write(2, "".join(reasons).encode())
    return tree.code


def _become(command: list[str], hidden: Sequence[str], output: int) -> int:
    os.dup2(output, 1)
    try:
        for name in hidden:
            os.unsetenv(name)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]} cannot be started: {error.strerror}\n".encode())
    return CANNOT_START


def _whole(escape: re.Match[bytes]) -> bytes:
    return b"\\ufffd" if len(escape[0]) == _HALF_CHARS else escape[0]


def _pass_on(source: int, line_bytes_max: int, reasons: list[str]) -> None:
    """Write whole messages to standard output, where nothing else writes; what is not a message is left out."""
    waiting = bytearray()
    with suppress(BrokenPipeError):
        while len(waiting) <= line_bytes_max and (piece := os.read(source, PIECE_BYTES)):
            waiting += piece
            end = waiting.rfind(b"\n", len(waiting) - len(piece)) + 1
            lines = [line for line in bytes(waiting[:end]).split(b"\n") if line.lstrip().startswith(b"{")]
            del waiting[:end]
            left = memoryview(b"".join(_ESCAPE.sub(_whole, line) + b"\n" for line in lines))
            while left:
                left = left[os.write(1, left) :]
            # This process has no event loop to wait in.
            select.poll().poll((len(lines) + sum(map(len, lines)) // PIECE_BYTES) / UNITS_PER_S * 1000)
    if len(waiting) > line_bytes_max:
        reasons.append("\nstopped: it sent a message that is too long")
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
