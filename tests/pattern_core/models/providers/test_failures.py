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
from pattern_core.models.providers.failures import WORDS_MAX, failure, vendor_words


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
