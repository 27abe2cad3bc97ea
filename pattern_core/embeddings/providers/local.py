"""The embedder of a model on this machine: a child process that is asked in turn, and started again when it dies."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio
from trio.lowlevel import ParkingLot

from pattern_core.embeddings.embedder import EmbedderInfo, EmbedderUnavailable, TextsRefused, unavailable
from pattern_core.embeddings.local.worker import ChildAnswer, Worker, WorkerFailed, WorkerHung, child_command
from pattern_core.embeddings.settings import EmbedderSettings, Purpose

BATCH_TEXTS_MAX = 8  # in one question to the child; between two of them a query may go first
BATCH_CHARS_MAX = 4_096  # some 1,000 tokens: half a second on a slow core
TEXT_CHARS_MAX = 32_768  # of one text; far more than any of these models reads
ATTEMPTS_MAX = 2
WAITING_MAX = 1_000
_BUSY_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLimits:
    """How long the child may take, and how long it is left alone after it failed; seconds."""

    start_s: float = 180.0  # its first answer: PyTorch and the weights, on a slow and busy machine
    download_s: float = 3_600.0  # the same, where the weights may come over the network first
    answer_s: float = 60.0
    rest_s: float = 1.0  # after a failure; doubled with each further one
    rest_max_s: float = 300.0
    unusable_s: float = 30.0  # after "not installed": somebody may be installing it right now


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
        ours = child_command(settings)
        self._worker = Worker(command or ours)
        self._turns = Turns()
        self._info: EmbedderInfo | None = None
        self._warm_pid: int | None = None  # the child that has embedded something, so that its model is loaded
        self._failures = 0  # since the last answer
        self._rests_until = -math.inf  # on trio's clock
        self._failure: tuple[str, bool] | None = None  # message, whether it lasts until something is installed
        self._is_closed = False

    @property
    def child_pid(self) -> int | None:
        """The process id of the child, None while none was started."""
        return self._worker.pid

    async def info(self) -> EmbedderInfo:
        """What the model is. Starts the child but does not load the model: its files tell enough.

        Raises:
            EmbedderUnavailable: nothing is installed that could run it, or the child fails.
        """
        if self._info is None:
            async with self._turns.taken("query"):
                if self._info is None:  # another task may have asked meanwhile
                    head, _ = await self._ask({"do": "info"})
                    self._info = EmbedderInfo(
                        provider="local",
                        model=str(head["model"]),
                        dimension=int(str(head["dimension"])),
                        fingerprint=str(head["fingerprint"]),
                    )
        return self._info

    async def embed(self, texts: Sequence[str], *, purpose: Purpose) -> list[bytes]:
        """One unit vector per text, in order. What a model does not read any more (256 tokens for the default one) is
        not part of its vector.

        Raises:
            TextsRefused: the child fails twice over these texts.
            EmbedderUnavailable: nothing is installed that could run the model, or the child rests after a failure.
        """
        info = await self.info()
        cut = [text[:TEXT_CHARS_MAX] for text in texts]
        vectors = [b""] * len(cut)
        for indexes in _portions(cut):
            question = {"do": "embed", "purpose": purpose, "texts": [cut[index] for index in indexes]}
            async with self._turns.taken(purpose):
                head, payload = await self._ask(question)
            if head.get("fingerprint") != info.fingerprint:
                raise unavailable(
                    f"The files of the embedding model {info.model} changed while the server ran. Start the server "
                    "again; its vectors must not be mixed with the earlier ones."
                )
            size = 4 * info.dimension
            if len(payload) != size * len(indexes):
                raise self._failed("its answer has the wrong length")
            for place, index in enumerate(indexes):
                vectors[index] = payload[place * size : (place + 1) * size]
        return vectors

    async def aclose(self) -> None:
        """End the child."""
        self._is_closed = True
        await self._worker.aclose()

    async def _ask(self, question: Mapping[str, object]) -> ChildAnswer:
        """The child's answer; it is asked again once if it died, which may be no fault of the question."""
        for attempt in range(1, ATTEMPTS_MAX + 1):
            if self._is_closed:
                raise unavailable("The server is stopping.")
            if self._failure is not None and trio.current_time() < self._rests_until:
                message, is_lasting = self._failure
                raise self._refusal(message, is_lasting=is_lasting)
            try:
                head, payload = await self._worker.ask(question, timeout_s=self._timeout_s())
            except WorkerFailed as error:
                if attempt == ATTEMPTS_MAX or isinstance(error, WorkerHung):
                    failure = self._failed(str(error))
                    raise TextsRefused(failure.message, **failure.details) from error
                continue
            if "error" in head:
                raise self._unusable(str(head["error"]))
            self._failures, self._failure = 0, None
            if question["do"] == "embed":
                self._warm_pid = self._worker.pid
            return head, payload
        raise AssertionError("the last attempt answers or raises")

    def _timeout_s(self) -> float:
        is_warm = self._worker.pid is not None and self._worker.pid == self._warm_pid
        return self._limits.answer_s if is_warm else self._first_s

    def _failed(self, why: str) -> EmbedderUnavailable:
        """Leave the child alone for a while: one that dies of a text or of too little memory will do so again."""
        self._failures += 1
        rest_s = min(self._limits.rest_max_s, self._limits.rest_s * 2.0 ** min(self._failures - 1, 30))
        return self._resting(f"The process of the embedding model failed: {why}. It is started again.", rest_s)

    def _unusable(self, why: str) -> EmbedderUnavailable:
        return self._resting(why, self._limits.unusable_s, is_lasting=True)

    def _resting(self, message: str, rest_s: float, *, is_lasting: bool = False) -> EmbedderUnavailable:
        self._rests_until = trio.current_time() + rest_s
        self._failure = message, is_lasting
        return self._refusal(message, is_lasting=is_lasting)

    def _refusal(self, message: str, *, is_lasting: bool) -> EmbedderUnavailable:
        return unavailable(message, retry_after_s=None if is_lasting else self._rests_until - trio.current_time())


