from __future__ import annotations

from fractions import Fraction

import pytest

from pattern_core.calculator.tokens import EXPRESSION_CHARS_MAX, TOKENS_MAX, tokens_of
from pattern_core.errors import InvalidInput


def texts(expression: str) -> list[str]:
    return [token.text for token in tokens_of(expression)]


def test_numbers_names_and_signs() -> None:
    assert texts("a1=2.5e-3*x_y**2;") == ["a1", "=", "2.5e-3", "*", "x_y", "**", "2", ";", ""]
    assert [token.number for token in tokens_of("1_000 .5 5. 2e3 0xff")][:-1] == [1000, Fraction(1, 2), 5, 2000, 255]
    assert texts("5em") == ["5", "em", ""]  # not a number with an exponent


def test_what_people_type_is_read_as_meant() -> None:
    assert texts("2 × 3 ÷ 4 − 1") == ["2", "*", "3", "/", "4", "-", "1", ""]
    assert texts("20°C→°F") == ["20", "degC", "->", "degF", ""]
    assert texts("√2 µm²") == ["sqrt", "2", "um", "^", "2", ""]
    assert texts("1\n2") == ["1", ";", "2", ""]


def test_bounds_hold() -> None:
    assert len(tokens_of("1+" * (TOKENS_MAX // 2))) == TOKENS_MAX + 1
    for text in ("1+" * TOKENS_MAX, "1" * (EXPRESSION_CHARS_MAX + 1), " ", "½", "1e401", "x" * 41):
        with pytest.raises(InvalidInput):
            tokens_of(text)
