"""Loops that no rule names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pattern_core.ids import Ids, seeded_randomness
from pattern_core.rules.detectors import DetectorSettings, LoopFinding, switched_off, watch
from pattern_core.rules.facts import JudgedCall
from pattern_core.testing import StoppedClock
from tests.pattern_core.rules.moments import call, ran

DEFAULT = DetectorSettings()


def times(count: int, tool: str = "a", result: str = "same", *, first: int = 1, **given: Any) -> list[JudgedCall]:
    """The same call in each of so many steps."""
    return [ran(tool, result, step=first + number, **given) for number in range(count)]


def searches(count: int, *, first: int = 1, **given: Any) -> list[JudgedCall]:
    """Searches for ever other words, all without a hit."""
    given = {"effect_class": "pure", **given}
    numbers = range(first, first + count)
    return [ran("search", "no hits", step=number, arguments={"q": number}, **given) for number in numbers]


def sent() -> list[JudgedCall]:
    """Results that differ in ids alone."""
    ids = Ids(StoppedClock(), seeded_randomness(1))
    calls = [ran("send_message", f"Delivered ({ids.new('turn')}, msg_{ids.position()}).", step=n) for n in (1, 2, 3)]
    assert len({one.result for one in calls}) == 3
    return calls


REPEATED, BACK_AND_FORTH = ("warn", "identical"), [ran(one, f"{one}!", step=n) for n, one in enumerate("abababa", 1)]
AFTER_B = [*times(3), ran("b", step=4)]
PLANS = [ran("plan", "the plan", step=step, effect_class="pure", arguments={"n": step}) for step in (1, 2, 3, 4, 5)]
DENIED = [call("a", "denied", step=n, result=f"again in {9 - n} seconds") for n in range(1, 4)]
QUIET = DetectorSettings(no_progress=None)
# the calls, what else is known of the turn, and what is found after the last one
LOOPS: dict[str, tuple[Sequence[JudgedCall], dict[str, Any], tuple[str, str] | None]] = {
    "nothing": ([], {}, None),
    "the same call twice": (times(2), {}, None),
    "three times": (times(3), {}, REPEATED),
    "four times": (times(4), {}, ("stop", "identical")),
    "a warning that is heeded": (AFTER_B, {}, None),
    "and heeded still": ([*AFTER_B, *times(2, first=5)], {}, None),
    "the second time, the warning was given already": ([*AFTER_B, *times(3, first=5)], {}, ("stop", "identical")),
    "another loop has a warning of its own": ([*times(3), *times(3, "b", first=4)], {}, REPEATED),
    "which is not heeded": ([*times(3), *times(4, "b", first=4)], {}, ("stop", "identical")),
    "two jobs that are looked at one after the other": (
        [*times(3, arguments={"job": 1}), *times(3, arguments={"job": 2}, first=4)], {}, REPEATED
    ),
    "a step without a call repeats no warning": (times(3), {"said": [4]}, None),
    "nor does one with ignored calls": (
        [*times(3), ran("poll", step=4)], {"said": [4], "settings": DetectorSettings(exempt=("poll",))}, None
    ),
    "one decision with the same call often": ([ran("a", "same", step=1) for _ in range(5)], {}, REPEATED),
    "results that change": ([ran("a", f"{number} %", step=number) for number in range(1, 20)], {}, None),
    "arguments that change": ([ran("a", "same", step=n, arguments={"n": n}) for n in range(1, 4)], {}, None),
    "a new id is no news": (sent(), {}, REPEATED),
    "refusals with other words": (DENIED, {}, REPEATED),
    "refusals of other calls": (
        [call("a", "denied", step=n, result=f"in {n} s", arguments={"n": n}) for n in range(1, 7)],
        {}, ("warn", "no_progress"),
    ),
    "polling that is exempt": (times(30, "poll"), {"settings": DetectorSettings(exempt=("pol*",))}, None),
    "other calls beside it": (times(3), {"settings": DetectorSettings(exempt=("pol*",))}, REPEATED),
    "back and forth": (BACK_AND_FORTH[:5], {"settings": QUIET}, None),
    "three rounds": (BACK_AND_FORTH[:6], {"settings": QUIET}, ("warn", "ping_pong")),
    "and on": (BACK_AND_FORTH, {"settings": QUIET}, ("stop", "ping_pong")),
    "back and forth with news": (
        [ran(one.tool, f"{one.step}", step=one.step) for one in [*BACK_AND_FORTH, ran("b", step=8)]],
        {"settings": QUIET}, None,
    ),
    "no progress: the first brought something": (searches(6), {}, None),
    "no progress": (searches(7), {}, ("warn", "no_progress")),
    "no progress still": (searches(8), {}, ("stop", "no_progress")),
    "what is said is progress": (searches(7), {"said": [3]}, None),
    "what changes something is, too": (searches(30, effect_class="local"), {}, None),
    "progress": ([*searches(6), ran("search", "a hit", step=7)], {}, None),
    "no progress again after it": (
        [*searches(7), ran("search", "a hit", step=8), *searches(6, first=9)], {}, ("warn", "no_progress")
    ),
    "the same change again is none": (
        times(7), {"settings": DetectorSettings(identical=None, ping_pong=None)}, ("warn", "no_progress")
    ),
    "room made twice": (PLANS[:4], {"compactions": [2, 3]}, None),
    "room made three times": (PLANS[:4], {"compactions": [2, 3, 4]}, ("warn", "compactions")),
    "with words between": (PLANS[:4], {"compactions": [2, 3, 4], "said": [3]}, None),
    "with words alone between": ([*PLANS[:2], PLANS[3]], {"compactions": [2, 3, 4], "said": [3]}, None),
    "with a plan between": (PLANS[:4], {"compactions": [1, 2, 3]}, None),
    "room made four times": (PLANS, {"compactions": [2, 3, 4, 5]}, ("stop", "compactions")),
    "switched off": (times(50), {"settings": DetectorSettings(identical=None, no_progress=None)}, None),
}  # fmt: skip


@pytest.mark.parametrize(("calls", "more", "found"), LOOPS.values(), ids=LOOPS)
def test_loops(calls: Sequence[JudgedCall], more: dict[str, Any], found: tuple[str, str] | None) -> None:
    seen = watch(**{"settings": DEFAULT, "calls": calls, **more})
    assert (seen and (seen.kind, seen.detector)) == found


def test_what_the_model_and_the_person_read() -> None:
    assert watch(DEFAULT, times(3)) == LoopFinding(
        kind="warn",
        detector="identical",
        text="Careful: `a` was called 3 times in a row with the same arguments and the same result. Calling it"
        " again changes nothing: do something else, or say what you know and end the turn.",
    )
    stopped = watch(DEFAULT, times(4))
    assert stopped is not None and stopped.text.startswith("Stopped: `a` was called") and "warning" in stopped.text


def test_false_switches_all_off() -> None:
    off = {"identical": None, "ping_pong": None, "no_progress": None, "compactions": None}
    assert (switched_off(False), switched_off({"identical": 4})) == (off, {"identical": 4})
