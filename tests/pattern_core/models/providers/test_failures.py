from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_core.ids import seeded_randomness
from pattern_core.limits import TurnLimits
from pattern_core.models.client import ModelClient
from pattern_core.models.errors import (
    ModelError,
    ModelGarbage,
    ModelLoading,
    ModelOverloaded,
    ModelRefused,
    ModelRejected,
    ModelServerError,
    ModelTimeout,
    ToolsUnsupported,
    WindowExceeded,
)
from pattern_core.models.model import Allowance, RateStatus
from pattern_core.models.providers.failures import (
    RETRY_AFTER_MAX_S,
    WORDS_MAX,
    failure,
    parse_wait_s,
    rate_status,
    refusal,
    retry_after_s,
    vendor_now_ms,
    vendor_words,
)
from pattern_core.models.routing import ModelChain
from pattern_core.models.throttle import RetryPolicy
from pattern_core.testing import StoppedClock, says
from pattern_core.testing.wire import document
from tests.pattern_core.models.providers import rig


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
        (503, "unavailable_error", "Loading model", ModelLoading),  # llama.cpp
        (503, "", "llm server loading model", ModelLoading),  # Ollama
        (503, "", "error loading model: no such file", ModelOverloaded),
        (503, "", "Model mistralai/Mistral-7B is currently loading", ModelLoading),  # TGI
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


@pytest.mark.parametrize(
    ("body", "window"),
    [
        ("This model's maximum context length is 8192 tokens. However, you requested 9,000 tokens", 8_192),  # vLLM
        ("'max_tokens' is too large: 4096. This model's maximum context length is 2048 tokens (4096 > 2048)", 2_048),
        ("request (3251 tokens) exceeds the available context size (2048 tokens), try it", 2_048),  # llama.cpp
        ({"message": "the request exceeds the available context size", "n_prompt_tokens": 9_999, "n_ctx": 256}, 256),
        ("Requested tokens (2285) exceed context window of 2048", 2_048),  # llama-cpp-python
        ("Trying to keep the first 5000 tokens when context the overflows. However, the model is loaded with context"
         " length of only 4096 tokens, which is not enough.", 4_096),  # LM Studio
        ("The decoder prompt (length 5000) is longer than the maximum model length of 4096.", 4_096),
        ("`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000", 4_096),  # TGI
        ("prompt is too long: 210000 tokens > 200000 maximum", 200_000),  # Anthropic
        ("input length and `max_tokens` exceed context limit: 198000 + 8192 > 200000", 200_000),
        ("Prompt contains 40000 tokens, too large for model with 32768 maximum context", 32_768),  # Mistral
        ("This model's maximum prompt length is 131072 but the request contains 537812", 131_072),  # xAI
        ("the input length exceeds the context length", None),  # Ollama
        ("Context size has been exceeded.", None),
    ],
)  # fmt: skip
def test_the_window_that_a_refusal_states(body: str | dict[str, object], window: int | None) -> None:
    for status in (400, 500):
        said = {"error": {"message": body} if isinstance(body, str) else body}
        error = refusal("mine", status, {}, json.dumps(said), NEW_YEAR_MS)
        if status == 400 or isinstance(error, WindowExceeded):
            assert (type(error), error.details.get("window")) == (WindowExceeded, window)


@pytest.mark.parametrize(
    ("status", "words", "as_text"),
    [
        (400, "registry.ollama.ai/library/llama3:latest does not support tools", False),
        (404, "No endpoints found that support tool use. Try disabling 'search'.", False),  # OpenRouter
        (400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set', True),  # vLLM
        (500, "tools param requires --jinja flag", True),  # llama.cpp
        (500, "Unsupported param: tools", True),
    ],
)
def test_who_knows_no_tools(status: int, words: str, as_text: bool) -> None:
    error = failure("mine", status, words)
    assert (type(error), error.details["as_text"]) == (ToolsUnsupported, as_text)


def test_a_quota_is_spent_for_good_only_where_no_time_to_come_back_is_given() -> None:
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


ANY_TEXT = st.text(alphabet=st.characters(codec=None), max_size=2_000)


@given(ANY_TEXT, ANY_TEXT)
def test_any_words_make_an_error_that_can_be_stored(words: str, code: str) -> None:
    assert len(str(failure("x", None, words, code=code[:50])).encode()) < 4 * (WORDS_MAX + 300)


NOW_MS = StoppedClock().now_ms()
NEW_YEAR_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z
OPENAI = {
    "x-ratelimit-limit-requests": "5000",
    "x-ratelimit-limit-tokens": "160000",
    "x-ratelimit-remaining-requests": "4999",
    "x-ratelimit-remaining-tokens": "159976",
    "x-ratelimit-reset-requests": "12ms",
    "x-ratelimit-reset-tokens": "6m0s",
}


RESET = str(NOW_MS // 1_000 + 10)
ANTHROPIC = {
    "anthropic-ratelimit-requests-limit": "1000",
    "anthropic-ratelimit-requests-remaining": "999",
    "anthropic-ratelimit-requests-reset": RESET,
    "anthropic-ratelimit-tokens-limit": "96000",
    "anthropic-ratelimit-tokens-remaining": "90000",
    "anthropic-ratelimit-tokens-reset": RESET,
    "anthropic-ratelimit-input-tokens-limit": "80000",
    "anthropic-ratelimit-input-tokens-remaining": "80000",
}


def test_openais_headers() -> None:
    assert rate_status(OPENAI, NOW_MS) == RateStatus(
        requests=Allowance(limit=5_000, remaining=4_999, reset_s=0.012),
        tokens=Allowance(limit=160_000, remaining=159_976, reset_s=360.0),
    )


def test_anthropics_headers_with_dates() -> None:
    headers = {
        **ANTHROPIC,
        "anthropic-ratelimit-tokens-reset": "2026-01-01T00:00:12Z",
        "anthropic-ratelimit-requests-reset": "2026-01-01T00:01:00+00:00",
    }
    assert rate_status(headers, NEW_YEAR_MS) == RateStatus(
        requests=Allowance(limit=1_000, remaining=999, reset_s=60.0),
        tokens=Allowance(limit=96_000, remaining=90_000, reset_s=12.0),
    )


def test_older_gateways_state_input_tokens_alone() -> None:
    headers = {name: value for name, value in ANTHROPIC.items() if "input-tokens" in name}
    assert rate_status(headers, NOW_MS) == RateStatus(tokens=Allowance(limit=80_000, remaining=80_000))


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-ratelimit-limit-requests": "5"},
        {"x-ratelimit-limit-requests": "5", "x-ratelimit-remaining-requests": "many"},
        {"x-ratelimit-limit-requests": "-5", "x-ratelimit-remaining-requests": "4"},
        {"x-ratelimit-limit-requests": "9" * 40, "x-ratelimit-remaining-requests": "4"},
        {"x-ratelimit-limit-requests": "0", "x-ratelimit-remaining-requests": "0"},
        {"x-ratelimit-limit-requests": "²", "x-ratelimit-remaining-requests": "4"},
    ],
)
def test_limits_that_make_no_sense_are_ignored(headers: dict[str, str]) -> None:
    assert rate_status(headers, NOW_MS) is None


