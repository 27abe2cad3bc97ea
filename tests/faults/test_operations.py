"""A few trials of every operation. `python -m tests.faults.operations` makes many."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.faults.operations import OPERATIONS
from tests.sources import ROOT


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_that_is_cut_off_leaves_its_source_and_can_be_repeated(name: str) -> None:
    """In a process of its own: it forks, and this one may have threads."""
    line = [sys.executable, "-m", "tests.faults.operations", "--kills", "5", "--faults", "2", name]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "failures 0" in done.stdout
