"""What was configured about embeddings, as the core gets it."""

from __future__ import annotations

from dataclasses import dataclass

from pattern_core.embeddings.local.weights import RuntimeName
from pattern_core.models.providers.settings import Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedderSettings:
    """One configured embedder; what is left out is the provider's own.

    `dimensions` None takes the model's; `base_url` and `api_key` are for services, the rest of the second group for
    models on this machine: `idle_unload_s` are seconds without a question after which the model's memory is given
    back. `query_prefix` and `passage_prefix` None take what the model's family wants.
    """

    provider: str = "local"
    model: str = ""
    dimensions: int | None = None
    base_url: str | None = None
    api_key: Secret | None = None
    timeout_s: float = 30.0  # of one question to a service

    runtime: RuntimeName = "auto"
    allow_download: bool = False
    idle_unload_s: float = 600.0
    threads: int = 1

    query_prefix: str | None = None
    passage_prefix: str | None = None