@settings(max_examples=60)
@given(st.dictionaries(st.sampled_from(sorted(OPENAI)), st.text(max_size=12)))
def test_any_header_is_survived(headers: dict[str, str]) -> None:
    status = rate_status(headers, NOW_MS)
    assert status is None or status.requests or status.tokens


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
    assert parse_wait_s(value, NEW_YEAR_MS) == pytest.approx(seconds)


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
    assert retry_after_s(headers, words, NEW_YEAR_MS) == pytest.approx(seconds)


def test_dates_are_read_by_the_clock_that_wrote_them() -> None:
    assert vendor_now_ms({"date": "Thu, 01 Jan 2026 00:10:00 GMT"}, NEW_YEAR_MS) == NEW_YEAR_MS + 600_000
    assert vendor_now_ms({"date": "yesterday"}, NEW_YEAR_MS) == vendor_now_ms({}, NEW_YEAR_MS) == NEW_YEAR_MS


@given(ANY_TEXT, ANY_TEXT)
def test_any_header_and_any_words_give_a_wait_that_is_sane(header: str, words: str) -> None:
    wait_s = retry_after_s({"retry-after": header}, words, NEW_YEAR_MS)
    assert wait_s is None or 0 <= wait_s <= RETRY_AFTER_MAX_S


async def figures_after(client: rig.Client, deadline: float = math.inf) -> dict[str, Any]:
    """What the gate knows after one call."""
    models = ModelClient({"vendor": client.provider}, RetryPolicy(), TurnLimits(), seeded_randomness(1))
    chain = ModelChain.of("vendor", client.vendor.model)
    with suppress(ModelOverloaded):
        await models.ask(client.vendor.request, chain, client.on_delta, deadline)
    return models.gate_figures()["vendor"]


@pytest.mark.parametrize(
    ("vendor", "headers", "limits"),
    [(rig.OPENAI, OPENAI, (5_000, 160_000)), (rig.ANTHROPIC, ANTHROPIC, (1_000, 96_000))],
    ids=str,
)
async def test_headers_reach_the_gate(vendor: rig.Vendor, headers: dict[str, str], limits: tuple[int, int]) -> None:
    play = vendor.replies(says("hi"))
    async with rig.connected(vendor, replace(play, headers={**play.headers, **headers})) as client:
        gate = await figures_after(client)
    assert (gate["requests_limit"], gate["tokens_limit"], gate["overloads_total"]) == (*limits, 0)
    assert gate["requests_level"] in (limits[0] - 1, limits[0])  # it is whole again soon
    assert gate["tokens_level"] is not None and 0 <= limits[1] - gate["tokens_level"] <= 6_000


async def test_a_refusals_headers_reach_the_gate_too() -> None:
    body = {"error": {"message": "slow down", "code": "rate_limit_exceeded"}}
    headers = {**OPENAI, "x-ratelimit-remaining-tokens": "0", "retry-after": "200"}
    async with rig.connected(rig.OPENAI, document(body, status=429, headers=headers)) as client:
        gate = await figures_after(client, trio.current_time() + 100)
    assert (gate["tokens_limit"], gate["concurrency"], gate["overloads_total"]) == (160_000, 8, 1)
    assert gate["tokens_level"] is not None and gate["tokens_level"] < 10_000
    assert 100 < gate["closed_for_s"] <= 250
