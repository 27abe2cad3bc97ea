from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from pattern_core.models.providers.failures import (
    RETRY_AFTER_MAX_S,
    WORDS_MAX,
    failure,
    parse_wait_s,
    retry_after_s,
    vendor_now_ms,
    vendor_words,
)

NOW_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("30", 30),
        ("0.5", 0.5),
        (" 7 ", 7),
        ("-3", 0),
        ("600", 600),
        ("1500ms", 1.5),
        ("2s", 2),
        ("3m", 180),
        ("1h", 3_600),
        ("6m0s", 360),
        ("1m30.5s", 90.5),
        ("45 seconds", 45),
        ("Thu, 01 Jan 2026 00:00:20 GMT", 20),
        ("Wed, 31 Dec 2025 23:59:00 GMT", 0),
        ("2026-01-01T00:00:40Z", 40),
        ("2026-01-01T01:00:40+01:00", 40),
        ("2026-01-01T00:00:40", 40),
        ("1767225650", 50),
        ("1767225650500", 50.5),
        ("inf", RETRY_AFTER_MAX_S),
        ("nan", None),
        ("soon", None),
        ("", None),
        ("9" * 50, RETRY_AFTER_MAX_S),
    ],
)
def test_waits_in_every_form(value: str, seconds: float | None) -> None:
    assert parse_wait_s(value, NOW_MS) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("headers", "words", "seconds"),
    [
        ({"retry-after": "30"}, "", 30),
        ({"retry-after-ms": "1500", "retry-after": "2"}, "", 1.5),
        ({"retry-after-ms": "x", "retry-after": "2"}, "", 2),
        ({"retry-after": "?"}, "please wait 120 seconds", 120),
        ({"x-ratelimit-reset-requests": "1s", "x-ratelimit-reset-tokens": "6m0s"}, "", 300),
        ({"x-ratelimit-reset-tokens": "20ms"}, "", 0.02),
        ({"anthropic-ratelimit-unified-reset": "1767225612"}, "", 12),
        ({}, "retry after 45 seconds", 45),
        ({}, "retry-after: 30", 30),
        ({}, "please wait 120 seconds", 120),
        ({}, "reset in 15s", 15),
        ({}, "retry-after: 600", 600),
        ({}, "wait 1000 seconds", 1_000),
        ({}, "Rate limit reached for gpt-x: Limit 3, Used 3. Please try again in 20s. Visit a page.", 20),
        ({}, "Please try again in 1m2.5s.", 62.5),
        ({}, "Please try again in 842ms.", 0.842),
        ({}, "retry in 2 minutes", 120),
        ({}, "too many requests", None),
        ({"x-ratelimit-reset": "1767225605000"}, "", 5),  # OpenRouter
    ],
)
def test_when_to_come_back(headers: dict[str, str], words: str, seconds: float | None) -> None:
    assert retry_after_s(headers, words, NOW_MS) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("status", "code", "words", "kind"),
    [
        (401, "invalid_api_key", "Incorrect API key", ModelRefused),
        (402, "", "", ModelRefused),
        (403, "", "", ModelRefused),
        (404, "model_not_found", "no such model", ModelRefused),
        (400, "", "bad field", ModelRejected),
        (422, "", "", ModelRejected),
        (413, "request_too_large", "Request exceeds the maximum size", WindowExceeded),
        (400, "context_length_exceeded", "", WindowExceeded),
        (400, "", "This model's maximum context length is 8192 tokens", WindowExceeded),
        (400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum", WindowExceeded),
        (400, "", "the request exceeds the available context size", WindowExceeded),
        (408, "", "", ModelTimeout),
        (409, "", "", ModelServerError),
        (429, "rate_limit_exceeded", "", ModelOverloaded),
        (429, "insufficient_quota", "You exceeded your current quota", ModelRefused),
        (500, "", "context length is not the matter", ModelServerError),
        (500, "server_error", "Context size has been exceeded.", WindowExceeded),  # llama.cpp
        (None, "", "Trying to keep the first 5000 tokens when context the overflows.", WindowExceeded),  # LM Studio
        (400, "", "input length and `max_tokens` exceed context limit: 198000 + 8192 > 200000", WindowExceeded),
        (400, "", "The decoder prompt (length 5000) is longer than the maximum model length of 4096.", WindowExceeded),
        (400, "", "the input length exceeds the context length", WindowExceeded),
        (400, "", "This model's maximum prompt length is 131072 but the request contains 537812", WindowExceeded),
        (400, "", "Prompt contains 40000 tokens, too large for model with 32768 maximum context", WindowExceeded),
        (400, "", "The input token count (1200000) exceeds the maximum number of tokens allowed", WindowExceeded),
        (422, "", "`inputs` tokens + `max_new_tokens` must be <= 4096.", WindowExceeded),
        (429, "rate_limit_exceeded", "Request too large for gpt-x on tokens per min (TPM): Limit 3", WindowExceeded),
        (413, "rate_limit_exceeded", "Request too large for model `x` on tokens per minute", WindowExceeded),
        (400, "", "temperature exceeds the maximum of 2", ModelRejected),
        (400, "", "Image exceeds the maximum allowed size", ModelRejected),
        (400, "invalid_request_error", "Your credit balance is too low to access the API.", ModelRefused),
        (429, "RESOURCE_EXHAUSTED", "You exceeded your current quota, please check your plan", ModelOverloaded),
        (502, "", "<html>", ModelServerError),
        (503, "", "", ModelOverloaded),
        (504, "", "", ModelServerError),
        (529, "", "", ModelOverloaded),
        (302, "", "", ModelGarbage),
        (None, "overloaded_error", "Overloaded", ModelOverloaded),
        (None, "429", "slow down", ModelOverloaded),
        (None, "authentication_error", "", ModelRefused),
        (None, "invalid_request_error", "no", ModelRejected),
        (None, "", "who knows", ModelServerError),
        (None, "strange", "", ModelServerError),
    ],
)
def test_kinds_of_failure(status: int | None, code: str, words: str, kind: type[ModelError]) -> None:
    error = failure("openai", status, words, code=code, retry_after_s=3)
    assert type(error) is kind
    assert error.provider == "openai"
    assert error.status == status or status is None
    assert words in str(error)
    if kind is ModelOverloaded:
        assert error.retry_after_s == 3


