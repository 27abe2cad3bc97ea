"""Guidance and the feedback on it: its counters are sums of rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import apsw
import pytest

from pattern_db.connection import Connection
from pattern_db.enums import GuidanceSource, GuidanceState, GuidanceVerdict
from pattern_db.errors import RowConflict, RowNotFound
from pattern_db.tables import guidance, workspaces
from pattern_db.tables.guidance import GuidanceFeedback, GuidanceRow
from pattern_db.tables.workspaces import WorkspaceRow
from tests.pattern_db.conftest import LATER, NOW

HELPFUL, HARMFUL, USED = GuidanceVerdict
PROPOSED, ACTIVE, ARCHIVED, MERGED = GuidanceState


def row(guidance_id: str, state: GuidanceState = ACTIVE, **given: str) -> GuidanceRow:
    fields: dict[str, Any] = {"workspace": "w", "task_type": "coding", "section": "s", "content": f"Use {guidance_id}"}
    fields |= {"created_at": NOW, "updated_at": NOW, "changed_by": "user:u", **given}
    return GuidanceRow(id=guidance_id, source=GuidanceSource.LEARNED, state=state, **fields)


def said(guidance_id: str, verdict: GuidanceVerdict, turn: str = "t1", author: str = "agent:a") -> GuidanceFeedback:
    return GuidanceFeedback(guidance_id, verdict, author, turn, 1, None, LATER)


def test_guidance_comes_back_with_the_sums_of_its_feedback_the_best_first(db: Connection) -> None:
    guidance.add(db, [row("b"), row("a"), row("c", PROPOSED), row("d", workspace="other"), row("e", task_type="git")])
    guidance.rate(db, [said("b", HELPFUL), said("b", HELPFUL, "t2"), said("b", USED, "2026-11-21")])
    b = replace(row("b"), helpful=2, used=1, last_used_at=LATER)
    assert guidance.get(db, "b") == b
    assert guidance.select(db, "w", [ACTIVE]) == [b, row("a"), row("e", task_type="git")]
    assert [one.id for one in guidance.select(db, None, [PROPOSED, ACTIVE])] == ["b", "a", "c", "d", "e"]
    assert guidance.select(db, "w", [ACTIVE], task_types=["coding"], limit=1) == [b]
    assert (b.utility_score, b.rank) == (2 / 3, 3 / 4)
    guidance.change(db, "a", {"state": ARCHIVED})
    assert guidance.get(db, "a").state is ARCHIVED
    with pytest.raises(RowNotFound):
        guidance.change(db, "x", {"state": ARCHIVED})


def test_pages_of_it_follow_one_another(db: Connection) -> None:
    ids = ["c", "a", "e", "b", "d"]
    guidance.add(db, [row(one) for one in ids])
    guidance.rate(db, [said("d", HELPFUL), said("e", HARMFUL), said("b", USED, "2026-11-21")])
    found: list[str] = []
    while page := guidance.select(db, "w", [ACTIVE], limit=2, after=found[-1] if found else None):
        found += [one.id for one in page]
    assert found == ["d", "b", "a", "c", "e"]


def test_a_verdict_of_an_author_in_a_turn_counts_once_and_can_change(db: Connection) -> None:
    guidance.add(db, [row("a")])
    for _ in range(2):
        guidance.rate(db, [said("a", HELPFUL), said("a", USED), said("a", HELPFUL, author="user:u")])
    assert [*guidance.feedback_on(db, "a")] == [
        said("a", HELPFUL),
        said("a", USED),
        said("a", HELPFUL, author="user:u"),
    ]
    guidance.rate(db, [said("a", HARMFUL)])
    found = guidance.get(db, "a")
    assert (found.helpful, found.harmful, found.used) == (1, 1, 1)
    assert guidance.unrate(db, "a", HARMFUL, "agent:a", "t1")
    assert not guidance.unrate(db, "a", HARMFUL, "agent:a", "t1")
    assert guidance.get(db, "a").harmful == 0
    with pytest.raises(apsw.ConstraintError):
        guidance.rate(db, [said("x", HELPFUL)])


def test_what_a_file_counted_is_replaced_and_what_was_said_here_stays(db: Connection) -> None:
    guidance.add(db, [row("a")])
    guidance.recount(db, "a", {HELPFUL: 5, HARMFUL: 0}, "user:u", LATER, None)
    assert (guidance.get(db, "a").helpful, guidance.get(db, "a").last_used_at) == (5, None)
    guidance.rate(db, [said("a", HELPFUL)])
    assert guidance.get(db, "a").helpful == 6
    guidance.recount(db, "a", {HELPFUL: 8, HARMFUL: 2}, "user:u", LATER, NOW)
    found = guidance.get(db, "a")
    assert (found.helpful, found.harmful, found.used, found.last_used_at) == (8, 2, 1, LATER)
    assert [one.weight for one in guidance.feedback_on(db, "a") if one.turn == "import"] == [1, 2, 7]


def test_p40_merged_guidance_gives_its_feedback_to_the_other_one(db: Connection) -> None:
    guidance.add(db, [row("short"), row("long"), row("older")])
    guidance.recount(db, "short", {HELPFUL: 7}, "user:u", LATER, None)
    guidance.recount(db, "long", {HELPFUL: 1}, "user:u", LATER, None)
    guidance.rate(db, [said("short", HELPFUL), said("short", HELPFUL, "t2"), said("long", HELPFUL, "t2")])
    guidance.merge(db, "older", "short", LATER, "user:u")
    guidance.merge(db, "short", "long", LATER, "user:u")
    assert guidance.get(db, "long").helpful == 10  # `t2` praised both: once
    for loser in ("short", "older"):
        found = guidance.get(db, loser)
        assert (found.state, found.merged_into, found.helpful, found.content) == (MERGED, "long", 0, f"Use {loser}")
    for into in ("long", "short"):
        with pytest.raises(RowConflict, match="cannot be merged"):
            guidance.merge(db, "long", into, LATER, "user:u")


def test_it_moves_with_its_workspace_and_is_bounded(db: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("w", "other"):
        workspaces.create(db, WorkspaceRow(name, name, NOW, NOW))
    guidance.add(db, [row("a")])
    workspaces.merge(db, "w", "other", LATER)
    assert guidance.get(db, "a").workspace == "other"
    monkeypatch.setattr(guidance, "GUIDANCE_MAX", 1)
    with pytest.raises(RowConflict, match="at most 1 "):
        guidance.add(db, [row("b")])
