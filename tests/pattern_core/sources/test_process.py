"""A command's lines: each an event of its run, no faster than they are stored, from a command that nothing outlives."""

from __future__ import annotations

import re
import sys
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from pattern_core.errors import Conflict, InvalidInput, NotFound, Overloaded, PermissionDenied, Unavailable
from pattern_core.ids import SystemClock
from pattern_core.shell.policy import ShellSettings
from pattern_core.sources import source
from pattern_core.sources.kinds.process import LINE_BYTES_MAX, TOGETHER_MAX, ProcessSource, patiently
from pattern_core.sources.source import Arrivals, SourceAccount, SourceEvent
from pattern_core.testing import StoppedClock, says
from pattern_core.web.policy import SourceSettings
from pattern_db.connection import open_connection
from pattern_db.tables.sources import SourceRow
from tests.pattern_core.shell.conftest import CONFINED, gone, living, needs_files
from tests.sources import ROOT
from tests.support import START, running, until

KIND = ProcessSource()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def permitting(root: Path, *allow: str, **more: Any) -> SourceSettings:
    """Settings by which these commands run."""
    is_safe = {"files", "network"} <= set(CONFINED)
    shell = ShellSettings(roots=[root], grace_s=0.1, require_sandbox=is_safe, allow=allow, **more)
    return SourceSettings(shell=shell)


class Listening:
    """An account, and what of it was stored; `refuses` says what stops each of the next batches."""

    def __init__(self, command: str, reach: SourceSettings, **config: Any) -> None:
        checked = KIND.checked({"command": command, **config}, reach)
        self.clock = StoppedClock()
        self.account = SourceAccount(
            row=SourceRow("src_1", "it", "process", checked, START, START), settings=reach, clock=self.clock
        )
        self.events: list[SourceEvent] = []
        self.batches: list[int] = []
        self.refuses: list[Exception] = []

    async def receive(self, arrived: Arrivals) -> None:
        self.batches.append(len(arrived.events))
        if self.refuses:
            raise self.refuses.pop(0)
        self.events += [one.bounded for one in arrived.events]

    async def once(self) -> float:
        with trio.fail_after(60):
            return await self.account.call(KIND.listen, self.receive)

    @property
    def texts(self) -> list[str]:
        return [one.text for one in self.events]


async def test_each_line_is_an_event_of_its_run(root: Path) -> None:
    (root / "log").write_bytes(b"one\r\n\n\x1b[31mtwo\x1b[0m \xff\n" + b"x" * 9_000 + b"\nlast")
    it = Listening("cat log", permitting(root), every_s=7)
    assert await it.once() == 7.0
    assert it.texts[:2] == ["one", "two �"]
    assert it.texts[2] == "x" * LINE_BYTES_MAX + " [the rest of the line was left out]"
    assert it.texts[3:] == ["last"]
    natives = [one.native for one in it.events]
    assert [one.partition(":")[2] for one in natives] == ["1", "3", "4", "5"]
    it.clock.advance(1)
    await it.once()
    assert len({one.native for one in it.events}) == 8  # the same lines, of another run


async def test_a_line_without_an_end_takes_no_memory_and_is_cut(root: Path) -> None:
    it = Listening("head -c 30000000 /dev/zero | tr '\\0' x", permitting(root))
    await it.once()
    assert [len(one) < LINE_BYTES_MAX + 50 for one in it.texts] == [True]


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("rm -rf /", "asks no one"),
        ("./mine --now", "asks no one"),
        ("cat log > other", "asks no one"),
        ("curl https://example.org", "no network"),
        ("git push --force", "does not run `git push`"),
    ],
)
def test_what_the_operator_did_not_permit_does_not_run(command: str, why: str, root: Path) -> None:
    with pytest.raises(PermissionDenied, match=why):
        Listening(command, permitting(root, "git", deny=["git push"]))
    with pytest.raises(PermissionDenied, match=r"below \[shell\]"):
        Listening("cat log", SourceSettings())


async def test_it_is_permitted_again_at_each_run_and_only_within_the_roots(root: Path) -> None:
    it = Listening("./mine", permitting(root, "./mine"))
    it.account = replace(it.account, settings=permitting(root))
    with pytest.raises(PermissionDenied, match="asks no one"):
        await it.once()
    for wrong, error in (
        ({"directory": "/"}, PermissionDenied),
        ({"directory": "gone"}, NotFound),
        ({"every_s": 0}, InvalidInput),
    ):
        with pytest.raises(error):
            Listening("ls", permitting(root), **wrong)
    (root / "inner").mkdir()
    it = Listening("pwd", permitting(root), directory="inner")
    await it.once()
    assert it.texts == [str(root / "inner")]


@needs_files
async def test_it_reads_nothing_that_commands_may_not_read(root: Path) -> None:
    (root.parent / "key").write_text("hunter2")
    it = Listening(f"cat {root.parent}/key", permitting(root))
    with pytest.raises(Unavailable, match="exit code 1"):
        await it.once()
    assert "hunter2" not in str(it.texts) and "Permission denied" in str(it.texts)


