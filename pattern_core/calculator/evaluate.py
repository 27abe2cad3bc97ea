"""Expressions read and calculated in one pass, by the grammar below; bounded in length, depth and size. Pure.

    statements  = statement { ";" statement }
    statement   = NAME "=" conversion | conversion
    conversion  = sum { ("to" | "in" | "as" | "->") product }
    sum         = product { ("+" | "-") product }          a + 10% adds ten per cent of a
    product     = signed { ("*" | "/" | "per" | "of" | "mod" | "%") signed }
    signed      = ("+" | "-") signed | side
    side        = power { power }                           beside each other: 5 m, 2 pi, 3 (4), 5 ft 3 in
    power       = postfix [ "^" signed ]
    postfix     = atom { "!" | "%" }
    atom        = NUMBER | NAME | NAME "(" conversion { "," conversion } ")" | "(" conversion ")"

What stands beside each other binds tighter than a slash, so 60 mile / 2 h is a speed; but 1/2 ft is half a foot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import reduce
from itertools import pairwise
from math import gcd, lcm

from pattern_core.calculator import arithmetic, units
from pattern_core.calculator.arithmetic import CONSTANTS, REAL, Number
from pattern_core.calculator.tokens import Token, tokens_of
from pattern_core.calculator.units import NONE, Units
from pattern_core.errors import InvalidInput

DEPTH_MAX = 30  # of brackets and signs within each other
_CONVERT = ("to", "in", "as", "->")
_WORDS = frozenset({"to", "as", "of", "per", "mod"})  # `in` is an inch too
_PERCENT = Fraction(1, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A number with its units. `is_percent`: it was written as `10%`."""

    number: Number
    units: Units = field(default_factory=dict)
    is_percent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What an expression comes to, and the variables that it set."""

    value: Value
    variables: Mapping[str, Value]

    @property
    def text(self) -> str:
        """The value as people write it: `30.48 cm`."""
        number, _ = arithmetic.written(self.value.number)
        symbol = units.written(self.value.units)
        return number + ("" if not symbol else symbol if symbol in ("%", "°") else f" {symbol}")

    @property
    def is_approximate(self) -> bool:
        """Whether the text is not exactly what was asked for."""
        return arithmetic.written(self.value.number)[1]


def evaluate(expression: str, variables: Mapping[str, Value]) -> Outcome:
    """Calculate an expression, in which `variables` may be named.

    Raises:
        InvalidInput: it cannot be read or has no result; the message says why.
    """
    reader = _Reader(tokens_of(expression), variables)
    return Outcome(value=reader.statements(), variables=reader.set)


def needs_units(expression: str, variables: Mapping[str, Value]) -> bool:
    """Whether calculating the expression will ask for units.

    Raises:
        InvalidInput: it cannot be read.
    """
    if any(value.units for value in variables.values()):
        return True
    tokens = tokens_of(expression)
    known = {*variables, *CONSTANTS, *_WORDS}
    return any(
        token.kind == "name"
        and token.text not in known
        and not (token.text in _FUNCTIONS and following.text == "(")
        and following.text != "="
        for token, following in pairwise(tokens)
    )


class _Reader:
    """Reads tokens from left to right; every method reads the rule of its name and returns what it comes to."""

    def __init__(self, tokens: Sequence[Token], variables: Mapping[str, Value]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0
        self._known = variables
        self._hint = "; write large numbers without commas" if any(token.text == "," for token in tokens) else ""
        self.set: dict[str, Value] = {}

    def statements(self) -> Value:
        value = self._statement()
        while self._takes(";"):
            if self._next.kind != "end":
                value = self._statement()
        if self._next.kind != "end":
            raise InvalidInput(f"{self._next.text!r} does not belong there{self._hint}")
        return value

    def _statement(self) -> Value:
        token, following = self._two
        if token.kind != "name" or following.text != "=":
            return self._conversion()
        if token.text in CONSTANTS or token.text in _FUNCTIONS or token.text in _CONVERT or token.text in _WORDS:
            raise InvalidInput(f"{token.text} has a meaning already; take another name")
        self._at += 2
        value = replace(self._conversion(), is_percent=False)
        self.set[token.text] = value
        return value

    def _conversion(self) -> Value:
        value = self._sum()
        while self._next.text in _CONVERT:
            self._at += 1
            wanted = self._wanted()
            value = Value(number=units.converted(value.number, value.units, wanted), units=wanted)
        return value

    def _wanted(self) -> Units:
        if self._next.text == "%":
            self._at += 1
            return units.named("percent") or NONE
        target = self._product()
        if target.number != 1:
            raise InvalidInput("after `to` stands a unit, such as cm or km/h")
        return target.units

    def _sum(self) -> Value:
        value = self._product()
        while (sign := self._next.text) in ("+", "-"):
            self._at += 1
            value = _added(value, self._product(), 1 if sign == "+" else -1)
        return value

    def _product(self) -> Value:
        value = self._signed()
        while self._next.kind != "end":
            sign = self._next.text
            if sign in ("*", "of"):
                self._at += 1
                value = _multiplied(value, self._signed())
            elif sign in ("/", "per"):
                self._at += 1
                value = self._divided(value)
            elif sign in ("mod", "%"):
                self._at += 1
                value = _remainder(value, self._signed())
            else:
                break
        return value

    def _divided(self, value: Value) -> Value:
        is_fraction = self._next.kind == "number" and self._tokens[self._at - 2].kind == "number" and not value.units
        if not is_fraction:
            return _divided(value, self._signed())
        below = self._power()
        return self._beside(_divided(value, below))

    def _signed(self) -> Value:
        if self._next.text in ("+", "-"):
            sign = self._next.text
            self._at += 1
            with_sign = self._deeper(self._signed)
            return with_sign if sign == "+" else replace(with_sign, number=-with_sign.number)
        return self._beside(self._power())

    def _beside(self, value: Value) -> Value:
        """What stands beside a value: a factor, or after a value with a unit a number, which adds (5 ft 3 in)."""
        while _begins_operand(*self._two, value):
            if self._next.kind == "number":
                if not value.units:
                    raise InvalidInput(f"there is no sign between two numbers before {self._next.text}")
                more = self._power()
                while _begins_operand(*self._two, more) and self._tokens[self._at].kind != "number":
                    more = _multiplied(more, self._power())
                return _added(value, self._beside(more), 1)
            value = _multiplied(value, self._power())
        return value

    def _power(self) -> Value:
        base = self._postfix()
        if self._next.text not in ("^", "**"):
            return base
        self._at += 1
        exponent = self._deeper(self._exponent)
        return _raised(base, exponent)

    def _exponent(self) -> Value:
        if self._next.text in ("+", "-"):
            sign = self._next.text
            self._at += 1
            value = self._deeper(self._exponent)
            return value if sign == "+" else replace(value, number=-value.number)
        return self._power()

    def _postfix(self) -> Value:
        value = self._atom()
        while True:
            if self._takes("!"):
                value = Value(number=arithmetic.factorial(units.plain(value.number, value.units)))
            elif self._next.text == "%" and not _begins_value(self._two[1]):  # 10 % 3 is no percentage
                self._at += 1
                value = Value(number=arithmetic.multiplied(value.number, _PERCENT), units=value.units, is_percent=True)
            else:
                return value

    def _atom(self) -> Value:
        token = self._next
        self._at += 1
        if token.kind == "number":
            return Value(number=arithmetic.bounded(token.number))
        if token.text == "(":
            value = self._deeper(self._conversion)
            if not self._takes(")"):
                raise _unclosed(self._hint)
            return value
        if token.kind == "name":
            return self._named(token.text)
        if token.kind == "end":
            raise InvalidInput("the expression ends too early: a value is missing at the end")
        raise InvalidInput(f"a value is missing before {token.text!r}{self._hint}")

    def _named(self, name: str) -> Value:
        if name in self.set:
            return self.set[name]
        if name in self._known:
            return self._known[name]
        if name in _FUNCTIONS and (self._next.text == "(" or name == "sqrt"):
            return _FUNCTIONS[name](name, self._arguments())
        if name in CONSTANTS:
            return Value(number=CONSTANTS[name])
        found = units.named(name)  # `min` without a bracket is a minute
        if found is None and name in _FUNCTIONS:
            raise InvalidInput(f"{name} is a function: write {name}(…)")
        if found is None:
            raise InvalidInput(
                f"{name} is not known: no variable, function or unit has that name. Set one by {name} = 5"
            )
        return Value(number=Fraction(1), units=found)

    def _arguments(self) -> list[Value]:
        if not self._takes("("):  # √ stands before a number
            return [self._deeper(self._power)]
        values = [self._deeper(self._conversion)]
        while self._takes(","):
            values.append(self._deeper(self._conversion))
        if not self._takes(")"):
            raise _unclosed(self._hint)
        return values

    def _deeper(self, read: Callable[[], Value]) -> Value:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise InvalidInput(f"brackets, signs and powers nest at most {DEPTH_MAX} deep; calculate it in parts")
        value = read()
        self._depth -= 1
        return value

    @property
    def _next(self) -> Token:
        return self._tokens[self._at]

    @property
    def _two(self) -> tuple[Token, Token]:
        return self._tokens[self._at], self._tokens[min(self._at + 1, len(self._tokens) - 1)]

    def _takes(self, sign: str) -> bool:
        if self._next.kind == "sign" and self._next.text == sign:
            self._at += 1
            return True
        return False


def _unclosed(hint: str) -> InvalidInput:
    return InvalidInput(f"a bracket is not closed{hint}")


def _begins_value(token: Token) -> bool:
    """Whether a value begins with this token."""
    is_name = token.kind == "name" and token.text not in (*_CONVERT, *_WORDS)
    return is_name or token.kind == "number" or token.text == "("


def _begins_operand(token: Token, following: Token, before: Value) -> bool:
    """Whether something stands beside the value `before` without a sign between them."""
    if token.text == "in":
        # `5 in to cm` is inches, `5 in cm` and `5 ft in in` are conversions: what stands around it tells.
        return not before.units and (following.kind == "number" or not _begins_value(following))
    return _begins_value(token)


def _added(left: Value, right: Value, sign: int) -> Value:
    if right.is_percent and not left.is_percent:
        share = arithmetic.multiplied(left.number, sign * right.number)
        return Value(number=arithmetic.added(left.number, share), units=left.units)
    if units.is_offset(left.units) or units.is_offset(right.units):
        raise InvalidInput(
            "temperatures in °C or °F are points on a scale, so they cannot be added; convert them to K, or name a"
            " difference as delta_degC"
        )
    other = units.converted(right.number, right.units, left.units)
    number = arithmetic.added(left.number, other if sign > 0 else -other)
    return Value(number=number, units=left.units, is_percent=left.is_percent and right.is_percent)


def _multiplied(left: Value, right: Value) -> Value:
    _check_scale(left, right)
    number = arithmetic.multiplied(left.number, right.number)
    return _joined(number, left.units, right.units, 1)


def _divided(left: Value, right: Value) -> Value:
    if units.is_offset(left.units) or units.is_offset(right.units):
        raise InvalidInput("temperatures in °C or °F cannot be divided; convert them to K first")
    number = arithmetic.multiplied(left.number, arithmetic.inverted(right.number))
    return _joined(number, left.units, right.units, -1)


def _joined(number: Number, left: Units, right: Units, sign: int) -> Value:
    joined = units.combined(left, right, sign)
    if left and right:
        number, joined = units.simplified(number, joined)
    return Value(number=number, units=joined)


def _check_scale(left: Value, right: Value) -> None:
    """A temperature such as 20 °C is made by a number beside its unit, and multiplied by nothing else."""
    is_made = not left.units and right.number == 1
    if (units.is_offset(left.units) or units.is_offset(right.units)) and not is_made:
        raise InvalidInput("temperatures in °C or °F cannot be multiplied; convert them to K first")


def _remainder(left: Value, right: Value) -> Value:
    other = units.converted(right.number, right.units, left.units)
    return Value(number=arithmetic.remainder(left.number, other), units=left.units)


def _raised(base: Value, exponent: Value) -> Value:
    power = units.plain(exponent.number, exponent.units)
    if units.is_offset(base.units):
        raise InvalidInput("temperatures in °C or °F cannot be raised to a power; convert them to K first")
    return Value(number=arithmetic.raised(base.number, power), units=units.to_power(base.units, power))


Function = Callable[[str, Sequence[Value]], Value]


def _one(name: str, values: Sequence[Value]) -> Value:
    if len(values) != 1:
        raise InvalidInput(f"{name} takes one value")
    return values[0]


def _plain(value: Value) -> Number:
    return units.plain(value.number, value.units)


def _real(name: str, values: Sequence[Value]) -> Value:
    return Value(number=arithmetic.real(name, _plain(_one(name, values))))


def _square_root(name: str, values: Sequence[Value]) -> Value:
    return _raised(_one(name, values), Value(number=Fraction(1, 2)))


def _cube_root(name: str, values: Sequence[Value]) -> Value:
    value = _one(name, values)
    return Value(number=arithmetic.cube_root(value.number), units=units.to_power(value.units, Fraction(1, 3)))


def _absolute(name: str, values: Sequence[Value]) -> Value:
    value = _one(name, values)
    return Value(number=arithmetic.size(value.number), units=value.units)


def _floor(name: str, values: Sequence[Value]) -> Value:
    value = _one(name, values)
    return Value(number=Fraction(Fraction(value.number).__floor__()), units=value.units)


def _ceiling(name: str, values: Sequence[Value]) -> Value:
    value = _one(name, values)
    return Value(number=Fraction(Fraction(value.number).__ceil__()), units=value.units)


def _round(name: str, values: Sequence[Value]) -> Value:
    if len(values) not in (1, 2):
        raise InvalidInput(f"{name} takes a value and, if wanted, a number of decimals")
    places = _plain(values[1]) if len(values) == 2 else Fraction(0)
    return Value(number=arithmetic.rounded(values[0].number, places), units=values[0].units)


def _same_units(values: Sequence[Value]) -> list[Value]:
    """The values in the units of the first."""
    first = values[0].units
    return [Value(number=units.converted(value.number, value.units, first), units=first) for value in values]


def _least(_name: str, values: Sequence[Value]) -> Value:
    return min(_same_units(values), key=lambda value: value.number)


def _greatest(_name: str, values: Sequence[Value]) -> Value:
    return max(_same_units(values), key=lambda value: value.number)


def _total(_name: str, values: Sequence[Value]) -> Value:
    return reduce(lambda left, right: _added(left, replace(right, is_percent=False), 1), values)


def _average(name: str, values: Sequence[Value]) -> Value:
    return _divided(_total(name, values), Value(number=Fraction(len(values))))


def _whole(name: str, values: Sequence[Value]) -> list[int]:
    plain = [_plain(value) for value in values]
    if any(number != int(number) for number in plain):
        raise InvalidInput(f"{name} takes whole numbers")
    return [int(number) for number in plain]


def _common_divisor(name: str, values: Sequence[Value]) -> Value:
    return Value(number=arithmetic.bounded(Fraction(gcd(*_whole(name, values)))))


def _common_multiple(name: str, values: Sequence[Value]) -> Value:
    multiple: Number = Fraction(1)
    for number in _whole(name, values):
        multiple = arithmetic.bounded(Fraction(lcm(int(multiple), number)))
    return Value(number=multiple)


_FUNCTIONS: Mapping[str, Function] = {
    **dict.fromkeys(REAL, _real),
    "sqrt": _square_root,
    "cbrt": _cube_root,
    "abs": _absolute,
    "floor": _floor,
    "ceil": _ceiling,
    "round": _round,
    "min": _least,
    "max": _greatest,
    "sum": _total,
    "mean": _average,
    "avg": _average,
    "gcd": _common_divisor,
    "lcm": _common_multiple,
}
