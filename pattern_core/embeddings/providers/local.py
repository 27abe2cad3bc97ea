"""The embedder of a model on this machine: a child process that answers one request at a time, and is restarted when it
ends.

If the caller of a request is cancelled, the request is answered anyway, and the answer dropped before the next one: the
child is never killed for an abandoned request, and answers never mix.
"""

from __future__ import annotations

import base64
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import trio

from pattern_core.embeddings.embedder import EmbedderInfo, EmbedderUnavailable, TextsRefused
from pattern_core.embeddings.settings import EmbedderSettings, Purpose
from pattern_core.models.providers.draft import Malformed, loads

BATCH_TEXTS_MAX = 8  # in one question to the child; between two of them a query may go first
BATCH_CHARS_MAX = 4_096  # some 1,000 tokens: half a second on a slow core
TEXT_CHARS_MAX = 32_768  # of one text; far more than any of these models reads
WAITING_MAX = 1_000
ANSWER_BYTES_MAX = 4 * 1024 * 1024  # eight vectors of 8,192 numbers have 350 KB
SEND_TIMEOUT_S = 5.0  # the child reads at once, whatever else it does
REAP_TIMEOUT_S = 5.0
_BUSY_S = 5.0
_STDERR_TAIL_BYTES = 4_096
_ROOT = Path(__file__).resolve().parents[3]  # where `-m` finds our packages, in a checkout as in site-packages
_MODULE = "pattern_core.embeddings.local.child"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLimits:
    """Time limits of the child, and the pauses after its failures; in seconds."""

    start_s: float = 180.0  # its first answer: PyTorch and the weights, on a slow and busy machine
    download_s: float = 3_600.0  # the same, where the weights may come over the network first
    answer_s: float = 60.0
    rest_s: float = 5.0  # after a failure, so that not every query starts a child that dies
    unusable_s: float = 30.0  # after "not installed": it may be about to be installed


class LocalEmbedder:
    """An `Embedder` on this machine's processor.

    The child is started by the first question, loads the model with the first text, ends by itself when it is idle,
    and is gone with this process. `command` replaces it, for tests.
    """

    def __init__(
        self, settings: EmbedderSettings, *, limits: LocalLimits | None = None, command: Sequence[str] | None = None
    ) -> None:
        self._limits = limits or LocalLimits()
        self._first_s = self._limits.download_s if settings.allow_download else self._limits.start_s
        self.worker = Worker(command or child_command(settings))
        self._turns = Turns()
        self._info: EmbedderInfo | None = None
        self._warm_pid = 0  # of the child that has embedded something, so that its model is loaded
        self._rests_until = -math.inf  # on trio's clock
        self._failure = "", False  # message, whether it lasts until something is installed

    async def info(self) -> EmbedderInfo:
        """See `Embedder.info`. Starts the child but does not load the model: its files tell enough."""
        if self._info is None:
            async with self._turns.taken("query"):
                if self._info is None:  # another task may have asked since
                    answer = await self._ask({"do": "info"})
                    self._info = EmbedderInfo(
                        provider="local",
                        model=str(answer["model"]),
                        dimension=int(str(answer["dimension"])),
                        fingerprint=str(answer["fingerprint"]),
                    )
        return self._info

    async def embed(self, texts: Sequence[str], *, purpose: Purpose) -> list[bytes]:
        """See `Embedder.embed`. What a model does not read (beyond 256 tokens for the default one) is not part of its
        vector.
        """
        info = await self.info()
        cut = [text[:TEXT_CHARS_MAX] for text in texts]
        vectors = [b""] * len(cut)
        for indexes in portions(cut):
            question = {"do": "embed", "purpose": purpose, "texts": [cut[index] for index in indexes]}
            async with self._turns.taken(purpose):
                answer = await self._ask(question)
            if answer.get("fingerprint") != info.fingerprint:
                raise EmbedderUnavailable(
                    f"The files of the embedding model {info.model} changed while the server ran. Start the server "
                    "again; its vectors must not be mixed with the earlier ones."
                )
            made = answer["vectors"]
            if not isinstance(made, list) or len(made) != len(indexes):
                raise self._failed("its answer has the wrong length")
            for index, vector in zip(indexes, made, strict=True):
                vectors[index] = base64.b64decode(vector)
        return vectors

    async def aclose(self) -> None:
        """End the child."""
        await self.worker.aclose()

    async def _ask(self, question: Mapping[str, object]) -> Mapping[str, object]:
        """Return the child's answer; after a failure the child is left alone for a while."""
        if self.worker.is_closed:
            raise EmbedderUnavailable("The server is stopping.")
        rests_s = self._rests_until - trio.current_time()
        if rests_s > 0:
            message, is_lasting = self._failure
            raise EmbedderUnavailable(message, retry_after_s=None if is_lasting else rests_s)
        is_warm = self.worker.pid == self._warm_pid
        try:
            answer = await self.worker.ask(question, timeout_s=self._limits.answer_s if is_warm else self._first_s)
        except WorkerFailed as error:
            raise self._failed(str(error)) from error
        if "error" in answer:
            self._rest(str(answer["error"]), self._limits.unusable_s, is_lasting=True)
            raise EmbedderUnavailable(str(answer["error"]))
        if question["do"] == "embed":
            self._warm_pid = self.worker.pid or 0
        return answer

    def _failed(self, why: str) -> TextsRefused:
        message = f"The process of the embedding model failed: {why}. It is started again."
        self._rest(message, self._limits.rest_s)
        return TextsRefused(message, retry_after_s=self._limits.rest_s)

    def _rest(self, message: str, rest_s: float, *, is_lasting: bool = False) -> None:
        self._rests_until = trio.current_time() + rest_s
        self._failure = message, is_lasting


