"""Expressions as people and models type them: exact, with units, bounded; and refused in words that help."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from fractions import Fraction
from operator import add, mod, mul, sub, truediv
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_core.calculator import EXPRESSION_CHARS_MAX, Calculated, calculate
from pattern_core.errors import InvalidInput

EXACT = {
    "1 ft to cm": "30.48 cm",
    "x=5; x*2": "10",
    "x = 5;;\n  x * 2 ;\r\n": "10",
    "5!*2^3+sqrt(25)": "965",
    "3 ft + 20 cm to m": "1.1144 m",
    "0.1+0.2": "0.3",
    "-2^2": "-4",
    "2^3^2": "512",
    "2 ** 3 - +1": "7",
    "2(3+4)": "14",
    "007 + 43": "50",
    "1_000 * 1.5e3": "1500000",
    "5. + .5": "5.5",
    "1e-20": "0.00000000000000000001",
    "20 of 50": "1000",
    "-7 mod 3": "2",
    "5 ft + 3 in to cm": "160.02 cm",
    "5 in in cm": "12.7 cm",
    "5 ft in in": "60 in",
    "12 in": "12 in",
    "60 mile / 2 h in km/h": "48.28032 km/h",
    "60 km/h * 30 min": "30 km",
    "8 L/(100 km)": "0.08 l/km",
    "1 m / 1 km": "0.001",
    "1/2 ft": "0.5 ft",
    "2^3 m": "8 m",
    "27 ft^3 to m^3": "0.764554857984 m^3",
    "(2 m)^3": "8 m^3",
    "sqrt(16 m²)": "4 m",
    "sqrt(4 m)": "2 m^(1/2)",
    "(4 m)^-0.5 * 3": "1.5 1/m^(1/2)",
    "9 m/s² * 2 kg": "18 m·kg/s^2",
    "20 °C to °F": "68 °F",
    "-40 degC → degF": "-40 °F",
    "20 Celsius - 5 celsius": "15 Δ°C",
    "20 degC + 5 delta_degC": "25 °C",
    "5 m mod 3 ft": "0.428 m",
    "3 × 4 ÷ 6 − 1": "1",
    "√(16) + 2 µm/µm": "6",
    "90 kmh to km/h": "90 km/h",
    "cbrt(-8)": "-2",
    "25^(3/2) + 10^-2": "125.01",
    "max(1 ft, 20 cm)": "1 ft",
    "min(3, 1, 2) + sum(1, 2) + mean(2, 4) + avg(1, 3)": "9",
    "round(2.345, 2) + round(-2.5)": "-0.65",
    "round(1234, -2)": "1200",
    "round(0.5) + round(1)": "2",
    "round(2.5 m)": "3 m",
    "floor(-1.5) + ceil(1.2) + abs(-4)": "4",
    "gcd(12, 18) + lcm(4, 6)": "18",
    "a = 3 m; b = 2 m; a * b": "6 m^2",
    "10 min + 30 s": "10.5 min",
    "1^99999999999 + 0^5 + (-1)^99999999999": "0",
    "0 ^ 0": "1",
}
APPROXIMATE = {
    "pi": "3.14159265358979",
    "1/3": "0.333333333333333",
    "2 km per 3 min to m/s": "11.1111111111111 m/s",
    "2^0.5": "1.4142135623731",
    "1e-21": "1e-21",
    "sin(30 degree)": "0.5",
    "180° to radian": "3.14159265358979 rad",
    "log(1001)": "3.00043407747932",
    "log(1000) + log2(8) + log10(0.01) + ln(e)": "5",
    "sin(0) + exp(0)": "1",
    "(9/4)^(3/2)": "3.375",
    "((10^30 + 7)^2) ^ 0.5": "1e+30",
    "2^(1/1000000001)": "1.00000000069315",
    "2 pi - tau": "0",
    "phi * -e": "-4.39827238944795",
    "1.0001^100000": "22015.456048528",
    "9^-9999": "0",
}
UNREADABLE = "cannot be read"
PERCENT = "percentages are not read"
REFUSED = {
    "200 + 10%": PERCENT,
    "10 % 3": "a remainder is `mod`",
    "50 percent of 8": PERCENT,
    "5 ft 3 in": r"5 ft \+ 3 in",
    "x!": re.escape("factorial(x)"),
    "x = 2 m; 3 / x 4": UNREADABLE,
    "n = 3; n / 2 m": "two meanings",
    "10**10**10": "too large",
    "10^310/3": "too large",
    "1/0": "division by zero",
    "0^-1": "division by zero",
    "501!": "from 0 to 500",
    "factorial(2.5)": "whole number",
    "1e401": "exponents go to 400",
    "1e99999999999": "exponents go to 400",
    "(" * 400 + "1" + ")" * 400: UNREADABLE,
    "-" * 999 + "1": "nested too deeply",
    "2^" * 400 + "1": "too large",
    "1" * (EXPRESSION_CHARS_MAX + 1): "at most 1000 characters",
    "1,000 + 2": "without commas",
    "2 3": "a sign between values",
    "(2": "close each bracket",
    " ;": "empty",
    "2 $ 3": "no meaning",
    "__import__('os')": "no meaning",
    "__import__": "not known",
    "pi.real": UNREADABLE,
    "True": UNREADABLE,
    "1 < 2": "no meaning",
    "1 == 2": UNREADABLE,
    "1 not in 2": UNREADABLE,
    "7 // 2": UNREADABLE,
    "max(*a)": UNREADABLE,
    "max(first=1)": UNREADABLE,
    "a = b = 2": UNREADABLE,
    "nobody": "nobody is not known",
    "½": "not known|cannot be read",
    "round": "is a function",
    "pi = 3": "has a meaning already",
    "sqrt = 3": "has a meaning already",
    "x" * 41 + " = 1": "too long",
    "sqrt(-1)": "no real root",
    "(-10^100)^(1/1000000000)": "no real root",
    "sqrt(10^400)": "too large",
    "0x1F": "x1F is not known",
    "asin(2)": "asin is not defined for these values",
    "sin(1, 2)": "sin is not defined for these values",
    "max(1 ft, 3)": "max is not defined for these values",
    "log(0)": "log is not defined for these values",
    "gcd(1.5, 2)": "whole number",
    "round(1, 99)": "from -30 to 30",
    "exp(1000)": "too large",
    "1 kg + 1 m": "m cannot be converted to kg|kg cannot be converted to m",
    "sqrt(1 m) to s": r"m\^\(1/2\) cannot be converted to s",
    "5 to m": "a plain number cannot be converted to m",
    "5 m to 2": "write one unit",
    "(1 + 2) / 2 m": "two meanings",
    "20 degC + 5 degC": "points on a scale",
    "2 * 20 degC": "convert them to K",
    "4 °F / 9 m": "convert them to K",
    "3 dB": "logarithms such as dB",
    "m^100": "add up to at most 20",
    "2^(1 m)": "m cannot be converted to a plain number",
    "(2 m)^pi": "exact power",
    "10^300 * alpha^-20 to degree": "too large",
    "g_e^(1/3) to degree": "no result",
}


def run(expression: str, variables: Mapping[str, Mapping[str, Any]] | None = None) -> Calculated:
    return trio.run(calculate, expression, variables or {})


@pytest.mark.parametrize(("expression", "text"), EXACT.items())
def test_exact_results(expression: str, text: str) -> None:
    found = run(expression)
    assert (found.text, found.is_approximate) == (text, False)


@pytest.mark.parametrize(("expression", "text"), APPROXIMATE.items())
def test_approximate_results_say_so(expression: str, text: str) -> None:
    found = run(expression)
    assert (found.text, found.is_approximate) == (text, True)


@pytest.mark.parametrize(("expression", "words"), REFUSED.items())
def test_what_cannot_be_calculated_says_why(expression: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        run(expression)


def test_long_numbers_are_shown_whole_until_they_become_floats() -> None:
    assert len(run("100!").text) == 158
    found = [run(text).is_approximate for text in ("100!", "(1/7)^1000 * 7^1000", "(1/7)^2000")]
    assert found == [False, False, True]


def test_new_variables_are_kept_apart_from_known_ones() -> None:
    first = run("a = 2; b = a * m")
    assert first.variables == {
        "a": {"number": "2", "exact": True, "units": {}},
        "b": {"number": "2", "exact": True, "units": {"meter": "1"}},
    }
    second = run("a = 7; a * b", first.variables)
    assert second.text == "14 m"
    assert set(second.variables) == {"a"}


@pytest.mark.parametrize(
    ("number", "exact", "units", "expression", "text"),
    [
        ("3/4", True, {}, "x * 4", "3"),
        ((2.5).hex(), False, {}, "x", "2.5"),
        ("-5", True, {"degree_Celsius": "1"}, "x to K", "268.15 K"),
        ("1/2", True, {"kilometer": "1", "hour": "-1"}, "x * 2 h", "1 km"),
        ("3", True, {"meter": "1/2"}, "x^2", "9 m"),
        ("20", True, {"percent": "1"}, "x", "20 %"),
    ],
)
def test_variables_of_earlier_versions_are_read(
    number: str, exact: bool, units: dict[str, str], expression: str, text: str
) -> None:
    stored = {"number": number, "exact": exact, "units": units}
    assert run(expression, {"x": stored}).text == text
    with pytest.raises(InvalidInput, match="owl"):  # an error of the expression
        run("x", {"x": {**stored, "units": {"owl": "1"}}})


def test_numbers_alone_load_no_units() -> None:
    """In a process of its own, where no other test loaded them."""
    script = (
        "import sys, trio; from pattern_core.calculator import calculate\n"
        "for text in ('2 + 2', 'x = 5; y = pi', 'min(1, sqrt(4))'): trio.run(calculate, text, {})\n"
        "before = 'pint' in sys.modules; trio.run(calculate, '2 ft', {}); print(before, 'pint' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["False", "True"]


_PIECES = "1 2.5 1e3 x m km degC pi sqrt ( ) + - * / ^ ! % to in min , = ; of mod ½ ² ß 10 round h ' ° lambda not . ->"
_PIECES += " 1_0 0x1 None dB as per ** @ e \0 ٣ max < if"


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from([*_PIECES.split(), " ", "\n", "\t"]), max_size=14), st.sampled_from(["", " "]))
def test_whatever_is_written_is_calculated_or_refused(pieces: list[str], between: str) -> None:
    try:
        found = run(between.join(pieces))
    except InvalidInput as refused:
        assert refused.message
        return
    assert found.text
    for name in found.variables:
        assert run(name, found.variables).text


_OPERATORS: dict[str, Callable[[Fraction, Fraction], Fraction]]
_OPERATORS = {"+": add, "-": sub, "*": mul, "/": truediv, "mod": mod}


@st.composite
def _trees(draw: st.DrawFn, depth: int = 4) -> tuple[str, Fraction]:
    """Draw an expression with all its brackets, and its value by Python's fractions."""
    if depth == 0 or draw(st.booleans()):
        number = draw(st.decimals(-999, 999, places=3, allow_nan=False))
        return f"({number:f})", Fraction(number)
    sign = draw(st.sampled_from(sorted(_OPERATORS)))
    (left, above), (right, below) = draw(_trees(depth - 1)), draw(_trees(depth - 1))
    if sign in ("/", "mod") and below == 0:
        sign = "+"
    return f"({left} {sign} {right})", _OPERATORS[sign](above, below)


@settings(max_examples=150, deadline=None)
@given(_trees())
def test_arithmetic_is_that_of_fractions(tree: tuple[str, Fraction]) -> None:
    expression, value = tree
    if len(expression) < EXPRESSION_CHARS_MAX - 4:
        stored = run(f"v = {expression}").variables["v"]
        assert (stored["exact"], Fraction(stored["number"])) == (True, value)


async def test_only_a_product_that_is_still_in_one_of_two_units_gets_a_hint() -> None:
    for typed in ("5 mi * 1.6 km/mi", "x = 5 mi * 1.6 km/mi", "10 lb * 0.45 kg / lb", "10 kg / 0.45 kg * lb"):
        assert "to convert" in (await calculate(typed, {})).hint
    for typed in (
        "60 km/h * 30 min",
        "3 ft + 20 cm",
        "5 mi * 1.6 km/mi to km",
        "2 m * 3 cm",
        "2 * 5 mi",
        "mi = 3; mi * 2 km",
    ):
        assert (await calculate(typed, {})).hint == ""
