"""The parent's end of the child process: starts it, asks it, notices how it dies.

One question at a time, by one task at a time. A question whose asker was cancelled is answered all the same, and its
answer dropped when the next one comes: the child is never killed for being asked in vain, and answers never mix.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TypeAlias

import trio

from pattern_core.embeddings.settings import EmbedderSettings

SEND_TIMEOUT_S = 5.0  # the child reads at once, whatever else it does
REAP_TIMEOUT_S = 5.0
_STDERR_TAIL_BYTES = 4_096
_ROOT = Path(__file__).resolve().parents[3]  # where `-m` finds our packages, in a checkout as in site-packages
_MODULE = "pattern_core.embeddings.local.child"
ANSWER_BYTES_MAX = 64 * 1024 * 1024

ChildAnswer: TypeAlias = tuple[dict[str, object], bytes]
"""What it says about a question, and the vectors."""


class WorkerFailed(Exception):
    """The child died, hung or wrote what is no answer; it is gone."""


class WorkerHung(WorkerFailed):
    """It did not answer in time, which it will hardly do at once when asked again."""


def child_command(settings: EmbedderSettings) -> list[str]:
    """Return how to start the child.

    `env` sets what the libraries read when they are imported: without `HF_HUB_OFFLINE` the hub's client tries the
    network for more than a minute, threads beyond the first wait by spinning, and ONNX Runtime leaves a device's number
    in the user's cache to report with.
    """
    hub_is_offline = "0" if settings.allow_download else "1"
    environment = {
        "HF_HUB_OFFLINE": hub_is_offline,
        "TRANSFORMERS_OFFLINE": hub_is_offline,
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "ORT_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }
    return [
        "/usr/bin/env",
        *(f"{name}={value}" for name, value in environment.items()),
        sys.executable,
        "-m",
        _MODULE,
        settings.to_json(),
    ]


class Worker:
    """A child process that is started by the first question, and again by the next one after its end."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._process: trio.Process | None = None
        self._errors: IO[bytes] | None = None
        self._buffer = bytearray()
        self._last_id = 0
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        """The child's process id, None while there is none; it may have ended without having been noticed."""
        return None if self._process is None else self._process.pid

    async def ask(self, question: Mapping[str, object], *, timeout_s: float) -> ChildAnswer:
        """Return the answer to a question (without its `id`), for which the child has `timeout_s` seconds.

        Raises:
            WorkerFailed: the child died, hung or babbled; it is gone, and the next question starts another.
        """
        await self._forget_the_ended()
        process = self._process or await self._start()
        self._last_id += 1
        try:
            await self._send(process, json.dumps({**question, "id": self._last_id}).encode() + b"\n")
            with trio.move_on_after(timeout_s):
                return await self._answer(process, self._last_id)
        except (trio.BrokenResourceError, trio.ClosedResourceError, EOFError) as error:
            raise WorkerFailed(await self._obituary(process)) from error
        except WorkerFailed:
            await self.stop()
            raise
        await self.stop()
        raise WorkerHung(f"it did not answer within {timeout_s:g} s")

    async def aclose(self) -> None:
        """Stop the child, and start none any more."""
        self._is_closed = True
        await self.stop()

    async def stop(self) -> None:
        """Kill the child, if there is one, and wait until it is gone. Not interrupted by cancellation."""
        process, self._process = self._process, None
        if process is None:
            return
        with trio.CancelScope(shield=True, deadline=trio.current_time() + REAP_TIMEOUT_S):
            process.kill()
            await process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    await stream.aclose()
        if self._errors is not None:
            self._errors.close()
            self._errors = None

    async def _start(self) -> trio.Process:
        self._buffer.clear()
        # A file never fills up and blocks the child, as a pipe that nobody reads would.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `stop`
        with trio.CancelScope(shield=True):  # a child must not be started and then forgotten
            try:
                process = await trio.lowlevel.open_process(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._errors,
                    cwd=_ROOT,
                    start_new_session=True,  # Ctrl-C in the terminal is for the server, which then ends this
                )
            except OSError as error:
                self._errors.close()
                self._errors = None
                raise WorkerFailed(f"it could not be started: {error}") from error
        self._process = process
        if self._is_closed:  # meanwhile
            await self.stop()
            raise WorkerFailed("it is not needed any more")
        return process

    async def _send(self, process: trio.Process, question: bytes) -> None:
        assert process.stdin is not None
        # Half a question would garble all that follows; hence no cancellation before its end.
        with trio.CancelScope(shield=True, deadline=trio.current_time() + SEND_TIMEOUT_S) as scope:
            await process.stdin.send_all(question)
        if scope.cancelled_caught:
            raise WorkerHung("it did not read its question")

    async def _answer(self, process: trio.Process, question_id: int) -> ChildAnswer:
        assert process.stdout is not None
        while True:
            while (answer := take_answer(self._buffer)) is not None:
                if answer[0].get("id") == question_id:
                    return answer
            data = await process.stdout.receive_some(65_536)
            if not data:
                raise EOFError
            self._buffer += data

    async def _forget_the_ended(self) -> None:
        """A child that ended because it was idle is no failure."""
        if self._process is not None and self._process.poll() is not None:
            await self.stop()

    async def _obituary(self, process: trio.Process) -> str:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + REAP_TIMEOUT_S):
            await process.wait()  # it has closed its output
        words = self._last_words()
        await self.stop()
        code = process.returncode
        how = (
            "closed its output"
            if code is None
            else f"ended with {f'signal {-code}' if code < 0 else f'exit code {code}'}"
        )
        return f"it {how}{f': {words}' if words else ''}"

    def _last_words(self) -> str:
        """The last line that the child wrote to its standard error, where Python puts what went wrong."""
        if self._errors is None:
            return ""
        end = self._errors.seek(0, 2)
        self._errors.seek(max(0, end - _STDERR_TAIL_BYTES))
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:300] if lines else ""


def take_answer(buffer: bytearray) -> ChildAnswer | None:
    """Take the next answer out of what the child wrote: a line of JSON, and as many `bytes` after it as it says.

    None while it is not whole.

    Raises:
        WorkerFailed: this is no answer; something else wrote.
    """
    end = buffer.find(b"\n") + 1
    if not end and len(buffer) <= ANSWER_BYTES_MAX:
        return None
    try:
        head = json.loads(buffer[:end])
    except ValueError as error:
        raise WorkerFailed(f"it wrote what is no answer: {error}") from error
    size = head.get("bytes") if isinstance(head, dict) else None
    if not isinstance(size, int) or not 0 <= size <= ANSWER_BYTES_MAX:
        raise WorkerFailed("it wrote what is no answer: its first line does not say how many bytes follow")
    if len(buffer) < end + size:
        return None
    payload = bytes(buffer[end : end + size])
    del buffer[: end + size]
    return head, payload
