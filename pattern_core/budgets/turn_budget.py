"""The bounds of one turn: the server's, and what its agent's config says instead. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pattern_core.budgets.amounts import AMOUNT_MAX
from pattern_core.errors import InvalidInput, LimitReached
from pattern_core.limits import TurnLimits

# What an agent's config may ask for at most.
STEPS_MAX = 10_000
TOOL_CALLS_MAX = 100_000
WALL_S_MAX = 7 * 24 * 3600.0
CHILDREN_MAX = 10_000
OUTPUT_CHARS_MAX = 100_000_000

_MOST: Mapping[str, float] = {
    "steps": STEPS_MAX,
    "tool_calls": TOOL_CALLS_MAX,
    "wall_s": WALL_S_MAX,
    "tokens": AMOUNT_MAX,
    "microdollars": AMOUNT_MAX,
    "children": CHILDREN_MAX,
    "output_chars": OUTPUT_CHARS_MAX,
}
_MAY_BE_ZERO = ("tool_calls", "children")


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnBudget:
    """Bounds of a turn; None is without a bound (or, in an agent's own, what the server says).

    `tokens` (in and out) and `microdollars` count the turns that it leads to as well; they are kept by the ledger.
    """

    steps: int | None = None
    tool_calls: int | None = None
    wall_s: float | None = None
    tokens: int | None = None
    microdollars: int | None = None
    children: int | None = None
    output_chars: int | None = None

    @classmethod
    def of(cls, value: object) -> TurnBudget:
        """The bounds in an agent's config under `limits`; None are no bounds of its own.

        Raises:
            InvalidInput: a key is unknown or a value out of bounds; the message names it.
        """
        if value is None:
            return cls()
        if not isinstance(value, Mapping):
            raise InvalidInput(f"limits must be an object with keys among {', '.join(_MOST)}")
        for key, bound in value.items():
            if key not in _MOST:
                raise InvalidInput(f"limits.{key} is not known; known are {', '.join(_MOST)}")
            _check(key, bound)
        return cls(**value)

    def over(self, limits: TurnLimits) -> TurnBudget:
        """These bounds, and the server's `limits` where they say nothing."""
        return TurnBudget(
            steps=limits.steps_max if self.steps is None else self.steps,
            tool_calls=limits.tool_calls_max if self.tool_calls is None else self.tool_calls,
            wall_s=limits.turn_timeout_s if self.wall_s is None else self.wall_s,
            tokens=self.tokens,
            microdollars=self.microdollars,
            children=self.children,
            output_chars=self.output_chars,
        )

    def check(
        self, *, steps: int = 0, tool_calls: int = 0, wall_s: float = 0.0, children: int = 0, output_chars: int = 0
    ) -> None:
        """Let a turn go on, or refuse it; tokens and money are the ledger's business.

        `steps` and `tool_calls` are those that it took or is about to take, `wall_s` the seconds since its start,
        `children` the turns that it led to, `output_chars` the characters that its model wrote.

        Raises:
            LimitReached: a bound is passed; the message and `details["limit"]` name it.
        """
        bounds = (
            ("steps", self.steps, steps),
            ("tool_calls", self.tool_calls, tool_calls),
            ("wall_s", self.wall_s, wall_s),
            ("children", self.children, children),
            ("output_chars", self.output_chars, output_chars),
        )
        for name, bound, used in bounds:
            if bound is not None and used > bound:
                raise LimitReached(_PASSED[name].format(bound=f"{bound:,g}"), limit=name, amount=bound)


_PASSED: Mapping[str, str] = {
    "steps": "the turn took {bound} steps and wants more; send a message to have it go on, or raise limits.steps",
    "tool_calls": (
        "the turn asked for more than {bound} tool calls; send a message to have it go on, or raise limits.tool_calls"
    ),
    "wall_s": "the turn took longer than {bound} s; send a message to have it go on, or raise limits.wall_s",
    "children": "the turn asked other agents more than {bound} times; ask for less at once, or raise limits.children",
    "output_chars": "the turn wrote more than {bound} characters; ask for less at once, or raise limits.output_chars",
}


def _check(key: str, bound: object) -> None:
    if bound is None:
        return
    kinds = int | float if key == "wall_s" else int
    least = 0 if key in _MAY_BE_ZERO else 1
    if isinstance(bound, kinds) and not isinstance(bound, bool) and least <= bound <= _MOST[key]:
        return
    kind = "a number of seconds" if key == "wall_s" else "a whole number"
    raise InvalidInput(f"limits.{key} must be {kind} from {least} to {_MOST[key]:,.0f}, or null for the server's own")
