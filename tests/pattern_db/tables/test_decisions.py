"""Decisions, their links and the lines that they came from."""

from __future__ import annotations

from dataclasses import replace

import apsw
import pytest

from pattern_db.connection import Connection
from pattern_db.enums import DecisionLinkKind, DecisionSource
from pattern_db.errors import RowConflict, RowNotFound
from pattern_db.tables import decisions, meta, workspaces
from pattern_db.tables.decisions import DecisionLine, DecisionLink, DecisionRow
from pattern_db.tables.workspaces import WorkspaceRow
from tests.pattern_db.conftest import LATER, NOW

SUPERSEDES, CONFLICTS = DecisionLinkKind.SUPERSEDES, DecisionLinkKind.CONFLICTS


def row(decision_id: str, workspace: str = "w") -> DecisionRow:
    return DecisionRow(
        id=decision_id,
        workspace=workspace,
        title="Tabs",
        text="We use tabs.",
        created_at=NOW,
        updated_at=None,
        changed_by="user:u",
        source=DecisionSource.TURN,
        tags=["a", "b"],
        details=["x"],
        important=True,
        scope="repo",
    )


def test_the_newest_that_were_made_in_a_time_come_in_its_order(db: Connection) -> None:
    times = {"a": "2026-01-02", "b": "2026-01-01", "c": "2026-01-03", "d": "2026-01-02", "e": "2026-01-02"}
    rows = [replace(row(one), created_at=f"{day}T00:00:00.000Z") for one, day in times.items()]
    decisions.add(db, [*rows, replace(row("f"), created_at=None)])
    decisions.change(db, "e", {"archived": True})
    made = decisions.made_between(db, "2026-01-01T00:00:00.000Z", "2026-01-03T00:00:00.000Z", 2)
    assert [one.id for one in made] == ["a", "d"]


def test_a_decision_comes_back_whole_and_once(db: Connection) -> None:
    decisions.add(db, [row("d1"), row("d0"), row("d2", "other")])
    assert decisions.of_workspace(db, "w") == [row("d1"), row("d0")]
    assert [one.id for one in decisions.of_workspace(db, None)] == ["d1", "d0", "d2"]
    assert decisions.elsewhere(db, "w") == ["d2"]
    decisions.change(db, "d0", {"archived": True})
    pages = [(None, True, None), ("w", True, "d1"), ("w", False, None), (None, False, "d1")]
    found = [decisions.of_workspace(db, one, 2, archived=archived, after=after) for one, archived, after in pages]
    assert [[one.id for one in rows] for rows in found] == [["d1", "d0"], ["d0"], ["d1"], ["d2"]]
    decisions.change(db, "d0", {"archived": False})
    with pytest.raises(apsw.ConstraintError):
        decisions.add(db, [row("d1")])
    decisions.replace(db, replace(row("d1"), title="Spaces", tags=[]))
    decisions.change(db, "d0", {"tags": ["c"], "updated_at": LATER})
    assert decisions.of_workspace(db, "w") == [
        replace(row("d1"), title="Spaces", tags=[]),
        replace(row("d0"), tags=["c"], updated_at=LATER),
    ]
    with pytest.raises(RowNotFound, match="d9"):
        decisions.replace(db, row("d9"))


def test_what_prompts_show_is_counted_and_is_no_change(db: Connection) -> None:
    decisions.add(db, [row("d1"), row("d0"), row("d2")])
    before = meta.get(db, meta.DECISIONS)
    decisions.count_shown(db, ["d0", "d1", "none"], LATER)
    assert [(one.id, one.injection_count, one.last_injected_at) for one in decisions.some(db, ["d2", "d0", "x"])] == [
        ("d0", 1, LATER),
        ("d2", 0, None),
    ]
    assert meta.get(db, meta.DECISIONS) == before
    for links in ([DecisionLink("d1", "d0", SUPERSEDES)], []):
        decisions.set_links(db, "w", links)
    decisions.replace(db, row("d1"))
    decisions.change(db, "d0", {"title": "x"})
    assert (before, meta.get(db, meta.DECISIONS)) == ("1", "5")


