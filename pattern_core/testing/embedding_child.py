"""A stand-in for the child process of a local model: the real protocol, no weights. `python -m … PLAN`.

What it does depends on the texts, so that a test can break it at any moment:

    crash    kills itself, as the system does when memory runs out
    hang     never answers
    babble   writes what is no frame
    short    answers with too few bytes
    slow     answers after a fifth of a second
    other    makes vectors of hashed words

The plan's `model` plays the rest: `unusable` cannot be found, `broken` does not load, `changes` has another fingerprint
in every process.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from pattern_core.embeddings.embedder import Purpose
from pattern_core.embeddings.local.child import end_soon, prepare, serve
from pattern_core.embeddings.local.weights import ModelUnusable, Plan, Source
from pattern_core.embeddings.prefixes import Prefixes
from pattern_core.embeddings.providers.deterministic import hashed_words

DIMENSION = 64
SLOW_S = 0.2


class PlayedModel:
    """Found, loaded and asked like a real one."""

    def __init__(self, plan: Plan, answers: int) -> None:
        if plan.model == "unusable":
            raise ModelUnusable("The model unusable is not installed.")
        self._answers = answers
        self._is_broken = plan.model == "broken"
        self.source = Source(
            runtime="onnx",
            model=plan.model or "played",
            path=Path(),
            dimension=DIMENSION,
            prefixes=Prefixes(),
            fingerprint=f"{os.getpid():x}" if plan.model == "changes" else "ab" * 32,
        )

    def load(self) -> PlayedModel:
        """Itself.

        Raises:
            ModelUnusable: the plan says that it is broken.
        """
        if self._is_broken:
            raise ModelUnusable("The model broken does not load.")
        return self

    def embed(self, texts: Sequence[str], purpose: Purpose) -> list[bytes]:
        """Vectors of hashed words, or what the texts ask for."""
        if "crash" in texts:
            os.kill(os.getpid(), signal.SIGKILL)
        if "hang" in texts:
            threading.Event().wait()
        if "babble" in texts:
            os.write(self._answers, b"Loading weights: 100%")
        if "slow" in texts:
            threading.Event().wait(SLOW_S)
        vectors = [hashed_words(text, DIMENSION) for text in texts]
        return vectors[1:] if "short" in texts else vectors


def main(arguments: list[str]) -> int:
    """Serve standard input until it closes."""
    plan = Plan.from_json(arguments[0])
    answers = prepare()
    return serve(lambda: PlayedModel(plan, answers), 0, answers, idle_s=plan.idle_s, on_orphaned=end_soon)


def stand_in_command(plan: Plan | None = None) -> list[str]:
    """How to start it."""
    return [sys.executable, "-m", "pattern_core.testing.embedding_child", (plan or Plan()).to_json()]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
