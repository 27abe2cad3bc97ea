from __future__ import annotations

import math
from fractions import Fraction

import pytest

from pattern_core.calculator import arithmetic
from pattern_core.calculator.arithmetic import BITS_MAX
from pattern_core.errors import InvalidInput


def test_what_grows_too_long_becomes_a_float_or_is_refused() -> None:
    assert arithmetic.bounded(Fraction(2**BITS_MAX - 1, 3)) == Fraction(2**BITS_MAX - 1, 3)
    assert arithmetic.bounded(Fraction(1, 2**BITS_MAX)) == 0.0
    with pytest.raises(InvalidInput, match="too large"):
        arithmetic.bounded(Fraction(2**BITS_MAX))
    for number in (math.inf, math.nan):
        with pytest.raises(InvalidInput):
            arithmetic.bounded(number)


def test_roots_are_exact_where_they_are() -> None:
    for whole in (0, 1, 2, 3, 10, 999, 10**30 + 7):
        for degree in (2, 3, 5):
            assert arithmetic.raised(Fraction(whole**degree), Fraction(1, degree)) == whole
    assert arithmetic.raised(Fraction(9, 4), Fraction(3, 2)) == Fraction(27, 8)
    assert arithmetic.raised(Fraction(2), Fraction(1, 2)) == math.sqrt(2)
    assert arithmetic.cube_root(Fraction(-27)) == -3


def test_powers_know_one_and_zero() -> None:
    huge = Fraction(10**50)
    assert arithmetic.raised(Fraction(1), huge) == 1
    assert arithmetic.raised(Fraction(-1), huge) == 1
    assert arithmetic.raised(Fraction(-1), huge + 1) == -1
    assert arithmetic.raised(Fraction(0), huge) == 0
    assert arithmetic.raised(Fraction(0), Fraction(0)) == 1


def test_rounding_goes_away_from_zero() -> None:
    assert arithmetic.rounded(Fraction(5, 2)) == 3
    assert arithmetic.rounded(Fraction(-5, 2)) == -3
    assert arithmetic.rounded(Fraction(1234), Fraction(-2)) == 1200


@pytest.mark.parametrize(
    ("number", "text", "is_approximate"),
    [
        (Fraction(-1, 8), "-0.125", False),
        (Fraction(5), "5", False),
        (Fraction(1, 10**20), "0.00000000000000000001", False),
        (Fraction(1, 10**21), "1e-21", True),
        (Fraction(2, 3), "0.666666666666667", True),
        (-0.0, "0", True),
        (1e22, "1e+22", True),
    ],
)
def test_numbers_as_people_write_them(number: arithmetic.Number, text: str, is_approximate: bool) -> None:
    assert arithmetic.written(number) == (text, is_approximate)


def test_logarithms_of_whole_powers_are_exact() -> None:
    assert arithmetic.real("log", Fraction(1, 1000)) == Fraction(-3)
    assert isinstance(arithmetic.real("log", Fraction(1001)), float)
    assert isinstance(arithmetic.real("exp", Fraction(0)), Fraction)
    with pytest.raises(InvalidInput, match="ln has no value here"):
        arithmetic.real("ln", Fraction(0))
