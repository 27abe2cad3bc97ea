"""Counts, as Prometheus reads them."""

from __future__ import annotations

import subprocess
import sys

import pytest
import trio
import trio.testing
from prometheus_client.parser import text_string_to_metric_families
from trio.testing import MockClock

from pattern_core.models.model import Usage
from pattern_core.runtime import Meters
from pattern_core.testing import StoppedClock
from pattern_core.testing.model import NO_USAGE, Answer, Paced, ScriptedProvider, calls, says
from pattern_server.metrics import NAMES_MAX, PHASES, Metrics
from tests.pattern_core.schedule.rig import HOUR_S, scheduled
from tests.pattern_server.place import Place
from tests.support import note, running


def samples(metrics: Metrics) -> dict[str, float]:
    """Every sample by its name with the values of its labels, by name: `pattern_tool_calls_total done search`."""
    families = text_string_to_metric_families(metrics.text().decode())
    return {
        " ".join((sample.name, *(value for _label, value in sorted(sample.labels.items())))): sample.value
        for family in families
        for sample in family.samples
    }


def test_what_is_reported_is_counted() -> None:
    metrics = Metrics()
    told: Meters = metrics
    told.turn_ended("completed", 0.7, 0.0)
    told.turn_ended("completed", 1_000, 2.0)
    told.turn_ended("limit", 0.1, -5.0)  # a clock that was set back
    told.step_done("openai", "gpt", 2.0, 0.002)
    given = Usage(input_tokens=100, output_tokens=50, cached_tokens=60, cache_write_tokens=10, reasoning_tokens=20)
    told.tokens("openai", "gpt", given, 42)
    told.tokens("openai", "gpt", given, None)
    told.call_ended("search", "done", 0.01)
    told.commits += 1
    told.working += 2
    told.working -= 1
    found = samples(metrics)
    assert found["pattern_turns_total completed"] == 2
    assert found["pattern_turns_total limit"] == 1
    assert (found["pattern_turn_seconds_bucket 0.1"], found["pattern_turn_seconds_bucket 1.0"]) == (1, 2)
    assert (found["pattern_turn_seconds_bucket +Inf"], found["pattern_turn_seconds_count"]) == (3, 3)
    assert found["pattern_turn_seconds_sum"] == pytest.approx(1_000.8)
    phases = {
        phase: [found[f"pattern_turn_phase_seconds_{what} {phase}"] for what in ("count", "sum")] for phase in PHASES
    }
    assert phases == {"queue": [3, 2.0], "prompt": [1, 0.002], "model": [1, 2.0], "tool": [1, 0.01]}
    assert found["pattern_steps_total gpt openai"] == 1
    kinds = {name.split()[1]: value for name, value in found.items() if name.startswith("pattern_llm_tokens_total")}
    assert kinds == {
        "input": 60,
        "input_cached": 120,
        "input_cache_write": 20,
        "output": 60,
        "output_reasoning": 40,
    }
    assert found["pattern_llm_microdollars_total gpt openai"] == 42
    assert found["pattern_llm_unpriced_calls_total gpt openai"] == 1
    assert found["pattern_tool_calls_total done search"] == 1
    assert found["pattern_commits_total"] == 1
    assert found["pattern_agents_working"] == 1


async def test_occurrences_of_schedules_are_counted_with_their_lateness() -> None:
    metrics = Metrics()
    async with scheduled(meters=metrics) as here:
        await here.schedule({"every": float(HOUR_S), "missed": "last"})
        await here.schedule({"every": 2.0 * HOUR_S, "when": [{"kind": "inbox"}]}, name="heartbeat")
        await here.pass_time(HOUR_S + 3)
        assert samples(metrics)["pattern_schedule_late_seconds_sum"] == 3
        await here.pass_time(4 * HOUR_S)
        found = samples(metrics)
        counted = {name.split()[1]: found[name] for name in found if "occurrences_total" in name}
        assert counted == {"fired": 2, "missed": 3 + 1, "skipped": 1}
        assert found["pattern_schedule_late_seconds_count"] == 3


