"""One running command, within one task: started, read into a bounded output, stopped and waited for."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import trio

from pattern_core.children import isolated
from pattern_core.shell.policy import ShellSettings

HEAD_BYTES = 8 * 1024
TAIL_BYTES = 24 * 1024
PIECE_BYTES = 64 * 1024
STATUS_BYTES_MAX = 64 * 1024
MEGABYTE = 1024 * 1024
DRAIN_S = 0.5  # for the last words of a command that is over
PATIENCE_S = 1.0  # with a launcher that should have ended everything
# What programs need of the system. /etc holds other things too, so its files are named one by one.
_READABLE = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store", "/gnu/store", "/proc"),
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ld-musl-x86_64.path", "/etc/alternatives"),
    *("/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/localtime", "/etc/timezone", "/etc/os-release"),
    *("/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/pki/tls/certs", "/etc/ca-certificates", "/etc/mime.types"),
    *("/etc/hosts", "/etc/resolv.conf", "/etc/host.conf", "/etc/gai.conf", "/etc/services", "/etc/protocols"),
    *("/etc/locale.alias", "/etc/terminfo", "/etc/magic", "/etc/java", "/etc/fonts", "/run/systemd/resolve"),
)
_TERMINAL = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_LAUNCHER = "pattern_core.shell.launcher"


class OutputSink(Protocol):
    """Receives what a command prints, as it comes; the command waits while `add` does."""

    async def add(self, data: bytes) -> None:
        """Add bytes."""


@dataclass(slots=True, kw_only=True, eq=False)
class CommandOutput:
    """Bytes as they come, of which the first `head_bytes` and the last `tail_bytes` are kept; `total` counts all."""

    head_bytes: int = HEAD_BYTES
    tail_bytes: int = TAIL_BYTES
    total: int = 0
    _head: bytearray = field(default_factory=bytearray)
    _tail: bytearray = field(default_factory=bytearray)

    async def add(self, data: bytes) -> None:
        """Add bytes."""
        self.total += len(data)
        room = self.head_bytes - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * self.tail_bytes:  # cut rarely, since cutting copies
            del self._tail[: -self.tail_bytes]

    @property
    def left_out(self) -> int:
        """How many bytes in the middle are not shown."""
        return max(0, self.total - self.head_bytes - self.tail_bytes)

    def text(self) -> str:
        """Return what is kept, with a line in the place of what is not."""
        tail = bytes(self._tail[-self.tail_bytes :])
        if not self.left_out:
            return readable(bytes(self._head) + tail)
        return f"{readable(bytes(self._head))}\n[… {self.left_out} bytes left out …]\n{readable(tail)}"

    def since(self, position: int) -> tuple[str, int]:
        """Return what came after the first `position` bytes, as far as it is kept; and how many bytes of it are
        lost.
        """
        kept = bytes(self._head) + bytes(self._tail[-self.tail_bytes :])
        if not self.left_out:
            return readable(kept[position:]), 0
        tail_from = self.total - self.tail_bytes
        if position >= tail_from:
            return readable(kept[self.head_bytes + position - tail_from :]), 0
        return readable(kept[self.head_bytes :]), tail_from - position


def readable(data: bytes) -> str:
    """Bytes as text: what is not UTF-8 is replaced; colours and other commands to a terminal are taken out."""
    text = _TERMINAL.sub("", data.decode("utf-8", "replace"))
    return _CONTROLS.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended: `code` its exit code (128 and the number of the signal that ended it, None if it never
    began), `stopped` "requested", or "processes" if too many; `confined` what held it: files, network, processes.
    `refused` says why it never began.
    """

    code: int | None
    stopped: str | None
    confined: Sequence[str]
    refused: str | None


