"""What an answer tells of the vendor's rate limits: what is left of them, and when to come back; pure.

Sources: OpenAI's guide "Rate limits", "Rate limits in headers" (`x-ratelimit-limit-requests`, resets such as `6m0s`);
Anthropic's API reference, "Rate limits", "Response headers" (`anthropic-ratelimit-requests-limit`, resets as RFC 3339).
Groq, Cerebras and other compatible servers send OpenAI's. Google, Ollama and llama.cpp send none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from pattern_core.models.model import RateStatus

COUNT_MAX = 10**15  # a header beyond it is a mistake
RESET_WAIT_MAX_S = 300.0  # a reset is when all is refilled; some of it is there long before
RETRY_AFTER_MAX_S = 7 * 86_400.0  # whoever waits has a bound of its own; this one keeps numbers sane

# prefix and order of the words; "tokens" of Anthropic is the tightest of its limits, the others are for older gateways
_REQUESTS = ("x-ratelimit-{}-requests", "anthropic-ratelimit-requests-{}")
_TOKENS = ("x-ratelimit-{}-tokens", "anthropic-ratelimit-tokens-{}", "anthropic-ratelimit-input-tokens-{}")
_RESET_HEADERS = (
    "anthropic-ratelimit-unified-reset",
    "x-ratelimit-reset-requests",
    "x-ratelimit-reset-tokens",
    "x-ratelimit-reset",
)
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)\s*(ms|milli|s|m(?!onth)|h|d)?[a-z]{0,12}\s*", re.IGNORECASE)
_WISH = re.compile(r"(?:retry|try again|wait|reset)[^\d\n]{0,20}(\d)", re.IGNORECASE)
_EPOCH_S_MIN = 1_000_000_000  # a number above is a date, not a duration
_EPOCH_MS_MIN = 1_000_000_000_000


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


def parse_wait_s(value: str, now_ms: int) -> float | None:
    """Seconds from `now_ms` (unix milliseconds) that a header's value means; None where it means nothing.

    Forms: seconds, durations (`1500ms`, `2s`, `3m`, `1h`, `6m0s`), unix time in seconds or milliseconds, and dates as
    in RFC 9110 (section 5.6.7) and RFC 3339. What lies in the past is 0; the most is `RETRY_AFTER_MAX_S`.
    """
    text = value.strip()[:100]
    try:
        number = float(text)
    except ValueError:
        seconds = _duration_s(text)
        if seconds is None:
            seconds = _until_date_s(text, now_ms)
    else:
        if number >= _EPOCH_MS_MIN:
            seconds = (number - now_ms) / 1_000
        elif number >= _EPOCH_S_MIN:
            seconds = number - now_ms / 1_000
        else:
            seconds = number
    if seconds is None or math.isnan(seconds):
        return None
    return min(max(0.0, seconds), RETRY_AFTER_MAX_S)


def retry_after_s(headers: Mapping[str, str], words: str, now_ms: int) -> float | None:
    """When to come back, in seconds: from the headers (lower-case names), else from the vendor's words, else None."""
    for name, unit in (("retry-after-ms", "ms"), ("retry-after", "")):
        if name in headers and (wait_s := parse_wait_s(headers[name] + unit, now_ms)) is not None:
            return wait_s
    resets = [parse_wait_s(headers[name], now_ms) for name in _RESET_HEADERS if name in headers]
    known = [wait_s for wait_s in resets if wait_s is not None]
    if known:
        return min(max(known), RESET_WAIT_MAX_S)
    wish = _WISH.search(words[:10_000])
    return parse_wait_s(_leading_duration(words[wish.start(1) :]), now_ms) if wish else None


def vendor_now_ms(headers: Mapping[str, str], now_ms: int) -> int:
    """The moment of an answer by the vendor's own clock (`date`, RFC 9110 section 6.6.1), else `now_ms`.

    The dates in its other headers are of that clock, and this machine's may be wrong by minutes.
    """
    at_s = _until_date_s(headers.get("date", ""), 0)
    return now_ms if at_s is None else int(at_s * 1_000)


def _duration_s(text: str) -> float | None:
    """`6m0s` in seconds; None unless the whole text is a duration."""
    at, total = 0, 0.0
    while at < len(text):
        match = _DURATION.match(text, at)
        if match is None:
            return None
        unit = (match.group(2) or "s").lower().replace("milli", "ms")
        total += float(match.group(1)) * _UNITS_S[unit]
        at = match.end()
    return total if at else None


def _leading_duration(words: str) -> str:
    """`6m0s` of "6m0s. Visit …", `45 seconds` of "45 seconds, please"."""
    match = re.match(
        r"[\d.]+\s*(?:ms|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hours?)?(?:\d[\dmsh.]*)?", words
    )
    return match.group().rstrip(".") if match else ""


def _until_date_s(text: str, now_ms: int) -> float | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        try:
            moment = parsedate_to_datetime(text)
        except (ValueError, IndexError, TypeError):
            return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment.timestamp() - now_ms / 1_000
