"""The shell of a constellation: what agents may run, for how long, and that nothing is left."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from pattern_core.errors import InvalidInput, NotFound, Overloaded, PermissionDenied, Unavailable
from pattern_core.ids import Ids, seeded_randomness
from pattern_core.shell.child import CommandOutput, Ended, run_child
from pattern_core.shell.policy import ShellSettings
from pattern_core.shell.shell import Shell, note_of, working_directory
from pattern_core.testing import StoppedClock
from tests.pattern_core.shell.conftest import gone, living, needs_files

ADA, BOB = "agt_ada", "agt_bob"


def made(settings: ShellSettings) -> Shell:
    clock = StoppedClock()
    return Shell(settings=settings, clock=clock, ids=Ids(clock, seeded_randomness(1)))


@asynccontextmanager
async def running(settings: ShellSettings) -> AsyncIterator[Shell]:
    """A shell that runs for the length of the block."""
    shell = made(settings)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            await nursery.start(shell.run)
            yield shell
            nursery.cancel_scope.cancel()


async def test_what_is_refused_never_starts(settings: ShellSettings) -> None:
    async with running(replace(settings, deny=["git push"])) as shell:
        for command, error in (
            ("true; git push", PermissionDenied),
            ("curl example.com", PermissionDenied),
            ("ls\0", PermissionDenied),
            (" ", InvalidInput),
        ):
            with pytest.raises(error):
                await shell.execute(command, agent_id=ADA)
        with pytest.raises(InvalidInput, match="600"):
            await shell.execute("ls", agent_id=ADA, timeout_s=601)
        with pytest.raises(NotFound):
            await shell.execute("ls", agent_id=ADA, directory="nowhere")
        assert shell.running == 0
    shell = made(ShellSettings())
    with pytest.raises(PermissionDenied, match=r"\[shell\]"):
        await shell.execute("ls", agent_id=ADA)


async def test_tasks_belong_to_the_agent_that_began_them(settings: ShellSettings) -> None:
    async with running(settings) as shell:
        task = await shell.spawn("sleep 86472.25", agent_id=ADA)
        assert shell.status(agent_id=BOB) == []
        with pytest.raises(NotFound):
            shell.find(task.id, agent_id=BOB)
        await task.end()
        assert not task.is_running
        assert not living("86472.25")


async def test_there_are_only_so_many(settings: ShellSettings) -> None:
    async with running(replace(settings, children_max=2)) as shell:
        tasks = [await shell.spawn("sleep 86473.25", agent_id=ADA) for _ in range(2)]
        with pytest.raises(Overloaded, match="2 commands run already"):
            await shell.spawn("sleep 1", agent_id=BOB)
        await tasks[0].end()
        assert (await shell.execute("echo a", agent_id=BOB)).output.text() == "a\n"


async def test_who_is_cancelled_leaves_at_once_and_the_command_ends(settings: ShellSettings) -> None:
    mark = "86474.25"
    async with running(replace(settings, grace_s=0.5)) as shell:
        with trio.move_on_after(60) as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: shell.execute(f"trap '' TERM; sleep {mark}", agent_id=ADA))
                while not living(f"sleep\0{mark}"):
                    await trio.sleep(0.01)
                scope.cancel()
        assert shell.running == 1  # the owner is still at it
        await gone(mark)
        while shell.running:
            await trio.sleep(0.01)


async def test_nothing_survives_the_shell(settings: ShellSettings) -> None:
    mark = "86475.25"
    async with running(settings) as shell:
        await shell.spawn(f"trap '' TERM; (setsid sleep {mark} &); sleep {mark}", agent_id=ADA)
        while not living(f"sleep\0{mark}"):
            await trio.sleep(0.01)
    assert not living(mark)
    with pytest.raises(Unavailable):
        await shell.spawn("sleep 1", agent_id=ADA)


async def test_a_task_that_is_not_looked_at_is_ended(settings: ShellSettings) -> None:
    async with running(replace(settings, idle_s=0.0)) as shell:
        task = await shell.spawn("sleep 86476.25", agent_id=ADA)
        while not living("sleep\0" + "86476.25"):
            await trio.sleep(0.01)
        shell._reap()
        await gone("86476.25")
        await task.over.wait()
        assert task.note == "It was ended."


async def test_a_system_that_starts_nothing_harms_one_command_only(
    settings: ShellSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(settings) as shell:
        with monkeypatch.context() as without:
            without.setattr(sys, "executable", "/nowhere/python")
            ended = await shell.execute("ls", agent_id=ADA)
        assert ended.exit_code is None
        assert "the system refuses another process" in ended.note
        assert (await shell.execute("echo a", agent_id=ADA)).output.text() == "a\n"


async def test_notes_say_what_is_missing(settings: ShellSettings) -> None:
    async with running(replace(settings, means=(), require_sandbox=True)) as shell:
        ended = await shell.execute("ls", agent_id=ADA)
        assert ended.exit_code is None
        assert "cannot confine files and network" in ended.note
        assert "require_sandbox = false" in ended.note
    async with running(replace(settings, means=(), require_sandbox=False)) as shell:
        ended = await shell.execute("ls", agent_id=ADA)
        assert (ended.exit_code, ended.note) == (0, "It ran without a sandbox: this system has none.")


def where(root: Path, directory: str | None) -> Path:
    return working_directory(ShellSettings(roots=[root, root.parent / "also"]), directory)


def test_commands_start_below_a_root(root: Path) -> None:
    (root / "a" / "b").mkdir(parents=True)
    (root.parent / "also").mkdir()
    (root.parent / "alias").symlink_to(root)
    (root / "link").symlink_to("a/b")
    assert where(root, None) == root
    assert where(root, "a/b") == where(root, "link") == where(root, "a/../a/b") == root / "a" / "b"
    assert where(root, str(root / "a")) == root / "a"
    assert where(root, str(root.parent / "also")) == root.parent / "also"
    assert where(root.parent / "alias", str(root.parent / "alias" / "a")) == root / "a"


def test_no_name_leads_out_of_the_roots(root: Path) -> None:
    (root / "a").mkdir()
    (root.parent / "also").mkdir()
    (root / "file").touch()
    (root / "link").symlink_to(root.parent / "secret")
    (root / "a" / "up").symlink_to("../..")
    (root / "round").symlink_to("round")
    for directory, error in (
        ("nowhere", NotFound),
        ("file", NotFound),
        ("round", NotFound),
        ("no\0where", InvalidInput),
        ("link", PermissionDenied),
        ("a/up", PermissionDenied),
        ("a/up/gone", PermissionDenied),
        ("..", PermissionDenied),
        ("a/../..", PermissionDenied),
        ("/", PermissionDenied),
        (str(root.parent / "secret"), PermissionDenied),
        (str(root) + "x", PermissionDenied),
    ):
        with pytest.raises(error):
            where(root, directory)
    with pytest.raises(PermissionDenied, match="roots = "):
        working_directory(ShellSettings(), None)
    with pytest.raises(InvalidInput, match="server's own data"):
        working_directory(ShellSettings(roots=[root], kept_out=[root / "a"]), None)


@needs_files
async def test_a_directory_that_becomes_a_link_leads_nowhere(settings: ShellSettings, root: Path) -> None:
    (root / "src").symlink_to(root.parent / "secret")
    output = CommandOutput()
    await run_child("cat key; ls", root / "src", settings, output, trio.Event())
    assert "hunter2" not in output.text()
    assert output.text().count("Permission denied") == 2


def test_a_note_says_how_a_command_ended_otherwise_than_by_itself() -> None:
    settings = ShellSettings(processes_max=7)
    ended = Ended(code=0, stopped=None, confined=("files", "network", "processes"), refused=None)
    assert note_of(ended, settings) == ""
    assert "more than 7 processes" in note_of(replace(ended, stopped="processes"), settings)
    assert "not known how it ended" in note_of(replace(ended, code=None), settings)
    assert "without a sandbox" in note_of(replace(ended, confined=()), settings)
    refused = note_of(replace(ended, code=None, refused="nothing can confine it"), settings)
    assert refused.startswith("The command did not run") and "require_sandbox" in refused