async def test_a_turn_is_counted_as_it_goes() -> None:
    metrics = Metrics()
    gate = trio.Event()
    script: list[Answer] = [
        calls("note", {"text": "tea"}),
        Paced(answer=says("noted"), gate=gate),
        Paced(answer=says("-"), gate=trio.Event()),
    ]
    async with running(script, tools=[note], meters=metrics) as one:
        await one.agent()
        turn_id = await one.submit("I like tea")
        await trio.testing.wait_all_tasks_blocked()
        found = samples(metrics)
        assert found["pattern_agents_working"] == 1
        assert "pattern_turns_total completed" not in found
        gate.set()
        await one.constellation.wait(turn_id)
        await trio.testing.wait_all_tasks_blocked()
        found = samples(metrics)
        assert found["pattern_agents_working"] == 0
        assert found["pattern_turns_total completed"] == found["pattern_turn_seconds_count"] == 1
        assert found["pattern_steps_total script-1 scripted"] == 2
        phases = {phase: found[f"pattern_turn_phase_seconds_count {phase}"] for phase in PHASES}
        assert phases == {"queue": 1, "prompt": 2, "model": 2, "tool": 1}
        assert found["pattern_llm_tokens_total input script-1 scripted"] == 2 * NO_USAGE.input_tokens
        assert found["pattern_llm_tokens_total output script-1 scripted"] == 2 * NO_USAGE.output_tokens
        assert found["pattern_llm_unpriced_calls_total script-1 scripted"] == 2
        assert found["pattern_tool_calls_total done note"] == 1
        commits = found["pattern_commits_total"]
        assert commits > 0
        turn_id = await one.submit("and then?")
        await trio.testing.wait_all_tasks_blocked()
        assert await one.constellation.cancel(turn_id)
        await trio.testing.wait_all_tasks_blocked()
        found = samples(metrics)
        assert (found["pattern_agents_working"], found["pattern_turns_total cancelled"]) == (0, 1)
        assert found["pattern_commits_total"] > commits


def test_what_is_counted_elsewhere_is_shown() -> None:
    metrics = Metrics()
    metrics.gates = lambda: {"openai": {"running": 3, "is_closed": False, "reason": "words of an error"}}
    metrics.states = lambda: {"busy": 2, "quarantined": 1}
    metrics.failures = lambda: {"crash": 3}
    metrics.pending_approvals = lambda: 4
    metrics.commit_seconds.observe(0.02)
    metrics.answered(404)
    found = samples(metrics)
    assert found["pattern_constellations busy"] == 2
    assert found["pattern_constellations quarantined"] == 1
    assert found["pattern_constellation_failures_total crash"] == 3
    assert found["pattern_approvals_pending"] == 4
    assert (found["pattern_commit_seconds_bucket 0.01"], found["pattern_commit_seconds_bucket 0.025"]) == (0, 1)
    assert found["pattern_http_responses_total 4xx"] == 1
    assert found["pattern_model_gate openai running"] == 3
    assert found["pattern_model_gate openai is_closed"] == 0
    assert not any("words" in name for name in found)
    assert found["process_resident_memory_bytes"] > 0


async def test_time_that_a_message_waited_for_its_turn_is_counted() -> None:
    metrics, gate, clock = Metrics(), trio.Event(), StoppedClock()
    script: list[Answer] = [Paced(answer=says("first"), gate=gate), says("second")]
    async with running(script, meters=metrics, clock=clock) as one:
        await one.agent()
        first = await one.submit("one")
        await trio.testing.wait_all_tasks_blocked()
        second = await one.submit("two")
        clock.advance(7_000)
        gate.set()
        for turn_id in (first, second):
            await one.constellation.wait(turn_id)
    found = samples(metrics)
    assert found["pattern_turn_phase_seconds_sum queue"] == 7
    assert found["pattern_turn_phase_seconds_sum model"] == 7
    assert found["pattern_turn_phase_seconds_count queue"] == 2


