"""The review of archives of version 1 and 2: what is found, under ids that stay, and what each decision does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pattern_core.errors import InvalidInput
from pattern_core.legacy.archive import Old
from pattern_core.legacy.review import Resolution, Review, issues_of, review
from pattern_core.portable import read
from tests.pattern_core.legacy.theirs import Theirs, old_agent, old_export, old_memory, old_message

NOW = "2026-02-03T04:05:06.007Z"


def sick(folder: Path) -> Old:
    """An archive of version 2 with an issue of each kind."""
    theirs = Theirs()
    ada = [
        old_memory("agent_a", "m_cross", "persona", "I am Ben, who breaks down tasks."),
        old_memory("agent_a", "m_notes", "notes", "Ada's notes"),
        old_memory("agent_a", "m_again", "notes", "more of Ada's notes"),
        old_memory("agent_gone", "m_orphan", "plan", "a plan of nobody"),
        old_memory("agent_a", "m_broken", "broken", "half a \ufffd"),
    ]
    ben = [
        old_memory("agent_b", "m_suspect", "persona", "I am Ben. I work with Ada."),
        old_memory("agent_b", "m_list", "list", "one; two"),
        old_memory("agent_b", "m_late", "late", "later", created_at="2031-01-01T00:00:00Z"),
    ]
    said = [old_message("agent_a", 1, "hello"), old_message("agent_gone", 2, "lost words")]
    pairs = [
        ["agent_a", old_export(theirs, old_agent("agent_a", "Ada"), said, ada)],
        ["agent_b", old_export(theirs, old_agent("agent_b", "Ben"), [], ben)],
    ]
    data = {"constellation": {"name": "house"}, "groups": [], "agent_export_cids": pairs, "agent_memberships": []}
    archive = theirs.write(folder / "sick.car", theirs.manifest("Constellation", theirs.node(data), 2))
    _, old = read(archive, folder / "none.db", now=NOW)
    assert old is not None
    return old


def ids_by_type(found: Review) -> dict[str, str]:
    return {one["kind"]: one["name"] for one in found.decisions}


def resolved(folder: Path, kind: str, action: Any, **more: Any) -> Old:
    """The archive after one resolution."""
    old = sick(folder)
    issue = ids_by_type(review(sick(folder), [], NOW))[kind]
    review(old, [Resolution(issue_id=issue, action=action, **more)], NOW)
    return old


def texts(old: Old) -> dict[str, tuple[str, str]]:
    """Owner and text of each block."""
    return {one["id"]: (one["agent_id"], one["content_preview"]) for one in old.blocks}


def test_every_kind_is_found_under_an_id_that_stays_and_only_what_is_safe_is_done(tmp_path: Path) -> None:
    old = sick(tmp_path)
    before = texts(old)
    found = review(old, [], NOW)
    assert {one["kind"]: (one["severity"], one["decision"]) for one in found.decisions} == {
        "DuplicateLabel": ("warning", "keep_both"),
        "CrossContamination": ("critical", "undecided"),
        "SuspiciousAttribution": ("warning", "undecided"),
        "OrphanedMemory": ("warning", "undecided"),
        "CorruptContent": ("warning", "undecided"),
        "OrphanedMessage": ("warning", "undecided"),
        "TimestampAnomaly": ("info", "skip"),
    }
    assert (found.found, found.resolved) == (7, 2)
    assert all(one["evidence"] and one["actions"] and one["affected"] for one in found.decisions)
    assert ids_by_type(review(sick(tmp_path), [], NOW)) == ids_by_type(found)
    del before["m_orphan"]  # of no agent: left out
    assert texts(old) == before
    assert [one["id"] for one in old.messages] == ["msg_agent_a_1"]


def test_assigning_moves_a_memory_or_messages_to_an_agent(tmp_path: Path) -> None:
    moved = resolved(tmp_path, "CrossContamination", "assign_to", target_agent="Ben")
    assert texts(moved)["m_cross"][0] == "agent_b"
    kept = resolved(tmp_path, "OrphanedMemory", "assign_to", target_agent="agent_b")
    assert texts(kept)["m_orphan"] == ("agent_b", "a plan of nobody")
    said = resolved(tmp_path, "OrphanedMessage", "assign_to", target_agent="Ada")
    assert [one["agent_id"] for one in said.messages] == ["agent_a", "agent_a"]


def test_deleting_merging_splitting_and_editing(tmp_path: Path) -> None:
    deleted = texts(resolved(tmp_path, "DuplicateLabel", "delete"))
    assert ("m_notes" in deleted, "m_again" in deleted) == (True, False)
    other = texts(resolved(tmp_path, "DuplicateLabel", "delete", target="m_notes"))
    assert ("m_notes" in other, "m_again" in other) == (False, True)
    merged = texts(resolved(tmp_path, "DuplicateLabel", "merge_with", target="m_again"))
    assert merged["m_again"][1] == "more of Ada's notes\n\nAda's notes"
    assert "m_notes" not in merged
    parts = texts(resolved(tmp_path, "CorruptContent", "split", parts=["one", "two"]))
    assert (parts["m_broken"][1], parts["m_broken:2"]) == ("one", ("agent_a", "two"))
    edited = texts(resolved(tmp_path, "CorruptContent", "manual_edit", new_content="whole"))
    assert edited["m_broken"][1] == "whole"
    assert texts(resolved(tmp_path, "SuspiciousAttribution", "skip"))["m_suspect"][0] == "agent_b"


def test_a_merge_across_agents_is_shared(tmp_path: Path) -> None:
    old = sick(tmp_path)
    old.blocks[2]["agent_id"] = "agent_b"
    issue = ids_by_type(review(old, [], NOW))["DuplicateLabel"]
    found = review(old, [Resolution(issue_id=issue, action="merge_with")], NOW)
    assert (found.decisions[0]["severity"], found.decisions[0]["decided_by"]) == ("info", "resolution")
    assert [(one["block_id"], one["agent_id"]) for one in old.shares] == [("m_notes", "agent_b")]


@pytest.mark.parametrize(
    ("kind", "action", "more", "error"),
    [
        ("OrphanedMemory", "assign_to", {"target_agent": "nobody"}, "no agent 'nobody'"),
        ("DuplicateLabel", "delete", {"target": "m_list"}, "`target` is one of m_notes, m_again"),
        ("CorruptContent", "manual_edit", {}, "needs `new_content`"),
        ("CorruptContent", "merge_with", {}, "nothing to merge"),
        ("DuplicateLabel", "split", {"parts": ["a"]}, "one memory as `target`"),
    ],
)
def test_resolutions_that_cannot_be_made_are_refused(
    tmp_path: Path, kind: str, action: Any, more: dict[str, Any], error: str
) -> None:
    with pytest.raises(InvalidInput, match=error):
        resolved(tmp_path, kind, action, **more)
    with pytest.raises(InvalidInput, match="no issue 'x'"):
        review(sick(tmp_path), [Resolution(issue_id="x", action="skip")], NOW)


def test_what_is_suggested_comes_first_and_names_the_agent_that_is_meant(tmp_path: Path) -> None:
    old = sick(tmp_path)
    found = {one.type: (one.actions[0], one.agent) for one in issues_of(old, NOW)}
    assert found["CrossContamination"] == ("assign_to", "Ben")
    assert found["SuspiciousAttribution"] == ("skip", None)
    assert found["OrphanedMemory"] == ("assign_to", None)
    old.agents.pop()
    assert {one.agent for one in issues_of(old, NOW) if one.type.startswith("Orphaned")} == {"Ada"}
    old.version = 3
    assert issues_of(old, NOW) == []
