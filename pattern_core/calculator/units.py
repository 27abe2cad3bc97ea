"""Units: their names, conversions and symbols. The one file that knows pint.

Loading pint takes most of a second and 30 MB, so it is done when the first unit is met, on a thread.
Source of the units: the definitions that pint ships (https://pint.readthedocs.io), made exact by fractions.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import trio

from pattern_core.calculator.arithmetic import Number, bounded, multiplied
from pattern_core.errors import InvalidInput

if TYPE_CHECKING:
    import pint

Units: TypeAlias = Mapping[str, Fraction]  # pint's name of each unit → its exponent, never 0
NONE: Units = MappingProxyType({})
EXPONENT_MAX = 20
UNITS_MAX = 12  # different ones in one value

_OFFSET = frozenset({"degree_Celsius", "degree_Fahrenheit", "degree_Reaumur"})
# Units that are logarithms of what they measure: no factor leads from one to another.
_LOGARITHMIC = frozenset(
    ("decibel", "decibelwatt", "decibelmilliwatt", "decibelmicrowatt", "neper", "decade", "octave")
)
# Names that pint reads as something that nobody means.
_MEANT = {"celsius": "degC", "fahrenheit": "degF", "Celsius": "degC", "Fahrenheit": "degF", "kmh": "kph", "sec": "s"}


@cache
def _registry() -> pint.UnitRegistry[Any]:
    import pint  # heavy, and needed for expressions with units only

    return pint.UnitRegistry(non_int_type=Fraction, autoconvert_offset_to_baseunit=False)


async def load() -> None:
    """Load the units, if they are not loaded yet. `named` and the others do it too, and hold everybody up."""
    if _registry.cache_info().currsize:
        return
    await trio.to_thread.run_sync(_registry)


def named(name: str) -> Units | None:
    """The unit called `name` (`ft`, `kilometers`, `kWh`); None if there is none.

    Raises:
        InvalidInput: it is a logarithm, such as dB.
    """
    import pint

    try:
        found = _registry().parse_units(_MEANT.get(name, name))
    except (pint.errors.PintError, ValueError, TypeError, AttributeError):
        return None
    if any(str(unit) in _LOGARITHMIC for unit in found._units):
        raise InvalidInput(f"{name} is a logarithm of a ratio; calculate with the ratio itself, by 10^(x/10) or log(x)")
    return {str(unit): Fraction(str(exponent)) for unit, exponent in found._units.items()}


def is_offset(units: Units) -> bool:
    """Whether this is a temperature on a scale whose zero is not nothing, such as °C."""
    return any(name in _OFFSET for name in units)


def combined(left: Units, right: Units, sign: int = 1) -> Units:
    """The units of a product (`sign` 1) or quotient (-1).

    Raises:
        InvalidInput: there are too many, or a power is too high.
    """
    joined = {name: left.get(name, Fraction(0)) + sign * right.get(name, Fraction(0)) for name in {**left, **right}}
    return _checked({name: exponent for name, exponent in joined.items() if exponent})


def to_power(units: Units, exponent: Number) -> Units:
    """The units of a power.

    Raises:
        InvalidInput: a power is too high, or not a fraction.
    """
    if units and not isinstance(exponent, Fraction):
        raise InvalidInput("a value with a unit can only be raised to an exact power")
    factor = Fraction(exponent)
    return _checked({name: power * factor for name, power in units.items() if factor})


def converted(value: Number, units: Units, wanted: Units) -> Number:
    """`value`, which is in `units`, in the units `wanted`.

    Raises:
        InvalidInput: they measure different things, or the result is too large or no real number.
    """
    if units == wanted:
        return value
    import pint

    registry = _registry()
    source, target = _container(units), _container(wanted)
    try:
        if is_offset(units) or is_offset(wanted):
            return bounded(_number(registry.convert(value, source, target)))
        return multiplied(value, _number(registry.convert(Fraction(1), source, target)))
    except pint.errors.DimensionalityError:
        raise InvalidInput(
            f"{written(units) or 'a plain number'} ({_measures(units)}) cannot be converted to"
            f" {written(wanted) or 'a plain number'} ({_measures(wanted)})"
        ) from None
    except OverflowError:
        raise InvalidInput("the result is too large; a power of a unit may reach about 1.8e308") from None
    except ValueError:  # a factor that is not real
        raise InvalidInput("a negative unit has no real root of that kind, so there is nothing to convert") from None
    except pint.errors.OffsetUnitCalculusError:
        raise InvalidInput("temperatures in °C or °F cannot be part of a product; convert them to K first") from None


def simplified(value: Number, units: Units) -> tuple[Number, Units]:
    """The same with units of one kind brought together: km·min/h becomes km, m/km a plain number.

    Raises:
        InvalidInput: the number becomes too large.
    """
    kept: dict[str, Fraction] = {}
    for name, exponent in units.items():
        twin = next((other for other in kept if _is_same_kind(other, name)), None)
        if twin is None:
            kept[name] = exponent
        else:
            value = converted(value, {name: exponent}, {twin: exponent})
            kept[twin] += exponent
    return value, {name: exponent for name, exponent in kept.items() if exponent}


def plain(value: Number, units: Units) -> Number:
    """A value without a unit, or with one such as `degree` or `percent` that is only a factor, as a number.

    Raises:
        InvalidInput: it measures something.
    """
    return converted(value, units, NONE) if units else value


def written(units: Units) -> str:
    """The units by their symbols: `km/h`, `kg·m^2`; empty without any."""
    if not units:
        return ""
    above = [_symbol(name, exponent) for name, exponent in units.items() if exponent > 0]
    below = [_symbol(name, -exponent) for name, exponent in units.items() if exponent < 0]
    top = "·".join(above) or "1"
    return f"{top}/{below[0]}" if len(below) == 1 else f"{top}/({'·'.join(below)})" if below else top


def _symbol(name: str, exponent: Fraction) -> str:
    symbol = _registry().get_symbol(name)
    if exponent.denominator > 1:
        return f"{symbol}^({exponent})"
    return symbol if exponent == 1 else f"{symbol}^{exponent}"


def _is_same_kind(left: str, right: str) -> bool:
    registry = _registry()
    dimensions = registry.get_dimensionality(left)
    return bool(dimensions) and dimensions == registry.get_dimensionality(right)


def _measures(units: Units) -> str:
    if not units:
        return "measures nothing"
    dimensions = _registry().get_dimensionality(_container(units))
    return (
        " ".join(name.strip("[]") + ("" if exponent == 1 else f"^{exponent}") for name, exponent in dimensions.items())
        or "measures nothing"
    )


def _container(units: Units) -> Any:  # Any: pint's own mapping of units
    return _registry().UnitsContainer({name: _plain_exponent(exponent) for name, exponent in units.items()})


def _plain_exponent(exponent: Fraction) -> int | Fraction:
    return exponent.numerator if exponent.denominator == 1 else exponent


def _number(value: object) -> Number:
    return value if isinstance(value, float) else Fraction(str(value))


def _checked(units: Units) -> Units:
    if len(units) > UNITS_MAX or any(abs(exponent) > EXPONENT_MAX for exponent in units.values()):
        raise InvalidInput(f"a value has at most {UNITS_MAX} units, and none to a power above {EXPONENT_MAX}")
    return units
