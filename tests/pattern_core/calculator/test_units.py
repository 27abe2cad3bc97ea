from __future__ import annotations

from fractions import Fraction

import pytest

from pattern_core.calculator import units
from pattern_core.errors import InvalidInput

ONE = Fraction(1)


def unit(name: str) -> units.Units:
    found = units.named(name)
    assert found is not None
    return found


def test_names_in_many_forms() -> None:
    assert unit("km") == unit("kilometers") == {"kilometer": 1}
    assert unit("celsius") == unit("degC") == {"degree_Celsius": 1}
    assert unit("sec") == unit("s")
    assert units.named("owl") is None


def test_conversions_are_exact() -> None:
    assert units.converted(ONE, unit("ft"), unit("cm")) == Fraction(3048, 100)
    assert units.converted(Fraction(20), unit("degC"), unit("degF")) == 68
    assert units.converted(Fraction(5), {}, {}) == 5
    assert units.plain(Fraction(50), unit("percent")) == Fraction(1, 2)
    with pytest.raises(InvalidInput, match=r"m \(length\) cannot be converted to kg \(mass\)"):
        units.converted(ONE, unit("m"), unit("kg"))


def test_units_of_one_kind_are_brought_together() -> None:
    mixed = units.combined(units.combined(unit("km"), unit("h"), -1), unit("min"))
    assert units.simplified(Fraction(60), mixed) == (ONE, {"kilometer": ONE})
    assert units.combined(unit("m"), unit("m"), -1) == {}


def test_symbols() -> None:
    speed = units.combined(unit("km"), unit("h"), -1)
    assert units.written(speed) == "km/h"
    assert units.written(units.to_power(unit("m"), Fraction(1, 2))) == "m^(1/2)"
    assert units.written(units.combined({}, units.combined(unit("s"), unit("m")), -1)) == "1/(s·m)"
    assert units.written({}) == ""


def test_bounds_hold() -> None:
    with pytest.raises(InvalidInput, match="to a power above 20"):
        units.to_power(unit("m"), Fraction(21))
    with pytest.raises(InvalidInput, match="exact power"):
        units.to_power(unit("m"), 0.5)


def test_logarithms_are_no_factors() -> None:
    registry = units._registry()
    logarithmic = {
        registry.get_name(name)
        for name, unit in registry._units.items()
        if getattr(unit.converter, "is_logarithmic", False)
    }
    assert logarithmic == units._LOGARITHMIC
    with pytest.raises(InvalidInput, match="dBm is a logarithm"):
        units.named("dBm")


def test_powers_that_no_number_holds() -> None:
    alpha = units.to_power(unit("alpha"), Fraction(-20))
    with pytest.raises(InvalidInput, match="too large"):
        units.converted(Fraction(10) ** 300, alpha, unit("degree"))
    with pytest.raises(InvalidInput, match="no real root"):
        units.converted(ONE, units.to_power(unit("g_e"), Fraction(1, 3)), unit("degree"))
