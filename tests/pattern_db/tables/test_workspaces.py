"""Workspaces, what other systems call them and their rows, and what is kept for them."""

from __future__ import annotations

from dataclasses import replace

import apsw
import pytest

from pattern_db.connection import Connection, fetch_all
from pattern_db.errors import RowConflict, RowNotFound
from pattern_db.tables import archival, external_refs, shared_state, workspaces
from pattern_db.tables.archival import ArchivalRow
from pattern_db.tables.external_refs import ExternalRef
from pattern_db.tables.shared_state import SharedValue
from pattern_db.tables.workspaces import WorkspaceAlias, WorkspaceRoot, WorkspaceRow
from tests.pattern_db.conftest import LATER, NOW

ADA = "agt_ada"
DELTA = WorkspaceAlias("delta", "srv_shop")


def test_roots_and_aliases_belong_to_one(db: Connection) -> None:
    for name in ("shop", "garden"):
        workspaces.create(db, WorkspaceRow(f"ws_{name}", name, NOW, NOW))
    for path in ("/srv", "/srv/shop"):
        workspaces.add_root(db, "ws_shop", path)
        workspaces.add_root(db, "ws_shop", path)
    workspaces.add_alias(db, "ws_shop", DELTA)
    assert workspaces.find(db, "shop") == WorkspaceRow("ws_shop", "shop", NOW, NOW, ["/srv", "/srv/shop"], [DELTA])
    assert workspaces.longest_root(db, ["/srv/shop", "/srv", "/"]) == WorkspaceRoot("/srv/shop", "ws_shop")
    assert workspaces.longest_root(db, ["/"]) is None
    assert [workspaces.called(db, "delta", name) for name in ("srv_shop", "x")] == ["ws_shop", None]
    with pytest.raises(RowConflict, match="ws_shop"):
        workspaces.add_root(db, "ws_garden", "/srv")
    with pytest.raises(RowConflict, match="ws_shop"):
        workspaces.add_alias(db, "ws_garden", DELTA)
    with pytest.raises(apsw.ConstraintError):
        workspaces.create(db, WorkspaceRow("ws_2", "shop", NOW, NOW))
    assert [row.name for row in workspaces.page(db, 5, after="garden")] == ["shop"]
    workspaces.merge(db, "ws_shop", "ws_garden", LATER)
    merged = workspaces.find(db, "garden")
    assert (merged.roots, merged.aliases, merged.updated_at) == (["/srv", "/srv/shop"], [DELTA], LATER)
    with pytest.raises(RowNotFound, match="workspace shop"):
        workspaces.find(db, "shop")


def test_a_root_is_taken_from_its_own_workspace(db: Connection) -> None:
    workspaces.create(db, WorkspaceRow("ws_shop", "shop", NOW, NOW))
    workspaces.add_root(db, "ws_shop", "/srv/shop")
    for workspace, path in (("ws_garden", "/srv/shop"), ("ws_shop", "/srv")):
        with pytest.raises(RowNotFound, match="root"):
            workspaces.remove_root(db, workspace, path)
    workspaces.remove_root(db, "ws_shop", "/srv/shop")
    assert workspaces.find(db, "shop").roots == []


def test_the_workspace_of_a_session_and_its_map(db: Connection) -> None:
    for name in ("shop", "deep"):
        workspaces.create(db, WorkspaceRow(f"ws_{name}", name, NOW, NOW))
    for path, name in (("/srv", "shop"), ("/srv/deep", "deep")):
        workspaces.add_root(db, f"ws_{name}", path)
    places = {"a": ("ws_shop", "/srv/deep"), "b": (None, "/srv/deep/x"), "c": (None, "/srv/deeper"), "d": (None, "/sr")}
    for session, (workspace, folder) in places.items():
        db.execute(
            "INSERT INTO sessions (id, agent_id, workspace, working_dir, created_at, updated_at) VALUES (?,?,?,?,?,?)",
            (session, ADA, workspace, folder, NOW, NOW),
        )

    def about(sessions: str) -> list[str | None]:
        return [found and found[0] for found in (workspaces.of_session(db, one) for one in sessions)]

    assert workspaces.of_session(db, "b") == ("ws_deep", "/srv/deep/x")
    assert about("abcdx") == ["ws_shop", "ws_deep", "ws_shop", None, None]
    workspaces.show_in_prompts(db, "ws_shop", False)
    assert about("abc") == [None, "ws_deep", None]
    assert not workspaces.find(db, "shop").in_prompts and workspaces.find(db, "deep").in_prompts
    workspaces.show_in_prompts(db, "ws_shop", True)
    assert about("a") == ["ws_shop"]
    for number in range(7):
        key = f"kv/ws_shop/{number}"
        shared_state.put(db, SharedValue(key, 1, 1, NOW, None, NOW))
    shared_state.put(db, SharedValue("kv/ws_shop0", 1, 1, NOW, None, NOW))
    found = workspaces.map_of(db, "ws_shop", ADA)
    assert (found.name, found.keys, found.key_count, found.notes) == ("shop", ["0", "1", "2", "3", "4"], 7, [])
    with pytest.raises(RowNotFound, match="workspace"):
        workspaces.map_of(db, "ws_none", ADA)


