from __future__ import annotations

from pattern_core.embeddings.embedder import EmbedderUnavailable, unavailable
from pattern_core.errors import PatternError


def test_the_error_says_when_to_come_back() -> None:
    error = unavailable("Later.", retry_after_s=2.0)
    assert issubclass(EmbedderUnavailable, PatternError)
    assert (error.code, error.message, error.details) == ("embedder_unavailable", "Later.", {"retry_after_s": 2.0})
    assert unavailable("Never.").details == {"retry_after_s": None}
