"""What a constellation takes from the world besides its file: the time, chance and vectors, all injected."""

from __future__ import annotations

from dataclasses import dataclass, field

from pattern_core.clock import Clock, SystemClock
from pattern_core.embeddings.providers.absent import AbsentEmbedder
from pattern_core.embeddings.shelf import EmbedderShelf
from pattern_core.ids import Randomness, system_randomness


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """A clock and a source of randomness, of which tests pass ones that stand still and repeat; the embedders."""

    clock: Clock = field(default_factory=SystemClock)
    randomness: Randomness = field(default_factory=system_randomness)
    embedders: EmbedderShelf = field(default_factory=lambda: EmbedderShelf(AbsentEmbedder()))
