"""Numbers that stay exact as long as they can, and never grow beyond a bound. Pure.

A number is a `Fraction` while it is exact and a `float` from the first operation on that has no exact result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import TypeAlias

from pattern_core.errors import InvalidInput

Number: TypeAlias = Fraction | float

BITS_MAX = 4_096  # of an exact number's parts: 1,233 digits
FACTORIAL_MAX = 500
ROOT_MAX = 64  # exact roots are looked for up to this one
DIGITS_SHOWN = 15  # of what is not exact, and of decimals
DECIMALS_MAX = 20  # of an exact number that has so few


def bounded(value: Number) -> Number:
    """`value`, as a float if its exact form is too long.

    Raises:
        InvalidInput: it is too large for that too, or no number.
    """
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidInput("the result is too large, or not a number")
        return value
    if max(value.numerator.bit_length(), value.denominator.bit_length()) <= BITS_MAX:
        return value
    return approximate(value)


def approximate(value: Number) -> float:
    """The nearest float.

    Raises:
        InvalidInput: it is beyond what a float holds.
    """
    try:
        return float(value)
    except OverflowError:
        raise InvalidInput("the number is too large for this; at most about 1.8e308") from None


def size(value: Number) -> Number:
    """The value without its sign."""
    return -value if value < 0 else value


def added(left: Number, right: Number) -> Number:
    """The sum.

    Raises:
        InvalidInput: it is too large.
    """
    exact = isinstance(left, Fraction) and isinstance(right, Fraction)
    return bounded(left + right if exact else approximate(left) + approximate(right))


def multiplied(left: Number, right: Number) -> Number:
    """The product.

    Raises:
        InvalidInput: it is too large.
    """
    exact = isinstance(left, Fraction) and isinstance(right, Fraction)
    return bounded(left * right if exact else approximate(left) * approximate(right))


def inverted(value: Number) -> Number:
    """One divided by `value`.

    Raises:
        InvalidInput: it is 0.
    """
    if value == 0:
        raise InvalidInput("a division by zero has no result")
    return bounded(1 / value)


def remainder(left: Number, right: Number) -> Number:
    """What is left of `left` after whole multiples of `right`; it has the sign of `right`.

    Raises:
        InvalidInput: `right` is 0.
    """
    if right == 0:
        raise InvalidInput("a division by zero has no result")
    exact = isinstance(left, Fraction) and isinstance(right, Fraction)
    return bounded(left % right if exact else approximate(left) % approximate(right))


def raised(base: Number, exponent: Number) -> Number:
    """`base` to the power of `exponent`, exact where there is an exact result of bounded length.

    Raises:
        InvalidInput: the result is too large, or no real number.
    """
    if base == 0 and exponent < 0:
        raise InvalidInput("a division by zero has no result")
    if isinstance(base, Fraction) and isinstance(exponent, Fraction):
        exact = _power(base, exponent)
        if exact is not None:
            return exact
    if base < 0 and exponent != int(exponent):
        raise InvalidInput("a negative number has no real root of that kind (cbrt takes cube roots of any number)")
    try:
        return bounded(math.pow(approximate(base), approximate(exponent)))
    except (OverflowError, ValueError):
        raise InvalidInput("the result is too large; powers may reach about 1.8e308") from None


def _power(base: Fraction, exponent: Fraction) -> Fraction | None:
    """The exact power; None if there is none, or none of bounded length."""
    if exponent.denominator > 1:
        root = _root(base, exponent.denominator) if base >= 0 and exponent.denominator <= ROOT_MAX else None
        return None if root is None else _power(root, Fraction(exponent.numerator))
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    # Looked at before: the number itself could fill the memory.
    if base not in (0, 1, -1) and bits * abs(exponent.numerator) > BITS_MAX:
        return None
    if base in (0, 1, -1):
        return Fraction(1) if exponent == 0 else base if exponent.numerator % 2 else base * base
    return base**exponent.numerator


def _root(value: Fraction, degree: int) -> Fraction | None:
    parts = (_whole_root(value.numerator, degree), _whole_root(value.denominator, degree))
    return None if parts[0] is None or parts[1] is None else Fraction(parts[0], parts[1])


def _whole_root(value: int, degree: int) -> int | None:
    """The whole number whose power is `value` (0 or more), by Newton's method; None if there is none."""
    if value < 2:
        return value
    guess = 1 << -(-value.bit_length() // degree)
    while True:
        smaller = ((degree - 1) * guess + value // guess ** (degree - 1)) // degree
        if smaller >= guess:
            return guess if guess**degree == value else None
        guess = smaller


def factorial(value: Number) -> Number:
    """The product of all whole numbers up to `value`.

    Raises:
        InvalidInput: it is not a whole number from 0 to `FACTORIAL_MAX`.
    """
    if value != int(value) or not 0 <= value <= FACTORIAL_MAX:
        raise InvalidInput(f"a factorial takes a whole number from 0 to {FACTORIAL_MAX}")
    return Fraction(math.factorial(int(value)))


def cube_root(value: Number) -> Number:
    """The cube root, of negative numbers too.

    Raises:
        InvalidInput: the number is too large.
    """
    root = raised(size(value), Fraction(1, 3))
    return root if value >= 0 else -root


def rounded(value: Number, places: Number = Fraction(0)) -> Number:
    """`value` with so many decimals (of tens, if negative), halves away from zero.

    Raises:
        InvalidInput: `places` is not a whole number from -30 to 30.
    """
    if places != int(places) or not -30 <= places <= 30:
        raise InvalidInput("round takes a whole number of decimals from -30 to 30")
    scale = Fraction(10) ** int(places)
    scaled = abs(Fraction(value)) * scale
    whole = math.floor(scaled + Fraction(1, 2))
    return bounded(Fraction(whole if value >= 0 else -whole) / scale)


# Functions of one number without a unit, whose results are not exact.
REAL: Mapping[str, Callable[[float], float]] = MappingProxyType(
    {
        "exp": math.exp,
        "ln": math.log,
        "log": math.log10,
        "log10": math.log10,
        "log2": math.log2,
        "sin": math.sin,
        "cos": math.cos,
        "tan": math.tan,
        "asin": math.asin,
        "acos": math.acos,
        "atan": math.atan,
        "sinh": math.sinh,
        "cosh": math.cosh,
        "tanh": math.tanh,
    }
)
CONSTANTS: Mapping[str, float] = MappingProxyType(
    {"pi": math.pi, "π": math.pi, "tau": math.tau, "e": math.e, "phi": (1 + math.sqrt(5)) / 2}
)


def real(name: str, value: Number) -> Number:
    """The function `name` of `REAL`; logarithms of powers of their base, and what is whole at 0, stay exact.

    Raises:
        InvalidInput: the function has no value there.
    """
    base = {"log": 10, "log10": 10, "log2": 2}.get(name)
    try:
        result = REAL[name](approximate(value))
    except (ValueError, OverflowError):
        raise InvalidInput(f"{name} has no value here") from None
    if isinstance(value, float):
        return bounded(result)
    whole = Fraction(round(result)) if math.isfinite(result) else None
    if base is not None and whole is not None and _power(Fraction(base), whole) == value:
        return whole
    if value == 0 and result in (0.0, 1.0):
        return Fraction(int(result))
    return bounded(result)


def written(value: Number) -> tuple[str, bool]:
    """`value` as people write it, and whether that is not exact."""
    if isinstance(value, float):
        return _short(value), True
    if value.denominator == 1:
        return str(value.numerator), False
    decimals = _decimals(value.denominator)
    if decimals is not None and decimals <= DECIMALS_MAX:
        whole = abs(value.numerator) * 10**decimals // value.denominator
        digits = str(whole).rjust(decimals + 1, "0")
        return f"{'-' if value < 0 else ''}{digits[:-decimals]}.{digits[-decimals:]}", False
    try:
        return _short(float(value)), True
    except OverflowError:
        return str(int(value)), True


def _short(value: float) -> str:
    text = f"{value:.{DIGITS_SHOWN}g}"
    return "0" if text == "-0" else text


def _decimals(denominator: int) -> int | None:
    """How many decimals a fraction with this denominator has; None if they never end."""
    twos = fives = 0
    while denominator % 2 == 0:
        denominator, twos = denominator // 2, twos + 1
    while denominator % 5 == 0:
        denominator, fives = denominator // 5, fives + 1
    return max(twos, fives) if denominator == 1 else None
