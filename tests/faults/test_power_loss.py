"""What was acknowledged survives a power cut at any moment; without syncs it would not, and the check would say so."""

from __future__ import annotations

import pytest

from tests.faults.runs import run

TRIALS = 360


@pytest.mark.slow
def test_a_power_cut_loses_nothing_that_was_acknowledged() -> None:
    tally = run("power", TRIALS)
    assert not tally.violations, "\n".join(tally.violations[:20])
    assert tally.killed >= TRIALS
    for left in ("nothing", "everything", "chance"):
        for pages in (8, 40, 1_000):
            assert tally.kills[f"power cut, {left}, wal_autocheckpoint = {pages}"] >= TRIALS / 18
    assert tally.counts["completed"] > TRIALS
    assert tally.counts["mail in_doubt"] > 0


@pytest.mark.slow
def test_without_syncs_acknowledged_work_is_lost_and_that_is_found() -> None:
    tally = run("unsynced", 60, "--discard")
    assert any(violation.startswith("lost: the acknowledged turn") for violation in tally.violations), tally.violations
