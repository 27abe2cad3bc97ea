"""The child process: `python -m pattern_core.embeddings.local.child PLAN`, PLAN as `weights.Plan` writes it.

Answers frames from standard input on standard output, one after the other, in order:

    {"id", "do": "info"}                     → {"id", "model", "dimension", "fingerprint"}
    {"id", "do": "embed", "purpose", "texts"} → {"id", "fingerprint"} and the vectors, one behind the other
    what cannot be done                      → {"id", "error"}

It ends by itself when nothing was asked for the plan's `idle_s` seconds, and when its standard input closes, which is
how it notices the death of its parent, even while it loads.
"""

from __future__ import annotations

import os
import queue
import resource
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from pattern_core.embeddings.embedder import Purpose
from pattern_core.embeddings.local.frames import Frame, FrameReader, Garbled, encode
from pattern_core.embeddings.local.onnx import OnnxModel
from pattern_core.embeddings.local.sentence_transformer import SentenceTransformerModel
from pattern_core.embeddings.local.weights import ModelUnusable, Plan, Source, find

QUESTIONS_MAX = 64  # waiting in this process; the parent asks one after the other
NICENESS = 5  # what people wait for goes first on a small machine
LINGER_S = 1.0  # for the work under way after the parent went


class Loaded(Protocol):
    """A model in memory."""

    def embed(self, texts: Sequence[str], purpose: Purpose) -> list[bytes]:
        """One unit vector per text, in order: float32, little endian."""
        ...


class Model(Protocol):
    """A model that was found, and is loaded by the first text."""

    @property
    def source(self) -> Source:
        """What it is."""
        ...

    def load(self) -> Loaded:
        """Load it.

        Raises:
            ModelUnusable: that fails; the message says what to do.
        """
        ...


class FoundModel:
    """What `find` found, with the library that runs it."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def load(self) -> Loaded:
        """Import the library and load the weights: seconds for PyTorch, a third of one for ONNX Runtime.

        Raises:
            ModelUnusable: the library or the files are broken.
        """
        kind = OnnxModel if self.source.runtime == "onnx" else SentenceTransformerModel
        try:
            return kind(self.source)
        except (ImportError, OSError, ValueError, RuntimeError, KeyError) as error:
            reason = str(error).strip().split("\n")[0][:300] or type(error).__name__
            raise ModelUnusable(
                f"The embedding model {self.source.model} was found at {self.source.path}, but does not load: {reason}"
            ) from error


class Answering:
    """Answers questions; finds the model with the first one and loads it with the first text."""

    def __init__(self, find_model: Callable[[], Model]) -> None:
        self._find = find_model
        self._model: Model | None = None
        self._loaded: Loaded | None = None

    def answer(self, question: dict[str, object]) -> bytes:
        """The frame that answers a question."""
        about = {"id": question.get("id")}
        try:
            if self._model is None:
                self._model = self._find()
            source = self._model.source
            about["fingerprint"] = source.fingerprint
            if question.get("do") == "info":
                return encode({**about, "model": source.model, "dimension": source.dimension})
            if self._loaded is None:
                self._loaded = self._model.load()
        except ModelUnusable as error:
            return encode({**about, "error": str(error)})
        texts = question.get("texts")
        purpose: Purpose = "query" if question.get("purpose") == "query" else "passage"
        vectors = self._loaded.embed([str(text) for text in texts] if isinstance(texts, list) else [], purpose)
        return encode(about, b"".join(vectors))


def serve(
    find_model: Callable[[], Model],
    source: int,
    target: int,
    *,
    idle_s: float,
    on_orphaned: Callable[[], None] = lambda: None,
) -> int:
    """Answer what comes from the descriptor `source` to `target` until it ends or is idle; returns the exit code.

    `on_orphaned` is called in another thread when `source` has ended, whatever is under way.
    """
    questions: queue.Queue[Frame | None] = queue.Queue(QUESTIONS_MAX)
    # A thread reads, so that the end of the parent is seen while the model works.
    threading.Thread(target=_read, args=(source, questions, on_orphaned), daemon=True).start()
    answering = Answering(find_model)
    while True:
        try:
            frame = questions.get(timeout=idle_s)
        except queue.Empty:
            return 0
        if frame is None:
            return 0
        try:
            _write(target, answering.answer(frame[0]))
        except BrokenPipeError:
            return 0


def _read(source: int, questions: queue.Queue[Frame | None], on_orphaned: Callable[[], None]) -> None:
    reader = FrameReader()
    with suppress(Garbled, OSError):
        while data := os.read(source, 65_536):
            for frame in reader.feed(data):
                questions.put(frame)
    with suppress(queue.Full):
        questions.put(None, timeout=LINGER_S)
    on_orphaned()


def _write(target: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(target, view) :]


def prepare() -> int:
    """Make this process a good neighbour; returns the descriptor for answers, which no library can write to."""
    with suppress(OSError):
        os.nice(NICENESS)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers = os.dup(1)
    os.dup2(2, 1)  # libraries print; that must not get between the frames
    return answers


def end_soon() -> None:
    """End this process although it may be loading or hang: nobody is left to read the answer."""
    threading.Event().wait(LINGER_S)
    os._exit(0)


def main(arguments: list[str]) -> int:
    """Serve standard input until it closes."""
    plan = Plan.from_json(arguments[0])
    return serve(lambda: FoundModel(find(plan)), 0, prepare(), idle_s=plan.idle_s, on_orphaned=end_soon)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