def portions(texts: Sequence[str]) -> Iterator[list[int]]:
    """Yield the indexes of texts in portions for one question each, similar lengths together."""
    portion: list[int] = []
    chars = 0
    for index in sorted(range(len(texts)), key=lambda index: len(texts[index])):
        if portion and (len(portion) >= BATCH_TEXTS_MAX or chars + len(texts[index]) > BATCH_CHARS_MAX):
            yield portion
            portion, chars = [], 0
        portion.append(index)
        chars += len(texts[index])
    if portion:
        yield portion


class Turns:
    """Like a lock that lets those go first who ask for a query."""

    def __init__(self, *, waiting_max: int = WAITING_MAX) -> None:
        self._waiting_max = waiting_max
        self._turn = trio.Semaphore(1)
        self._passages = trio.Semaphore(1)  # so that at most one passage waits among the queries

    @asynccontextmanager
    async def taken(self, purpose: Purpose) -> AsyncIterator[None]:
        """Wait for a turn and hold it for as long as the context lasts.

        Raises:
            EmbedderUnavailable: too many wait already.
        """
        if sum(lock.statistics().tasks_waiting for lock in (self._turn, self._passages)) >= self._waiting_max:
            message = f"The embedding model is busy: {self._waiting_max} callers wait for it. Ask again later."
            raise EmbedderUnavailable(message, retry_after_s=_BUSY_S)
        async with self._passages if purpose == "passage" else nullcontext():
            while True:
                async with self._turn:
                    if purpose == "query" or not self._turn.statistics().tasks_waiting:
                        yield
                        return
                # Those who wait here are queries: they go first.


