"""A stand-in for the child process of a local model: the real protocol, no weights. `python -m … SETTINGS`.

What it does depends on the texts, so that a test can break it at any moment:

    crash    kills itself, as the system does when memory runs out
    hang     never answers
    babble   writes what is no answer
    short    answers with too few vectors
    slow     answers after a fifth of a second
    other    makes vectors of hashed words

The configured `model` plays the rest: `unusable` cannot be found, `broken` does not load, `changes` has another
fingerprint in every process.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pattern_core.embeddings.local.child import end_soon, prepare, serve
from pattern_core.embeddings.local.models import Embed, FoundModel, ModelUnusable
from pattern_core.embeddings.providers.deterministic import hashed_words
from pattern_core.embeddings.settings import EmbedderSettings, Prefixes, Purpose

DIMENSION = 64
SLOW_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedModel(FoundModel):
    """Loaded and asked like a real one; `answers` is the descriptor that babble goes to."""

    answers: int

    def load(self) -> Embed:
        """Return what embeds.

        Raises:
            ModelUnusable: the settings say that it is broken.
        """
        if self.model == "broken":
            raise ModelUnusable("The model broken does not load.")
        return self.embed

    def embed(self, texts: Sequence[str], purpose: Purpose) -> list[bytes]:
        """Vectors of hashed words, or what the texts ask for."""
        if "crash" in texts:
            os.kill(os.getpid(), signal.SIGKILL)
        if "hang" in texts:
            threading.Event().wait()
        if "babble" in texts:
            os.write(self.answers, b"Loading weights: 100%")
        if "slow" in texts:
            threading.Event().wait(SLOW_S)
        vectors = [hashed_words(text, DIMENSION) for text in texts]
        return vectors[1:] if "short" in texts else vectors


def played(settings: EmbedderSettings, answers: int) -> PlayedModel:
    """Return the model that the settings ask for.

    Raises:
        ModelUnusable: the settings say that it cannot be found.
    """
    if settings.model == "unusable":
        raise ModelUnusable("The model unusable is not installed.")
    return PlayedModel(
        runtime="onnx",
        model=settings.model or "played",
        path=Path(),
        dimension=DIMENSION,
        prefixes=Prefixes(),
        fingerprint=f"{os.getpid():x}" if settings.model == "changes" else "ab" * 32,
        answers=answers,
    )


def main(arguments: list[str]) -> int:
    """Serve standard input until it closes."""
    settings = EmbedderSettings.from_json(arguments[0])
    answers = prepare()
    return serve(lambda: played(settings, answers), 0, answers, idle_s=settings.idle_unload_s, on_orphaned=end_soon)


def stand_in_command(settings: EmbedderSettings | None = None) -> list[str]:
    """Return how to start it."""
    return [
        sys.executable,
        "-m",
        "tests.pattern_core.embeddings.played_child",
        (settings or EmbedderSettings()).to_json(),
    ]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
