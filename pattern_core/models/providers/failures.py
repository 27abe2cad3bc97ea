"""Failures, rate limits and retry delays in a vendor's answer; pure.

Names of headers are in lower case. Sources of the limits: OpenAI's guide "Rate limits", "Rate limits in headers"
(`x-ratelimit-limit-requests`, resets such as `6m0s`); Anthropic's API reference, "Rate limits", "Response headers"
(`anthropic-ratelimit-requests-limit`, resets as RFC 3339). Groq, Cerebras and other compatible servers send OpenAI's.
Google, Ollama and llama.cpp send none.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from pattern_core.models import errors
from pattern_core.models.model import Allowance, RateStatus
from pattern_core.models.providers.encoding import JsonObject, valid_unicode

WORDS_MAX = 500  # characters of a vendor's own words that an error repeats

# What servers say of a prompt that is too long: the vendors, OpenRouter, vLLM, llama.cpp, Ollama, LM Studio, TGI, xAI,
# Mistral and Groq each have words of their own, and some of them two.
_WINDOW_WORDS = re.compile(
    r"context[ _-]?(?:length|window|size|limit)|prompt (?:is )?too long|too many (?:input )?tokens|"
    r"input (?:is )?too long|maximum (?:context|prompt|input|model length)|input token count|max_new_tokens|"
    r"exceeds? the (?:available|model|maximum (?:\w+ ){0,3}(?:tokens|length))|reduce the length",
    re.IGNORECASE,
)
_TOO_LONG = {
    400: _WINDOW_WORDS,
    422: _WINDOW_WORDS,
    # One call of more tokens than the account has per minute: waiting does not help. Source: OpenAI's, Groq's answers.
    429: re.compile(r"request too large for", re.IGNORECASE),
    # Local servers notice it while they answer, as a fault of their own; their other faults may name the context too.
    500: re.compile(r"context[^.]{0,60}(?:exceed|overflow)|exceed[^.]{0,60}context", re.IGNORECASE),
}
_NO_MONEY_CODE = re.compile(r"insufficient_quota|billing", re.IGNORECASE)
_NO_MONEY = re.compile(
    r"billing|credit balance|insufficient (?:balance|credit|fund)|exceeded your current quota", re.IGNORECASE
)
# How they say how large it is: OpenAI, vLLM, llama.cpp, LM Studio, xAI; Anthropic, TGI; Mistral.
_WINDOW = re.compile(
    r"(?:>|<=)\s*(\d{3,9})\b|(\d{3,9}) maximum context|"
    r"(?:context[ _-](?:size|length|window|limit)|maximum (?:model|prompt) length|\bn_ctx\b)\D{0,12}(\d{3,9})\b(?! \+)",
    re.IGNORECASE,
)
# Ollama: "m does not support tools"; OpenRouter: "No endpoints found that support tool use".
_NO_TOOLS = re.compile(r"(?:not|n't|no endpoints found that) support (?:tools?|functions?)\b", re.IGNORECASE)
# vLLM without a parser; llama.cpp without templates, and an older one.
_TOOLS_AS_TEXT = re.compile(r"--tool-call-parser|tools param requires|unsupported param: tools", re.IGNORECASE)
# llama.cpp: "Loading model"; Ollama: "llm server loading model"; TGI: "Model x is currently loading".
_LOADING = re.compile(r"(?!.*(?:fail|error))(?:.*\bloading (?:the )?model|.*\bmodel\b.*\bloading)", re.IGNORECASE)
_BAD_KEY = re.compile(r"api[ _]key not valid|api_key_invalid|api key expired", re.IGNORECASE)  # Google's 400
# Codes and types of errors that come without a status of their own, within a stream that began with 200.
_CODES = {
    400: ("invalid_request_error", "context_length_exceeded", "invalid_prompt", "INVALID_ARGUMENT"),
    401: ("authentication_error", "invalid_api_key", "UNAUTHENTICATED"),
    402: ("billing_error", "insufficient_quota"),
    403: ("permission_error", "PERMISSION_DENIED"),
    404: ("not_found_error", "model_not_found", "NOT_FOUND"),
    413: ("request_too_large",),
    429: ("rate_limit_error", "rate_limit_exceeded", "RESOURCE_EXHAUSTED"),
    503: ("UNAVAILABLE",),
    504: ("timeout_error", "DEADLINE_EXCEEDED"),
    529: ("overloaded_error",),
}
_STATUS_OF_CODE = {code: status for status, codes in _CODES.items() for code in codes}
RESET_WAIT_MAX_S = 300.0  # a reset is when all is refilled; some of it is there long before
RETRY_AFTER_MAX_S = 7 * 86_400.0  # those who wait have bounds of their own; this one keeps numbers sane

# prefix and order of the words; "tokens" of Anthropic is the tightest of its limits, the others are for older gateways
_REQUESTS = ("x-ratelimit-{}-requests", "anthropic-ratelimit-requests-{}")
_TOKENS = ("x-ratelimit-{}-tokens", "anthropic-ratelimit-tokens-{}", "anthropic-ratelimit-input-tokens-{}")
_RESET_HEADERS = (
    "anthropic-ratelimit-unified-reset",
    "x-ratelimit-reset-requests",
    "x-ratelimit-reset-tokens",
    "x-ratelimit-reset",
)
_COUNT = re.compile(r"[0-9]{1,16}")  # a header with more digits is a mistake
_UNITS_S = {"ms": 0.001, "milli": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)\s*(ms|milli|s|m(?!onth)|h|d)?[a-z]{0,12}\s*", re.IGNORECASE)
_WAIT_WORDS = re.compile(  # `6m0s` of "try again in 6m0s. Visit …", `45 seconds` of "wait 45 seconds, please"
    r"(?:retry|try again|wait|reset)[^\d\n]{0,20}"
    r"(\d[\d.]*\s*(?:ms|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hours?)?(?:\d[\dmsh.]*)?)",
    re.IGNORECASE,
)
_EPOCH_S_MIN = 1_000_000_000  # a number above is a date, not a duration
_EPOCH_MS_MIN = 1_000_000_000_000


def vendor_words(body: object) -> tuple[str, str]:
    """Return the message and the code (or type) of a vendor's error body; both "" where it is not one.

    Bodies: `{"error": {"message", "code", "type"}}`, `{"error": "words"}`, `{"message"}`, `{"detail"}`, plain text.
    Google's may be in a list, repeat the HTTP status as `code`, have their own word for it as `status`, and say under
    `{"details": [{"retryDelay"}]}` when to come back. OpenRouter has what the vendor behind it said under
    `{"metadata": {"raw"}}`, and itself only that it said something.
    """
    if isinstance(body, list) and body:
        body = body[0]
    error = body.get("error", body) if isinstance(body, Mapping) else body
    if not isinstance(error, Mapping):
        return error if isinstance(error, str) else "", ""
    message = error.get("message") or error.get("detail") or ""
    words = message if isinstance(message, str) else repr(message)
    match error:
        case {"n_ctx": int(window)} if str(window) not in words:  # llama.cpp
            words += f" (n_ctx {window})"
        case {"metadata": {"raw": str(raw)}} if raw.strip():
            words = f"{words}: {raw}"
        case {"details": [*details]} if "retry in" not in words.lower():
            delays = [delay for one in details if (delay := JsonObject.of(one).text("retryDelay"))]
            words += "".join(f" Retry in {delay}." for delay in delays[:1])
    code = error.get("code") or error.get("type") or ""
    if isinstance(code, int):
        code = JsonObject(error).text("status") or code
    return words, str(code)


def refusal(provider: str, status: int, headers: Mapping[str, str], text: str, now_ms: int) -> errors.ModelError:
    """Return the error for a whole answer that is not a success; names of headers in lower case."""
    body: object = text
    with suppress(ValueError, RecursionError):
        body = json.loads(text)
    words, code = vendor_words(body)
    return failure(provider, status, words, code=code, retry_after_s=retry_after_s(headers, words, now_ms))


def failure(
    provider: str, status: int | None, words: str, *, code: str = "", retry_after_s: float | None = None
) -> errors.ModelError:
    """Return the error for an answer of `status`, or without one for an error in the middle of a stream."""
    if status is None:
        status = _STATUS_OF_CODE.get(code, int(code) if re.fullmatch(r"[45]\d\d", code) else 500)
    said = f": {shortened(words)}" if words.strip() else "."
    line = f"{provider} answered {status}{f' {code}' if code and code != str(status) else ''}{said}"
    if line[-1] not in ".!?…":
        line += "."
    kind, advice = _kind(status, code, words, retry_after_s)
    error = kind(f"{line} {advice}".rstrip(), provider=provider, status=status, retry_after_s=retry_after_s)
    if kind is errors.WindowExceeded and (found := _WINDOW.search(words.replace(",", ""))):
        error.details["window"] = int(next(filter(None, found.groups())))
    if kind is errors.ToolsUnsupported:
        error.details["as_text"] = _TOOLS_AS_TEXT.search(words) is not None
    return error


def _kind(status: int, code: str, words: str, retry_after_s: float | None) -> tuple[type[errors.ModelError], str]:
    """Return the class of the error, and what to do about it."""
    too_long = _TOO_LONG.get(status)
    if status == 413 or (too_long and too_long.search(f"{code} {words}")):
        return errors.WindowExceeded, "The prompt must become shorter."
    if status in (400, 404, 422, 500) and (_NO_TOOLS.search(words) or _TOOLS_AS_TEXT.search(words)):
        return errors.ToolsUnsupported, ""
    if status in (401, 403) or (status == 400 and _BAD_KEY.search(words)):
        return errors.ModelRefused, "Check the provider's key and what it may use."
    # Google names the plan and billing at limits per minute too, and says when to come back.
    names_money = _NO_MONEY_CODE.search(code) or ((status == 400 or retry_after_s is None) and _NO_MONEY.search(words))
    if status == 402 or (status in (400, 429) and names_money):
        return errors.ModelRefused, "Check the account's plan and credit."
    match status:
        case 404:
            return errors.ModelRefused, "Check the model_name and the base_url."
        case 503 if _LOADING.match(words[:WORDS_MAX]):
            return errors.ModelLoading, ""
        case 429 | 503 | 529:
            return errors.ModelOverloaded, ""
        case 408:
            return errors.ModelTimeout, ""
    if status >= 500 or status == 409:  # 409 is a lock that the vendors' own clients wait for
        return errors.ModelServerError, ""
    return (errors.ModelRejected, "") if status >= 400 else (errors.ModelGarbage, "Is the base_url right?")


def shortened(words: str) -> str:
    """Return words from outside in one line of at most `WORDS_MAX` characters, safe to store."""
    line = " ".join(valid_unicode(words[: 2 * WORDS_MAX]).split())
    return line if len(line) <= WORDS_MAX else line[: WORDS_MAX - 1] + "…"


def rate_status(headers: Mapping[str, str], now_ms: int, at: float | None = None) -> RateStatus | None:
    """Return the limits in the headers at `now_ms` (unix milliseconds); None where there are none.

    `at` is the same moment on trio's clock, in seconds.
    """
    requests, tokens = _allowance(headers, _REQUESTS, now_ms), _allowance(headers, _TOKENS, now_ms)
    return RateStatus(requests=requests, tokens=tokens, at=at) if requests or tokens else None


def _allowance(headers: Mapping[str, str], names: Sequence[str], now_ms: int) -> Allowance | None:
    """Return the allowance of the first spelling that has both counts."""
    for name in names:
        limit, remaining = (headers.get(name.format(word), "").strip() for word in ("limit", "remaining"))
        if _COUNT.fullmatch(limit) and _COUNT.fullmatch(remaining) and int(limit) > 0:
            reset_s = parse_wait_s(headers.get(name.format("reset"), ""), now_ms)
            return Allowance(limit=int(limit), remaining=int(remaining), reset_s=reset_s)
    return None


def parse_wait_s(value: str, now_ms: int) -> float | None:
    """Return seconds from `now_ms` (unix milliseconds) that a header's value means; None where it means nothing.

    Forms: seconds, durations (`1500ms`, `2s`, `3m`, `1h`, `6m0s`), unix time in seconds or milliseconds, and dates as
    in RFC 9110 (section 5.6.7) and RFC 3339. What lies in the past is 0; the most is `RETRY_AFTER_MAX_S`.
    """
    text = value.strip()[:100]
    seconds: float | None
    try:
        seconds = float(text)
    except ValueError:
        seconds = _duration_s(text)
        if seconds is None:
            seconds = _until_date_s(text, now_ms)
    else:
        if seconds >= _EPOCH_MS_MIN:
            seconds /= 1_000
        if seconds >= _EPOCH_S_MIN:
            seconds -= now_ms / 1_000
    if seconds is None or math.isnan(seconds):
        return None
    return min(max(0.0, seconds), RETRY_AFTER_MAX_S)


def retry_after_s(headers: Mapping[str, str], words: str, now_ms: int) -> float | None:
    """Return the retry delay in seconds: from the headers (lower-case names), else from the vendor's message, else
    None.
    """
    for name, unit in (("retry-after-ms", "ms"), ("retry-after", "")):
        if name in headers and (wait_s := parse_wait_s(headers[name] + unit, now_ms)) is not None:
            return wait_s
    resets = (parse_wait_s(headers.get(name, ""), now_ms) for name in _RESET_HEADERS)
    if known := [wait_s for wait_s in resets if wait_s is not None]:
        return min(max(known), RESET_WAIT_MAX_S)
    found = _WAIT_WORDS.search(words[:10_000])
    return parse_wait_s(found[1].rstrip("."), now_ms) if found else None


def vendor_now_ms(headers: Mapping[str, str], now_ms: int) -> int:
    """Return the moment of an answer by the vendor's own clock (`date`, RFC 9110 section 6.6.1), else `now_ms`.

    The dates in its other headers are of that clock, and this machine's may be wrong by minutes.
    """
    at_s = _until_date_s(headers.get("date", ""), 0)
    return now_ms if at_s is None else int(at_s * 1_000)


def _duration_s(text: str) -> float | None:
    """Return the seconds of `6m0s`; None unless the whole text is a duration."""
    pieces = list(_DURATION.finditer(text))
    if not pieces or "".join(piece[0] for piece in pieces) != text:
        return None
    return sum(float(piece[1]) * _UNITS_S[(piece[2] or "s").lower()] for piece in pieces)


def _until_date_s(text: str, now_ms: int) -> float | None:
    for parse in (datetime.fromisoformat, parsedate_to_datetime):
        with suppress(ValueError, IndexError, TypeError):
            moment = parse(text)
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - now_ms / 1_000
    return None
