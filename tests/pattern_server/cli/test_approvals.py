"""Answering approvals from elsewhere than the chat."""

from __future__ import annotations

import json
from typing import Any

import click
import httpx2
import pytest

from pattern_server.cli import approvals
from pattern_server.cli.output import Output
from tests.pattern_server.cli.conftest import Answer, api_of, as_json, below

ONE = {
    "id": "apr_1",
    "kind": "memory_edit",
    "status": "pending",
    "audience": "human",
    "request": {"label": "human", "edit": {"op": "append"}, "empty": None},
    "decision": None,
    "created_at": "2026-01-02T03:04:05.678Z",
    "expires_at": None,
}


async def typed(command: click.Command, *words: str, **told: Any) -> list[tuple[str, Any]]:
    """Run a command on the approval with the parameters as a person types them; return what was asked for."""
    asked: list[tuple[str, Any]] = []

    def answer(request: httpx2.Request) -> Answer:
        asked.append((f"{request.method} {request.url.path}", json.loads(request.content or "null")))
        return as_json({**ONE, **told})

    with command.make_context("approvals", ["apr_1", "-c", "home", *words]) as context:
        shared = ("config_file", "data_dir", "is_json", "server", "token_file")
        given = {name: value for name, value in context.params.items() if name not in shared}
        await below(command)(api_of(answer), Output(), **given)
    return asked


async def test_a_call_is_shown_with_all_its_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    command = "x" * 500
    call_of_tool = {"agent_id": "agent_1", "agent": "ada", "tool": "shell", "digest": "ab", "call_id": "call_1"}
    request = {**call_of_tool, "arguments": {"command": command, "timeout": 5}, "reason": "it writes"}
    await typed(approvals.show, request=request)
    shown = capsys.readouterr().out
    assert f"    arguments:\n      command: {command}\n      timeout: 5\n    reason: it writes" in shown
    assert "call_1" not in shown and "ab\n" not in shown


WHERE = "POST /api/v1/constellations/home/approvals/apr_1"


@pytest.mark.parametrize(
    ("words", "body"),
    [
        ([], {"scope": "once"}),
        (["--same"], {"scope": "same"}),
        (["--always"], {"scope": "always"}),
        (["--for", "2h"], {"scope": "time", "seconds": 7_200}),
        (["--for", "90"], {"scope": "time", "seconds": 90}),
        (["--same", "--for", "1.5d"], {"scope": "same", "seconds": 129_600}),
        (["--always", "--for", "30 m"], {"scope": "always", "seconds": 1_800}),
        (["--arguments", '{"to": "bob"}'], {"scope": "once", "arguments": {"to": "bob"}}),
    ],
)
async def test_a_yes_for_longer_or_otherwise(words: list[str], body: dict[str, Any]) -> None:
    asked = await typed(approvals.approve, *words, decision={"note": "Done"})
    assert asked == [(WHERE, {"decision": "approve", **body})]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--same", "--always"], "exclude each other"),
        (["--for", "soon"], "write 90s, 30m, 2h or 7d"),
        (["--for", "-5s"], "write 90s, 30m, 2h or 7d"),
        (["--arguments", "{to: bob}"], "not valid JSON"),
    ],
)
async def test_what_cannot_be_meant_is_refused_before_anything_is_sent(words: list[str], said: str) -> None:
    with pytest.raises(click.UsageError) as refused:
        await typed(approvals.approve, *words)
    assert said in refused.value.format_message()


def test_a_call_in_a_line() -> None:
    request = {"tool": "pay", "agent": "ada", "arguments": {"to": "bob", "amount": 5}, "reason": "it costs money"}
    assert approvals.what_is_asked(request) == "ada wants to run pay(to: bob, amount: 5): it costs money"


def test_a_request_in_a_line() -> None:
    assert approvals.what_is_asked({"summary": " Append\n a line ", "x": 1}) == "Append a line"
    assert approvals.what_is_asked({"text": "x" * 500}).endswith("…")