def test_a_quota_is_spent_for_good_only_where_nobody_says_when_to_come_back() -> None:
    words = "You exceeded your current quota, please check your plan and billing details."
    assert type(failure("google", 429, words, code="RESOURCE_EXHAUSTED")) is ModelRefused
    assert type(failure("google", 429, f"{words} Retry in 34s.", retry_after_s=34)) is ModelOverloaded
    assert type(failure("openai", 429, words, code="insufficient_quota", retry_after_s=360)) is ModelRefused


def test_dates_are_read_by_the_clock_that_wrote_them() -> None:
    assert vendor_now_ms({"date": "Thu, 01 Jan 2026 00:10:00 GMT"}, NOW_MS) == NOW_MS + 600_000
    assert vendor_now_ms({"date": "yesterday"}, NOW_MS) == vendor_now_ms({}, NOW_MS) == NOW_MS


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"error": {"message": "m", "code": "c", "type": "t"}}, ("m", "c")),
        (
            {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
            ("Overloaded", "overloaded_error"),
        ),
        ({"error": {"message": "m", "code": 429}}, ("m", "429")),
        ({"error": {"message": "m", "code": 429, "metadata": {"raw": "too long"}}}, ("m: too long", "429")),
        ({"error": {"message": "m", "metadata": {"raw": None}}}, ("m", "")),
        ({"error": "plain"}, ("plain", "")),
        ({"detail": "why"}, ("why", "")),
        ({"message": ["x"]}, ("['x']", "")),
        ({"error": 5}, ("", "")),
        ("text", ("text", "")),
        (None, ("", "")),
        ([1], ("", "")),
    ],
)
def test_words_of_error_bodies(body: object, words: tuple[str, str]) -> None:
    assert vendor_words(body) == words


any_text = st.text(alphabet=st.characters(codec=None), max_size=2_000)


@given(any_text, any_text)
def test_any_words_make_an_error_that_can_be_stored(words: str, code: str) -> None:
    assert len(str(failure("x", None, words, code=code[:50])).encode()) < 4 * (WORDS_MAX + 300)
    wait_s = retry_after_s({"retry-after": words}, code, NOW_MS)
    assert wait_s is None or 0 <= wait_s <= RETRY_AFTER_MAX_S
