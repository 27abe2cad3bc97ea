"""The bounds of one turn: the server's, and what its agent's config says instead. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from pydantic import Field

from pattern_core.budgets.amounts import AMOUNT_MAX
from pattern_core.errors import LimitReached
from pattern_core.limits import TurnLimits

Amount: TypeAlias = Annotated[int, Field(ge=1, le=AMOUNT_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnBudget:
    """Bounds of a turn; None is without a bound (or, in an agent's own, what the server says).

    `tokens` (in and out) and `microdollars` count the turns that it leads to as well; they are kept by the ledger.
    """

    steps: Annotated[int, Field(ge=1, le=10_000)] | None = None
    tool_calls: Annotated[int, Field(ge=0, le=100_000)] | None = None
    wall_s: Annotated[float, Field(ge=1, le=7 * 24 * 3600)] | None = None
    tokens: Amount | None = None
    microdollars: Amount | None = None
    children: Annotated[int, Field(ge=0, le=10_000)] | None = None
    output_chars: Annotated[int, Field(ge=1, le=100_000_000)] | None = None

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
