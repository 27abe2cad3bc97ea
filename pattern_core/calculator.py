"""Expressions calculated exactly, with units: rewritten as Python, parsed by `ast`, computed by a list of operations.

Numbers are fractions while they are exact, and floats from the first operation on that has no exact result. Quantities
are pint's. Nothing is executed: what the list does not name is refused. Length, size of numbers and powers are bounded.

A number and a name side by side bind more tightly than a slash: 60 mile / 2 h is a speed; but 1/2 ft is half a foot.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections import ChainMap
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import trio

from pattern_core.errors import InvalidInput

if TYPE_CHECKING:
    import pint

EXPRESSION_CHARS_MAX = 1_000
NAME_CHARS_MAX = 40
EXPONENT_MAX = 400  # of a number written as 1e400
BITS_MAX = 4_096  # of an exact number's parts: 1,233 digits
FACTORIAL_MAX = 500
UNIT_POWERS_MAX = 20  # of all units of a value together: kg·m^2/s has 4
DECIMALS_MAX = 20  # shown of an exact number; others have 15 digits

Number: TypeAlias = Fraction | float
Value: TypeAlias = Any  # a Number, or pint's Quantity of one

# A number, with what follows it directly: a name or a bracket that it multiplies, or the sign of a factorial.
_NUMBER = re.compile(
    r"(?<![\w.])((?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][+-]?(\d+)(?![\w.]))?)"
    r"(?:(?P<factorial>!)|(?P<beside>\s*(?!(?:to|as|in|of|per|mod)\b)(?=[^\W\d]|\()))?"
)
_STRANGE = re.compile(r"%|\bpercent\b|(?<!\d)!|[^\w\s+\-*/(),;=.!]")
# After a number or another word of this kind, a unit must follow: there `in` is an inch.
_INCH = re.compile(r"((?:\d|\b(?:to|in|as|per))\s*)in\b(?!\s*(?!(?:to|in|as)\b)[\w(])")
# What people type, in Python's signs. The degree sign comes after those that contain it.
_SIGNS = {"°C": " degC ", "°F": " degF ", "°": " degree ", "℃": " degC ", "℉": " degF ", "√": " sqrt "}
_SIGNS |= {"×": "*", "·": "*", "⋅": "*", "÷": "/", "−": "-", "–": "-", "->": " to ", "→": " to ", "^": "**"}
_SIGNS |= {sign: f"**{power}" for power, sign in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")}
_WORDS = {"to": " in ", "as": " in ", "in": " in ", "per": "/", "of": "*", "mod": "%"}
_MEANT = {"Celsius": "degC", "Fahrenheit": "degF", "kmh": "kph"}  # names that pint does not know
_UNREADABLE = (
    "the expression cannot be read: close each bracket, put a sign between values (2 * x, 5 ft + 3 in), write functions"
    " as sqrt(x), factorials as factorial(x), variables as x = 3, large numbers without commas"
)
_PERCENT = "percentages are not read: ten percent more is `* 1.1`, ten percent of it `* 0.1`; a remainder is `mod`"
_FAILURES = (SyntaxError, RecursionError, MemoryError, ArithmeticError, ValueError, TypeError, AttributeError)
_REASONS = {  # texts for errors of Python and of pint that say what to do
    "SyntaxError": _UNREADABLE,
    **dict.fromkeys(("RecursionError", "MemoryError"), "the expression is nested too deeply; calculate it in parts"),
    "ZeroDivisionError": "a division by zero has no result",
    "OverflowError": "the result is too large; numbers may reach about 1.8e308",
    "OffsetUnitCalculusError": "°C and °F are points on a scale: convert them to K to calculate, or write a difference"
    " as delta_degC",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Calculated:
    """The result as people write it (`30.48 cm`), and the variables that were set, in their stored form. `hint` shows
    the expression that was probably meant; may be empty.
    """

    text: str
    is_approximate: bool
    variables: Mapping[str, Mapping[str, Any]]
    hint: str = ""


async def calculate(expression: str, variables: Mapping[str, Mapping[str, Any]]) -> Calculated:
    """Calculate an expression, in which `variables` may be named; statements are separated by `;`.

    A variable is `{"number": "3/4" or the hexadecimal digits of a float, "exact": bool, "units": {pint's name: "1"}}`.

    Raises:
        InvalidInput: it cannot be parsed or has no result; the message has the reason.
    """
    # On a thread: the first unit loads pint, which needs a second.
    return await trio.to_thread.run_sync(_calculated, expression, variables)


def _calculated(expression: str, stored: Mapping[str, Mapping[str, Any]]) -> Calculated:
    variables = ChainMap[str, Mapping[str, Any]]({}, dict(stored))  # those that it sets are in the first map
    try:
        statements = ast.parse(_python(expression)).body
        *_, value = [_value(statement, variables) for statement in statements]
        number, is_approximate = _digits(value if isinstance(value, Number) else value.magnitude)
        text = number if isinstance(value, Number) else f"{number} {_symbols(value)}"
        hint = "" if isinstance(value, Number) else _unconverted(statements[-1], value, variables)
        return Calculated(text=text, is_approximate=is_approximate, variables=variables.maps[0], hint=hint)
    except _FAILURES as error:
        raise InvalidInput(_reason(error)) from None


def _unconverted(statement: ast.AST, value: Any, variables: Collection[str]) -> str:  # Any: pint's Quantity
    """Return what to say of a product with one unit that also names another of this kind: `5 mi * 1.6 km/mi` is still
    in miles, though kilometres were meant.
    """
    nodes = list(ast.walk(statement))
    signs = {type(getattr(node, "op", node)) for node in nodes}
    if not signs & {ast.Mult, ast.Div} or signs & {ast.Add, ast.Sub, ast.Compare} or len(value.unit_items()) != 1:
        return ""
    names = {node.id for node in nodes if isinstance(node, ast.Name)} - {*variables, *_CONSTANTS, *_FUNCTIONS}
    for other in map(_known, sorted(names)):
        if other.is_compatible_with(value) and other.units != value.units:
            return f"this is in {_symbols(value)}; write `5 {_symbols(value)} to {_symbols(other)}` to convert"
    return ""


def _python(text: str) -> str:
    """Return the expression in Python's signs, with the digits of numbers in quotes."""
    if len(text) > EXPRESSION_CHARS_MAX:
        raise InvalidInput(f"an expression has at most {EXPRESSION_CHARS_MAX} characters; calculate it in parts")
    for typed, sign in _SIGNS.items():
        text = text.replace(typed, sign)
    if strange := _STRANGE.search(text):
        is_percent = strange[0] in ("%", "percent")
        raise InvalidInput(_PERCENT if is_percent else f"{strange[0]!r} has no meaning there; {_UNREADABLE}")
    text = _NUMBER.sub(_quoted, _INCH.sub(r"\1inch", text))
    text = re.sub(rf"\b(?:{'|'.join(_WORDS)})\b", lambda found: _WORDS[found[0]], text)
    statements = re.split(r"[;\r\n]", text)
    python = "\n".join(" ".join(statement.split()) for statement in statements).strip()
    if not python:
        raise InvalidInput("there is nothing to calculate: `expression` is empty")
    return python


