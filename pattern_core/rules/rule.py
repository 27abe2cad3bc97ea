"""The kinds of tool rules as data. What each one means is said here once; REFERENCE.md shows its JSON.

Unless a rule says otherwise it is about the calls of one turn. "Ran" means that a call succeeded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from pattern_core.rules.conditions import Condition

PRIORITY = 5  # of a rule that names none
PRIORITY_MAX = 255
EVERY = "*"

# Argument names by which tools take what to do, in the order in which they are looked for.
OPERATION_PARAMETERS = ("op", "operation", "command")


def covers(pattern: str, tool: str) -> bool:
    """Whether a pattern means a tool: its name, or a pattern with `*` (any characters) and `?` (one)."""
    return pattern in (tool, EVERY) or (is_pattern(pattern) and fnmatchcase(tool, pattern))


def is_pattern(name: str) -> bool:
    """Whether a name may stand for several tools."""
    return "*" in name or "?" in name


def named(tools: Sequence[str]) -> str:
    """Tools as a list in a sentence; nothing for none."""
    return ", ".join(f"`{tool}`" for tool in tools)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What all rules have: the tool, or a pattern of tools, that it is about; its rank, highest first (0 to 255); words
    of its author, which are added to what the model is told.
    """

    tool: str
    priority: int = PRIORITY
    message: str | None = None

    def covers(self, tool: str) -> bool:
        """Whether the rule is about calls of this tool."""
        return covers(self.tool, tool)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinueLoop(Rule):
    """After the tool ran the model is asked again, even where another rule would end the turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitLoop(Rule):
    """After the tool ran the turn ends; a failed call ends nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartConstraint(Rule):
    """The tool runs before any other; `args` override the model's arguments. Any of `alternatives` will do instead."""

    args: Mapping[str, Any] = field(default_factory=dict)
    alternatives: tuple[str, ...] = ()

    @property
    def starters(self) -> tuple[str, ...]:
        """The tools any of which satisfies the rule."""
        return (self.tool, *self.alternatives)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredBeforeExit(Rule):
    """The turn does not end before the tool ran; with a `condition`, only if that holds when the turn wants to end."""

    condition: Condition | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiresPreceding(Rule):
    """The tool may run only after each of `tools` ran."""

    tools: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiresFollowing(Rule):
    """The tool belongs before `tools`: once one of them ran, it may not run any more."""

    tools: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Child(Rule):
    """Directly after the tool ran one of `children` must be called; `args` (child → arguments) override the model's."""

    children: tuple[str, ...]
    args: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent(Rule):
    """`children` may be called directly after the tool ran and at no other time, and then nothing else may."""

    children: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditional(Rule):
    """The tool's result decides what is called next: `outputs` maps it to a tool, anything else leads to `default`, or,
    without one, to any tool; where `strict`, to none.
    """

    outputs: Mapping[str, str]
    default: str | None = None
    strict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExclusiveGroups(Rule):
    """Of each group only one tool is used in a turn, as often as one likes."""

    groups: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxCalls(Rule):
    """The tool (all that the pattern means, together) runs at most `count` times. What was refused or failed is free;
    what may have happened counts.
    """

    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cooldown(Rule):
    """`seconds` must pass from one successful start of the tool to the next, across turns."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Periodic(Rule):
    """The tool should run every `seconds`: once it is due, a turn does not end without it."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiresConsent(Rule):
    """A person must agree to each call; who agrees for a `scope` agrees to all calls of that scope."""

    scope: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedOperations(Rule):
    """Only these values of the argument that names the operation; others are not shown to the model and refused.

    `parameter` None takes the first of `OPERATION_PARAMETERS` that the tool has.
    """

    operations: tuple[str, ...]
    parameter: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed(Rule):
    """The tool must stay enabled: something else relies on it."""
