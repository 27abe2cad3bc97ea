"""The one time format of all columns: UTC with milliseconds, `2026-11-21T22:24:40.123Z`, 24 characters.

Its order as text is its order in time. No clock lives here: times come in as unix milliseconds.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache

LENGTH = 24
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


@lru_cache(maxsize=64)
def _second(unix_s: int) -> str:
    # Many rows share a second, and formatting it is nine tenths of the work.
    return (_EPOCH + timedelta(seconds=unix_s)).isoformat()[:19]


def iso(unix_ms: int) -> str:
    """The column text of `unix_ms` (unix milliseconds).

    Raises:
        OverflowError: outside the years 1 to 9999.
    """
    seconds, ms = divmod(unix_ms, 1000)
    return f"{_second(seconds)}.{ms:03d}Z"


def unix_ms(text: str) -> int:
    """Unix milliseconds of a column text, or of any RFC 3339 time with an offset; finer digits are cut off.

    Raises:
        ValueError: not such a time, or without an offset: nobody knows when a local time was.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no offset from UTC; write for example 2026-11-21T22:24:40Z")
    return (moment - _EPOCH) // _MS


def canonical(text: str) -> str:
    """The column text of any RFC 3339 time with an offset.

    Raises:
        ValueError: as `unix_ms`, also for moments outside the years 1 to 9999.
    """
    try:
        return iso(unix_ms(text))
    except OverflowError:
        raise ValueError(f"{text!r} is outside the years 1 to 9999") from None