def _quoted(found: re.Match[str]) -> str:
    exponent = found[2] or "0"
    if len(exponent) > 4 or int(exponent) > EXPONENT_MAX:  # it could fill the memory
        raise InvalidInput(f"{found[1]} is too large or too small; exponents go to {EXPONENT_MAX}")
    number = f"['{found[1].replace('_', '')}']"  # next to another value it means nothing
    return f"factorial({number})" if found["factorial"] else number if found["beside"] is None else f"{number}@"


def _value(node: ast.AST, variables: ChainMap[str, Mapping[str, Any]]) -> Value:
    match node:
        case ast.Expr(value=expression):
            return _value(expression, variables)
        case ast.Assign(targets=[ast.Name(id=name)], value=expression):
            if name in _CONSTANTS or name in _FUNCTIONS or len(name) > NAME_CHARS_MAX:
                raise InvalidInput(f"{name} has a meaning already, or is too long; choose another name")
            value = _value(expression, variables)
            variables[name] = _to_json(value)
            return value
        case ast.List(elts=[ast.Constant(value=str(digits))]):
            return _bounded(Fraction(digits))
        case ast.Name(id=name):
            return _from_json(variables[name]) if name in variables else _known(name)
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(operand, variables))
        case ast.BinOp(
            op=ast.MatMult(), left=ast.BinOp(op=ast.Mult() | ast.Div() | ast.Mod() as op) as left, right=unit
        ) if not (isinstance(op, ast.Div) and isinstance(left.left, ast.List)):
            # The unit belongs to what is right of the sign, but for 1/2 ft.
            first, second = _value(left.left, variables), _times(_value(left.right, variables), _value(unit, variables))
            if isinstance(op, ast.Div) and isinstance(first, Number):
                raise InvalidInput("a / 2 m has two meanings: write (a / 2) * m or a / (2 m)")
            return _bounded(_OPERATORS[type(op)](first, second))
        case ast.BinOp(op=op, left=left, right=right) if type(op) in _OPERATORS:
            return _bounded(_OPERATORS[type(op)](_value(left, variables), _value(right, variables)))
        case ast.Compare(left=left, ops=[ast.In()], comparators=[target]):
            value, unit = _value(left, variables), _value(target, variables)
            if isinstance(unit, Number) or unit.magnitude != 1:
                raise InvalidInput("after `to` write one unit, such as cm or km/h")
            return _bounded(_registry().Quantity(value).to(unit.units))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            values = [_value(argument, variables) for argument in arguments]
            try:
                return _bounded(_FUNCTIONS[name](*values))
            except (ValueError, TypeError) as error:
                raise InvalidInput(f"{name} is not defined for these values: {_reason(error)}") from None
    raise InvalidInput(_UNREADABLE)