class Turns:
    """Like a lock that lets those go first who ask for a query."""

    def __init__(self, *, waiting_max: int = WAITING_MAX) -> None:
        self._waiting_max = waiting_max
        self._is_taken = False
        self._queries = ParkingLot()
        self._passages = ParkingLot()

    @asynccontextmanager
    async def taken(self, purpose: Purpose) -> AsyncIterator[None]:
        """Wait for a turn and hold it for as long as the context lasts.

        Raises:
            EmbedderUnavailable: too many wait already.
        """
        await self._take(self._queries if purpose == "query" else self._passages)
        try:
            yield
        finally:
            self._pass_on()

    async def _take(self, lot: ParkingLot) -> None:
        if not self._is_taken:
            self._is_taken = True
            return
        if len(self._queries) + len(self._passages) >= self._waiting_max:
            raise unavailable(
                f"The embedding model is busy: {self._waiting_max} callers wait for it. Ask again later.",
                retry_after_s=_BUSY_S,
            )
        await lot.park()  # whoever passes the turn on has left it taken

    def _pass_on(self) -> None:
        for lot in (self._queries, self._passages):
            if lot:
                lot.unpark()
                return
        self._is_taken = False


def _portions(texts: Sequence[str]) -> Iterator[list[int]]:
    """Indexes of texts, similar lengths together, in portions that do not keep a query waiting for long."""
    portion: list[int] = []
    chars = 0
    for index in sorted(range(len(texts)), key=lambda index: len(texts[index])):
        size = len(texts[index])
        if portion and (len(portion) >= BATCH_TEXTS_MAX or chars + size > BATCH_CHARS_MAX):
            yield portion
            portion, chars = [], 0
        portion.append(index)
        chars += size
    if portion:
        yield portion
