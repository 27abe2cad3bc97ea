"""`pattern approvals …`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click
import httpx2
import pytest

from pattern_server.cli import approvals
from pattern_server.cli.output import Output
from tests.pattern_server.cli.conftest import Answer, api_of, as_json

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


GRANT = {
    "id": "cgr_1",
    "agent_id": "agent_1",
    "subject": "tool:pay",
    "same_arguments": True,
    "approval_id": "apr_1",
    "granted_by": "user:usr_1",
    "expires_at": "2026-02-01T00:00:00.000Z",
    "created_at": "2026-01-02T03:04:05.678Z",
}
GRANTS = [GRANT, {**GRANT, "id": "cgr_2", "same_arguments": False, "expires_at": None}]


async def call(command: click.Command, *, is_json: bool = False, **given: Any) -> list[tuple[str, Any]]:
    asked: list[tuple[str, Any]] = []

    def answer(request: httpx2.Request) -> Answer:
        asked.append((f"{request.method} {request.url.path}", json.loads(request.content) if request.content else None))
        if request.method == "GET" and request.url.path.endswith("approvals"):
            assert request.url.params["status"] == ("all" if given.get("is_all") else "pending")
            return as_json({"items": [ONE], "next_cursor": None})
        if request.url.path.endswith("agents"):
            return as_json({"items": [{"id": "agent_1", "name": "ada"}], "next_cursor": None})
        if request.url.path.endswith("grants"):
            return as_json({"items": GRANTS, "next_cursor": None})
        if request.method == "DELETE":
            return 204, {}, b""
        return as_json({**ONE, "decision": {"note": "Appended to human"}} if request.method == "POST" else ONE)

    return await _called(command, answer, asked, is_json=is_json, **given)


async def typed(command: click.Command, *words: str) -> list[tuple[str, Any]]:
    """As `call`, with the parameters as somebody types them."""
    asked: list[tuple[str, Any]] = []

    def answer(request: httpx2.Request) -> Answer:
        asked.append((f"{request.method} {request.url.path}", json.loads(request.content)))
        return as_json({**ONE, "decision": {"note": "Done"}})

    with command.make_context("approve", ["apr_1", "-c", "home", *words]) as context:
        own = ("data_dir", "is_json", "constellation")
        given = {name: value for name, value in context.params.items() if name not in own}
        return await _called(command, answer, asked, is_json=False, **given)


async def _called(
    command: click.Command,
    answer: Callable[[httpx2.Request], Answer],
    asked: list[tuple[str, Any]],
    *,
    is_json: bool,
    **given: Any,
) -> list[tuple[str, Any]]:
    inner: Any = command.callback
    while "api" not in inner.__code__.co_varnames[: inner.__code__.co_argcount]:
        inner = inner.__wrapped__
    await inner(api_of(answer), Output(is_json=is_json), constellation="home", **given)
    return asked


async def test_what_waits_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    await call(approvals.list_all, is_all=False)
    shown = capsys.readouterr().out
    assert 'label: human, edit: {"op": "append"}' in shown
    assert "pattern approvals approve ID -c home" in shown
    await call(approvals.list_all, is_all=True, is_json=True)
    assert json.loads(capsys.readouterr().out) == [ONE]
    await call(approvals.show, id_="apr_1")
    shown = capsys.readouterr().out
    assert "memory_edit" in shown and "    label: human\n    edit: {" in shown and "empty" not in shown
    await call(approvals.show, id_="apr_1", is_json=True)
    assert json.loads(capsys.readouterr().out) == ONE


async def test_a_call_is_shown_with_all_its_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    command = "x" * 500
    call_of_tool = {"agent_id": "agent_1", "agent": "ada", "tool": "shell", "digest": "ab", "call_id": "call_1"}
    request = {**call_of_tool, "arguments": {"command": command, "timeout": 5}, "reason": "it writes"}
    asked: list[tuple[str, Any]] = []
    await _called(approvals.show, lambda _: as_json({**ONE, "request": request}), asked, is_json=False, id_="apr_1")
    shown = capsys.readouterr().out
    assert f"    arguments:\n      command: {command}\n      timeout: 5\n    reason: it writes" in shown
    assert "call_1" not in shown and "ab\n" not in shown


async def test_an_answer_is_not_told_twice(capsys: pytest.CaptureFixture[str]) -> None:
    told = {**ONE, "decision": {"note": "Denied; nothing was done"}}
    await _called(approvals.deny, lambda _: as_json(told), [], is_json=False, id_="apr_1", reason=None)
    assert capsys.readouterr().out == "Denied; nothing was done\n"


WHERE = "POST /api/v1/constellations/home/approvals/apr_1"


async def test_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert await typed(approvals.approve) == [(WHERE, {"decision": "approve", "scope": "once"})]
    assert await typed(approvals.deny) == [(WHERE, {"decision": "deny"})]
    assert await typed(approvals.deny, "--reason", "too dear") == [(WHERE, {"decision": "deny", "reason": "too dear"})]
    assert capsys.readouterr().out == "Approved: Done\nDenied: Done\nDenied: Done\n"


@pytest.mark.parametrize(
    ("words", "body"),
    [
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
    assert await typed(approvals.approve, *words) == [(WHERE, {"decision": "approve", **body})]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--same", "--always"], "exclude each other"),
        (["--for", "soon"], "write 90s, 30m, 2h or 7d"),
        (["--for", "-5s"], "write 90s, 30m, 2h or 7d"),
        (["--arguments", "{to: bob}"], "no JSON"),
        (["--arguments", "[1]"], "must be a JSON object"),
    ],
)
async def test_what_cannot_be_meant_is_refused_before_anything_is_sent(words: list[str], said: str) -> None:
    with pytest.raises(click.UsageError) as refused:
        await typed(approvals.approve, *words)
    assert said in refused.value.format_message()


async def test_consents_are_listed_and_revoked(capsys: pytest.CaptureFixture[str]) -> None:
    await call(approvals.grants)
    first, second = capsys.readouterr().out.splitlines()[-2:]
    assert ("the same" in first, "2026-02-01 00:00" in first, "  ada  " in first) == (True, True, True)
    assert ("any" in second, "revoked" in second) == (True, True)
    await call(approvals.grants, is_json=True)
    assert json.loads(capsys.readouterr().out) == GRANTS
    asked = await call(approvals.revoke, id_="cgr_1")
    assert asked == [("DELETE /api/v1/constellations/home/grants/cgr_1", None)]
    assert capsys.readouterr().out == "Revoked; the agent asks again.\n"


def test_a_call_in_a_line() -> None:
    request = {"tool": "pay", "agent": "ada", "arguments": {"to": "bob", "amount": 5}, "reason": "it costs money"}
    assert approvals.what_is_asked(request) == "ada wants to run pay(to: bob, amount: 5): it costs money"


def test_a_request_in_a_line() -> None:
    assert approvals.what_is_asked({"summary": " Append\n a line ", "x": 1}) == "Append a line"
    assert approvals.what_is_asked({"text": "x" * 500}).endswith("…")
