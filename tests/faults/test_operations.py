"""A few trials of every operation. `python -m tests.faults.operations` makes many."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.faults.operations import OPERATIONS
from tests.sources import ROOT

NAMES = list(OPERATIONS)


@pytest.mark.slow
@pytest.mark.parametrize("names", [NAMES[::2], NAMES[1::2]], ids=["even", "odd"])
def test_an_operation_that_is_cut_off_leaves_its_source_and_can_be_repeated(names: list[str]) -> None:
    """In a process of its own, since it forks, and this one may have threads. Operations share what it prepares."""
    line = [sys.executable, "-m", "tests.faults.operations", "--kills", "3", "--faults", "2", *names]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("failures 0\n") == len(names)
