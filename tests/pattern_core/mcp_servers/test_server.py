"""A server and its owner: whatever it does, it harms its own calls only."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from pattern_core.errors import InvalidInput, Overloaded, Unavailable
from pattern_core.mcp_servers import server as module
from pattern_core.mcp_servers.life import WAITING_MAX
from tests.pattern_core.mcp_servers.rig import owned, program, until


async def test_a_call_and_what_comes_back(tmp_path: Path) -> None:
    log = tmp_path / "log"
    settings = program(log, trust_hints=True)
    async with owned({"x": settings}) as it:
        assert await it.call("x__echo", text="héllo") == 'héllo {"pattern/idempotency-key": "key_1"}'
        assert await it.call("x__burst") == "all said"
        with pytest.raises(InvalidInput, match="the tool failed, as the MCP server x says: the disk is full"):
            await it.call("x__fail")
        with pytest.raises(InvalidInput, match="`text`: 3 is not of type 'string'"):
            await it.call("x__echo", text=3)
        [odd] = [name for name in it.registry.names if name.startswith("x__odd")]
        with pytest.raises(InvalidInput, match=r"the MCP server x refused the call: no tool odd\.name/with"):
            await it.call(odd)
        assert await it.call("x__echo", text="again") != ""
        assert it.servers.views()[0].state == "ready"


async def test_one_that_dies_is_there_again_for_the_next_call(tmp_path: Path) -> None:
    async with owned({"x": program(tmp_path / "log")}) as it:
        assert await it.call("x__echo", text="a") == "a"
        with pytest.raises(Unavailable, match=r"its program ended.*It may have happened all the same"):
            await it.call("x__die")
        assert await it.call("x__echo", text="b") == "b"
        assert it.servers.views()[0].last_error is None


async def test_one_that_never_starts_is_left_alone_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BACKOFF_S", (600.0,))
    log = tmp_path / "log"
    async with owned({"bad": program(log, "broken"), "good": program(log)}) as it:
        await it.servers.ready(["bad__*", "good__*"])
        bad, good = it.servers.views()
        assert (bad.state, bad.tools) == ("failed", None)
        assert bad.last_error == "its program ended; its last words: Traceback: no key was given"
        assert good.state == "ready"
        assert await it.call("good__echo", text="a") == "a"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(it.servers.ready, ["bad__*"])
            await trio.testing.wait_all_tasks_blocked()
            assert not nursery.child_tasks, "it waits for nobody while it is left alone"


async def test_one_that_dies_at_every_call_is_refused_with_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BACKOFF_S", (600.0,))
    async with owned({"x": program(tmp_path / "log")}) as it:
        await it.servers.ready(["x__*"])
        with pytest.raises(Unavailable, match="its program ended"):
            await it.call("x__die")
        await trio.testing.wait_all_tasks_blocked(0.1)
        with pytest.raises(Unavailable, match=r"out of luck\)\. It is tried again in (600|5\d\d) s; go on without it"):
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
        "its program ended; its last words: /no/such/program cannot be started: No such file or directory",
        f"it cannot be started in {tmp_path / 'nowhere'}: No such file or directory",
        "not set in the server's environment: KEY",
    ]


async def test_one_that_is_slow_to_start_is_given_up(tmp_path: Path) -> None:
    async with owned({"x": program(tmp_path / "log", "slow", start_timeout_s=0.3)}) as it:
        assert (await it.servers.tried("x")).last_error == "it did not start within 0.3 s"


async def test_one_that_hangs_costs_its_calls_their_time_and_is_started_anew(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with owned({"x": program(log)}) as it:
        assert await it.call("x__echo", text="a") == "a"
        it.give("x", call_timeout_s=0.15)
        for _ in range(2):
            with pytest.raises(Unavailable, match=r"did not answer within 0\.15 s\. It may have happened all the same"):
                await it.call("x__hang")
        assert it.servers.views()[0].state == "ready"
        await until(log, "cancelled")
        with pytest.raises(Unavailable):
            await it.call("x__hang")
        it.give("x", call_timeout_s=60)
        assert await it.call("x__echo", text="b") == "b"
    assert log.read_text().split().count("initialized") == 2


async def test_who_leaves_is_not_kept_and_the_server_is_told(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with owned({"x": program(log)}) as it:
        await it.servers.ready(["x__*"])
        with trio.move_on_after(30) as leaving:
            it.nursery.start_soon(_cancel_when_it_hangs, log, leaving)
            await it.call("x__hang")
        assert leaving.cancelled_caught
        await until(log, "cancelled")
        assert await it.call("x__echo", text="a") == "a"


async def _cancel_when_it_hangs(log: Path, scope: trio.CancelScope) -> None:
    await until(log, "hangs")
    scope.cancel()


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


async def test_after_the_end_nothing_is_to_be_had(tmp_path: Path) -> None:
    async with owned({"x": program(tmp_path / "log")}) as it:
        await it.servers.ready(["x__*"])
    with pytest.raises(Unavailable, match="the MCP server x is stopped"):
        await it.call("x__echo", text="a")
    await it.servers.ready(["x__*"])
