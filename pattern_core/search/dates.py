"""Dates that a query names (`in May 2023`, `on 3 March`, `2024-01-31`), and how near a moment is to them. Pure.

Only dates written with a month's English name or as ISO 8601: what is not read costs nothing, what is misread would.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

_MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_NUMBERS = {name: number for number, name in enumerate(_MONTHS, start=1)} | {
    name[:3]: number for number, name in enumerate(_MONTHS, start=1)
}
_NAMED = re.compile(
    r"(?:\b(?P<day>\d{1,2})(?:st|nd|rd|th)?\s+(?:of\s+)?)?"
    rf"\b(?P<month>{'|'.join(_MONTHS)}|jan|feb|mar|apr|jun|jul|aug|sep|oct|nov|dec)\b\.?"
    r"(?:\s+(?P<late_day>\d{1,2})(?:st|nd|rd|th)?(?!\d))?"
    r"(?:,?\s+(?:of\s+)?(?P<year>(?:19|20)\d\d)\b)?",
    re.IGNORECASE,
)
_ISO = re.compile(r"\b(?P<year>(?:19|20)\d\d)-(?P<month>\d\d)(?:-(?P<day>\d\d))?\b")
# These are also words or names: they count only beside a day or a year.
_AMBIGUOUS = frozenset({"may", "march", "april", "june", "august", "mar", "jan", "dec", "sep"})

# People speak of a thing on the day and in the days after it.
_SAME_DAY, _SAME_WEEK, _SAME_MONTH = 1.0, 0.7, 0.3
_NEXT_MONTH = 0.3
_DAYS = ((-1, 1, _SAME_DAY), (0, 8, _SAME_WEEK), (0, 31, _SAME_MONTH))


@dataclass(frozen=True, slots=True)
class NamedDate:
    """A month, perhaps of a year, perhaps a day of it."""

    year: int | None
    month: int
    day: int | None


def named_dates(query: str) -> list[NamedDate]:
    """The dates that `query` names."""
    dates: list[NamedDate] = []
    for found in _ISO.finditer(query):
        dates.append(NamedDate(int(found["year"]), int(found["month"]), int(found["day"]) if found["day"] else None))
    for found in _NAMED.finditer(query):
        day, year = found["day"] or found["late_day"], found["year"]
        name = found["month"].lower()
        if name in _AMBIGUOUS and day is None and year is None and not found["month"][0].isupper():
            continue
        if name == "may" and day is None and year is None:
            continue
        dates.append(NamedDate(int(year) if year else None, _NUMBERS[name], int(day) if day else None))
    return [named for named in dates if 1 <= named.month <= 12]


def nearness(dates: Sequence[NamedDate], created_at: str) -> float:
    """How near the moment (a column time) is to one of the dates: 1.0 the same day or month, 0.0 far from it."""
    if not dates:
        return 0.0
    moment = date.fromisoformat(created_at[:10])
    return max(_near(named, moment) for named in dates)


def _near(named: NamedDate, moment: date) -> float:
    if named.day is not None:
        return max(_near_day(named, year, moment) for year in _years(named, moment))
    if named.year is None or named.year == moment.year:
        if moment.month == named.month:
            return _SAME_DAY
        return _NEXT_MONTH if moment.month == named.month + 1 else 0.0
    return _NEXT_MONTH if (moment.year, moment.month, named.month) == (named.year + 1, 1, 12) else 0.0


def _years(named: NamedDate, moment: date) -> Sequence[int]:
    return (named.year,) if named.year is not None else (moment.year - 1, moment.year)


def _near_day(named: NamedDate, year: int, moment: date) -> float:
    try:
        days = (moment - date(year, named.month, named.day or 1)).days
    except ValueError:
        return 0.0  # the 30th of February
    return next((value for low, high, value in _DAYS if low <= days <= high), 0.0)
