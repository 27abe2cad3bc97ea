"""Results of pure functions, given again as long as nothing that they were made of has changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Again:
    """Calls functions, and has the last result of each at hand.

    For what is made over and over of arguments that seldom change. Arguments are compared for equality, which is
    cheap where they are the same objects; they must not be changed by anybody.
    """

    def __init__(self) -> None:
        self._last: dict[Callable[..., Any], tuple[tuple[object, ...], Any]] = {}

    def __call__(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `fn` gives for the arguments."""
        given = (*args, kwargs)
        known = self._last.get(fn)
        if known is not None and known[0] == given:
            last: T = known[1]
            return last
        made = fn(*args, **kwargs)
        self._last[fn] = (given, made)
        return made
