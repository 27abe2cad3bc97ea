"""A vendor's refusal as one of our errors: by its status, its code and its words; pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from pattern_core.models.errors import (
    ModelError,
    ModelGarbage,
    ModelOverloaded,
    ModelRefused,
    ModelRejected,
    ModelServerError,
    ModelTimeout,
    WindowExceeded,
)
from pattern_core.models.providers.rates import retry_after_s
from pattern_core.models.text import as_dict, as_str, mended

WORDS_MAX = 500  # characters of a vendor's own words that an error repeats

# What servers say of a prompt that is too long: the vendors, OpenRouter, vLLM, llama.cpp, Ollama, LM Studio, TGI, xAI,
# Mistral and Groq each have words of their own, and some of them two.
_WINDOW_WORDS = re.compile(
    r"context[ _-]?(?:length|window|size|limit)|prompt (?:is )?too long|too many (?:input )?tokens|"
    r"input (?:is )?too long|maximum (?:context|prompt|input|model length)|input token count|max_new_tokens|"
    r"exceeds? the (?:available|model|maximum (?:\w+ ){0,3}(?:tokens|length))|reduce the length",
    re.IGNORECASE,
)
# Local servers notice it while they answer, as a fault of their own; their other faults may name the context too.
_OVERFLOW = re.compile(r"context[^.]{0,60}(?:exceed|overflow)|exceed[^.]{0,60}context", re.IGNORECASE)
# One call of more tokens than the account has per minute: to wait is of no use. Source: OpenAI's and Groq's answers.
_LARGER_THAN_A_MINUTE = re.compile(r"request too large for", re.IGNORECASE)
_NO_MONEY_CODE = re.compile(r"insufficient_quota|billing", re.IGNORECASE)
_NO_MONEY = re.compile(
    r"billing|credit balance|insufficient (?:balance|credit|fund)|exceeded your current quota", re.IGNORECASE
)
_BAD_KEY = re.compile(r"api[ _]key not valid|api_key_invalid|api key expired", re.IGNORECASE)  # Google's 400
# Codes and types of errors that come without a status of their own, within a stream that began with 200.
_STATUS_OF_CODE = {
    "invalid_request_error": 400,
    "context_length_exceeded": 400,
    "invalid_prompt": 400,
    "authentication_error": 401,
    "invalid_api_key": 401,
    "billing_error": 402,
    "insufficient_quota": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "model_not_found": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "INVALID_ARGUMENT": 400,
    "NOT_FOUND": 404,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "RESOURCE_EXHAUSTED": 429,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
    "timeout_error": 504,
    "overloaded_error": 529,
}


def vendor_words(body: object) -> tuple[str, str]:
    """Return the message and the code (or type) of a vendor's error body; both "" where it is nothing of the kind.

    Bodies: `{"error": {"message", "code", "type"}}`, `{"error": "words"}`, `{"message"}`, `{"detail"}`, plain text.
    Google's may be in a list, repeat the HTTP status as `code`, have their own word for it as `status`, and say under
    `{"details": [{"retryDelay"}]}` when to come back. OpenRouter has what the vendor behind it said under
    `{"metadata": {"raw"}}`, and itself only that it said something.
    """
    if isinstance(body, list) and body:
        body = body[0]
    error = body.get("error", body) if isinstance(body, Mapping) else body
    if not isinstance(error, Mapping):
        return as_str(error), ""
    message = error.get("message") or error.get("detail") or ""
    words = message if isinstance(message, str) else repr(message)
    match error:
        case {"metadata": {"raw": str(raw)}} if raw.strip():
            words = f"{words}: {raw}"
        case {"details": [*details]} if "retry in" not in words.lower():
            delays = [delay for one in details if (delay := as_str(as_dict(one).get("retryDelay")))]
            words += "".join(f" Retry in {delay}." for delay in delays[:1])
    code = error.get("code") or error.get("type") or ""
    if isinstance(code, int):
        code = as_str(error.get("status")) or code
    return words, str(code)


def refusal(provider: str, status: int, headers: Mapping[str, str], text: str, now_ms: int) -> ModelError:
    """Return the error for a whole answer that is no success; names of headers in lower case."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        body = text
    words, code = vendor_words(body)
    return failure(provider, status, words, code=code, retry_after_s=retry_after_s(headers, words, now_ms))


def failure(
    provider: str, status: int | None, words: str, *, code: str = "", retry_after_s: float | None = None
) -> ModelError:
    """The error for an answer of `status`, or without one for an error in the middle of a stream."""
    if status is None:
        status = _STATUS_OF_CODE.get(code, int(code) if re.fullmatch(r"[45]\d\d", code) else 500)
    said = f": {shortened(words)}" if words.strip() else "."
    told = f"{provider} answered {status}{f' {code}' if code and code != str(status) else ''}{said}"
    if told[-1] not in ".!?…":
        told += "."
    if status == 413 or _is_too_long(status, code, words):
        return WindowExceeded(f"{told} The prompt must become shorter.", provider=provider, status=status)
    if status in (401, 403) or (status == 400 and _BAD_KEY.search(words)):
        return ModelRefused(f"{told} Check the provider's key and what it may use.", provider=provider, status=status)
    if status == 402 or _is_broke(status, code, words, retry_after_s):
        return ModelRefused(f"{told} Check the account's plan and credit.", provider=provider, status=status)
    if status == 404:
        return ModelRefused(f"{told} Check the agent's model_name and the base_url.", provider=provider, status=status)
    if status in (429, 503, 529):
        return ModelOverloaded(told, provider=provider, status=status, retry_after_s=retry_after_s)
    if status == 408:
        return ModelTimeout(told, provider=provider, status=status, retry_after_s=retry_after_s)
    # 409 is a lock that the vendors' own clients wait for.
    if status >= 500 or status == 409:
        return ModelServerError(told, provider=provider, status=status, retry_after_s=retry_after_s)
    if status >= 400:
        return ModelRejected(told, provider=provider, status=status)
    return ModelGarbage(f"{told} Is the base_url right?", provider=provider, status=status)


def _is_too_long(status: int, code: str, words: str) -> bool:
    if status in (400, 422):
        return _WINDOW_WORDS.search(f"{code} {words}") is not None
    if status == 429:
        return _LARGER_THAN_A_MINUTE.search(words) is not None
    return status == 500 and _OVERFLOW.search(words) is not None


def _is_broke(status: int, code: str, words: str, retry_after_s: float | None) -> bool:
    """Whether no money is left. Google names the plan and billing at limits per minute too, and when to come back."""
    if status not in (400, 429):
        return False
    is_for_good = status == 400 or retry_after_s is None
    return bool(_NO_MONEY_CODE.search(code) or (is_for_good and _NO_MONEY.search(words)))


def shortened(words: str) -> str:
    """Words from outside in one line of at most `WORDS_MAX` characters, safe to store."""
    line = " ".join(mended(words[: 2 * WORDS_MAX]).split())
    return line if len(line) <= WORDS_MAX else line[: WORDS_MAX - 1] + "…"
