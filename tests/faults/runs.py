"""Running `python -m tests.faults` from a test: in a process of its own, since forking needs one without threads."""

from __future__ import annotations

import subprocess
import sys

from tests.crash.series import Tally
from tests.sources import ROOT


def run(kind: str, trials: int, *more: str) -> Tally:
    """What `trials` trials of a kind came to."""
    command = [sys.executable, "-m", "tests.faults", kind, "--trials", str(trials), "--json", *more]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout, f"it ended with {done.returncode}: {done.stderr}"
    return Tally.load(done.stdout)
