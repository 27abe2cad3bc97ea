"""A model is tried: words, speed, and the form of its tool calls."""

from __future__ import annotations

import pytest

from pattern_core.ids import seeded_randomness
from pattern_core.limits import TurnLimits
from pattern_core.models.catalogue import Catalogue, ProviderModels
from pattern_core.models.client import ModelClient
from pattern_core.models.errors import ModelNotConfigured
from pattern_core.models.model import ModelReply
from pattern_core.models.providers import make_provider
from pattern_core.models.providers.settings import ProviderSettings
from pattern_core.models.throttle import RetryPolicy
from pattern_core.models.trial import try_model
from pattern_core.testing import wire
from pattern_core.testing.model import calls, says
from pattern_core.testing.wire import Play, WireServer
from pattern_core.testing.wire_openai import refuses, replies

LIGHTHOUSE = says("A lighthouse is a tower.", reasoning="Hm.")
CALLS = calls("get_weather", {"city": "Lisbon"})
SAID = says('<tool_call>{"name": "get_weather", "arguments": {"city": "Lisbon"}}</tool_call>')
WINDOW = wire.document({"data": [{"id": "m", "max_model_len": 16_000}]})


@pytest.mark.parametrize(
    ("answers", "configured", "form"),
    [
        ([CALLS], {}, "native"),
        ([SAID, SAID], {}, "auto"),
        ([says("Sunny."), says("Sunny."), SAID], {}, "text"),
        ([says("Sunny.")] * 3, {}, "none"),
        ([SAID], {"tool_calls": "text"}, "text"),
        ([refuses(400, "m does not support tools"), says("Sunny.")], {}, "refused"),
    ],
)
async def test_a_model_is_tried(answers: list[ModelReply | Play], configured: dict[str, str], form: str) -> None:
    plays = [one if isinstance(one, Play) else replies(one) for one in (LIGHTHOUSE, *answers)]
    async with WireServer(otherwise=lambda request: WINDOW if request.method == "GET" else plays.pop(0)) as server:
        base_url = f"{server.url}/v1"
        provider = make_provider("mine", ProviderSettings(kind="openai", base_url=base_url))
        models = ProviderModels(kind="openai", base_url=base_url, overrides={"m": configured} if configured else {})
        catalogue = Catalogue.packaged().configured({"mine": models})
        client = ModelClient({"mine": provider}, RetryPolicy(), TurnLimits(), seeded_randomness(1), catalogue=catalogue)
        trial = await try_model(client, "mine", "m")
        await provider.aclose()
    assert not plays
    assert (trial.facts.window, trial.facts.window_source) == (16_000, "server")
    assert (trial.answer, trial.thought_chars, trial.finish_reason) == ("A lighthouse is a tower.", 3, "stop")
    assert 0 <= trial.first_word_s <= trial.total_s
    assert (trial.tool_calls, trial.tool_answer) == (form, "Sunny." if form == "none" else "")


async def test_one_question_alone_and_a_provider_that_is_not_there() -> None:
    embedded = make_provider("embedded", ProviderSettings(kind="embedded"))
    client = ModelClient({"embedded": embedded}, RetryPolicy(), TurnLimits(), seeded_randomness(1))
    trial = await try_model(client, "embedded", "rules-1", tools=False)
    assert trial.answer and trial.tool_calls == "untried"
    with pytest.raises(ModelNotConfigured):
        await try_model(client, "absent", "m")
