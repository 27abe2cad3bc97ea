"""Lending blocks."""

from __future__ import annotations

import pytest

from pattern_server.cli.memory import sharing
from tests.pattern_server.cli.memory.scripted import Scripted, call


async def test_sharing(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"agent": "bob", "agent_id": "agent_2", "permission": "append", "attached_at": "2026-01-02T03:04:05.678Z"}
    answers = {"GET /human/share": {"items": [row]}, "POST /human/share": row, "DELETE /human/share/bob": {}}
    scripted = Scripted(answers)
    await call(sharing.share, scripted, label="human", with_agent="bob", permission="append")
    await call(sharing.share, scripted, label="human", with_agent=None, permission="append")
    await call(sharing.unshare, scripted, label="human", from_agent="bob")
    assert scripted.asked == [
        ("POST /human/share", {"agent": "bob", "permission": "append"}),
        ("GET /human/share", None),
        ("DELETE /human/share/bob", None),
    ]
    shown = capsys.readouterr().out
    assert "bob sees human now (append)" in shown
    assert "2026-01-02 03:04" in shown
    assert "bob does not see human any more" in shown
    await call(sharing.share, Scripted({"GET /human/share": {"items": []}}), label="human", with_agent=None,
               permission="append")  # fmt: skip
    assert "with nobody" in capsys.readouterr().out
