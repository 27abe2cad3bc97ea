from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import trio

from pattern_core.shell.child import confinement
from pattern_core.shell.policy import ShellSettings

CONFINED = trio.run(confinement)
"""What the system that runs the tests can confine."""
needs_files = pytest.mark.skipif("files" not in CONFINED, reason="this system has no Landlock")
needs_network = pytest.mark.skipif("network" not in CONFINED, reason="this system cannot confine connections")

needs_proc = pytest.mark.skipif(not Path("/proc/self").exists(), reason="this system has no /proc")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory for commands, with one beside it that is none of theirs."""
    (tmp_path / "work").mkdir()
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("hunter2")
    return tmp_path / "work"


@pytest.fixture
def settings(root: Path) -> ShellSettings:
    can_confine = {"files", "network"} <= set(CONFINED)
    return ShellSettings(roots=[root], grace_s=0.1, processes_max=20, require_sandbox=can_confine)


@pytest.fixture
def open_settings(settings: ShellSettings) -> ShellSettings:
    """Commands as a system without a sandbox runs them."""
    return replace(settings, require_sandbox=False)


def living(mark: str) -> list[int]:
    """The processes of this machine in whose command line `mark` stands."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


async def gone(mark: str) -> None:
    """Wait until no process with the mark lives; fails rather than hang."""
    with trio.fail_after(60):
        while living(mark):
            await trio.sleep(0.01)
