"""What `make` installs, and when, with stand-ins for Python, pip and uv that write down how they were called; and what
`make check` runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests import check
from tests.sources import ROOT

# `-m venv DIR` puts the same script there, as python and as pattern; everything else is written down.
PYTHON = """#!/bin/sh
case "$*" in
    -c*) exit 0 ;;
    --version) echo Python 3.99 ;;
    '-m venv'*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && cp "$0" "$3/bin/pattern" ;;
    *) echo "${0##*/} $*" >> calls ;;
esac
"""
UV = '#!/bin/sh\necho "uv $*" >> calls\nexit $UV_EXIT\n'
PIP = "python -m pip install --quiet --quiet --disable-pip-version-check --no-compile"


class Clone:
    """A folder with the Makefile in it, and programs that stand in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copy(ROOT / "Makefile", folder)
        (folder / "pyproject.toml").touch()
        (folder / "bin").mkdir()
        self.program("python3", PYTHON)

    def program(self, name: str, script: str) -> None:
        """Put a program on the path."""
        (self.folder / "bin" / name).write_text(script)
        (self.folder / "bin" / name).chmod(0o755)

    def make(self, target: str, **environment: str) -> list[str]:
        """Make a target; the calls that it came to."""
        path = f"{self.folder / 'bin'}:/usr/bin:/bin"
        done = subprocess.run(
            ["make", target],
            cwd=self.folder,
            env={"PATH": path, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        calls = self.folder / "calls"
        found = calls.read_text().splitlines() if calls.exists() else []
        calls.unlink(missing_ok=True)
        return found


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    if shutil.which("make") is None:
        pytest.skip("needs make")
    return Clone(tmp_path)


def test_the_demo_needs_no_development_tools_and_is_installed_once(clone: Clone) -> None:
    assert clone.make("demo") == [f"{PIP} --editable .", "pattern demo"]
    assert clone.make("demo") == ["pattern demo"]
    newer = (clone.folder / ".venv" / ".ready-user").stat().st_mtime + 1
    os.utime(clone.folder / "pyproject.toml", (newer, newer))
    assert clone.make("demo") == [f"{PIP} --editable .", "pattern demo"]


def test_the_tests_add_to_what_the_demo_installed(clone: Clone) -> None:
    clone.make("demo")
    torch, everything, tests = clone.make("test")
    assert torch.startswith(f"{PIP} --no-deps torch==") and torch.endswith("+cpu")
    assert everything == f"{PIP} --editable .[dev,local]"
    assert tests.startswith("python -m pytest")
    assert len(clone.make("test")) == 1


def test_after_the_tests_the_demo_installs_nothing(clone: Clone) -> None:
    assert len(clone.make("test")) == 3
    assert clone.make("demo") == ["pattern demo"]


def test_uv_installs_where_it_is_present_and_pip_where_it_fails(clone: Clone) -> None:
    clone.program("uv", UV)
    uv = "uv pip install --quiet --python .venv/bin/python --editable ."
    assert clone.make("demo", UV_EXIT="0") == [uv, "pattern demo"]
    shutil.rmtree(clone.folder / ".venv")
    assert clone.make("demo", UV_EXIT="1") == [uv, f"{PIP} --editable .", "pattern demo"]


def test_no_recipe_names_an_index() -> None:
    recipes = [line for line in (ROOT / "Makefile").read_text().splitlines() if not line.startswith("#")]
    assert [line for line in recipes if "index" in line or "find-links" in line] == []


def test_an_unknown_check_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(["format", "speling"]) == 2
    assert "no check speling" in capsys.readouterr().err


def test_every_tool_comes_with_the_developers_dependencies() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = " ".join(project["optional-dependencies"]["dev"])
    used = {command[0] for one in check.CHECKS.values() for command in one.commands}
    assert all(tool in wanted for tool in used)
