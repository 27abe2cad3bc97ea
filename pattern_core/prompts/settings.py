"""What an agent's prompt shows beside its memory and its conversation: the `context` part of the agent's config.

{"extra_tokens": 1200, "shares": {"pinned": 40, "recalled": 25, "logs": 15, "tasks": 10, "activity": 10},
 "show": {"activity": false}, "recall_max": 5, "recall_timeout_ms": 150,
 "activity_max": 20, "activity_own_max": 3, "activity_hours": 24}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType

from pattern_core.errors import InvalidInput
from pattern_core.prompts.parts import Kind

# In this order, in which what one kind does not need is left to those after it.
SHARES: Mapping[Kind, int] = MappingProxyType(
    {Kind.PINNED: 40, Kind.RECALLED: 25, Kind.LOGS: 15, Kind.TASKS: 10, Kind.ACTIVITY: 10}
)
SWITCHED = (
    Kind.GUIDE,
    Kind.RULES,
    Kind.PINNED,
    Kind.REFERRED,
    Kind.LOGS,
    Kind.RECALLED,
    Kind.TASKS,
    Kind.ACTIVITY,
    Kind.TIME,
)
# Names of whole numbers with the least and the greatest that are taken.
_NUMBERS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "extra_tokens": (0, 100_000),
        "recall_max": (0, 50),
        "recall_timeout_ms": (0, 10_000),
        "activity_max": (0, 100),
        "activity_own_max": (0, 100),
        "activity_hours": (1, 24 * 30),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSettings:
    """Bounds on what comes beside core memory and conversation.

    `extra_tokens` is shared out by `shares` (in hundredths); `hidden` kinds are never shown. A turn waits at most
    `recall_timeout_ms` for what is recalled.
    """

    extra_tokens: int = 1_200
    shares: Mapping[Kind, int] = field(default_factory=lambda: SHARES)
    hidden: frozenset[Kind] = frozenset()
    recall_max: int = 5
    recall_timeout_ms: int = 150
    activity_max: int = 20
    activity_own_max: int = 3
    activity_hours: int = 24

    @classmethod
    def of(cls, value: object) -> ContextSettings:
        """The settings of `config["context"]`; None is all defaults.

        Raises:
            InvalidInput: a key is unknown or its value will not do; the message says what is allowed.
        """
        if value is None:
            return cls()
        allowed = [*_NUMBERS, "shares", "show"]
        given = _object(value, "context", allowed)
        numbers = {name: _number(given[name], name) for name in _NUMBERS if name in given}
        shares, hidden = SHARES, frozenset[Kind]()
        if given.get("shares") is not None:
            shares = _shares(given["shares"])
        if given.get("show") is not None:
            shown = _object(given["show"], "context.show", SWITCHED)
            for name, one in shown.items():
                if not isinstance(one, bool):
                    raise InvalidInput(f"context.show.{name} is true or false, not {one!r}")
            hidden = frozenset(Kind(name) for name, one in shown.items() if not one)
        return cls(shares=shares, hidden=hidden, **numbers)

    def to_json(self) -> dict[str, object]:
        """The settings as `of` reads them, every key named."""
        told: dict[str, object] = {one.name: getattr(self, one.name) for one in fields(self) if one.name in _NUMBERS}
        told["shares"] = {kind.value: share for kind, share in self.shares.items()}
        told["show"] = {kind.value: kind not in self.hidden for kind in SWITCHED}
        return told


def _object(value: object, name: str, allowed: Iterable[str]) -> Mapping[str, object]:
    names = [str(one) for one in allowed]
    if not isinstance(value, Mapping):
        raise InvalidInput(f"{name} is an object with any of {', '.join(names)}, not {value!r}")
    for key in value:
        if key not in names:
            raise InvalidInput(f"{name} has no key {key!r}; there are {', '.join(names)}")
    return value


def _number(value: object, name: str) -> int:
    least, most = _NUMBERS[name]
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidInput(f"context.{name} is a whole number from {least} to {most}, not {value!r}")
    return value


def _shares(value: object) -> Mapping[Kind, int]:
    """The shares that are named, the defaults of the others; in hundredths, 100 at most altogether."""
    given = _object(value, "context.shares", SHARES)
    for name, one in given.items():
        if isinstance(one, bool) or not isinstance(one, int) or not 0 <= one <= 100:
            raise InvalidInput(f"context.shares.{name} is a whole number from 0 to 100, not {one!r}")
    shares = {kind: int(str(given.get(kind.value, share))) for kind, share in SHARES.items()}
    total = sum(shares.values())
    if total > 100:
        raise InvalidInput(f"context.shares add up to {total}, with the defaults of those not named; 100 is the most")
    return MappingProxyType(shares)
