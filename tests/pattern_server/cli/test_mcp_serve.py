"""`pattern mcp serve`: the official client starts it, as an editor does; servers are killed, stopped and started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
import trio
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.shared.exceptions import MCPError

from pattern_core.errors import leaves
from pattern_server.cli.client import connection, running_server
from pattern_server.cli.tools import FORWARDED, _forward
from pattern_server.http.toolsets import OTHERS, SERVED
from pattern_server.http.toolsets.resources import ANSWERS
from tests.pattern_server.cli.conftest import Pattern, serving

both = pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])


@asynccontextmanager
async def started(data_dir: Path, mode: str, *more: str, cwd: Path | None = None) -> AsyncIterator[Client]:
    """The command, started by the official client."""
    command = ["-m", "pattern_server", "mcp", "serve", "--data-dir", str(data_dir), *more]
    environment = {**os.environ, "PATTERN_PORT": "0"}
    parameters = StdioServerParameters(command=sys.executable, args=command, env=environment, cwd=cwd)
    try:
        async with Client(parameters, mode=mode, cache=None) as client:
            yield client
    except BaseExceptionGroup as group:
        raise next(leaves(group)) from None


def text_of(result: Any) -> Any:
    return json.loads(result.content[0].text)


def test_all_methods_of_the_server_are_forwarded() -> None:
    assert {*FORWARDED} == {*ANSWERS, "tools/list", "tools/call"}


@both
async def test_a_client_starts_what_it_needs(data_dir: Path, mode: str) -> None:
    """On an empty folder it finds a server, a constellation and an agent; the server stays until it is stopped."""
    seen: list[str] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:
        seen.append(str(message))

    with trio.fail_after(60):
        async with started(data_dir, mode) as client:
            assert {tool.name for tool in (await client.list_tools()).tools} == set(SERVED)
            said = {"content": "Remember that Ruth lives in Lisbon."}
            answer = text_of(await client.call_tool("agent_message", said, progress_callback=report))
            assert answer["status"] == "completed" and "Lisbon" in answer["text"]
            while "step.started 1" not in seen:  # the client may call back after it has returned the answer
                await trio.sleep(0.01)
            assert (
                "Ruth lives in Lisbon" in text_of(await client.call_tool("memory_read", {"label": "human"}))["content"]
            )
            assert (await client.call_tool("memory_read", {"label": "nothing"})).is_error
            uris = [resource.uri for resource in (await client.list_resources()).resources]
            assert "pattern://memory/ada/human" in uris
            (content,) = (await client.read_resource("pattern://memory/ada/human")).contents
            assert "Lisbon" in getattr(content, "text", "")
            (message,) = (await client.get_prompt("memory", {"agent": "ada"})).messages
            assert "Lisbon" in getattr(message.content, "text", "")
            assert len((await client.list_prompts()).prompts) == 3
            assert len((await client.list_resource_templates()).resource_templates) == 3
            with pytest.raises(MCPError, match="no memory block 'nothing'"):
                await client.read_resource("pattern://memory/ada/nothing")
        down = [sys.executable, "-m", "pattern_server", "down", "--data-dir", str(data_dir)]
        stopped = await trio.run_process(down, capture_stdout=True, capture_stderr=True)
        assert stopped.returncode == 0


async def test_the_toolset_of_delta_is_served_for_a_folder(data_dir: Path, tmp_path: Path) -> None:
    """For the folder of `--workspace`, or the one where the command starts: they share what is stored."""
    with trio.fail_after(60):
        named = ("--toolset", "delta", "--workspace", str(tmp_path))
        async with started(data_dir, "auto", *named) as client:
            assert {tool.name for tool in (await client.list_tools()).tools} == {*OTHERS["delta"]}
            made = await client.call_tool("delta_note_create", {"title": "Style", "content": "Use tabs."})
            assert not made.is_error
            (message,) = (await client.get_prompt("delta", {"workspace": str(tmp_path)})).messages
            assert "Use tabs." in getattr(message.content, "text", "")
        async with started(data_dir, "auto", "--toolset", "delta", cwd=tmp_path) as client:
            found = await client.call_tool("delta_note_get", {"id": 1})
            assert getattr(found.content[0], "text", "").endswith("Use tabs.")
        async with started(data_dir, "auto", "--toolset", "delia", cwd=tmp_path) as client:
            assert {tool.name for tool in (await client.list_tools()).tools} == {*OTHERS["delia"]}
            made = await client.call_tool("memory", {"action": "write", "name": "plan", "content": "# Plan"})
            assert not made.is_error
            assert text_of(await client.call_tool("memory", {"action": "list"}))["memories"] == ["plan"]
        down = [sys.executable, "-m", "pattern_server", "down", "--data-dir", str(data_dir)]
        await trio.run_process(down, capture_stdout=True, capture_stderr=True)


async def test_progress_is_reported_whole_and_in_order_before_the_answer(
    home: Pattern, data_dir: Path, tmp_path: Path
) -> None:
    seen: list[str] = []

    async def report(_progress: float, _total: float | None, message: str | None) -> None:
        await trio.sleep(0.02)  # a client that reads slowly
        seen.append(str(message))

    params = {"name": "agent_message", "arguments": {"content": "Remember that Ruth lives in Lisbon."}}
    session = SimpleNamespace(report_progress=report)
    with serving(data_dir, tmp_path):
        async with http_of(data_dir) as http:
            server: Any = SimpleNamespace(http=http, name="home", find_again=lambda: None)
            request = SimpleNamespace(method="tools/call", params=params, session=session)
            answer = await _forward(server, "", request, None)
    assert not answer["isError"]
    began = ["turn.queued", "turn.started", "step.started 1", "tool.call block_edit"]
    assert (seen[:4], seen[-1].split()[0]) == (began, "turn.completed")


async def silent(stream: trio.SocketStream) -> None:
    """A model that answers no question."""
    async with stream:
        if b"/chat/completions" in await stream.receive_some():
            await trio.sleep_forever()
        # Of the model nothing is known: without an answer a turn would wait seconds for this.
        await stream.send_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


@asynccontextmanager
async def with_bob(data_dir: Path, cwd: Path) -> AsyncIterator[subprocess.Popen[str]]:
    """A server with an agent whose turns do not end by themselves."""
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, silent, 0, host="127.0.0.1"))
        port = listener.socket.getsockname()[1]
        text = f'[providers.silent]\nkind = "openai"\nbase_url = "http://127.0.0.1:{port}/v1"\n'
        (data_dir / "pattern.toml").write_text(text, encoding="utf-8")
        with serving(data_dir, cwd) as server:
            async with http_of(data_dir) as http:
                body = {"name": "bob", "model_provider": "silent", "model_name": "m"}
                made = await http.post("/api/v1/constellations/home/agents", json=body)
                assert made.status_code == 201, made.text
            yield server
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def http_of(data_dir: Path) -> AsyncIterator[httpx2.AsyncClient]:
    found = running_server(data_dir)
    assert found is not None
    async with connection(found) as http:
        yield http


async def only_turn(data_dir: Path) -> Any:
    async with http_of(data_dir) as http:
        (turn,) = (await http.get("/api/v1/constellations/home/turns")).json()["items"]
        return turn


async def test_after_a_kill_in_the_middle_of_a_call_the_next_server_is_found(
    home: Pattern, data_dir: Path, tmp_path: Path
) -> None:
    with trio.fail_after(60):
        async with with_bob(data_dir, tmp_path) as server, started(data_dir, "legacy") as client:

            async def kill(progress: float, total: float | None, message: str | None) -> None:
                if message == "step.started 1":
                    server.kill()

            asked = {"content": "Hello", "agent": "bob"}
            with pytest.raises(MCPError, match="pattern up"):
                await client.call_tool("agent_message", asked, progress_callback=kill)
            server.wait()
            with pytest.raises(MCPError, match="pattern up"):
                await client.list_tools()
            with serving(data_dir, tmp_path):
                blocks = text_of(await client.call_tool("memory_list", {"agent": "ada"}))["blocks"]
                assert [block["label"] for block in blocks] == ["human"]
                assert (await only_turn(data_dir))["status"] == "running"  # what was accepted continues


@both
async def test_a_cancelled_call_cancels_its_turn(home: Pattern, data_dir: Path, tmp_path: Path, mode: str) -> None:
    with trio.fail_after(60):
        async with with_bob(data_dir, tmp_path), started(data_dir, mode) as client:
            with trio.CancelScope() as scope:

                async def cancel(progress: float, total: float | None, message: str | None) -> None:
                    if message == "step.started 1":
                        scope.cancel()

                await client.call_tool("agent_message", {"content": "Hello", "agent": "bob"}, progress_callback=cancel)
            assert scope.cancelled_caught
            while (turn := await only_turn(data_dir))["ended_at"] is None:
                await trio.sleep(0.02)
            assert turn["status"] == "cancelled"
            assert not (await client.call_tool("agents_list", {})).is_error


def test_a_wrong_name_is_refused_before_the_protocol_begins(home: Pattern, data_dir: Path, tmp_path: Path) -> None:
    with serving(data_dir, tmp_path):
        refused = home("mcp", "serve", "-c", "hom")
        assert refused.code == 1
        assert "home" in refused.err and not refused.out
