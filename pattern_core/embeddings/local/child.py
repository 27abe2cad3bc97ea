"""The child process: `python -m pattern_core.embeddings.local.child SETTINGS`; see `EmbedderSettings.to_json`.

Answers lines of JSON on standard input with lines of JSON on standard output, in order:

    {"id", "do": "info"}                     → {"id", "model", "dimension", "fingerprint"}
    {"id", "do": "embed", "purpose", "texts"} → {"id", "fingerprint", "vectors"}: each in base64, with its codes
    what cannot be done                      → {"id", "error"}

It ends after `idle_unload_s` seconds without a request, and when its standard input closes, so that it notices the end
of its parent, even while it loads.
"""

from __future__ import annotations

import base64
import json
import os
import queue
import resource
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache

from pattern_core.embeddings.local.models import Embed, FoundModel, ModelUnusable, find
from pattern_core.embeddings.settings import EmbedderSettings, Purpose

QUESTIONS_MAX = 64  # waiting in this process; the parent asks one after the other
NICENESS = 5  # what people wait for goes first on a small machine
LINGER_S = 1.0  # for running work after the parent has ended


def answered(
    question: Mapping[str, object], find_model: Callable[[], FoundModel], load: Callable[[], Embed]
) -> dict[str, object]:
    """Return what answers a question."""
    about = {"id": question.get("id")}
    try:
        model = find_model()
        about["fingerprint"] = model.fingerprint
        if question.get("do") == "info":
            return {**about, "model": model.model, "dimension": model.dimension}
        embed = load()
    except ModelUnusable as error:
        return {**about, "error": str(error)}
    texts = question.get("texts")
    purpose: Purpose = "query" if question.get("purpose") == "query" else "passage"
    vectors = embed([str(text) for text in texts] if isinstance(texts, list) else [], purpose)
    return {**about, "vectors": [base64.b64encode(vector).decode() for vector in vectors]}


def serve(
    find_model: Callable[[], FoundModel],
    source: int,
    target: int,
    *,
    idle_s: float,
    on_orphaned: Callable[[], None] = lambda: None,
) -> int:
    """Answer what comes from the descriptor `source` to `target` until it ends or is idle; returns the exit code.

    `on_orphaned` is called in another thread when `source` has ended, even during work.
    """
    questions: queue.Queue[dict[str, object] | None] = queue.Queue(QUESTIONS_MAX)
    # A thread reads, so that the end of the parent is seen while the model works.
    threading.Thread(target=_read, args=(source, questions, on_orphaned), daemon=True).start()
    find_once = cache(find_model)  # with the first question
    load_once = cache(lambda: find_once().load())  # with the first text
    with suppress(queue.Empty, BrokenPipeError), open(target, "w", closefd=False) as answers:
        while (question := questions.get(timeout=idle_s)) is not None:
            answers.write(json.dumps(answered(question, find_once, load_once)) + "\n")
            answers.flush()
    return 0


def _read(source: int, questions: queue.Queue[dict[str, object] | None], on_orphaned: Callable[[], None]) -> None:
    with suppress(ValueError, OSError), open(source, "rb", closefd=False) as stream:
        for line in stream:
            question = json.loads(line)
            if not isinstance(question, dict):
                break
            questions.put(question)
    with suppress(queue.Full):
        questions.put(None, timeout=LINGER_S)
    on_orphaned()


def prepare() -> int:
    """Make this process a good neighbour; returns the descriptor for answers, which no library can write to."""
    with suppress(OSError):
        os.nice(NICENESS)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers = os.dup(1)
    os.dup2(2, 1)  # libraries print; that must not get between the answers
    return answers


def end_soon() -> None:
    """End this process although it may be loading or hang: no parent is left to read the answer."""
    threading.Event().wait(LINGER_S)
    os._exit(0)


def main(arguments: list[str]) -> int:
    """Serve standard input until it closes."""
    settings = EmbedderSettings.from_json(arguments[0])
    return serve(lambda: find(settings), 0, prepare(), idle_s=settings.idle_unload_s, on_orphaned=end_soon)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
