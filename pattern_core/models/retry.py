"""How often a failed question is asked again and how long to wait before; pure."""

from __future__ import annotations

from dataclasses import dataclass

from pattern_core.models.errors import ModelError, ModelGarbage


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Exponential waits with jitter; a provider's own wish (`retry_after_s`) wins where it is longer.

    Attempts count from 1. The n-th failure is followed by `base_s * factor ** (n - 1)` seconds, at most `cap_s`, or by
    what the provider asked for, at most `retry_after_cap_s`; plus up to `jitter` of that wait, so that many agents
    refused at once do not come back at once. Answers that break the vendor's format get `garbage_attempts_max`.
    """

    attempts_max: int = 4
    garbage_attempts_max: int = 2
    base_s: float = 1.0
    factor: float = 2.0
    cap_s: float = 30.0
    jitter: float = 0.25
    retry_after_cap_s: float = 300.0

    def again(self, attempt: int, error: ModelError) -> bool:
        """True if attempt number `attempt`, which failed with `error`, may be followed by another."""
        attempts_max = self.attempts_max
        if isinstance(error, ModelGarbage):
            attempts_max = min(attempts_max, self.garbage_attempts_max)
        return error.retryable and attempt < attempts_max and not self.is_absurd(error)

    def is_absurd(self, error: ModelError) -> bool:
        """True if the provider asks to come back later than anybody waits: that is refused at once."""
        return error.retry_after_s is not None and error.retry_after_s > self.retry_after_cap_s

    def delay_s(self, attempt: int, error: ModelError, *, draw: float = 0.0) -> float:
        """Seconds to wait after attempt number `attempt` failed; `draw` is random in [0, 1)."""
        # Beyond 60 doublings the cap has long decided; the bound keeps the power a finite float.
        wait_s = min(self.cap_s, self.base_s * self.factor ** min(attempt - 1, 60))
        if error.retry_after_s is not None:
            wait_s = max(wait_s, min(error.retry_after_s, self.retry_after_cap_s))
        return wait_s * (1 + self.jitter * draw)