class WorkerFailed(Exception):
    """The child died, hung or wrote what is not an answer; it is gone."""


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
    """A child process that is started by the first question, and by the next one after its end."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._process: trio.Process | None = None
        self._errors: IO[bytes] | None = None
        self._buffer = bytearray()
        self._last_id = 0
        self.is_closed = False

    @property
    def pid(self) -> int | None:
        """The child's process id, None while there is none; it may have ended without having been noticed."""
        return None if self._process is None else self._process.pid

    async def ask(
        self, question: Mapping[str, object], *, timeout_s: float, is_retry: bool = False
    ) -> Mapping[str, object]:
        """Return the answer to a question (without its `id`), for which the child has `timeout_s` seconds.

        A child that ends because it was idle, while the request is being sent, is restarted.

        Raises:
            WorkerFailed: the child died, hung or babbled; it is gone, and the next question starts another.
        """
        if self._process is not None and self._process.poll() is not None:
            await self.stop()  # it ended because it was idle: that is not a failure
        process = self._process or await self._start()
        self._last_id += 1
        try:
            await self._send(process, json.dumps({**question, "id": self._last_id}).encode() + b"\n")
            with trio.move_on_after(timeout_s):
                return await self._answer(process, self._last_id)
            raise WorkerFailed(f"it did not answer within {timeout_s:g} s")
        except (trio.BrokenResourceError, trio.ClosedResourceError, EOFError, WorkerFailed) as error:
            why = str(error) if isinstance(error, WorkerFailed) else await self._obituary(process)
            await self.stop()
            if process.returncode == 0 and not is_retry:
                return await self.ask(question, timeout_s=timeout_s, is_retry=True)
            raise WorkerFailed(why) from error

    async def aclose(self) -> None:
        """Stop the child, and start none any more."""
        self.is_closed = True
        await self.stop()

    async def stop(self) -> None:
        """Kill the child, if there is one, and wait until it is gone. Not interrupted by cancellation."""
        process, self._process = self._process, None
        with trio.CancelScope(shield=True, deadline=trio.current_time() + REAP_TIMEOUT_S):
            if process is not None:
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
        # A file never fills up and blocks the child, as a pipe that is not read would.
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `stop`
        with trio.CancelScope(shield=True):  # a child must not be started and then forgotten
            try:
                process = await trio.lowlevel.open_process(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    cwd=_ROOT,
                    start_new_session=True,  # Ctrl-C in the terminal is for the server, which then ends this
                )
            except OSError as error:
                errors.close()
                raise WorkerFailed(f"it could not be started: {error}") from error
        self._process, self._errors = process, errors
        if self.is_closed:  # closed in the meantime
            await self.stop()
            raise WorkerFailed("the server is stopping")
        return process

    async def _send(self, process: trio.Process, question: bytes) -> None:
        assert process.stdin is not None
        # A partial request would corrupt all later ones, so it cannot be cancelled.
        with trio.CancelScope(shield=True, deadline=trio.current_time() + SEND_TIMEOUT_S) as scope:
            await process.stdin.send_all(question)
        if scope.cancelled_caught:
            raise WorkerFailed("it did not read its question")

    async def _answer(self, process: trio.Process, question_id: int) -> Mapping[str, object]:
        assert process.stdout is not None
        while True:
            line, end, rest = self._buffer.partition(b"\n")
            if end:
                self._buffer = rest
                try:
                    answer = loads(line.decode("utf-8", "replace"))
                except Malformed as error:
                    raise WorkerFailed(f"it wrote what is not an answer: {error}") from error
                if answer.get("id") == question_id:
                    return answer
                continue  # it answers a request of a cancelled caller
            if len(self._buffer) > ANSWER_BYTES_MAX:
                raise WorkerFailed(f"it wrote a line of more than {ANSWER_BYTES_MAX} bytes")
            data = await process.stdout.receive_some(65_536)
            if not data:
                raise EOFError
            self._buffer += data

    async def _obituary(self, process: trio.Process) -> str:
        """Return how the child ended, with the last line of its standard error, where Python puts what went wrong."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + REAP_TIMEOUT_S):
            await process.wait()  # it has closed its output
        lines: list[str] = []
        if self._errors is not None:
            self._errors.seek(max(0, self._errors.seek(0, 2) - _STDERR_TAIL_BYTES))
            lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        words = f": {lines[-1][:300]}" if lines else ""
        code = process.returncode
        if code is None:
            return f"it closed its output{words}"
        return f"it ended with {f'signal {-code}' if code < 0 else f'exit code {code}'}{words}"
