"""A disk that fails under one constellation: it is quarantined with the reason, others work, and it recovers whole."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio

from pattern_core.models.model import ModelReply, ModelRequest
from pattern_core.testing import wire_anthropic, wire_google, wire_openai
from pattern_core.testing.model import ScriptedProvider, calls, says, together
from pattern_core.testing.wire import Entry, Play, WireServer, document, events
from pattern_core.testing.wire_openai import chunk, refuses, replies, serve_openai
from pattern_db.connection import open_connection
from pattern_db.maintenance import check
from pattern_db.testing.disks import FaultyDisk, Op, Trouble
from pattern_server.config import Config
from tests.pattern_server.place import Place, config_for, serving

SICK, CALM = "sick/agents/ada", "calm/agents/ada"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FaultyDisk]:
    """The disk of everything that this process opens."""
    made = FaultyDisk(is_default=True)
    yield made
    made.unregister()


def poisoned(request: ModelRequest) -> ModelReply:
    """Answer, unless the last words hold a bug of ours."""
    if "poison" in request.messages[-1].text:
        raise ZeroDivisionError("an unexpected bug")
    return says("All right.")


@asynccontextmanager
async def two(folder: Path) -> AsyncIterator[Place]:
    """A server with two constellations, one of which will be sick."""
    async with serving(config_for(folder), {"scripted": ScriptedProvider(otherwise=poisoned)}) as place:
        for name in ("sick", "calm"):
            await place.constellation(name, model_provider="scripted", model_name="m")
        yield place


async def accepted(place: Place, where: str, content: str, key: str) -> str:
    """Send a message; its turn's id once it has completed."""
    answer = await place.say(content, where=where, **{"Idempotency-Key": key})
    assert (answer.status_code, answer.json()["status"]) == (200, "completed"), answer.text
    return str(answer.json()["turn_id"])


async def heard(place: Place) -> list[str]:
    """What was said in the sick constellation, oldest first."""
    listed = (await place.admin.get(f"/constellations/{SICK}/messages")).json()["items"]
    return [message["content"] for message in reversed(listed) if message["role"] == "user"]


@pytest.mark.slow
async def test_a_disk_in_trouble_quarantines_one_and_it_comes_back(tmp_path: Path, disk: FaultyDisk) -> None:
    words = "check the disk"
    async with two(tmp_path) as place:
        before = await accepted(place, SICK, "before", "k1")
        sick = (await place.admin.get("/constellations/sick")).json()["id"]
        folder = tmp_path / "data" / "constellations" / sick
        disk.within(folder)
        disk.fail(Op.WRITE, count=math.inf)

        first = await place.say("during", where=SICK, **{"Idempotency-Key": "k2"})
        assert first.status_code == 503, first.text
        assert words in first.json()["detail"]
        later = await place.say("during", where=SICK, **{"Idempotency-Key": "k2"})
        assert (later.status_code, later.json()["code"]) == (503, "unavailable"), later.text
        assert "quarantined" in later.json()["detail"] and words in later.json()["detail"]
        assert int(later.headers["retry-after"]) >= 1
        assert place.parts.state.supervisor.quarantined() == [folder.name]
        await accepted(place, CALM, "and you?", "k3")

        disk.heal()
        with trio.fail_after(120):
            while (answer := await place.say("during", where=SICK, **{"Idempotency-Key": "k2"})).status_code != 200:
                assert answer.status_code == 503, answer.text
                await trio.sleep(0.2)
        assert answer.json()["status"] == "completed"
        assert await heard(place) == ["before", "during"]
        view = await place.admin.get(f"/constellations/sick/turns/{before}")
        assert view.json()["status"] == "completed"
        assert place.parts.state.supervisor.quarantined() == []
    connection = open_connection(folder / "pattern.db")
    assert check(connection) == []
    connection.close()


