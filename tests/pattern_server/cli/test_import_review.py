"""Imports that ask: issues of an old archive in a terminal, with answers that are kept; and what an analysis shows."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from pattern_core.legacy.review import issues_of
from pattern_server.cli.import_review import ACTIONS, KINDS, decide, resolutions_in
from pattern_server.cli.output import Output
from tests.pattern_core.legacy.test_review import NOW, sick
from tests.pattern_server.cli.conftest import Pattern, Terminal
from tests.pattern_server.cli.terminal import CTRL_D, terminal


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """An archive of version 2 with an issue of each kind."""
    sick(tmp_path)
    return tmp_path / "sick.car"


def answers(file: Path) -> dict[str, dict[str, Any]]:
    """The kept answers, by the kind of their issue."""
    return {one["issue_id"].partition("-")[0]: one for one in json.loads(file.read_text())["resolutions"]}


def test_an_analysis_shows_everything_and_writes_nothing(pattern: Pattern, data_dir: Path, archive: Path) -> None:
    shown = pattern("import", "--from", str(archive), "--analyze-only")
    assert (shown.code, data_dir.exists()) == (3, False)
    assert "Issues: 7, without a decision: 5. Nothing was imported." in shown.out
    assert "assign_to Ben" in shown.out and "messages" in shown.out and "--interactive" in shown.err
    found = pattern("import", "--from", str(archive), "--analyze-only", "--json")
    assert (found.code, found.json["rows"]["agents"], found.json["undecided"]) == (3, 2, 5)
    assert {one["kind"] for one in found.json["issues"]} == set(KINDS)
    assert not [one for one in found.json["decisions"] if "severity" in one]
    issue = next(one["name"] for one in found.json["issues"] if one["kind"] == "OrphanedMessage")
    decided = json.dumps([{"issue_id": issue, "action": "delete"}])
    assert (
        pattern("import", "--from", str(archive), "--analyze-only", "--json", "--resolutions", decided).json[
            "undecided"
        ]
        == 4
    )
    damaged = archive.with_name("damaged.car")
    damaged.write_bytes(archive.read_bytes()[:-1])
    assert pattern("import", "--from", str(damaged), "--analyze-only").code == 1
    assert not data_dir.exists()


def test_an_analysis_shows_names_in_use(home: Pattern, tmp_path: Path) -> None:
    file = str(tmp_path / "ada.car")
    assert home("export", "agent", "--name", "ada", "-c", "home", "-o", file).code == 0
    alone = home("import", "--from", file, "--analyze-only", "--json")
    assert (alone.code, alone.json["decisions"], alone.json["undecided"]) == (0, [], 0)
    shown = home("import", "--from", file, "--analyze-only", "-c", "home")
    assert (shown.code, "renamed ada-2" in shown.out) == (0, True), shown.err
    assert len(home("agent", "list", "-c", "home", "--json").json) == 1
    assert home("import", "--from", file, "--analyze-only", "--interactive").code == 2


def test_every_issue_and_action_is_explained(tmp_path: Path) -> None:
    issues = issues_of(sick(tmp_path), NOW)
    assert {one.type for one in issues} == set(KINDS)
    assert {action for one in issues for action in one.actions} <= set(ACTIONS)


@pytest.mark.parametrize(
    "text", ['{"resolutions": 7}', '[{"action": "skip"}]', "{}", "[7]", '[{"issue_id": "x", "action": "skip", "y": 1}]']
)
def test_what_has_no_resolutions_is_refused(text: str) -> None:
    with pytest.raises(click.UsageError, match="no list of resolutions"):
        resolutions_in(text)


def test_without_a_terminal_nothing_is_asked(pattern: Pattern, archive: Path) -> None:
    refused = pattern("import", "--from", str(archive), "--interactive", stdin="skip\n")
    assert (refused.code, "no terminal" in refused.err) == (2, True)


def asked(monkeypatch: pytest.MonkeyPatch, archive: Path, *lines: str) -> list[dict[str, Any]] | None:
    """The answers to the questions about an archive if a person types these lines."""
    monkeypatch.setattr(sys, "stdin", Terminal("".join(f"{line}\n" for line in lines)))
    return decide(Output(), archive, archive.with_name("kept.json"))


def test_answers_are_read_and_kept(
    archive: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = archive.with_name("kept.json")
    assert asked(monkeypatch, archive, "?", "dance", "keep", "q") is None
    shown = capsys.readouterr().err
    assert "Issue 1 of 7: DuplicateLabel, warning" in shown and "the same command continues" in shown
    assert "Those of one agent may be versions" in shown and "  keep_both: all stay;" in shown
    assert "none of the actions: dance" in shown and "Answered before" not in shown
    assert [one["action"] for one in json.loads(kept.read_text())["resolutions"]] == ["keep_both"]
    assert asked(monkeypatch, archive, "assign_to Nobody", "Ada", "skip", "assign_to", "") is None
    shown = capsys.readouterr().err
    assert f"Answered before, in {kept}: 1 of 7." in shown and "There is no Nobody." in shown
    assert "Agent (Ada, Ben): " in shown and answers(kept)["CrossContamination"]["target_agent"] == "Ada"
    found = asked(monkeypatch, archive, "assign_to Ben", "manual_edit", "", "manual_edit", "Half a cup.", "del", "")
    assert found is not None and len(found) == 7
    assert answers(kept)["OrphanedMemory"]["target_agent"] == "Ben"
    assert answers(kept)["CorruptContent"]["new_content"] == "Half a cup."
    assert answers(kept)["OrphanedMessage"] == {
        "issue_id": answers(kept)["OrphanedMessage"]["issue_id"],
        "action": "delete",
    }
    assert asked(monkeypatch, archive) == found, "nothing is left to ask"


def test_of_memories_with_one_label_one_is_chosen(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = archive.with_name("kept.json")
    for typed, target in (
        (("merge", "m_other", "m_again"), "m_again"),
        (("merge", ""), "m_notes"),
        (("delete", ""), "m_again"),
        (("delete", "m_notes"), "m_notes"),
    ):
        asked(monkeypatch, archive, *typed)
        assert answers(kept)["DuplicateLabel"]["target"] == target
        kept.unlink()
    assert asked(monkeypatch, archive, "merge") is None, "the input ended"
    assert not kept.exists()


@pytest.mark.slow
async def test_the_review_is_asked_stopped_and_continued(archive: Path, tmp_path: Path) -> None:
    line = ("import", "--from", str(archive), "--interactive", "--as", "house", "--data-dir", str(tmp_path / "data"))
    kept = archive.with_name("sick.car.resolutions.json")
    async with terminal(*line, columns=200) as screen:
        await screen.until("Issue 1 of 7: DuplicateLabel, warning")
        await screen.until("[keep_both] (? explains, q stops):")
        await screen.type("?\r")
        await screen.until("Those of one agent may be versions of the same text.")
        await screen.type("merge\r")
        await screen.until("Which memory (m_notes, m_again) [m_notes]:")
        await screen.type("m_other\r")
        await screen.until("There is no m_other.")
        await screen.type("m_again\r")
        await screen.until("Issue 2 of 7: CrossContamination, critical")
        assert answers(kept)["DuplicateLabel"]["target"] == "m_again"
        await screen.type("dance\r")
        await screen.until("none of the actions: dance")
        await screen.type("\r")  # the suggestion
        await screen.until("Issue 3 of 7: SuspiciousAttribution")
        await screen.type("q\r")
        await screen.until("the same command continues")
        assert await screen.ended() == 3
    assert answers(kept)["CrossContamination"]["target_agent"] == "Ben"
    async with terminal(*line, columns=200) as screen:
        await screen.until("Answered before")
        await screen.until("Issue 1 of 5: SuspiciousAttribution")
        await screen.type(CTRL_D)
        await screen.until("Stopped")
        assert await screen.ended() == 3
    async with terminal(*line, columns=200) as screen:
        await screen.until("Issue 1 of 5: SuspiciousAttribution")
        await screen.type("\r")  # skip
        await screen.until("Issue 2 of 5: OrphanedMemory")
        await screen.type("assign_to Nobody\r")
        await screen.until("There is no Nobody.")
        await screen.type("Ada\r")
        await screen.until("Issue 3 of 5: CorruptContent")
        await screen.type("man\r")
        await screen.until("Its text:")
        await screen.type("\r")  # nothing is asked again
        await screen.until(lambda text: text.count("manual_edit, delete, skip [") == 2)
        await screen.type("manual_edit Half a cup.\r")
        await screen.until("Issue 4 of 5: OrphanedMessage")
        await screen.type("delete\r")
        await screen.until("Issue 5 of 5: TimestampAnomaly")
        await screen.type("\r")
        await screen.until("Imported ")
        assert await screen.ended() == 0
    assert {kind: one["action"] for kind, one in answers(kept).items()} == {
        "DuplicateLabel": "merge_with", "CrossContamination": "assign_to", "SuspiciousAttribution": "skip",
        "OrphanedMemory": "assign_to", "CorruptContent": "manual_edit", "OrphanedMessage": "delete",
        "TimestampAnomaly": "skip",
    }  # fmt: skip
    assert answers(kept)["CorruptContent"]["new_content"] == "Half a cup."
