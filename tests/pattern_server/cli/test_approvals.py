"""`pattern approval …`."""

from __future__ import annotations

import json
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


async def call(command: click.Command, *, is_json: bool = False, **given: Any) -> list[tuple[str, Any]]:
    asked: list[tuple[str, Any]] = []

    def answer(request: httpx2.Request) -> Answer:
        asked.append((f"{request.method} {request.url.path}", json.loads(request.content) if request.content else None))
        if request.method == "GET" and request.url.path.endswith("approvals"):
            assert request.url.params["status"] == ("all" if given.get("is_all") else "pending")
            return as_json({"items": [ONE], "next_cursor": None})
        return as_json({**ONE, "decision": {"note": "Appended to human"}} if request.method == "POST" else ONE)

    inner: Any = command.callback
    while "api" not in inner.__code__.co_varnames[: inner.__code__.co_argcount]:
        inner = inner.__wrapped__
    await inner(api_of(answer), Output(is_json=is_json), constellation="home", **given)
    return asked


async def test_what_waits_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    await call(approvals.list_all, is_all=False)
    shown = capsys.readouterr().out
    assert 'label: human, edit: {"op": "append"}' in shown
    assert "pattern approval approve ID -c home" in shown
    await call(approvals.list_all, is_all=True, is_json=True)
    assert json.loads(capsys.readouterr().out) == [ONE]
    await call(approvals.show, id_="apr_1")
    assert "memory_edit" in capsys.readouterr().out


async def test_answers(capsys: pytest.CaptureFixture[str]) -> None:
    where = "POST /api/v1/constellations/home/approvals/apr_1"
    assert await call(approvals.approve, id_="apr_1") == [(where, {"decision": "approve"})]
    assert await call(approvals.deny, id_="apr_1") == [(where, {"decision": "deny"})]
    assert capsys.readouterr().out == "Approved: Appended to human\nDenied: Appended to human\n"


def test_a_request_in_a_line() -> None:
    assert approvals.what_is_asked({"summary": " Append\n a line ", "x": 1}) == "Append a line"
    assert approvals.what_is_asked({"text": "x" * 500}).endswith("…")
