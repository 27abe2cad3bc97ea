"""What `pattern import` shows of an archive without importing it: its content, issues and names in use; and the
questions about issues, in the terminal.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import trio

from pattern_core.ids import SystemClock, now_text, system_randomness
from pattern_core.legacy.review import Issue, Resolution, issues_of
from pattern_core.memory.document import new_peer
from pattern_core.portable import verify
from pattern_db import files
from pattern_server.cli.client import Json
from pattern_server.cli.command import ExitCode, json_of
from pattern_server.cli.output import DONE, SKIPPED, Output
from pattern_server.config import Config

ROW_COLUMNS = ("table", "rows")
ISSUE_COLUMNS = ("severity", "issue", "decision", "suggested?", "evidence*")
DECISION_COLUMNS = ("kind", "name", "decision*")
FIELDS = [field.name for field in fields(Resolution)]  # of a resolution
STOP, EXPLAIN = "q", "?"
DOUBLE = "DuplicateLabel"
KINDS: Mapping[str, str] = {
    DOUBLE: "Several memories have one label. Those of one agent may be versions of the same text.",
    "CrossContamination": "The persona of an agent names another one and not itself: it may be the other one's.",
    "SuspiciousAttribution": "The persona of an agent says `I am` and names another agent, too.",
    "OrphanedMemory": "The memory is of an agent that is not in the archive. Without a decision it is left out.",
    "OrphanedMessage": "The messages are of an agent that is not in the archive. Without a decision they are left out.",
    "CorruptContent": "The text is missing, or has characters that were lost.",
    "TimestampAnomaly": "Times are missing, in the future or in the wrong order. The order of messages stays.",
}
ACTIONS: Mapping[str, str] = {
    "assign_to": "it is that agent's from now on",
    "delete": "it is not imported; of several with one label, all but the first or the one that you name",
    "merge_with": "one of them gets the texts of the others; their agents share it",
    "split": "its text becomes several memories",
    "keep_both": "all stay; one of two that an agent has gets another label",
    "manual_edit": "you write its text",
    "skip": "it is imported as it is",
}


def analyze(_config: Config, output: Output, file: Path, resolutions: str | None) -> ExitCode:
    """Read and check the whole archive on this machine, and show what a new constellation of it would be."""
    server = import_module("pattern_server.portable")  # late: other commands on archives need nothing of a server
    given = [Resolution(**one) for one in resolutions_in(resolutions)] if resolutions is not None else []

    async def prepare() -> Json:
        peer, now = new_peer(system_randomness()), now_text(SystemClock())
        with tempfile.TemporaryDirectory(prefix="pattern-analyze-") as folder:
            path = Path(folder) / "pattern.db"
            asked = server.ImportSpec(file=file, resolutions=given)
            manifest, row = await server.prepared(asked, path, audit_id="", now=now, peer=peer)
        return {**asdict(manifest), "report": asdict(row)}

    return show_analysis(output, file, trio.run(prepare))


def resolutions_in(text: str) -> list[Json]:
    """Return the resolutions in a value of `--resolutions`: JSON, or the name of a file that has them alone or below a
    key.

    Raises:
        click.UsageError: it has none.
    """
    given = json_of("--resolutions", text)
    found = given.get("resolutions") if isinstance(given, dict) else given
    if not isinstance(found, list) or not all(map(_is_resolution, found)):
        raise click.UsageError(
            f"--resolutions has no list of resolutions. Each has {', '.join(FIELDS)}; the first two are needed, and an"
            f" action is one of {', '.join(ACTIONS)}."
        )
    return found


def _is_resolution(one: object) -> bool:
    if not isinstance(one, dict) or not {"issue_id", "action"} <= one.keys() <= set(FIELDS):
        return False
    return one["action"] in ACTIONS


def show_analysis(output: Output, file: Path, found: Json) -> ExitCode:
    """Show what was found in an archive; return the exit code: whether an issue needs a decision."""
    report = found["report"] or {"audit_log": {"decisions": []}, "issues_found": 0, "issues_resolved": 0}
    decisions = report["audit_log"]["decisions"]
    issues = [one for one in decisions if "severity" in one]
    others = [one for one in decisions if "severity" not in one]
    left = report["issues_found"] - report["issues_resolved"]
    if output.is_json:
        content = {name: value for name, value in found.items() if name != "report"}
        output.data({"file": str(file), **content, "issues": issues, "decisions": others, "undecided": left})
        return SKIPPED if left else DONE
    output.say(f"{file} is sound: {found['kind']} {found['name']}, as of {found['exported_at']}.")
    output.table(
        ROW_COLUMNS, [{"table": table, "rows": count} for table, count in found["rows"].items()], empty="No rows."
    )
    if issues:
        output.say()
        output.table(
            ISSUE_COLUMNS, [{**one, "issue": one["name"], "suggested": _suggested(one)} for one in issues], empty=""
        )
    if others:
        output.say()
        shown = [{**one, "decision": f"{one['decision']} {one.get('to', '')}".strip()} for one in others]
        output.table(DECISION_COLUMNS, shown, empty="")
    output.say()
    output.say(f"Issues: {len(issues)}, without a decision: {left}. Nothing was imported.")
    if left:
        output.note("To decide: --interactive, or --resolutions FILE")
    return SKIPPED if left else DONE


def _suggested(issue: Mapping[str, Any]) -> str:
    action = issue["actions"][0]
    return f"{action} {issue['agent']}" if action == "assign_to" and issue["agent"] else str(action)


def decide(output: Output, file: Path, kept: Path) -> list[Json] | None:
    """Ask about each issue of an archive that the file `kept` has no answer to, and add the answers to it; return all
    answers, or None if the person stopped.

    Raises:
        click.UsageError: there is no terminal to ask at.
        ArchiveInvalid: the archive is damaged.
    """
    if not sys.stdin.isatty():
        raise click.UsageError("There is no terminal to ask at: use --resolutions FILE.")
    _, old = verify(file)
    issues = [] if old is None else issues_of(old, now_text(SystemClock()))
    answers = resolutions_in(str(kept)) if kept.exists() else []
    known = {one["issue_id"] for one in answers}
    asked = [one for one in issues if one.id not in known]
    if known:
        output.note(f"Answered before, in {kept}: {len(issues) - len(asked)} of {len(issues)}.")
    names = [str(agent["name"]) for agent in old.agents] if old is not None else []
    for number, issue in enumerate(asked, start=1):
        output.note(f"\nIssue {number} of {len(asked)}: {issue.type}, {issue.severity}")
        output.note(f"  {issue.evidence}")
        answer = _answer(output, issue, names)
        if answer is None:
            output.note(f"Stopped; nothing was imported. The answers are in {kept}; the same command continues.")
            return None
        answers.append({name: value for name, value in asdict(answer).items() if value})
        with files.written(kept) as new:
            new.write_text(json.dumps({"resolutions": answers}, ensure_ascii=False, indent=1), encoding="utf-8")
    return answers


def _answer(output: Output, issue: Issue, names: Sequence[str]) -> Resolution | None:
    """Return what the person decides about an issue; None to stop."""
    suggested = _suggested(asdict(issue))
    while (
        line := output.ask(f"{', '.join(issue.actions)} [{suggested}] ({EXPLAIN} explains, {STOP} stops): ")
    ) is not None:
        word, _, rest = (line.strip() or suggested).partition(" ")
        if word == STOP:
            return None
        if word == EXPLAIN:
            output.note(f"  {KINDS[issue.type]}")
            for action in issue.actions:
                output.note(f"  {action}: {ACTIONS[action]}.")
            continue
        meant = [action for action in issue.actions if action.startswith(word)]
        if len(meant) != 1:
            output.note(f"  That is none of the actions: {word}")
            continue
        answer = Resolution(issue_id=issue.id, action=meant[0])
        if answer.action == "manual_edit":
            if (text := rest or output.ask("Its text: ")) == "":
                continue
            return None if text is None else replace(answer, new_content=text)
        if answer.action == "assign_to":
            agent = _one_of(output, "Agent", names, rest or None, issue.agent)
            if agent is None:
                return None
            answer = replace(answer, target_agent=agent)
        if issue.type == DOUBLE and answer.action in ("assign_to", "delete", "merge_with"):
            first = issue.affected[0] if answer.action == "merge_with" else issue.affected[-1]
            target = _one_of(output, "Which memory", issue.affected, None, first)
            return None if target is None else replace(answer, target=target)
        return answer
    return None


def _one_of(output: Output, what: str, choices: Sequence[str], given: str | None, usual: str | None) -> str | None:
    """Return the choice that a person makes; None at the end of the input."""
    while given not in choices:
        if given:
            output.note(f"  There is no {given}.")
        given = output.ask(f"{what} ({', '.join(choices)}){f' [{usual}]' if usual else ''}: ")
        if given is None:
            return None
        given = given.strip() or usual
    return given
