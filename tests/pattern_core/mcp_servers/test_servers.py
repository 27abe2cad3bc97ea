"""Servers and their owners: whatever one does, it harms its own calls only."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from pattern_core.errors import InvalidInput, LimitReached, NotFound, Overloaded, Unavailable
from pattern_core.mcp_servers import servers as module
from pattern_core.mcp_servers.servers import WAITING_MAX, missing, reason_of
from tests.pattern_core.mcp_servers.rig import owned, program, until


async def test_a_call_and_what_comes_back(tmp_path: Path) -> None:
    log = tmp_path / "log"
    settings = program(log, trust_hints=True)
    async with owned({"x": settings}) as it:
        assert await it.call("x__echo", text="héllo") == 'héllo {"pattern/idempotency-key": "key_1"}'
        assert await it.call("x__burst") == "all said"
        with pytest.raises(InvalidInput, match="the tool failed, as the MCP server x says: the disk is full"):
            await it.call("x__fail")
        [odd] = [name for name in it.registry.names if name.startswith("x__odd")]
        with pytest.raises(InvalidInput, match=r"the MCP server x refused the call: no tool odd\.name/with"):
            await it.call(odd)
        with pytest.raises(Unavailable, match=r"its program ended.*It may have happened all the same"):
            await it.call("x__die")
        assert await it.call("x__echo", text="again") != ""  # the next call starts it again
        server = it.servers.by_name["x"]
        assert (server.state, server.last_error) == ("ready", None)
    with pytest.raises(Unavailable, match="the MCP server x is stopped"):
        await it.call("x__echo", text="a")
    await it.servers.ready(["x__*"])


async def test_one_that_never_starts_is_left_alone_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BACKOFF_S", (600.0,))
    log = tmp_path / "log"
    async with owned({"bad": program(log, "broken"), "good": program(log)}) as it:
        await it.servers.ready(["bad__*", "good__*"])
        bad, good = it.servers.by_name.values()
        assert (bad.state, bad.tools) == ("failed", None)
        assert bad.last_error == "its program ended; stderr: Traceback: no key was given"
        assert good.state == "ready"
        assert await it.call("good__echo", text="a") == "a"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(it.servers.ready, ["bad__*"])
            await trio.testing.wait_all_tasks_blocked()
            assert not nursery.child_tasks, "it waits for a server that is left alone"


async def test_one_that_dies_at_every_call_is_refused_with_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BACKOFF_S", (600.0,))
    async with owned({"x": program(tmp_path / "log")}) as it:
        await it.servers.ready(["x__*"])
        with pytest.raises(Unavailable, match="its program ended"):
            await it.call("x__die")
        await trio.testing.wait_all_tasks_blocked(0.1)
        with pytest.raises(
            Unavailable, match=r"out of luck\)\. It is tried again in (600|5\d\d) s; continue without it"
        ):
            await it.call("x__echo", text="a")
        assert (await it.servers.tried("x")).state == "ready"  # a person need not wait


async def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    settings = program(tmp_path / "log")
    absent = settings.reach.__class__(command="/no/such/program")  # type: ignore[call-arg]  # it is a Stdio
    elsewhere = settings.reach.__class__(command="x", cwd=tmp_path / "nowhere")  # type: ignore[call-arg]  # as above
    servers = {
        "absent": program(tmp_path / "log", reach=absent),
        "elsewhere": program(tmp_path / "log", reach=elsewhere),
        "poor": program(tmp_path / "log", missing=("KEY",)),
    }
    async with owned(servers) as it:
        reasons = [(await it.servers.tried(name)).last_error for name in servers]
    assert reasons == [
        "there is no program /no/such/program",
        f"{tmp_path / 'nowhere'}, where it should start, is not a directory",
        "the variable KEY is not set",
    ]
    assert [server.faults for server in servers.values()] == [[reason] for reason in reasons]


async def test_one_that_hangs_costs_its_calls_their_time(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with owned({"x": program(log)}) as it:
        await it.servers.ready(["x__*"])
        it.give("x", call_timeout_s=0.15)
        with pytest.raises(Unavailable, match=r"did not answer within 0\.15 s\. It may have happened all the same"):
            await it.call("x__hang")
        await until(log, "cancelled")
        it.give("x", call_timeout_s=60)
        assert await it.call("x__echo", text="b") == "b"
    assert log.read_text().split().count("initialized") == 1


async def test_a_cancelled_call_is_left_at_once_and_cancelled_at_the_server(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with owned({"x": program(log)}) as it:
        await it.servers.ready(["x__*"])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(it.call, "x__hang")
            await until(log, "hangs")
            assert await it.call("x__echo", text="meanwhile") == "meanwhile"
            nursery.cancel_scope.cancel()
        await until(log, "cancelled")
        assert await it.call("x__echo", text="a") == "a"


async def test_a_call_given_up_before_its_turn_never_reaches_the_server(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with owned({"x": program(log, calls_max=1)}) as it:
        await it.servers.ready(["x__*"])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(it.call, "x__hang")
            await until(log, "hangs")
            for _ in range(WAITING_MAX):
                nursery.start_soon(it.call, "x__die")
            await trio.testing.wait_all_tasks_blocked(0.02)
            with pytest.raises(Overloaded, match="64 calls wait for the MCP server x"):
                await it.call("x__echo", text="a")
            nursery.cancel_scope.cancel()
        assert await it.call("x__echo", text="b") == "b"
    assert log.read_text().split().count("initialized") == 1


async def test_only_those_that_an_agent_uses_are_started(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with owned({"b": program(log, tools=("echo",)), "a": program(log)}) as it:
        a, b = it.servers.by_name.values()
        assert [(one.name, one.state, one.tools) for one in (a, b)] == [("a", "resting", None), ("b", "resting", None)]
        names = ["block", "b__echo", "b__ecko", "b__*", "a", "nobody__*"]
        assert it.servers.pending(names) == [b]
        assert missing(b, names) == []
        await it.servers.ready(names)
        assert it.servers.pending(names) == []
        assert missing(b, names) == ["b__ecko"]
        assert it.registry.names == ("b__echo",)
        assert (a.state, b.state) == ("resting", "ready")
        assert it.registry.accepts("a__whatever")
        assert not it.registry.accepts("nobody__whatever")
        with pytest.raises(NotFound, match="there is no MCP server 'c'"):
            await it.servers.tried("c")


async def test_the_end_does_not_wait_for_those_that_are_about_to_start(tmp_path: Path) -> None:
    began = trio.current_time()
    async with owned({"a": program(tmp_path / "log", "slow", lazy=False)}):
        await trio.sleep(0.1)
    assert trio.current_time() - began < 20  # not the half minute that a start may take


async def test_one_that_does_not_answer_is_waited_for_once_and_the_model_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    async with owned({"bad": program(log, "broken"), "slow": program(log, "slow"), "x": program(log)}) as it:
        names = ["bad__*", "slow__*", "x__*"]
        await it.servers.ready(["bad__*", "x__*"])
        monkeypatch.setattr(module, "READY_WAIT_S", 0.3)
        began = trio.current_time()
        await it.servers.ready(names)
        assert 0.3 <= trio.current_time() - began < 10
        assert it.servers.absent(names) == [
            "The tools of the MCP server bad are not there: it cannot be used now.",
            "The tools of the MCP server slow are not there: it is starting; they come in a later step or turn.",
        ]
        assert it.servers.by_name["slow"].state == "starting"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(it.servers.ready, ["slow__*", "x__*"])
            await trio.testing.wait_all_tasks_blocked()
            assert not nursery.child_tasks, "its time is over, also for the next turn"


async def test_no_turn_waits_for_one_again_that_did_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BACKOFF_S", (0.0,))
    async with owned({"slow": program(tmp_path / "log", "slow", start_timeout_s=0.3)}) as it:
        await it.servers.ready(["slow__*"])
        before = it.servers.by_name["slow"].state
        assert before == "failed"
        it.give("slow", start_timeout_s=600)
        with trio.fail_after(module.READY_WAIT_S / 2):
            await it.servers.ready(["slow__*"])
        assert it.servers.by_name["slow"].state == "starting"


async def test_a_tool_that_makes_no_sense_costs_itself(tmp_path: Path) -> None:
    async with owned({"x": program(tmp_path / "log", "odd")}) as it:
        await it.servers.ready(["x__*"])
        assert {"x__echo", "x__fail", "x__loop"} <= set(it.registry.names)
        assert not {"x__no_schema", "x__words"} & set(it.registry.names)
        loop = it.registry.get("x__loop", it.registry.names)
        assert loop.description.endswith("A loop")
        assert await it.call("x__echo", text="a") == "a"


async def test_a_list_without_an_end_is_cut(tmp_path: Path) -> None:
    async with owned({"x": program(tmp_path / "log", "endless")}) as it:
        await it.servers.ready(["x__*"])
        assert it.servers.by_name["x"].state == "ready"
        assert await it.call("x__echo", text="a") == "a"


async def test_a_list_that_is_too_long_and_a_flood_of_errors(tmp_path: Path) -> None:
    async with owned({"long": program(tmp_path / "log", "crowded"), "x": program(tmp_path / "log", "shouting")}) as it:
        long = await it.servers.tried("long")
        assert (long.state, "it sent a message that is too long" in str(long.last_error)) == ("failed", True)
        assert await it.call("x__echo", text="a") == "a"


async def test_an_answer_that_nobody_asked_for_is_passed_over(tmp_path: Path) -> None:
    async with owned({"x": program(tmp_path / "log")}) as it:
        assert await it.call("x__stray") == "asked for"


async def test_a_test_lists_the_tools_of_a_server_that_runs_again(tmp_path: Path) -> None:
    async with owned({"x": program(tmp_path / "log", "paged")}) as it:
        await it.servers.ready(["x__*"])
        assert len(it.registry.names) == 13
        assert await it.call("x__grow") == "grown"
        assert "x__grown" not in it.registry.names
        assert (await it.servers.tried("x")).state == "ready"
        assert "x__grown" in [spec.name for spec in it.registry.specs(["x__*"])]


async def test_a_server_that_does_not_list_its_tools_again_fails(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with owned({"x": program(log, "listless")}) as it:
        assert await it.call("x__echo", text="a") == "a"
        it.give("x", start_timeout_s=0.2)
        server = await it.servers.tried("x")
        assert (server.state, server.last_error) == ("failed", "it did not list its tools within 0.2 s")
        it.give("x", start_timeout_s=60)
        assert (await it.servers.tried("x")).state == "ready"
        assert await it.call("x__echo", text="b") == "b"


async def test_a_lazy_one_rests_when_it_is_not_needed_and_keeps_its_tools(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with owned({"x": program(log, idle_s=0.2), "y": program(log, idle_s=0.2, lazy=False)}) as it:
        assert await it.call("x__echo", text="a") == "a"
        while it.servers.by_name["x"].state != "resting":
            await trio.sleep(0.02)
        assert "x__echo" in it.registry.names
        assert await it.call("x__echo", text="b") == "b"
        assert it.servers.by_name["y"].state == "ready"
    assert log.read_text().split().count("initialized") == 3


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ExceptionGroup("g", [ExceptionGroup("h", [OSError("no\nway")])]), "no"),
        (KeyError(), "KeyError"),
        (LimitReached("enough"), "enough"),
    ],
)
def test_reasons(error: Exception, words: str) -> None:
    assert reason_of(error) == words
