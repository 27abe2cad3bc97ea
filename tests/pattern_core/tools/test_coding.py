"""The eight tools of seed 004: its results, within the shell's roots, with the shell's questions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from pattern_core.errors import InvalidInput, NotFound, PatternError, PermissionDenied, Unavailable
from pattern_core.files.disk import UnreadableFile
from pattern_core.shell.policy import ShellSettings
from pattern_core.shell.shell import Shell
from pattern_core.tools.builtin import coding
from pattern_core.tools.registry import ToolRegistry
from pattern_core.tools.tool import Tool, ToolSettings
from pattern_db.tables import sessions
from pattern_db.tables.sessions import SessionRow
from tests.pattern_core.tools.rig import ToolRig


@pytest.fixture
async def able(tools: ToolRig, tmp_path: Path) -> AsyncIterator[ToolRig]:
    """Ada's tools in a session whose directory is `work/app`, with the root `work`."""
    place = tmp_path / "work" / "app"
    place.mkdir(parents=True)
    (tmp_path / "secret.txt").write_text("hunter2")
    settings = ShellSettings(roots=[tmp_path / "work"], require_sandbox=False, grace_s=0.1, deny=["edit_file locked"])
    tools.shell = Shell(settings=settings, clock=tools.rig.clock, ids=tools.ids)
    now = tools.rig.storage.now()
    session = SessionRow(id="ses_1", created_at=now, updated_at=now, working_dir=str(place))
    await tools.rig.database.write(sessions.create, tools.agent_id, session)
    tools.session_id = "ses_1"
    async with trio.open_nursery() as nursery:
        await nursery.start(tools.shell.run)
        yield tools
        nursery.cancel_scope.cancel()


async def test_files_are_written_read_edited_and_listed(able: ToolRig, tmp_path: Path) -> None:
    text = "a = 1\nb = 1\n"
    assert await able.call(coding.write_file, path="src/a.py", content=text) == {"path": "src/a.py", "status": "ok"}
    assert (tmp_path / "work" / "app" / "src" / "a.py").read_text() == text
    assert await able.call(coding.read_file, path="src/a.py") == {"path": "src/a.py", "content": text}
    edits = [{"old_text": "1", "new_text": "2"}, {"old_text": "a =", "new_text": "c ="}]
    assert await able.call(coding.edit_file, path="src/a.py", edits=edits) == {
        "path": "src/a.py",
        "oldContent": text,
        "newContent": "c = 2\nb = 2\n",
        "editsApplied": 2,
        "totalReplacements": 3,
        "editDetails": [
            {"applied": True, "replacements": 2, "warning": "2 occurrences were replaced"},
            {"applied": True, "replacements": 1},
        ],
        "success": True,
    }
    (tmp_path / "work" / "app" / "link").symlink_to("src")
    assert await able.call(coding.list_dir, path=".") == [
        {"name": "link", "type": "file"},
        {"name": "src", "type": "dir"},
    ]
    whole = str(tmp_path / "work" / "app" / "src")
    assert await able.call(coding.list_dir, path=whole) == [{"name": "a.py", "type": "file"}]
    assert await able.call(coding.list_dir, path="..") == [{"name": "app", "type": "dir"}]