async def run_child(
    command: str,
    directory: Path,
    settings: ShellSettings,
    output: OutputSink,
    stop: trio.Event,
    *,
    drain_s: float = DRAIN_S,
) -> Ended:
    """Run the command in the directory until it ends or `stop` is set. Nothing of it survives this call, however the
    call ends. Of what it printed, `output` gets the rest for `drain_s` at most.

    Raises:
        OSError: the system has no room for another process or descriptor, or the directory is gone.
    """
    status, sink = os.pipe()
    try:
        plan = _plan(command, directory, settings, sink)
        process = await trio.lowlevel.open_process(
            isolated(_LAUNCHER, json.dumps(plan)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(sink,),
            start_new_session=True,
            cwd=directory,
            env={},
        )
    except BaseException:
        os.close(status)
        raise
    finally:
        os.close(sink)
    try:
        await _follow(process, settings.grace_s, output, stop, drain_s)
    finally:
        with trio.CancelScope(shield=True):
            await _end(process, settings.grace_s)
            if process.stdout is not None:
                await process.stdout.aclose()
        said = _read_status(status)
    refused = said.get("refused")
    code = said.get("code")
    confined = said.get("confined")
    return Ended(
        code=code if isinstance(code, int) and refused is None else None,
        stopped=str(said["stopped"]) if said.get("stopped") else None,
        confined=[str(name) for name in confined] if isinstance(confined, list) else [],
        refused=None if refused is None else str(refused),
    )


async def confinement() -> Sequence[str]:
    """Return what this system can confine of a command: files, network, processes; none if nothing can be run at
    all.
    """
    ended = await run_child(":", Path("/"), ShellSettings(require_sandbox=False), CommandOutput(), trio.Event())
    return ended.confined


def _plan(command: str, directory: Path, settings: ShellSettings, status_fd: int) -> dict[str, object]:
    required = ["files"] if settings.network else ["files", "network"]
    return {
        "command": command,
        "shell": _bash(settings.path),
        "environment": {
            "PATH": settings.path,
            "HOME": str(directory),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "PAGER": "cat",
            "GIT_PAGER": "cat",
        },
        "status_fd": status_fd,
        "roots": [str(root) for root in settings.roots],
        "readable": [*_READABLE, *(str(path) for path in settings.readable)],
        "network": settings.network,
        "means": list(settings.means),
        "required": required if settings.require_sandbox else [],
        "processes": settings.processes_max,
        "cpu_s": settings.cpu_s,
        "memory_bytes": settings.memory_mb * MEGABYTE,
        "file_bytes": settings.file_mb * MEGABYTE,
        "open_files": settings.open_files,
        "grace_s": settings.grace_s,
    }


def _bash(path: str) -> str:
    """Return the shell that runs commands; the launcher says so if it is not there."""
    places = [Path(folder, "bash") for folder in path.split(":") if folder.startswith("/")]
    return str(next((place for place in places if place.is_file()), Path("/bin/bash")))


async def _follow(process: trio.Process, grace_s: float, output: OutputSink, stop: trio.Event, drain_s: float) -> None:
    """Read what it prints until it is over; tell it to end when `stop` is set."""
    read = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_copy, process, output, read)
        nursery.start_soon(_stop_when, process, grace_s, stop)
        await process.wait()
        with trio.move_on_after(drain_s):
            await read.wait()
        nursery.cancel_scope.cancel()


async def _copy(process: trio.Process, output: OutputSink, read: trio.Event) -> None:
    if process.stdout is not None:
        while data := await process.stdout.receive_some(PIECE_BYTES):
            await output.add(bytes(data))
    read.set()


async def _stop_when(process: trio.Process, grace_s: float, stop: trio.Event) -> None:
    await stop.wait()
    await _end(process, grace_s)


async def _end(process: trio.Process, grace_s: float) -> None:
    """Close the lifeline, and check that no process is left."""
    if process.stdin is not None:
        await process.stdin.aclose()
    with trio.move_on_after(grace_s + PATIENCE_S):
        await process.wait()
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _read_status(descriptor: int) -> dict[str, object]:
    """Return what the launcher said; it is over. By /proc the command may write there too: check types."""
    os.set_blocking(descriptor, False)
    data = b""
    with suppress(BlockingIOError):
        while len(data) < STATUS_BYTES_MAX and (piece := os.read(descriptor, PIECE_BYTES)):
            data += piece
    os.close(descriptor)
    said: dict[str, object] = {}
    for line in data.splitlines():
        with suppress(ValueError, TypeError):
            said.update(json.loads(line))
    return said
