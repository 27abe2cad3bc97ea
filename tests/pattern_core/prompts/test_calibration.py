from __future__ import annotations

import pytest

from pattern_core.prompts.calibration import LEAST, MOST, RATIOS_MAX, Calibration, scaled


def test_an_agent_of_whom_nothing_is_known_is_estimated() -> None:
    assert Calibration().ratio("ada", "m") == 1.0


def test_what_a_vendor_counted_is_learnt_for_that_agent_and_model() -> None:
    known = Calibration()
    known.learn("ada", "m", estimated=1_000, counted=1_300)
    assert known.ratio("ada", "m") == 1.3
    assert known.ratio("ada", "other") == known.ratio("bob", "m") == 1.0
    known.learn("ada", "m", estimated=1_000, counted=1_000)
    assert known.ratio("ada", "m") == pytest.approx(1.21)
    for _ in range(40):
        known.learn("ada", "m", estimated=1_000, counted=1_100)
    assert known.ratio("ada", "m") == pytest.approx(1.1)


def test_odd_counts_do_not_lead_astray() -> None:
    known = Calibration()
    known.learn("ada", "m", estimated=10, counted=900)
    known.learn("ada", "m", estimated=1_000, counted=0)
    assert known.ratio("ada", "m") == 1.0
    known.learn("ada", "m", estimated=1_000, counted=50_000)
    known.learn("bob", "m", estimated=1_000, counted=1)
    assert (known.ratio("ada", "m"), known.ratio("bob", "m")) == (MOST, LEAST)


def test_it_forgets_whom_it_has_not_seen_for_long() -> None:
    known = Calibration()
    for number in range(RATIOS_MAX + 1):
        known.learn(f"agent_{number}", "m", estimated=1_000, counted=2_000)
    assert known.ratio("agent_0", "m") == 1.0
    assert known.ratio("agent_1", "m") == 2.0


def test_tokens_are_scaled_up() -> None:
    assert (scaled(100, 1.0), scaled(100, 1.301), scaled(0, 3.0)) == (100, 131, 0)
