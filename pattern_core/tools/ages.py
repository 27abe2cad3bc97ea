"""Ages at the end of a query (`tea > 5 days`, `plans 1-2 weeks`), as models like to write them. Pure.

`> 5 days` means older, `< 3 hours` newer, `1-2 weeks` between, `5 days old` about that. Within quotes they are words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_UNIT_MS = {"hour": 3_600_000, "day": 86_400_000, "week": 7 * 86_400_000, "month": 30 * 86_400_000}
_UNIT = r"(hour|day|week|month)s?"
_SIGNED = re.compile(rf"([<>])\s*(\d{{1,4}})\s*{_UNIT}(?:\s+old)?\s*$", re.IGNORECASE)
_BETWEEN = re.compile(rf"(?:^|\s)(\d{{1,4}})\s*[-–]\s*(\d{{1,4}})\s*{_UNIT}(?:\s+old)?\s*$", re.IGNORECASE)
_ABOUT = re.compile(rf"(?:^|\s)(\d{{1,4}})\s*{_UNIT}\s+old\s*$", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgedQuery:
    """A query without the age at its end; the bounds are unix milliseconds, None where there is none."""

    query: str
    since_ms: int | None = None
    until_ms: int | None = None


def read_age(query: str, now_ms: int) -> AgedQuery:
    """Take the age off the end of `query`, if one stands there and words are left."""
    aged = _signed(query, now_ms) or _between(query, now_ms) or _about(query, now_ms)
    return aged if aged is not None and aged.query else AgedQuery(query=query)


def _signed(query: str, now_ms: int) -> AgedQuery | None:
    found = _SIGNED.search(query)
    if found is None:
        return None
    moment = now_ms - int(found[2]) * _ms(found[3])
    rest = query[: found.start()].strip()
    return AgedQuery(query=rest, until_ms=moment) if found[1] == ">" else AgedQuery(query=rest, since_ms=moment)


def _between(query: str, now_ms: int) -> AgedQuery | None:
    found = _BETWEEN.search(query)
    if found is None:
        return None
    low, high = sorted((int(found[1]), int(found[2])))
    unit = _ms(found[3])
    return AgedQuery(query=query[: found.start()].strip(), since_ms=now_ms - high * unit, until_ms=now_ms - low * unit)


def _about(query: str, now_ms: int) -> AgedQuery | None:
    found = _ABOUT.search(query)
    if found is None:
        return None
    count, unit = int(found[1]), _ms(found[2])
    since, until = now_ms - count * unit - unit // 2, now_ms - count * unit + unit // 2
    return AgedQuery(query=query[: found.start()].strip(), since_ms=since, until_ms=until)


def _ms(unit: str) -> int:
    return _UNIT_MS[unit.lower()]
