"""Providers are replaced while the server runs: before, after and in the middle of turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from pattern_core.errors import InvalidInput
from pattern_core.testing.model import calls, says
from pattern_core.testing.wire import Play, WireRequest, WireServer, document
from pattern_core.testing.wire_openai import replies
from pattern_server.config import Config, ConfigError, load
from pattern_server.models import open_models
from tests.pattern_server.place import DETERMINISTIC, Place, serving
from tests.support import until

DEFAULT = 'default_provider = "mine"\ndefault_model = "m"\n'


def section(server: WireServer, name: str = "mine") -> str:
    return f'[providers.{name}]\nkind = "openai"\nbase_url = "{server.url}/v1"\n'


def answering(*answers: Any) -> Any:
    """What a server of models answers, one after the other; its list of models is `m` and one that makes vectors."""
    left = [one if isinstance(one, Play) else replies(one) for one in answers]

    listed = document({"data": [{"id": "m", "max_model_len": 16_000}, {"id": "nomic-embed-text"}]})

    def answer(request: WireRequest) -> Play:
        return listed if request.method == "GET" else left.pop(0)

    return answer


def configured(alone: Path, text: str) -> Config:
    (alone / "data").mkdir(exist_ok=True)
    (alone / "data" / "pattern.toml").write_text(text)
    return load(data_dir=alone / "data", embeddings=DETERMINISTIC, port=0)


async def said(place: Place) -> str:
    answer = await place.say("Hello")
    assert answer.status_code == 200, answer.text
    return str(answer.json()["messages"][-1]["content"])


async def closed(server: WireServer) -> None:
    """Wait until no connection to a server is open."""
    await until(lambda: not server.open_connections)


class Held(WireServer):
    """A server that answers nothing before `gate`."""

    def __init__(self, *answers: Any) -> None:
        super().__init__(otherwise=answering(*answers))
        self.held, self.gate = trio.Event(), trio.Event()

    async def serve_connection(self, stream: trio.SocketStream) -> None:
        self.held.set()
        await self.gate.wait()
        await super().serve_connection(stream)


async def test_a_turn_that_runs_keeps_its_provider(alone: Path) -> None:
    """Its first question is under way when the provider goes; its second one is asked afterwards."""
    window = "[providers.mine.models.m]\nwindow = 16000\n"
    old = Held(calls("calculator", {"expression": "1+1"}), says("Two, says the old one."))
    async with (
        old,
        WireServer(otherwise=answering(says("I am new."))) as new,
        serving(configured(alone, DEFAULT + section(old) + window)) as place,
    ):
        await place.constellation()
        answers = list[str]()

        async def ask() -> None:
            answers.append(await said(place))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await old.held.wait()
            configured(alone, DEFAULT + section(new) + window)
            assert (await place.admin.post("/models/reload")).status_code == 200
            old.gate.set()
        assert answers == ["Two, says the old one."]
        assert await said(place) == "I am new."
        await closed(old)


async def test_a_broken_file_is_refused_and_the_old_configuration_stays(alone: Path) -> None:
    async with (
        WireServer(otherwise=answering(says("I am here."))) as server,
        serving(configured(alone, DEFAULT + section(server))) as place,
    ):
        await place.constellation()
        (alone / "data" / "pattern.toml").write_text(f"{DEFAULT}[providers.mine]\nkind = 3\n")
        refused = await place.admin.post("/models/reload")
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_config")
        assert "providers.mine.kind" in refused.json()["detail"]
        assert await said(place) == "I am here."


async def test_the_default_is_written_to_the_file_and_used_at_once(alone: Path) -> None:
    async with (
        WireServer(otherwise=answering(says("I am here."))) as server,
        serving(configured(alone, f'# mine\nlog_level = "error"\n\n{section(server)}')) as place,
    ):
        assert (await place.admin.get("/models")).json()["default_model"] == ""
        changed = await place.admin.put("/models/default", json={"model": "mine/m"})
        assert (changed.json()["default_provider"], changed.json()["default_model"]) == ("mine", "m")
        text = (alone / "data" / "pattern.toml").read_text()
        assert text.startswith('# mine\nlog_level = "error"\n') and DEFAULT in text
        await place.constellation()
        assert await said(place) == "I am here."
        for wrong, words in (("absent/m", "is not configured"), ("m", "PROVIDER/MODEL")):
            refused = await place.admin.put("/models/default", json={"model": wrong})
            assert refused.status_code == 422 and words in refused.json()["detail"]
        assert (alone / "data" / "pattern.toml").read_text() == text


async def test_the_list_says_what_answers_and_a_test_asks(alone: Path) -> None:
    gone = '[providers.gone]\nkind = "openai"\nbase_url = "http://127.0.0.1:9/v1"\n'
    gone += "[providers.gone.models.x]\nwindow = 4096"
    keyless = "\n[providers.openai]\n"
    async with (
        WireServer(otherwise=answering(says("A tower."), says("Sunny."), says("Sunny."), says("Sunny."))) as server,
        serving(configured(alone, DEFAULT + section(server) + gone + keyless)) as place,
    ):
        listed = (await place.admin.get("/models")).json()
        found = {one["name"]: one for one in listed["items"]}
        assert [one["name"] for one in listed["items"]] == ["gone", "mine", "openai", "embedded"]
        assert [one["model"] for one in found["mine"]["models"]] == ["m"], "one that makes vectors answers nothing"
        assert found["mine"]["trouble"] is None and found["mine"]["is_default"]
        assert "connection" in found["gone"]["trouble"].lower()
        assert [(one["model"], one["window"]) for one in found["gone"]["models"]] == [("x", 4096)]
        assert "OPENAI_API_KEY" in found["openai"]["trouble"] and "openai" in listed["unusable"]
        reader = await place.client("bob", "read")
        shown = {one["name"]: one["trouble"] for one in (await reader.get("/models")).json()["items"]}
        assert shown["mine"] is None and "127.0.0.1" not in shown["gone"]
        assert (await reader.post("/models/reload")).status_code == 403
        tried = await place.admin.post("/models/test", json={"model": "mine/m"})
        assert (tried.json()["answer"], tried.json()["tool_calls"]) == ("A tower.", "none")
        failed = await place.admin.post("/models/test", json={"model": "absent/m"})
        assert (failed.status_code, failed.json()["code"]) == (422, "invalid_input")
        failed = await place.admin.post("/models/test", json={"model": "openai/m"})
        assert (failed.status_code, failed.json()["code"]) == (502, "model_not_configured")


async def test_a_list_is_of_the_providers_that_it_began_with(alone: Path) -> None:
    held = Held()
    async with held, serving(configured(alone, DEFAULT + section(held))) as place:
        listed = list[Any]()

        async def ask() -> None:
            listed.append((await place.admin.get("/models")).json())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await held.held.wait()
            configured(alone, DEFAULT.replace("mine", "other") + section(held, "other"))
            assert (await place.admin.post("/models/reload")).json()["default_provider"] == "other"
            held.gate.set()
        mine = next(one for one in listed[0]["items"] if one["name"] == "mine")
        assert (listed[0]["default_provider"], mine["is_default"], mine["trouble"]) == ("mine", True, None)


async def test_models_are_opened_without_a_server(alone: Path) -> None:
    async with WireServer(otherwise=answering()) as server:
        config = configured(alone, DEFAULT + section(server))
        async with open_models(config) as models:
            kept = models.client.pinned()
            await models.reload()
            assert [one.name for one in await models.providers()] == ["mine", "embedded"]
            assert kept._providers["mine"] is models.client._providers["mine"], "what did not change stays"
            with pytest.raises(InvalidInput):
                await models.set_default("absent", "m")
            (alone / "data" / "pattern.toml").write_text("[")
            with pytest.raises(ConfigError, match="not valid TOML"):
                await models.set_default("mine", "n")
        assert (alone / "data" / "pattern.toml").read_text() == "["
