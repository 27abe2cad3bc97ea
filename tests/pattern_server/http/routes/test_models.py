"""What is known of an agent's model."""

from __future__ import annotations

from pathlib import Path

from tests.pattern_server.place import SCRIPTED, Place, config_for, serving

MODEL = "/constellations/home/agents/ada/model"
OLLAMA = {"kind": "openai", "base_url": "http://127.0.0.1:9/v1"}


async def test_a_known_model_has_figures_and_their_source(place: Place) -> None:
    await place.constellation(
        model_provider="anthropic", model_name="claude-sonnet-4-5-20250929", config={"context_window": 32_000}
    )
    told = (await place.admin.get(MODEL)).json()
    assert (told["window"], told["prompt_window"], told["is_known"]) == (200_000, 32_000, True)
    assert told["input_price"] == 3_000_000
    assert told["source"].startswith("https://")
    assert told["is_configured"] is False


async def test_an_unknown_one_says_so(place: Place) -> None:
    await place.constellation()
    told = (await place.admin.get(MODEL)).json()
    assert (told["window"], told["prompt_window"], told["is_known"]) == (8_192, 8_192, False)
    assert (told["input_price"], told["is_configured"]) == (None, True)
    assert (await place.admin.get("/constellations/home/agents/nobody/model")).status_code == 404


async def test_what_the_operator_says_counts(alone: Path) -> None:
    own = {**OLLAMA, "models": {"m": {"window": 16_000, "input_price": 5}}}
    async with serving(config_for(alone, providers={**SCRIPTED, "own": own})) as place:
        await place.constellation(model_provider="own", model_name="m")
        told = (await place.admin.get(MODEL)).json()
        assert (told["window"], told["input_price"], told["is_known"]) == (16_000, 5, True)