async def test_a_command_that_fails_is_an_error_with_its_code(root: Path) -> None:
    it = Listening("ls nothing-like-this", permitting(root))
    with pytest.raises(Unavailable, match="ended with the exit code 2"):
        await it.once()
    assert "nothing-like-this" in it.texts[0]
    it = Listening("ls", permitting(root, path="/nowhere", processes_max=4))
    with pytest.raises(Unavailable, match="exit code 127"):
        await it.once()


async def test_who_prints_more_than_is_stored_waits(root: Path) -> None:
    it = Listening("seq 1000000", permitting(root))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(it.once)
        await until(lambda: len(it.events) >= 3 * TOGETHER_MAX)
        nursery.cancel_scope.cancel()
    assert max(it.batches) == TOGETHER_MAX
    assert it.texts == [str(number + 1) for number in range(len(it.texts))]  # none is left out
    assert len(it.texts) < 20 * TOGETHER_MAX


async def test_lines_wait_while_too_many_events_do_and_none_is_lost(root: Path) -> None:
    it = Listening("seq 3", permitting(root))
    it.refuses = [Overloaded("too many wait", retry_after_s=0.01)] * 5
    await it.once()
    assert it.texts == ["1", "2", "3"]
    with pytest.raises(Conflict):
        it.refuses = [Conflict("paused")]
        await patiently(it.receive, Arrivals())


async def test_a_batch_that_cannot_be_stored_ends_the_command(root: Path) -> None:
    it = Listening("tail -f /dev/null --retry 4711.25 log", permitting(root, "tail"))
    (root / "log").write_text("one\n")
    it.refuses = [Conflict("the source is paused")]
    with pytest.raises(Conflict, match="paused"):
        await it.once()
    await gone("4711.25")


async def test_nothing_is_left_of_a_command_that_is_stopped(root: Path) -> None:
    (root / "mine").write_text("#!/bin/bash\nsetsid sleep 4711.5 & echo begun\nwait\n")
    (root / "mine").chmod(0o755)
    it = Listening("./mine", permitting(root, "./mine", children_max=1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(it.once)
        await until(lambda: it.texts == ["begun"])
        await until(lambda: living("4711.5"))  # it may not have begun
        with pytest.raises(Overloaded, match="children_max"):
            await Listening("pwd", it.account.settings).once()
        nursery.cancel_scope.cancel()
    await gone("4711.5")
    await Listening("pwd", it.account.settings).once()


async def test_a_question_ends_after_some_seconds(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "log").write_text("one\n")
    monkeypatch.setattr(source, "TRIED_S", 2.0)
    arrived = await KIND.poll(Listening("tail -f log", permitting(root)).account)
    assert [one.text for one in arrived.events] == ["one"]
    arrived = await KIND.poll(Listening("cat log", permitting(root)).account)
    assert [one.text for one in arrived.events] == ["one"]


LINES = 100


async def live(path: Path, root: Path) -> None:
    """Serve until killed: a constellation whose agent gets a command's lines."""
    is_new = not path.exists()
    async with running(
        path=path, sources=permitting(root, "./mine"), clock=SystemClock(), otherwise=says("Seen.")
    ) as world:
        sources = world.constellation.sources
        if is_new:
            await world.agent()
            await sources.create(name="lines", kind="process", config={"command": "./mine"}, agent="ada")

        async def receive(arrived: Arrivals) -> None:
            await sources.receive(account.row.id, arrived)

        kind, account = await sources.account("lines")
        await account.call(kind.listen, receive)


@pytest.mark.slow
async def test_a_hundred_lines_through_kills_come_once_and_in_order_and_no_command_survives(
    root: Path, tmp_path: Path
) -> None:
    """What was printed and not stored is lost: within a run, that is the end of it."""
    (root / "mine").write_text(
        f"#!/bin/bash\nrun=${{EPOCHREALTIME/./}}\n"
        f"for i in {{1..{LINES}}}; do echo line $run-$i; sleep 0.01; done; sleep 4711.75\n"
    )
    (root / "mine").chmod(0o755)
    database = tmp_path / "pattern.db"
    command = [sys.executable, "-m", "tests.pattern_core.sources.test_process", str(database), str(root)]
    for life in range(3):
        async with trio.open_nursery() as nursery:
            victim = await nursery.start(partial(trio.run_process, command, check=False, cwd=ROOT))
            with trio.fail_after(60):
                while len(_runs(database)) <= life or len(_runs(database)[life]) < (10, 40, LINES)[life]:
                    await trio.sleep(0.02)
            victim.kill()
        await gone(str(root / "mine"))
        await gone("4711.75")
    runs = _runs(database)
    assert runs == [list(range(1, len(numbers) + 1)) for numbers in runs]
    assert len(runs) == 3 and len(runs[-1]) == LINES


def _runs(path: Path) -> list[list[int]]:
    """The numbers of the lines that the agent was sent, in order, for each run of the command."""
    if not path.exists():
        return []
    with closing(open_connection(path, readonly=True)) as connection:
        found = connection.execute("SELECT content FROM messages WHERE role = 'user' ORDER BY position")
        runs: dict[str, list[int]] = {}
        for (content,) in found:
            for run, number in re.findall(r"line (\d+)-(\d+)", content):
                runs.setdefault(run, []).append(int(number))
        return list(runs.values())


if __name__ == "__main__":
    trio.run(live, Path(sys.argv[1]), Path(sys.argv[2]))
