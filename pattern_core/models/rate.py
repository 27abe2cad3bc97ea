"""What a vendor told about its rate limits: how much is allowed, how much is left, and when it is whole again."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class RateStatus:
    """The limits of one key at the moment of an answer, as its headers told them; None where they said nothing.

    Counts are whole requests and tokens. `…_reset_s` is seconds from the answer until the vendor's count is whole
    again: for OpenAI and Anthropic, whose buckets refill steadily, the time that what is missing takes to refill.
    `at` is the moment of the answer on trio's clock, in seconds, None where it is not known.
    """

    requests_limit: int | None = None
    requests_remaining: int | None = None
    requests_reset_s: float | None = None
    tokens_limit: int | None = None
    tokens_remaining: int | None = None
    tokens_reset_s: float | None = None
    at: float | None = field(default=None, compare=False)
