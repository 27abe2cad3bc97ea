"""The vendors' headers about rate limits as one `RateStatus`; pure.

Sources: OpenAI's guide "Rate limits", "Rate limits in headers" (`x-ratelimit-limit-requests`, resets such as `6m0s`);
Anthropic's API reference, "Rate limits", "Response headers" (`anthropic-ratelimit-requests-limit`, resets as RFC 3339).
Groq, Cerebras and other compatible servers send OpenAI's. Google, Ollama and llama.cpp send none.
"""

from __future__ import annotations

from collections.abc import Mapping

from pattern_core.models.model import RateStatus
from pattern_core.models.providers.failures import parse_wait_s

COUNT_MAX = 10**15  # a header beyond it is a mistake

# prefix and order of the words; "tokens" of Anthropic is the tightest of its limits, the others are for older gateways
_REQUESTS = ("x-ratelimit-{}-requests", "anthropic-ratelimit-requests-{}")
_TOKENS = ("x-ratelimit-{}-tokens", "anthropic-ratelimit-tokens-{}", "anthropic-ratelimit-input-tokens-{}")


def rate_status(headers: Mapping[str, str], now_ms: int, at: float | None = None) -> RateStatus | None:
    """What the headers (lower-case names) tell at `now_ms` (unix milliseconds); None where they tell nothing.

    `at` is the same moment on trio's clock, in seconds.
    """
    requests, tokens = _family(headers, _REQUESTS, now_ms), _family(headers, _TOKENS, now_ms)
    if requests is None and tokens is None:
        return None
    none = (None, None, None)
    requests_limit, requests_remaining, requests_reset_s = requests or none
    tokens_limit, tokens_remaining, tokens_reset_s = tokens or none
    return RateStatus(
        requests_limit=requests_limit,
        requests_remaining=requests_remaining,
        requests_reset_s=requests_reset_s,
        tokens_limit=tokens_limit,
        tokens_remaining=tokens_remaining,
        tokens_reset_s=tokens_reset_s,
        at=at,
    )


def _family(headers: Mapping[str, str], names: tuple[str, ...], now_ms: int) -> tuple[int, int, float | None] | None:
    """Limit, rest and reset of the first spelling that has both counts."""
    for name in names:
        limit, remaining = (_count(headers.get(name.format(word), "")) for word in ("limit", "remaining"))
        if limit is not None and remaining is not None:
            reset = headers.get(name.format("reset"))
            return limit, remaining, None if reset is None else parse_wait_s(reset, now_ms)
    return None


def _count(value: str) -> int | None:
    text = value.strip()
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(COUNT_MAX)):
        return None
    return int(text)