@pytest.mark.slow
async def test_a_full_disk_refuses_writes_and_leaves_reads(tmp_path: Path, disk: FaultyDisk) -> None:
    """Also of a constellation that is woken on it; when there is room again nothing has to be restarted."""
    async with two(tmp_path) as place:
        await accepted(place, SICK, "before", "k1")
        id_of = (await place.admin.get("/constellations/sick")).json()["id"]
        async with place.parts.state.supervisor.aside(id_of):
            pass  # it is asleep now
        disk.within(tmp_path / "data" / "constellations" / id_of)
        disk.fail(Op.WRITE, count=math.inf, trouble=Trouble.FULL)
        for _time in range(2):
            refused = await place.say("during", where=SICK, **{"Idempotency-Key": "k2"})
            assert (refused.status_code, refused.json()["code"]) == (507, "disk_full"), refused.text
            assert "Free some space" in refused.json()["detail"]
        for path in (f"/constellations/{SICK}", f"/constellations/{SICK}/messages", "/constellations/sick/agents"):
            assert (await place.admin.get(path)).status_code == 200, path
        found = await place.admin.post("/constellations/sick/search", json={"query": "before"})
        assert [hit["content"] for hit in found.json()["hits"]][:1] == ["before"], found.text
        assert place.parts.state.supervisor.quarantined() == []
        disk.heal()
        await accepted(place, SICK, "during", "k2")
        assert await heard(place) == ["before", "during"]


# A bug in one constellation does not affect the others, and it recovers by itself.


@pytest.mark.slow
async def test_a_bug_in_one_constellation_leaves_the_others_alone(tmp_path: Path) -> None:
    async with two(tmp_path) as place:
        sent = await place.say("poison", where=SICK, Prefer="respond-async")
        turn = sent.json()["turn_id"]
        refused = 0
        with trio.fail_after(120):
            while True:
                # The other constellation answers every time, whatever state the sick one is in.
                answer = await place.say("how are you?", where=CALM)
                assert (answer.status_code, answer.json()["status"]) == (200, "completed")
                looked = await place.admin.get(f"/constellations/sick/turns/{turn}")
                if looked.status_code == 200 and looked.json()["ended_at"]:
                    break
                refused += looked.status_code == 503
                assert looked.status_code in (200, 503)
                await trio.sleep(0.05)
        # Restarts could not get past the poisonous step, so that turn was given up and the constellation is well.
        assert looked.json()["status"] == "interrupted"
        assert refused > 0
        healthy = await place.say("and you?", where=SICK)
        assert healthy.json()["status"] == "completed"


# A provider that answers garbage, half a stream, errors or never, over its real wire format: the turn ends with a
# clear error, history stays whole, and the next turn works.

GARBAGE = Play(chunks=(b"<html>\x00\xff not a model</html>",), headers={"content-type": "text/html"})
HALF = events(chunk({"role": "assistant", "content": "I was about to"}))
CUT = Play(chunks=replies(says("a long and winding answer")).chunks, stops_after=200, headers=HALF.headers)
NEVER = Play(never_answers=True)
SILENT = Play(chunks=HALF.chunks, never_ends=True, headers=HALF.headers)
HASTY = dict.fromkeys(("model_timeout_s", "local_model_timeout_s"), 1.0)  # for those that never answer
HASTY |= dict.fromkeys(("model_idle_timeout_s", "local_model_idle_timeout_s"), 0.5)
HASTY |= dict.fromkeys(("turn_timeout_s", "local_turn_timeout_s"), 6.0)
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
    is_silent = code == "model_timeout"  # others have the time that a busy machine needs
    async with serve_openai(otherwise=bad) as wire, serving(_config(tmp_path, wire.url, is_hasty=is_silent)) as place:
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
        assert history[-1]["content"] == "hello"
        for partial in history[:-1]:  # what came of an answer stays
            assert partial["content"] == "I was about to"
            assert partial["source_metadata"] == {"partial": failed["status"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A vendor's format: its server, the stream of an answer, and how the provider is configured."""

    serve: Callable[..., WireServer]
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
        serve=wire_openai.serve_responses,
        replies=wire_openai.response_replies,
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
        models = {"m": {"window": 8_192}}  # so that nobody asks the server for it
        address = {"base_url": wire.url + chosen.path, "api_key": "none-needed", "models": models}
        provider = {**chosen.provider, **address}
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