def test_links_have_no_cycles_and_a_conflict_is_of_both(db: Connection) -> None:
    decisions.add(db, [row(one) for one in ("a", "b", "c")])
    links = [DecisionLink("c", "b", SUPERSEDES), DecisionLink("b", "a", SUPERSEDES)]
    links.append(DecisionLink("c", "a", CONFLICTS))
    for _ in range(2):
        decisions.set_links(db, "w", links)
    assert decisions.links(db, "w") == [
        DecisionLink("a", "c", CONFLICTS),
        DecisionLink("b", "a", SUPERSEDES),
        DecisionLink("c", "b", SUPERSEDES),
    ]
    assert decisions.links(db, "other") == []
    bad = [("a", "c", SUPERSEDES), ("a", "a", SUPERSEDES), ("a", "a", CONFLICTS)]
    for one in bad:
        with pytest.raises(RowConflict, match="itself"):
            decisions.set_links(db, "w", [*links, DecisionLink(*one)])
    with pytest.raises(apsw.ConstraintError), db:
        decisions.set_links(db, "w", [*links, DecisionLink("a", "unknown", CONFLICTS)])
    a, b, c = decisions.of_workspace(db, "w")
    assert (a.superseded_by, a.supersedes, a.conflicts_with) == ("b", (), ("c",))
    assert (b.superseded_by, b.supersedes, b.conflicts_with) == ("c", ("a",), ())
    assert (c.superseded_by, c.supersedes, c.conflicts_with) == (None, ("b",), ("a",))
    assert [one.is_shown for one in decisions.words(db, None)] == [0, 0, 1]
    decisions.set_links(db, "w", links[1:2])
    assert decisions.links(db, "w") == links[1:2]
    decisions.set_links(db, "other", [])
    assert len(decisions.links(db, "w")) == 1, "those of other workspaces stay"


def test_lines_follow_those_of_the_workspace_that_theirs_is_merged_into(db: Connection) -> None:
    for name in ("w", "other"):
        workspaces.create(db, WorkspaceRow(name, name, NOW, NOW))
    decisions.add(db, [row("d1")])
    decisions.add_lines(
        db,
        [
            DecisionLine("l1", "w", 1, "d1", True, b"{}\n"),
            DecisionLine("l2", "w", 2, None, False, b"\xff"),
            DecisionLine("l3", "other", 1, None, False, b"first"),
        ],
    )
    decisions.set_line(db, "l1", b"{ }\n")
    workspaces.merge(db, "w", "other", LATER)
    assert [(one.position, one.line) for one in decisions.lines(db, "other")] == [
        (1, b"first"),
        (2, b"{ }\n"),
        (3, b"\xff"),
    ]
    assert [one.id for one in decisions.of_workspace(db, "other")] == ["d1"]


def test_there_are_bounds(db: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DECISIONS_MAX", "LINES_MAX", "LINKS_MAX"):
        monkeypatch.setattr(decisions, name, 1)
    decisions.add(db, [row("a")])
    decisions.add_lines(db, [DecisionLine("l1", "w", 1, None, False, b"")])
    with pytest.raises(RowConflict, match="at most 1 decisions"):
        decisions.add(db, [row("b")])
    with pytest.raises(RowConflict, match="at most 1 lines"):
        decisions.add_lines(db, [DecisionLine("l2", "w", 1, None, False, b"")])
    decisions.set_links(db, "w", [DecisionLink("a", "b", CONFLICTS)])
    with pytest.raises(RowConflict, match="at most 1 links"):
        decisions.set_links(db, "w", [DecisionLink("a", "b", kind) for kind in (CONFLICTS, SUPERSEDES)])
