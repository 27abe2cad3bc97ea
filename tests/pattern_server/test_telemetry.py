"""Traces of turns, as a collector gets them."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from pattern_core.models.errors import ModelRejected
from pattern_core.models.model import ModelReply, Usage
from pattern_core.testing import StoppedClock
from pattern_core.testing.model import Answer, ScriptedProvider, calls, says, together
from pattern_server.config import ConfigError
from tests.pattern_server.place import Place, config_for, serving
from tests.support import Running, note, running

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs the extra `otel`")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pattern_server import telemetry
from pattern_server.telemetry import Telemetry

CANARY = "kanarienvogel"
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GIVEN = f"00-{TRACE}-{SPAN}-01"
SPENT = Usage(input_tokens=100, output_tokens=50, cached_tokens=60, cache_write_tokens=10, reasoning_tokens=20)


@asynccontextmanager
async def traced(script: list[Answer], **given: Any) -> AsyncIterator[tuple[Running, Telemetry, InMemorySpanExporter]]:
    exporter = InMemorySpanExporter()
    traces = Telemetry("", exporter)
    async with running(script, tools=[note], **given) as one:
        one.nursery.start_soon(traces.follow, one.constellation)
        await trio.testing.wait_all_tasks_blocked()
        yield one, traces, exporter
    await traces.aclose()


async def spans_of(traces: Telemetry, exporter: InMemorySpanExporter) -> dict[str, Any]:
    """The exported spans by their names."""
    await trio.testing.wait_all_tasks_blocked()
    await trio.to_thread.run_sync(traces._provider.force_flush)
    return {span.name: span for span in exporter.get_finished_spans()}


async def test_a_turn_is_a_trace_of_its_model_and_tool_calls_without_any_text() -> None:
    clock = StoppedClock()

    def after_a_second(_request: object) -> ModelReply:
        clock.advance(1_000)
        return together(
            calls("note", {"text": CANARY}, text=CANARY, usage=SPENT), calls(CANARY, {"x": CANARY}, call_id="call_2")
        )

    async with traced([after_a_second, says(CANARY, reasoning=CANARY)], clock=clock) as (one, traces, exporter):
        agent = await one.agent(prompt=CANARY)
        traces.link("turn_other", GIVEN)
        began_ms = clock.now_ms()
        turn_id = await one.submit(CANARY)
        await one.wait(turn_id)
        found = await spans_of(traces, exporter)
    assert sorted(found) == ["chat script-1", "execute_tool note", "execute_tool unknown", "invoke_agent ada"]
    assert len(exporter.get_finished_spans()) == 5
    for span in exporter.get_finished_spans():
        assert CANARY not in span.to_json()
    turn = found["invoke_agent ada"]
    assert turn.parent is None and turn.kind.name == "INTERNAL" and turn.status.is_unset
    assert (turn.start_time, turn.end_time) == (began_ms * 1_000_000, (began_ms + 1_000) * 1_000_000)
    assert dict(turn.attributes) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "ada",
        "gen_ai.agent.id": agent.id,
        "gen_ai.conversation.id": agent.id,
        "pattern.constellation.id": "cst_test",
        "pattern.turn.id": turn_id,
        "pattern.turn.status": "completed",
    }
    below = [span for span in exporter.get_finished_spans() if span is not turn]
    assert {span.parent.span_id for span in below} == {turn.context.span_id}
    assert {span.context.trace_id for span in below} == {turn.context.trace_id}
    assert len({span.context.span_id for span in exporter.get_finished_spans()}) == 5
    asked = next(span for span in below if span.name == "chat script-1")
    assert asked.kind.name == "CLIENT"
    assert (asked.end_time - asked.start_time) == 1_000_000_000
    assert dict(asked.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "scripted",
        "gen_ai.request.model": "script-1",
        "gen_ai.response.finish_reasons": ("tool_calls",),
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 50,
        "gen_ai.usage.cache_read.input_tokens": 60,
        "gen_ai.usage.cache_creation.input_tokens": 10,
        "gen_ai.usage.reasoning.output_tokens": 20,
        "pattern.step": 1,
        "pattern.attempt": 1,
    }
    tool = found["execute_tool note"]
    assert tool.attributes["gen_ai.tool.name"] == "note" and "error.type" not in tool.attributes
    assert found["execute_tool unknown"].attributes["error.type"] == "error"
    assert found["execute_tool unknown"].status.status_code.name == "ERROR"


async def test_a_failed_turn_names_its_error_by_its_code() -> None:
    refusal = ModelRejected(CANARY, provider="scripted")
    async with traced([refusal]) as (one, traces, exporter):
        await one.agent()
        assert (await one.say("Hello")).status == "failed"
        found = await spans_of(traces, exporter)
    turn = found["invoke_agent ada"]
    assert turn.attributes["error.type"] == refusal.code
    assert (turn.status.status_code.name, turn.status.description) == ("ERROR", None)
    assert found["chat script-1"].attributes["error.type"] == "failed"
    assert not any(CANARY in span.to_json() for span in found.values())


@pytest.mark.parametrize("given", [GIVEN, GIVEN[:-2] + "00", "nonsense", None])
async def test_a_request_that_is_part_of_a_trace_decides_about_it(
    given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "LINKS_MAX", 1)
    async with traced([says("Hello"), says("Again")]) as (one, traces, exporter):
        await one.agent()
        for number in range(2):
            turn_id = await one.submit(f"Message {number}")
            traces.link(turn_id, given)
            await one.wait(turn_id)
        found = await spans_of(traces, exporter)
    if given == GIVEN[:-2] + "00":
        assert not found, "the sender's trace is not recorded"
        return
    turn = found["invoke_agent ada"]
    assert len(traces._links) == (given == GIVEN)
    if given == GIVEN:
        assert f"{turn.context.trace_id:032x}" == TRACE
        assert f"{turn.parent.span_id:016x}" == SPAN
    else:
        assert turn.parent is None


class Collector(BaseHTTPRequestHandler):
    """A collector that keeps what it gets."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.got.append((self.path, body))  # type: ignore[attr-defined]  # set below
        self.server.silence.wait()  # type: ignore[attr-defined]  # set below
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def collecting(*, is_silent: bool = False) -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """A collector's address, and what it has got."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        server.got, server.silence = [], threading.Event()  # type: ignore[attr-defined]  # read above
        if not is_silent:
            server.silence.set()  # type: ignore[attr-defined]  # as above
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", server.got  # type: ignore[attr-defined]  # as above
        server.silence.set()  # type: ignore[attr-defined]  # as above
        server.shutdown()
        thread.join()


async def test_a_collector_gets_the_turns_of_groups_and_requests(alone: Path, scripted: ScriptedProvider) -> None:
    scripted._otherwise = says(CANARY)
    with collecting() as (endpoint, got):
        async with serving(config_for(alone, telemetry={"endpoint": endpoint}), {"scripted": scripted}) as place:
            await group_of(place, "ada", "bea")
            assert (await place.say("Hello", where="home/groups/desk", traceparent=GIVEN)).status_code == 200
            said = {"model": "agent:home/ada", "messages": [{"role": "user", "content": CANARY}]}
            url = f"{place.url}/v1/chat/completions"
            asked = await place.admin.post(url, json=said, headers={"traceparent": GIVEN.replace("b7", "c7")})
            assert asked.status_code == 200
            await trio.sleep(0.05)
    spans = [span for _path, body in got for span in spans_in(body)]
    assert {path for path, _body in got} == {"/v1/traces"}
    assert not any(CANARY.encode() in body for _path, body in got)
    assert {span.trace_id.hex() for span in spans} == {TRACE}
    by_name = {span.name: span for span in spans if span.parent_span_id.hex() != SPAN.replace("b7", "c7")}
    group = by_name["invoke_workflow desk"]
    assert group.parent_span_id.hex() == SPAN
    assert by_name["invoke_agent ada"].parent_span_id == by_name["invoke_agent bea"].parent_span_id == group.span_id
    assert sum(span.parent_span_id.hex() == SPAN.replace("b7", "c7") for span in spans) == 1
    assert len(spans) == 1 + 2 * 2 + 2


async def group_of(place: Place, *members: str) -> None:
    await place.constellation(agent=None)
    for name in members:
        await place.admin.post("/constellations/home/agents", json={"name": name})
    group = {"name": "desk", "pattern_type": "pipeline", "members": [{"agent_id": name} for name in members]}
    made = await place.admin.post("/constellations/home/groups", json=group)
    assert made.status_code == 201, made.text


def spans_in(body: bytes) -> list[Any]:
    request = ExportTraceServiceRequest.FromString(body)
    [names] = {
        attribute.value.string_value
        for one in request.resource_spans
        for attribute in one.resource.attributes
        if attribute.key == "service.name"
    }
    assert names == "pattern"
    return [span for one in request.resource_spans for scope in one.scope_spans for span in scope.spans]


async def test_a_collector_that_does_not_answer_delays_nothing(
    alone: Path, scripted: ScriptedProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "FLUSH_S", 0.3)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    with collecting(is_silent=True) as (endpoint, got):
        async with serving(config_for(alone, telemetry={"endpoint": endpoint}), {"scripted": scripted}) as place:
            await place.constellation()
            with trio.fail_after(30):
                for number in range(20):
                    assert (await place.say(f"Message {number}")).status_code == 200
                while not got:
                    await trio.sleep(0.01)
                began = trio.current_time()
        assert trio.current_time() - began < 10
    # Else the library's threads fail in the middle of a later test, and change Python's global randomness there.
    for thread in threading.enumerate():
        if thread.name.startswith("OtelBatch"):
            await trio.to_thread.run_sync(thread.join, 30.0)
            assert not thread.is_alive()


async def test_without_the_library_the_setting_is_refused_with_what_to_install(
    alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pattern_server.telemetry", None)
    config = config_for(alone, telemetry={"endpoint": "http://127.0.0.1:9/v1/traces"})
    with pytest.raises(ConfigError, match=r"pip install 'pattern-server\[otel\]'"):
        async with serving(config):
            raise AssertionError("it does not start")
    with pytest.raises(ConfigError, match="needs an address"):
        config_for(alone, telemetry={"endpoint": "127.0.0.1:4318"})


def test_the_library_is_not_loaded_without_an_address() -> None:
    program = "import sys, pattern_server.serve, pattern_server.http.routes.messages"
    check = "sys.exit(any(name.startswith('opentelemetry.sdk') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", f"{program}; {check}"], check=False).returncode == 0