def _known(name: str) -> Value:
    """Return the constant or the unit of this name."""
    if name in _CONSTANTS:
        return _CONSTANTS[name]
    try:
        unit = _registry().Quantity(Fraction(1), _registry().parse_units(_MEANT.get(name, name)))
        unit.to_root_units()  # what is a logarithm, such as dB, has no factor that leads there
    except (AttributeError, TypeError, ValueError):
        known = f"{name} is a function: write {name}(…)" if name in _FUNCTIONS else f"{name} is not known"
        hint = f"no variable or unit (logarithms such as dB are none) has that name. Set one by {name} = 5"
        raise InvalidInput(f"{known}; {hint}") from None
    return unit


def _plain(value: Value) -> Number:
    """Return the number of a value that has no unit, or one such as `degree` that is only a factor."""
    number: Number = value if isinstance(value, Number) else _bounded(value.to("").magnitude)
    return number


def _on_number(change: Callable[[Number], Number], value: Value) -> Value:
    """Change the number and leave the units."""
    return change(value) if isinstance(value, Number) else _registry().Quantity(change(value.magnitude), value.units)


def _bounded(value: Value) -> Value:
    """Return the value, its number a float if the exact form is too long. Units of one kind are brought together:
    km·min/h becomes km, m/km a plain number.

    Raises:
        InvalidInput: it has too many units.
        OverflowError: it is too large for a float.
    """
    if not isinstance(value, Number):
        kind_of = _registry().get_dimensionality
        units: Any = _registry().UnitsContainer()  # Any: of powers that are fractions
        for name, power in value.unit_items():
            twin = next((other for other in units if kind_of(name) and kind_of(other) == kind_of(name)), name)
            units = units.add(twin, power)
        if sum(map(abs, units.values())) > UNIT_POWERS_MAX:
            raise InvalidInput(f"the powers of a value's units add up to at most {UNIT_POWERS_MAX}")
        value = value.to(units)
        return _on_number(_bounded, value) if units else _bounded(value.magnitude)
    if isinstance(value, Fraction) and max(map(int.bit_length, value.as_integer_ratio())) > BITS_MAX:
        value = float(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise OverflowError
    return value


def _times(left: Value, right: Value) -> Value:
    if isinstance(left, Number) and not isinstance(right, Number) and right.magnitude == 1:
        return _registry().Quantity(left, right.units)  # so 20 °C is made; pint multiplies no temperatures on a scale
    return left * right


def _power(base: Value, exponent: Value) -> Value:
    power = _plain(exponent)
    if not isinstance(base, Number):
        if isinstance(power, float):
            raise InvalidInput("a value with a unit can only be raised to an exact power")
        units = (_registry().Quantity(Fraction(1), base.units) ** power).units
        return _registry().Quantity(_power(base.magnitude, power), units)
    if isinstance(power, Fraction) and base < 0 and power.denominator % 2 and power.denominator > 1:
        return (-1) ** (power.numerator % 2) * _power(-base, power)
    if isinstance(base, Fraction) and isinstance(power, Fraction) and (base >= 0 or power.denominator == 1):
        degree = power.denominator
        root = base if degree == 1 else Fraction(round(float(base) ** (1 / degree)))  # if it is whole
        bits = 0 if root in (0, 1, -1) else max(map(int.bit_length, root.as_integer_ratio()))
        # Checked first: the number itself could fill the memory.
        if root**degree == base and bits * abs(power.numerator) <= BITS_MAX:
            return root**power.numerator
    result = float(base) ** float(power)
    if isinstance(result, complex):
        raise InvalidInput("a negative number has no real root")
    return result


def _rounded(value: Value, places: Value = Fraction(0)) -> Value:
    """Round to so many decimals (to tens, if negative), halves away from zero."""
    scale = Fraction(10) ** _whole(places, -30, 30)
    return _on_number(
        lambda number: int(Fraction(number) * scale + Fraction(1 if number > 0 else -1, 2)) / scale, value
    )


def _whole(value: Value, least: float = -math.inf, most: float = math.inf) -> int:
    number = _plain(value)
    if number != int(number) or not least <= number <= most:
        raise InvalidInput("a whole number is needed" + (f", from {least} to {most}" if most < math.inf else ""))
    return int(number)


_OPERATORS: Mapping[type, Callable[..., Value]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: _times,
    ast.MatMult: _times,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_CONSTANTS = {"pi": math.pi, "π": math.pi, "tau": math.tau, "e": math.e, "phi": (1 + math.sqrt(5)) / 2}
_REAL = ("exp", "log10", "log2", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh")
_REAL_FUNCTIONS = {**{name: getattr(math, name) for name in _REAL}, "log": math.log10, "ln": math.log}
_FUNCTIONS: Mapping[str, Callable[..., Value]] = {
    **{name: lambda value, *, real=real: real(float(_plain(value))) for name, real in _REAL_FUNCTIONS.items()},
    **dict.fromkeys(("mean", "avg"), lambda first, *others: sum(others, start=first) / (len(others) + 1)),
    "sqrt": lambda value: _power(value, Fraction(1, 2)),
    "cbrt": lambda value: _power(value, Fraction(1, 3)),
    "abs": abs,
    "floor": lambda value: _on_number(lambda number: Fraction(math.floor(number)), value),
    "ceil": lambda value: _on_number(lambda number: Fraction(math.ceil(number)), value),
    "round": _rounded,
    "factorial": lambda value: Fraction(math.factorial(_whole(value, 0, FACTORIAL_MAX))),
    "min": lambda *values: min(values),
    "max": lambda *values: max(values),
    "sum": lambda first, *others: sum(others, start=first),
    "gcd": lambda *values: Fraction(math.gcd(*map(_whole, values))),
    "lcm": lambda *values: Fraction(math.lcm(*map(_whole, values))),
}


@cache
def _registry() -> pint.UnitRegistry[Any]:
    import pint  # heavy, and needed for expressions with units only

    return pint.UnitRegistry(non_int_type=Fraction)


def _to_json(value: Value) -> dict[str, object]:
    number, units = (value, ()) if isinstance(value, Number) else (value.magnitude, value.unit_items())
    digits = str(number) if isinstance(number, Fraction) else number.hex()
    powers = {name: str(power) for name, power in units}
    return {"number": digits, "exact": isinstance(number, Fraction), "units": powers}


def _from_json(stored: Mapping[str, Any]) -> Value:
    number = Fraction(stored["number"]) if stored["exact"] else float.fromhex(stored["number"])
    units = {name: Fraction(power) for name, power in stored["units"].items()}
    return _registry().Quantity(number, _registry().UnitsContainer(units)) if units else number


def _digits(value: Number) -> tuple[str, bool]:
    """Return the number as people write it, and whether that is not exact."""
    exact = Fraction(value)
    places = next((n for n in range(DECIMALS_MAX + 1) if (exact * 10**n).denominator == 1), None)
    if isinstance(value, float) or places is None:
        return f"{float(value) or 0.0:.15g}", True
    return f"{Decimal(f'{exact * 10**places}e-{places}'):f}", False


def _symbols(quantity: Any) -> str:  # Any: pint's Quantity; its own format has no fractions
    """Return the units by their symbols: `km/h`, `kg·m^2`."""

    def symbol(name: str, power: Fraction) -> str:
        exponent = "" if power == 1 else f"^{power}" if power.denominator == 1 else f"^({power})"
        return f"{_registry().get_symbol(name)}{exponent}"

    above = "·".join(symbol(name, power) for name, power in quantity.unit_items() if power > 0)
    below = "".join(f"/{symbol(name, -power)}" for name, power in quantity.unit_items() if power < 0)
    return f"{above or 1}{below}" if below else above


def _reason(error: Any) -> str:  # Any: an error, also one of pint's that names two units
    if type(error).__name__ == "DimensionalityError":
        ends = [_symbols(_registry().Quantity(1, units)) or "a plain number" for units in (error.units1, error.units2)]
        return f"{ends[0]} cannot be converted to {ends[1]}"
    # Not looked up with a default, which would be made for each: some of pint's errors have no words for fractions.
    return _REASONS.get(type(error).__name__) or f"this has no result ({error})"