def test_numbers_are_given_once_in_each_workspace(db: Connection) -> None:
    external_refs.add(db, ExternalRef("delta", "task", "w", 4, "t4", b"x" * 16, {"source": "s"}))
    for _ in range(2):
        external_refs.assign(db, "delta", "task", "w", ["t1", "t4", "t2"])
    external_refs.assign(db, "delta", "note", "w", ["n1"])
    external_refs.assign(db, "delta", "task", "other", ["t3"])
    assert external_refs.numbers(db, "delta", ["t1", "t2", "t4", "n1", "x"]) == {"t1": 5, "t2": 6, "t4": 4, "n1": 1}
    assert [external_refs.find(db, "delta", "task", "w", number) for number in (5, 1)] == ["t1", None]
    external_refs.add(db, ExternalRef("delta", "task", "w", 9, "t9"))
    external_refs.remove(db, "delta", "t9")
    whole = external_refs.of_workspace(db, "delta", "w")
    assert {ref.local_id for ref in whole} == {"t1", "t2", "t4", "n1"}
    assert next(ref for ref in whole if ref.number == 4).raw == {"source": "s"}


def test_events_of_a_workspace_are_the_newest_first(db: Connection) -> None:
    for number, (words, tags) in enumerate((("It leaks", ["bug"]), ("100% sure", None), ("again", ["BUG", "x"]))):
        said = {"kind": "episode", "session": f"s{number % 2}"}
        row = ArchivalRow(f"e{number}", "_constellation_", words, f"2026-01-0{number + 1}T00:00:00.000Z", said)
        archival.insert(db, replace(row, tags=tags, workspace="w"))
    long = ArchivalRow("e0.1", "_constellation_", " at night", NOW, None, 1, "e0", workspace="w")
    archival.insert(db, long)
    archival.insert(db, ArchivalRow("fact", "_constellation_", "It leaks", NOW, {"kind": "fact"}, workspace="w"))
    assert archival.count_events(db, "w", "episode") == 3 and archival.count_events(db, "v", "episode") == 0

    def found(limit: int = 9, **asked: object) -> list[str]:
        rows = archival.events(db, "w", "episode", limit, **asked)  # type: ignore[arg-type]  # the cases know them
        return [row.id for row in rows]

    assert [found(), found(2), found(words="LEAKS"), found(words="%"), found(words="night")] == [
        ["e2", "e1", "e0"],
        ["e2", "e1"],
        ["e0"],
        ["e1"],
        ["e0"],
    ]
    assert [found(tags=["Bug"]), found(tags=["bu"]), found(since="2026-01-02"), found(session="s1")] == [
        ["e2", "e0"],
        [],
        ["e2", "e1"],
        ["e1"],
    ]


def test_values_of_programs_are_counted_apart(db: Connection) -> None:
    for key, time in (("kv/w/a", NOW), ("kv/w/b", LATER), ("kv/v/a", NOW), ("owner", NOW)):
        shared_state.put(db, SharedValue(key, 1, 1, time, None, time))
    shared_state.put(db, SharedValue("kv/w/a", 2, 2, NOW, None, LATER))
    assert [row.key for row in shared_state.in_workspace(db, "w")] == ["kv/w/b", "kv/w/a"]
    assert shared_state.find(db, "kv/w/a") == SharedValue("kv/w/a", 2, 2, NOW, None, NOW), "created once"
    assert [shared_state.count(db), shared_state.count(db, named=True)] == [1, 3]
    assert fetch_all(db, "SELECT count(*) FROM coordination_state") == [(4,)]
