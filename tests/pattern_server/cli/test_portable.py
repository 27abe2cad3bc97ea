"""Imports on the command line: issues of old archives, files of resolutions, and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

from tests.pattern_core.legacy.theirs import Theirs, old_agent, old_export, old_memory
from tests.pattern_server.cli.conftest import Pattern


def old_archive(folder: Path) -> str:
    """An archive of version 2 in which the persona of Ada is Ben's."""
    theirs = Theirs()
    known = [old_memory("agent_a", "m1", "persona", "I am Ben.")]
    pairs = [
        ["agent_a", old_export(theirs, old_agent("agent_a", "Ada"), [], known)],
        ["agent_b", old_export(theirs, old_agent("agent_b", "Ben"), [], [])],
    ]
    data = {"constellation": {"name": "house"}, "groups": [], "agent_export_cids": pairs, "agent_memberships": []}
    return str(theirs.write(folder / "old.car", theirs.manifest("Constellation", theirs.node(data), 2)))


def test_issues_are_listed_then_resolved_by_a_file(pattern: Pattern, tmp_path: Path) -> None:
    archive = old_archive(tmp_path)
    listed = pattern("import", "--from", archive, "--dry-run", "--json")
    assert listed.code == 3, listed.err
    (issue,) = listed.json["report"]["audit_log"]["decisions"]
    assert (issue["kind"], issue["decision"], issue["severity"]) == ("CrossContamination", "undecided", "critical")
    left = pattern("import", "--from", archive, "--as", "first")
    assert left.code == 3
    assert f"CrossContamination {issue['name']}: undecided (critical: the persona of Ada names Ben" in left.out
    assert pattern("memory", "show", "persona", "-c", "first", "-a", "Ada").out.strip() == "I am Ben."

    decisions = tmp_path / "decisions.json"
    chosen = {"issue_id": issue["name"], "action": "assign_to", "target_agent": "Ben"}
    decisions.write_text(json.dumps({"resolutions": [chosen]}))
    done = pattern("import", "--from", archive, "--as", "second", "--resolutions", str(decisions))
    assert (done.code, done.err) == (0, "")
    assert pattern("memory", "show", "persona", "-c", "second", "-a", "Ben").out.strip() == "I am Ben."
    logged = pattern("import", "log", "-c", "second", "--json").json
    assert [(one["source_version"], one["issues_found"], one["issues_resolved"]) for one in logged] == [(2, 1, 1)]
    assert logged[0]["audit_log"]["decisions"][0]["decided_by"] == "resolution"


def test_resolutions_that_fit_nothing_are_refused(pattern: Pattern, tmp_path: Path) -> None:
    archive = old_archive(tmp_path)
    for given, words in (
        ('[{"issue_id": "x", "action": "skip"}]', "no issue"),
        ('[{"issue_id": "x", "action": "dance"}]', "action"),
        ("[", "not valid JSON"),
    ):
        refused = pattern("import", "--from", archive, "--as", "house", "--resolutions", given)
        assert refused.code == 2
        assert words in refused.err
    assert pattern("constellation", "list", "--json").json == []
