"""What a block said, who changed it, and taking it back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pattern_server.cli.client import ServerFailed
from pattern_server.cli.memory import past
from tests.pattern_server.cli.memory.scripted import Scripted, block, call

STAMP = "2026-01-02T03:04:05.678Z"


def edit(version: int, **more: Any) -> dict[str, Any]:
    cause = {"tool": "block_edit", "turn_id": None, "call": 2}
    return {"version": version, "kind": "edit", "author": "agent:ada", "cause": cause, "summary": "Added a line",
            "undone": False, "created_at": STAMP, **more}  # fmt: skip


async def test_history(capsys: pytest.CaptureFixture[str]) -> None:
    answers = {"GET /human/history?limit=2": {"items": [edit(4, undone=True), edit(3, cause=None)], "next_cursor": "x"}}
    await call(past.history, Scripted(answers), label="human", limit=2)
    shown = capsys.readouterr().out
    assert "Added a line (undone)" in shown
    assert "tool block_edit, call 2" in shown
    assert "2026-01-02 03:04" in shown
    await call(past.history, Scripted(answers), label="human", limit=2, is_json=True)
    assert [row["version"] for row in json.loads(capsys.readouterr().out)] == [4, 3]
    assert past.cause_of("imported") == "imported"


async def test_differences(capsys: pytest.CaptureFixture[str]) -> None:
    answers = {
        "GET /human": block(version=3),
        "GET /human/diff?from=2&to=3": {"from": 2, "to": 3, "diff": "-tea\n+figs\n"},
        "GET /human/diff?from=0&to=1": {"from": 0, "to": 1, "diff": ""},
    }
    await call(past.diff, Scripted(answers), label="human", older=None, newer=None)
    assert capsys.readouterr().out == "-tea\n+figs\n"
    await call(past.diff, Scripted(answers), label="human", older=0, newer=1)
    assert capsys.readouterr().out == "Versions 0 and 1 say the same.\n"


async def test_blame(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [{"line": 1, "text": "Likes tea.", "version": 2, "author": "agent:ada", "created_at": STAMP}]
    scripted = Scripted({"GET /human/blame": {"lines": lines}})
    await call(past.blame, scripted, label="human")
    assert "agent:ada" in capsys.readouterr().out
    await call(past.blame, scripted, label="human", is_json=True)
    assert json.loads(capsys.readouterr().out) == {"lines": lines}


async def test_back_and_forth(capsys: pytest.CaptureFixture[str]) -> None:
    answer = {"block": block(version=5), "undo_remaining": 2, "redo_remaining": 1, "note": "Took back version 4"}
    scripted = Scripted({f"POST /human/{way}": answer for way in ("undo", "redo")} | {"POST /human/rollback": block()})
    await call(past.undo, scripted, label="human", author=None)
    await call(past.redo, scripted, label="human", author="agent:ada")
    await call(past.rollback, scripted, label="human", version=1)
    assert [body for _, body in scripted.asked] == [{}, {"author": "agent:ada"}, {"version": 1}]
    shown = capsys.readouterr().out
    assert "Took back version 4: human is at version 5" in shown
    assert "2 more to undo, 1 to redo" in shown
    assert "said at version 1" in shown


async def test_repair(capsys: pytest.CaptureFixture[str]) -> None:
    note = "Repaired: decoding failed; nothing was lost"
    answers = {"POST /human/repair": {"block": block(version=9), "note": note, "is_exact": True}}
    await call(past.repair, Scripted(answers), label="human")
    assert capsys.readouterr().out == f"{note}. human is at version 9, 11/100 characters.\n"
    with pytest.raises(ServerFailed, match="nothing to repair"):
        sound = (409, {"detail": "there is nothing to repair", "code": "conflict"})
        await call(past.repair, Scripted({"POST /human/repair": sound}), label="human")
