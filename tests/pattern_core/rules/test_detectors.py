"""Loops that no rule names."""

from __future__ import annotations

from typing import Any

from pattern_core.ids import Ids, seeded_randomness
from pattern_core.rules.detectors import DetectorSettings, LoopFinding, switched_off, watch
from pattern_core.rules.facts import JudgedCall
from pattern_core.testing import StoppedClock
from tests.pattern_core.rules.moments import call, ran

DEFAULT = DetectorSettings()


def look(*calls: JudgedCall, settings: DetectorSettings = DEFAULT, **more: Any) -> tuple[str, str] | None:
    found = watch(settings, calls, **more)
    return None if found is None else (found.kind, found.detector)


def times(count: int, tool: str = "a", result: str = "same", *, first: int = 1, **given: Any) -> list[JudgedCall]:
    """The same call in each of so many steps."""
    return [ran(tool, result, step=first + number, **given) for number in range(count)]


def test_the_same_call_three_times() -> None:
    assert look() is None
    assert look(*times(2)) is None
    assert look(*times(3)) == ("warn", "identical")
    assert look(*times(4)) == ("stop", "identical")
    found = watch(DEFAULT, times(3))
    assert found == LoopFinding(
        kind="warn",
        detector="identical",
        text="Careful: `a` was called 3 times in a row with the same arguments and the same result. Calling it"
        " again changes nothing: do something else, or say what you know and end the turn.",
    )
    stopped = watch(DEFAULT, times(4))
    assert stopped is not None and stopped.text.startswith("Stopped: `a` was called") and "warning" in stopped.text


def test_a_warning_is_heeded() -> None:
    assert look(*times(3), ran("b", step=4)) is None
    # The second time, the warning was given already.
    again = [*times(3), ran("b", step=4), *times(3, first=5)]
    assert look(*again[:-1]) is None
    assert look(*again) == ("stop", "identical")


def test_another_loop_has_a_warning_of_its_own() -> None:
    first, second = times(3, "a"), times(3, "b", first=4)
    assert look(*first, *second) == ("warn", "identical")
    assert look(*first, *second, *times(1, "b", first=7)) == ("stop", "identical")
    # Looking at two jobs, long one after the other, is no relapse.
    assert look(*times(3, arguments={"job": 1}), *times(3, arguments={"job": 2}, first=4)) == ("warn", "identical")


def test_no_progress_again_after_progress_has_a_warning_of_its_own() -> None:
    again = [ran("search", "no hits", step=n, arguments={"q": n}, effect_class="pure") for n in range(9, 15)]
    assert look(*searches(7), ran("search", "a hit", step=8), *again) == ("warn", "no_progress")


def test_a_step_that_makes_no_call_repeats_no_warning() -> None:
    assert look(*times(3), said=[4]) is None
    poll = DetectorSettings(exempt=("poll",))
    assert look(*times(3), ran("poll", step=4), said=[4], settings=poll) is None


def test_one_decision_with_the_same_call_often_is_one_hit() -> None:
    assert look(*[ran("a", "same", step=1) for _ in range(5)]) == ("warn", "identical")


def test_what_changes_is_no_loop() -> None:
    assert look(*[ran("a", f"{number} %", step=number) for number in range(1, 20)]) is None
    assert look(*[ran("a", "same", step=number, arguments={"n": number}) for number in range(1, 4)]) is None


def test_a_new_id_is_no_news() -> None:
    ids = Ids(StoppedClock(), seeded_randomness(1))
    sent = [ran("send_message", f"Delivered ({ids.new('turn')}, msg_{ids.position()}).", step=n) for n in (1, 2, 3)]
    assert len({one.result for one in sent}) == 3
    assert look(*sent) == ("warn", "identical")


def test_refused_calls_are_a_loop_whatever_the_refusal_says() -> None:
    refused = [call("a", "denied", step=number, result=f"again in {9 - number} seconds") for number in (1, 2, 3)]
    assert look(*refused) == ("warn", "identical")
    others = [call("a", "denied", step=n, result=f"in {n} s", arguments={"n": n}) for n in range(1, 7)]
    assert look(*others) == ("warn", "no_progress")


def test_polling_may_be_exempt() -> None:
    poll = DetectorSettings(exempt=("pol*",))
    assert look(*times(30, "poll"), settings=poll) is None
    assert look(*times(3, "a"), settings=poll) == ("warn", "identical")


def test_ping_pong() -> None:
    rounds = [ran(tool, f"{tool}!", step=number) for number, tool in enumerate(["a", "b"] * 4, 1)]
    quiet = DetectorSettings(no_progress=None)
    assert look(*rounds[:5], settings=quiet) is None
    assert look(*rounds[:6], settings=quiet) == ("warn", "ping_pong")
    assert look(*rounds[:7], settings=quiet) == ("stop", "ping_pong")
    moving = [ran(one.tool, f"{one.step}", step=one.step) for one in rounds]
    assert look(*moving, settings=quiet) is None


def searches(count: int, **given: Any) -> list[JudgedCall]:
    """Searches for ever other words, all without a hit."""
    given = {"effect_class": "pure", **given}
    return [ran("search", "no hits", step=number, arguments={"q": number}, **given) for number in range(1, count + 1)]


def test_no_progress() -> None:
    assert look(*searches(6)) is None  # the first brought something
    assert look(*searches(7)) == ("warn", "no_progress")
    assert look(*searches(8)) == ("stop", "no_progress")
    assert look(*searches(7), said=[3]) is None
    # What changes something is progress, though it always answers the same.
    assert look(*searches(30, effect_class="local")) is None
    assert look(*searches(6), ran("search", "a hit", step=7)) is None
    # Unless it is the same change again.
    quiet = DetectorSettings(identical=None, ping_pong=None)
    assert look(*times(7), settings=quiet) == ("warn", "no_progress")


def test_making_room_without_progress() -> None:
    stuck = [ran("plan", "the plan", step=step, effect_class="pure", arguments={"n": step}) for step in (1, 2, 3, 4)]
    assert look(*stuck, compactions=[2, 3]) is None
    assert look(*stuck, compactions=[2, 3, 4]) == ("warn", "compactions")
    assert look(*stuck, compactions=[2, 3, 4], said=[3]) is None
    assert look(*stuck, compactions=[1, 2, 3]) is None  # the first step brought the plan
    later = [*stuck, ran("plan", "the plan", step=5, effect_class="pure", arguments={"n": 5})]
    assert look(*later, compactions=[2, 3, 4, 5]) == ("stop", "compactions")


def test_each_may_be_switched_off_and_false_switches_all_off() -> None:
    off = {"identical": None, "ping_pong": None, "no_progress": None, "compactions": None}
    assert (switched_off(False), switched_off({"identical": 4})) == (off, {"identical": 4})
    assert look(*times(50), settings=DetectorSettings(identical=None, no_progress=None)) is None
