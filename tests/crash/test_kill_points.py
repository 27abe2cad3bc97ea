"""Nothing acknowledged is lost and nothing happens twice, wherever a process is cut off; and the check has teeth."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.crash.moments import COMMIT_MOMENTS, POINTS, RARE
from tests.crash.series import Tally, tally_of

KILL_POINTS = 800
BROKEN_POINTS = 400
REACHED = 0.5  # of the lives that are meant to end at a point, how many do at least
ONCE = ("resume", "T4", "rest", "answer", "decide", "resumed", "join")
SELDOM = (*((moment,) for moment in ONCE), ("compact", "money", "summary"))
PHASES = ("before", "after", "announced")
DYING = """
import os, signal, sys
from tests.crash.life import Settings
from tests.crash.series import run_parallel

def choose(_settings, number, _chance):
    os.write(2, b"these were its last words")
    if number == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    raise OSError("no room")

sys.stdout.write(run_parallel(7, 2, Settings(), choose, discard=True).dump())
"""


def cut_off(points: int, *more: str) -> Tally:
    return tally_of("-m", "tests.crash", "--points", str(points), "--json", *more)


@pytest.mark.slow
def test_nothing_is_lost_or_repeated_at_many_kill_points() -> None:
    tally = cut_off(KILL_POINTS)
    assert not tally.violations, "\n".join(tally.violations[:20])
    assert tally.killed >= KILL_POINTS
    for (moment, phase), times in Counter(POINTS).items():
        if moment not in RARE:
            assert tally.kills[f"{moment} {phase}"] >= KILL_POINTS * times / len(POINTS) * REACHED, (moment, phase)
    # Not every life resumes a turn, makes an agent, asks a person, makes room or is sent more in time.
    for moments in SELDOM:
        assert sum(tally.kills[f"{moment} {phase}"] for moment in moments for phase in PHASES) > 0, moments
    assert {"T0", "T1", "T2", "T3", "T4", "T5", "T6", "T7", "T8"} < set(COMMIT_MOMENTS)
    assert tally.counts["in doubt and had happened"] > 0, "calls in doubt of both kinds were met"
    assert tally.counts["in doubt and had not happened"] > 0
    for said in ("tool approved", "tool edited", "tool denied"):
        assert tally.counts[said] > 0, said
    assert tally.counts["recovery approved"] + tally.counts["recovery denied"] > 0
    for happened in ("mail denied", "sign done", "joined", "messages archived", "summaries", "stubs",
                     "failed", "interrupted", "joined after a death", "partial answers"):  # fmt: skip
        assert tally.counts[happened] > 0, happened


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "found", "points"),
    [
        ("acknowledges-before-commit", "lost: ", BROKEN_POINTS),
        ("runs-before-intent", "unplanned: ", BROKEN_POINTS),
        ("asks-before-flush", "unflushed: ", 60),
        ("repeats-in-doubt", "repeated: ", BROKEN_POINTS),
        ("asks-nobody", "unasked: ", BROKEN_POINTS),
        ("ends-in-two-commits", "unfinished: turn ", 60),
        ("answers-in-two-commits", "unfinished: call ", 60),
        ("holds-for-ever", "unfinished: money is held ", BROKEN_POINTS),
        ("never-gives-up", "unfinished: step ", 60),
        ("forgets-half-answers", "lost: a reader saw ", BROKEN_POINTS),
        ("forgets-who-joins", "lost: the message of turn ", BROKEN_POINTS),
    ],
)
def test_a_broken_variant_is_caught(variant: str, found: str, points: int) -> None:
    tally = cut_off(points, "--variant", variant, "--discard")
    assert tally.killed <= points
    assert any(violation.startswith(found) for violation in tally.violations), tally.violations


@pytest.mark.slow
def test_a_worker_that_dies_is_reported_with_its_place_and_standard_error() -> None:
    killed, failed = tally_of("-c", DYING).violations
    assert "worker 0 died of SIGKILL [seed 7, world 0, life 0, " in killed
    assert "these were its last words" in killed
    assert "worker 1 died of exit status 1 [seed 7, world 1, life 0, " in failed
    assert "OSError: no room" in failed