async def test_an_edit_that_does_not_fit_changes_nothing(able: ToolRig) -> None:
    await able.call(coding.write_file, path="a.py", content="one two")
    long = "three" * 20
    for old, words in ((long, f'"{long[:50]}..."'), ("", 'replace: "..."')):
        with pytest.raises(InvalidInput, match="Failed to find text to replace: ") as raised:
            edits = [{"old_text": "one", "new_text": "1"}, {"old_text": old, "new_text": "3"}]
            await able.call(coding.edit_file, path="a.py", edits=edits)
        assert words in raised.value.message and "(including whitespace)" in raised.value.message
    assert (await able.call(coding.read_file, path="a.py"))["content"] == "one two"


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("../../secret.txt", PermissionDenied),
        ("/etc/passwd", PermissionDenied),
        ("out/secret.txt", NotFound),
        ("none.txt", NotFound),
        ("bytes", UnreadableFile),
        (".", InvalidInput),
        ("a\0b", InvalidInput),
    ],
)
async def test_nothing_outside_of_the_roots_is_read_or_written(
    able: ToolRig, tmp_path: Path, path: str, error: type[PatternError]
) -> None:
    (tmp_path / "work" / "app" / "out").symlink_to(tmp_path)
    (tmp_path / "work" / "app" / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(error):
        await able.call(coding.read_file, path=path)
    if path not in ("none.txt", "bytes"):
        with pytest.raises(PatternError):
            await able.call(coding.write_file, path=path, content="x")
        with pytest.raises(PatternError):
            await able.call(coding.list_dir, path=f"{path}/..x")
    assert (tmp_path / "secret.txt").read_text() == "hunter2"


async def test_commands_answer_as_the_original_does(able: ToolRig, monkeypatch: pytest.MonkeyPatch) -> None:
    found = await able.call(coding.run_shell, command="pwd; echo no >&2; exit 3")
    assert found["stdout"].endswith("/work/app\nno\n")
    assert (found["command"], found["cwd"], found["exitCode"]) == ("pwd; echo no >&2; exit 3", ".", 3)
    await able.call(coding.write_file, path="src/a.py", content="")
    below = await able.call(coding.run_shell, command="pwd", cwd="src")
    assert (below["stdout"].endswith("/work/app/src\n"), below["cwd"]) == (True, "src")
    monkeypatch.setattr(coding, "RUN_S", 0.2)
    late = await able.call(coding.run_shell, command="sleep 7", cwd="")
    assert (late["exitCode"], late["stderr"]) == (1, "its 0.2 seconds were up")


async def test_git_shows_diff_status_and_log(able: ToolRig, tmp_path: Path) -> None:
    place = tmp_path / "work" / "app"
    with pytest.raises(PatternError, match="Git status failed: "):
        await able.call(coding.git_status)
    commands = ["init -q -b main", "add a.txt", "-c user.name=a -c user.email=a@example.org commit -qm First"]
    (place / "a.txt").write_text("one\n")
    for one in commands:
        await trio.run_process(["git", "-C", str(place), *one.split()])
    clean = await able.call(coding.git_diff)
    assert (clean["diff"], clean["hasChanges"], clean["command"]) == ("", False, "git diff --")
    (place / "a.txt").write_text("two\n")
    changed = await able.call(coding.git_diff, path="a.txt", ref="main")
    assert "+two" in changed["diff"] and changed["hasChanges"] is True
    assert (changed["command"], changed["cwd"]) == ("git diff main -- a.txt", str(place))
    assert (await able.call(coding.git_diff, staged=True))["hasChanges"] is False
    assert (await able.call(coding.git_status, short=True))["status"].startswith(" M a.txt")
    assert (await able.call(coding.git_log))["log"].endswith(" First\n")
    assert "Author: a" in (await able.call(coding.git_log, oneline=False, count=10**9))["log"]
    for ref in ("--output=stolen", "-p"):
        with pytest.raises(InvalidInput, match="is an option"):
            await able.call(coding.git_diff, ref=ref)
    with pytest.raises(PatternError, match="Git diff failed: "):
        await able.call(coding.git_diff, ref="nowhere; touch stolen")
    assert not (place / "stolen").exists()


SETTINGS = ShellSettings(allow=["git diff", "write_file"], deny=["edit_file locked"])


@pytest.mark.parametrize(
    ("name", "arguments", "asked", "asked_by_default"),
    [
        ("read_file", {"path": "a"}, False, False),
        ("list_dir", {"path": "."}, False, False),
        ("write_file", {"path": "a", "content": ""}, False, True),
        ("write_file", {"path": "a b; c$d", "content": ""}, False, True),
        ("edit_file", {"path": "a", "edits": []}, True, True),
        ("run_shell", {"command": "ls"}, False, False),
        ("run_shell", {"command": "rm -rf src"}, True, True),
        ("git_diff", {"ref": "main", "staged": True}, False, True),
        ("git_diff", {"ref": "$(rm x)"}, False, True),
        ("git_status", {}, True, True),
        ("git_log", {"count": 3}, True, True),
    ],
)
def test_who_is_asked(name: str, arguments: dict[str, Any], asked: bool, asked_by_default: bool) -> None:
    [made] = [one for one in coding.CODING if one.name == name]
    configured = ToolRegistry([made], ToolSettings(shell=SETTINGS)).get(name, [name])

    def is_asked(one: Tool) -> bool:
        return one.consent is not None and one.consent(arguments) is not None

    assert (is_asked(configured), is_asked(made)) == (asked, asked_by_default)


async def test_what_the_operator_refuses_is_not_done(able: ToolRig, tools: ToolRig) -> None:
    await able.call(coding.write_file, path="locked", content="x")
    with pytest.raises(PermissionDenied, match="edit_file locked"):
        await able.call(coding.edit_file, path="locked", edits=[{"old_text": "x", "new_text": "y"}])
    with pytest.raises(InvalidInput, match="at most 200000 characters"):
        await able.call(coding.write_file, path="long", content="x" * 200_001)
    tools.shell = None
    with pytest.raises(Unavailable, match="this server runs no commands"):
        await tools.call(coding.read_file, path="a")
