"""A provider that answers garbage, half a stream, errors or never, over its real wire format: the turn ends with a
clear error, history stays whole, and the next turn works."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from pattern_core.models.model import ModelReply
from pattern_core.testing import wire_anthropic, wire_google, wire_responses
from pattern_core.testing.model import calls, says, together
from pattern_core.testing.wire import Entry, Play, document, events, serve_wire
from pattern_core.testing.wire_openai import chunk, refuses, replies, serve_openai
from pattern_server.config import Config
from tests.pattern_server.place import Place, config_for, serving

GARBAGE = Play(chunks=(b"<html>\x00\xff not a model</html>",), headers={"content-type": "text/html"})
HALF = events(chunk({"role": "assistant", "content": "I was about to"}))
CUT = Play(chunks=replies(says("a long and winding answer")).chunks, stops_after=200, headers=HALF.headers)
NEVER = Play(never_answers=True)
SILENT = Play(chunks=HALF.chunks, never_ends=True, headers=HALF.headers)

HASTY = {"model_timeout_s": 1.0, "model_idle_timeout_s": 0.5, "turn_timeout_s": 6.0}  # for those that never answer
PATIENT = {"model_timeout_s": 60.0, "model_idle_timeout_s": 30.0, "turn_timeout_s": 120.0}  # a busy machine is slow


async def turned(place: Place, content: str) -> dict[str, object]:
    answer = await place.say(content)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (GARBAGE, "model_garbage"),
        (document({"hello": "world"}), "model_garbage"),
        (HALF, "model_"),
        (CUT, "model_"),
        (refuses(401, "no such key"), "model_refused"),
        (refuses(400, "odd request"), "model_rejected"),
        (refuses(429, "slow down", headers={"retry-after": "0"}), "model_overloaded"),
        (refuses(500, "boom"), "model_server_error"),
        (NEVER, "model_timeout"),
        (SILENT, "model_timeout"),
    ],
    ids=["garbage", "other-json", "half-a-stream", "cut", "401", "400", "429", "500", "never", "silent"],
)
@pytest.mark.slow
async def test_a_bad_provider_fails_its_turn_and_nothing_else(tmp_path: Path, bad: Entry, code: str) -> None:
    async with serve_openai(otherwise=bad) as wire, serving(_config(tmp_path, wire.url, is_hasty=True)) as place:
        await place.constellation(model_provider="local", model_name="m")
        failed = await turned(place, "hello")
        error = failed["error"]
        assert isinstance(error, dict), failed
        # On a loaded machine the turn's own deadline may come before the last of the attempts.
        assert (failed["status"] == "failed" and str(error["code"]).startswith(code)) or (
            code == "model_timeout" and error["code"] == "deadline"
        )
        assert len(str(error["message"])) > 20
        assert "Traceback" not in str(error)
        history = (await place.admin.get("/constellations/home/agents/ada/messages")).json()["items"]
        assert [message["content"] for message in history] == ["hello"]


async def test_after_trouble_the_provider_is_asked_as_if_nothing_had_been(tmp_path: Path) -> None:
    script: list[Entry | ModelReply] = [
        refuses(429, "slow down", headers={"retry-after": "0"}),
        refuses(500, "boom"),
        calls("recall", {"op": "insert", "content": "Ada likes tea"}),
        says("I noted it."),
        refuses(400, "odd"),
        says("Hello again."),
    ]
    async with serve_openai(script) as wire, serving(_config(tmp_path, wire.url)) as place:
        await place.constellation(model_provider="local", model_name="m")
        first = await turned(place, "I like tea")
        assert first["status"] == "completed", first
        assert (await turned(place, "and?"))["status"] == "failed"
        last = await turned(place, "still there?")
        assert last["status"] == "completed"
        # The wire server refuses conversations that break the vendor's rules, such as a call without its result.
        assert len(wire.requests) == len(script)


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A vendor's format: its server, the stream of an answer, and how the provider is configured."""

    serve: Callable[..., serve_wire]
    replies: Callable[..., Play]
    provider: Mapping[str, object]
    path: str = ""


FORMATS = {
    "anthropic": Format(
        serve=wire_anthropic.serve_anthropic, replies=wire_anthropic.replies, provider={"kind": "anthropic"}
    ),
    "chat": Format(serve=serve_openai, replies=replies, provider={"kind": "openai"}, path="/v1"),
    "google": Format(serve=wire_google.serve_google, replies=wire_google.replies, provider={"kind": "google"}),
    "responses": Format(
        serve=wire_responses.serve_responses,
        replies=wire_responses.replies,
        provider={"kind": "openai", "api": "responses"},
        path="/v1",
    ),
}


@pytest.mark.parametrize("form", sorted(FORMATS))
async def test_half_a_stream_is_superseded_in_every_format(tmp_path: Path, form: str) -> None:
    chosen = FORMATS[form]
    whole = chosen.replies(says("a long and winding answer"))
    script: list[Entry | ModelReply] = [
        Play(chunks=(whole.body,), stops_after=len(whole.body) // 2, headers=whole.headers),
        together(
            calls("recall", {"op": "insert", "content": "Ada likes tea"}, call_id="c1"),
            calls("recall", {"op": "insert", "content": "Ada hates milk"}, call_id="c2"),
        ),
        says("I noted it."),
        says("Hello again."),
    ]
    async with chosen.serve(script) as wire:
        provider = {**chosen.provider, "base_url": wire.url + chosen.path, "api_key": "none-needed"}
        async with serving(_config(tmp_path, wire.url, provider)) as place:
            await place.constellation(model_provider="local", model_name="m")
            first = await turned(place, "I like tea, but no milk")
            assert first["status"] == "completed", first
            last = await turned(place, "still there?")
            assert last["status"] == "completed", last
            # The wire servers refuse conversations that break their vendors' rules, such as a call without its result.
            assert len(wire.requests) == len(script)


def _config(folder: Path, url: str, provider: Mapping[str, object] | None = None, *, is_hasty: bool = False) -> Config:
    return config_for(
        folder,
        default_provider="local",
        providers={"local": provider or {"kind": "openai", "base_url": f"{url}/v1", "api_key": "none-needed"}},
        limits={"turn": HASTY if is_hasty else PATIENT},
    )
