from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_core.calculator import units
from pattern_core.calculator.evaluate import Outcome, evaluate, needs_units
from pattern_core.errors import InvalidInput

EXACT = {
    "2+2": "4",
    "1 ft to cm": "30.48 cm",
    "x=5; x*2": "10",
    "5!*2^3+sqrt(25)": "965",
    "3 ft + 20 cm to m": "1.1144 m",
    "0.1+0.2": "0.3",
    "-2^2": "-4",
    "2^-1": "0.5",
    "2^3^2": "512",
    "2 ** 3": "8",
    "7 - 2 - 1": "4",
    "2(3+4)": "14",
    "0x1F + 0b101": "36",
    "1_000 * 1.5e3": "1500000",
    "200 + 10%": "220",
    "200 - 10%": "180",
    "10% + 5%": "0.15",
    "20% of 50": "10",
    "0.5 to %": "50%",
    "10 % 3": "1",
    "-7 mod 3": "2",
    "5 ft 3 in to cm": "160.02 cm",
    "3 in to cm": "7.62 cm",
    "5 in in cm": "12.7 cm",
    "5 ft in in": "60 in",
    "60 mile / 2 h in km/h": "48.28032 km/h",
    "60 km/h * 30 min": "30 km",
    "1 m / 1 km": "0.001",
    "1/2 ft": "0.5 ft",
    "(2 m)^3": "8 m^3",
    "sqrt(16 m²)": "4 m",
    "9 m/s² * 2 kg": "18 m·kg/s^2",
    "20 °C to °F": "68 °F",
    "-40 degC → degF": "-40 °F",
    "1 kWh to J": "3600000 J",
    "1 week in min": "10080 min",
    "log(1000) + log2(8)": "6",
    "cbrt(-8)": "-2",
    "max(1 ft, 20 cm)": "1 ft",
    "min(3, 1, 2) + sum(1, 2) + mean(2, 4)": "7",
    "round(2.345, 2) + round(-2.5)": "-0.65",
    "floor(-1.5) + ceil(1.2) + abs(-4)": "4",
    "gcd(12, 18) + lcm(4, 6)": "18",
    "a = 3 m; b = 2 m; a * b": "6 m^2",
    "10 min + 30 s": "10.5 min",
    "1^99999999999 + 0^5": "1",
}
APPROXIMATE = {
    "pi": "3.14159265358979",
    "1/3": "0.333333333333333",
    "2^0.5": "1.4142135623731",
    "sin(30 degree)": "0.5",
    "180 degree to radian": "3.14159265358979 rad",
    "1.0001^100000": "22015.456048528",
}
REFUSED = {
    "10**10**10": "too large",
    "99^99^99^99": "too large",
    "1/0": "division by zero",
    "0^-1": "division by zero",
    "5 mod 0": "division by zero",
    "501!": "whole number from 0 to 500",
    "2.5!": "whole number",
    "1e999": "exponents go to 400",
    "1e99999999999": "exponents go to 400",
    "(" * 60 + "1": "at most 30 deep",
    "-" * 60 + "1": "at most 30 deep",
    "2^" * 60 + "1": "at most 30 deep",
    "1" + "+1" * 200: "at most 300 numbers",
    "1" * 1_001: "at most 1000 characters",
    "1,000 + 2": "without commas",
    "2 3": "no sign between two numbers",
    "2 +": "ends too early",
    "(2": "bracket is not closed",
    "2)": "does not belong there",
    "* 2": "a value is missing",
    "": "empty",
    "2 $ 3": "no meaning",
    "__import__('os')": "no meaning",
    "nobody": "nobody is not known",
    "round": "is a function",
    "pi = 3": "has a meaning already",
    "sqrt(-1)": "no real root",
    "asin(2)": "no value here",
    "1 kg + 1 m": "cannot be converted",
    "5 to m": "plain number",
    "5 m to 3 ft": "stands a unit",
    "20 degC + 5 degC": "points on a scale",
    "2 * 20 degC * 3": "convert them to K",
    "m^100": "to a power above 20",
    "2^(1 m)": "cannot be converted",
    "sin(1, 2)": "takes one value",
    "gcd(1.5, 2)": "whole numbers",
    "round(1, 2, 3)": "number of decimals",
    "round(1, 99)": "from -30 to 30",
    "exp(1000)": "no value here",
    "x" * 41: "at most 40 characters",
}


def outcome(expression: str) -> Outcome:
    return evaluate(expression, {})


@pytest.mark.parametrize(("expression", "text"), EXACT.items())
def test_exact_results(expression: str, text: str) -> None:
    assert (outcome(expression).text, outcome(expression).is_approximate) == (text, False)


@pytest.mark.parametrize(("expression", "text"), APPROXIMATE.items())
def test_approximate_results_say_so(expression: str, text: str) -> None:
    assert (outcome(expression).text, outcome(expression).is_approximate) == (text, True)


@pytest.mark.parametrize(("expression", "words"), REFUSED.items())
def test_what_cannot_be_calculated_says_why(expression: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        outcome(expression)


def test_long_whole_numbers_are_shown_whole() -> None:
    assert len(outcome("100!").text) == 158
    assert not outcome("100!").is_approximate


def test_variables_are_told_apart_from_what_was_known() -> None:
    first = outcome("a = 2; b = a m")
    assert set(first.variables) == {"a", "b"}
    second = evaluate("a = 7; a * b", first.variables)
    assert second.text == "14 m"
    assert set(second.variables) == {"a"}


def test_plain_arithmetic_asks_for_no_units() -> None:
    for expression in ("2 + 2", "x = 5; y = pi", "min(1, sqrt(4))", "20% of 50"):
        assert not needs_units(expression, {})
    for expression in ("2 ft", "5 min", "x * 2"):
        assert needs_units(expression, {})
    assert needs_units("1", {"x": outcome("1 m").value})


async def test_units_are_loaded_beforehand() -> None:
    await units.load()
    await units.load()
    assert outcome("1 km to m").text == "1000 m"


_PIECES = ["1", "2.5", "1e3", "x", "m", "km", "degC", "pi", "sqrt", "(", ")", "+", "-", "*", "/", "^", "!", "%", "to"]
_PIECES += ["in", "min", ",", "=", ";", "of", "mod", "½", "²", "ß", "10", " ", "round", "h", "'", "°"]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(_PIECES), max_size=14))
def test_whatever_is_written_is_calculated_or_refused(pieces: list[str]) -> None:
    try:
        result = outcome(" ".join(pieces))
    except InvalidInput:
        return
    assert result.text


@settings(max_examples=60, deadline=None)
@given(st.integers(-999, 999), st.integers(-999, 999), st.integers(1, 99), st.sampled_from(["+", "-", "*"]))
def test_arithmetic_is_pythons(left: int, right: int, below: int, sign: str) -> None:
    both = {"+": left + right, "-": left - right, "*": left * right}[sign]
    assert outcome(f"(({left}) {sign} ({right})) / {below} * {below}").text == str(both)
