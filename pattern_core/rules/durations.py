"""Seconds and numbers of times in words."""

from __future__ import annotations

UNITS = ((86_400, "day"), (3_600, "hour"), (60, "minute"))


def in_words(seconds: float) -> str:
    """Seconds as people say them, in the largest unit that divides them: `2 hours`, `90 seconds`, `0.5 seconds`."""
    for unit, name in UNITS:
        if seconds >= unit and seconds % unit == 0:
            return _counted(seconds / unit, name)
    return _counted(seconds, "second")


def _counted(count: float, name: str) -> str:
    return f"{count:g} {name}" if count == 1 else f"{count:g} {name}s"


def times(count: int) -> str:
    """How often: `once`, `3 times`."""
    return "once" if count == 1 else f"{count} times"