def test_streams_are_counted_while_they_are_open() -> None:
    metrics = Metrics()
    with metrics.streaming("sse"), pytest.raises(ValueError, match="x"), metrics.streaming("websocket") as dropped:
        assert (
            samples(metrics)["pattern_stream_clients sse"] == samples(metrics)["pattern_stream_clients websocket"] == 1
        )
        dropped()
        raise ValueError("x")
    found = samples(metrics)
    assert found["pattern_stream_clients sse"] == found["pattern_stream_clients websocket"] == 0
    assert found["pattern_streams_dropped_total websocket"] == 1


async def test_what_waits_for_a_person_is_counted_also_when_its_constellation_is_parked(
    place: Place, scripted: ScriptedProvider
) -> None:
    edit = {"label": "human", "edit": {"op": "append", "text": "likes tea"}}
    scripted._script = iter([calls("block_edit", edit), calls("block_edit", edit)])
    c = await place.constellation(tool_rules=[{"tool": "block_edit", "type": "requires_consent"}])
    metrics, supervisor = place.parts.state.metrics, place.parts.state.supervisor
    for _ in range(2):
        assert (await place.say("I like tea.")).json()["status"] == "waiting"
    await trio.testing.wait_all_tasks_blocked(0.05)
    assert samples(metrics)["pattern_approvals_pending"] == 2
    supervisor._slots[c].park()
    await supervisor._slots[c].ended.wait()
    found = samples(metrics)
    assert found["pattern_approvals_pending"] == 2
    assert sum(found[name] for name in found if name.startswith("pattern_constellations ")) == 0, "nothing is woken"
    [first, second] = (await place.admin.get("/constellations/home/approvals")).json()["items"]
    await place.admin.post(f"/constellations/home/approvals/{first['id']}", json={"decision": "deny"})
    await trio.testing.wait_all_tasks_blocked(0.05)
    assert samples(metrics)["pattern_approvals_pending"] == 1
    await place.admin.post(f"/constellations/home/turns/{second['request']['turn_id']}/cancel")
    await trio.testing.wait_all_tasks_blocked(0.05)
    found = samples(metrics)
    assert found["pattern_approvals_pending"] == 0
    assert found["pattern_activation_seconds_count"] == 2
    assert found["pattern_commit_seconds_count"] > 4
    assert 0 < found["pattern_commit_seconds_sum"] < 60


def test_labels_are_bounded() -> None:
    metrics = Metrics()
    for number in range(NAMES_MAX + 5):
        metrics.call_ended(f"tool_{number}", "done", 0.0)
    metrics.step_done("openai", "a name\nof several words", 0.0, 0.0)
    found = samples(metrics)
    assert found["pattern_tool_calls_total done tool_0"] == 1
    assert found["pattern_tool_calls_total done other"] == 5
    assert found["pattern_steps_total other openai"] == 1
    assert sum(name.startswith("pattern_tool_calls_total") for name in found) == NAMES_MAX + 1


async def test_lag_is_what_others_wait(autojump_clock: MockClock) -> None:
    metrics = Metrics()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(metrics.sample_lag)
        await trio.sleep(1.5)
        autojump_clock.jump(0.8)  # something held the loop
        await trio.sleep(0.1)
        nursery.cancel_scope.cancel()
    found = samples(metrics)
    assert found["pattern_loop_lag_seconds_bucket 0.001"] == 1
    assert found["pattern_loop_lag_seconds_bucket 0.25"] == 1
    assert found["pattern_loop_lag_seconds_bucket 0.5"] == 2


def test_the_library_is_not_loaded_before_metrics_are_asked_for() -> None:
    program = "import sys, pattern_server.metrics; sys.exit('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
