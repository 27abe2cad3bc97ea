"""What the model may call next: the tools that it is shown, one that it must call, arguments that are given. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pattern_core.models.model import ANY_TOOL, ToolSpec
from pattern_core.rules import operations
from pattern_core.rules.durations import in_words
from pattern_core.rules.exits import ForcedCall, is_due
from pattern_core.rules.narrowing import START_ATTEMPTS, narrowings, passed_over, starter, waiting_starts
from pattern_core.rules.rule import Conditional, Periodic, StartConstraint, named
from pattern_core.rules.ruleset import RuleSet
from pattern_core.rules.spent import is_spent
from pattern_core.rules.state import CallState

NOTHING_LEFT = "The rules of your tools leave none to call now: answer in words."


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """`tools` are those that the model is shown, with the operations that it may use. `forced` is as
    `ModelRequest.force_tool`. `prefill` holds arguments per tool that override the model's. `notes` are sentences about
    this moment, for the volatile end of the prompt.
    """

    tools: tuple[ToolSpec, ...]
    forced: str | None = None
    prefill: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def filled(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """A call's arguments with those that the rules give."""
        return {**arguments, **self.prefill.get(tool, {})}


def offer(rules: RuleSet, state: CallState, tools: Sequence[ToolSpec]) -> Offer:
    """What of the enabled `tools` the next decision may use.

    Rules that only say "not now" (cooldown, exclusive groups, what must come before) leave a tool in view: it is told
    in words and refused when called, so that the tools at the beginning of the prompt stay the same for its cache.
    """
    left = {spec.name for spec in tools}
    prefill: dict[str, Mapping[str, Any]] = {}
    notes: list[str] = []
    is_forced = False
    for one in narrowings(rules, state):
        left &= one.tools
        is_forced = is_forced or one.is_forced
        for tool, arguments in one.prefill.items():
            prefill.setdefault(tool, arguments)  # the rule that is judged first wins
        if one.is_forced and one.tools:
            notes.append(_forced_note(isinstance(one.rule, StartConstraint), sorted(one.tools)))
        elif isinstance(one.rule, Conditional):
            notes.append(NOTHING_LEFT)
    shown = tuple(
        spec for given in tools if given.name in left and (spec := operations.narrowed(rules, given)) is not None
    )
    if tools and not shown:
        notes = [NOTHING_LEFT]
    notes += [_due_note(rule) for rule in _due(rules, state)]
    return Offer(
        tools=shown,
        forced=_forced([spec.name for spec in shown]) if is_forced else None,
        prefill={spec.name: prefill[spec.name] for spec in shown if spec.name in prefill},
        notes=tuple(dict.fromkeys(notes)),
    )


def added(rules: RuleSet, state: CallState, decided: Sequence[str]) -> tuple[ForcedCall, ...]:
    """Calls to put before those of a decision: first tools that it passes over for the third time.

    `decided` are the tools that the decision calls, `state` is the moment before it.
    """
    if not decided:
        return ()
    found = []
    for rule in waiting_starts(rules, state):
        is_passed_over = not any(tool in rule.starters for tool in decided)
        if is_passed_over and passed_over(rule, state.calls) + 1 >= START_ATTEMPTS:
            tool = starter(rules, rule, state) or rule.tool
            found.append(ForcedCall(tool=tool, arguments=rule.args if tool == rule.tool else {}))
    return tuple(found)


def _forced(names: Sequence[str]) -> str | None:
    if not names:
        return None
    return names[0] if len(names) == 1 else ANY_TOOL


def _forced_note(is_first: bool, tools: list[str]) -> str:
    which = named(tools) if len(tools) == 1 else f"one of {named(tools)}"
    return f"Before anything else in this turn call {which}." if is_first else f"Now call {which}."


def _due(rules: RuleSet, state: CallState) -> list[Periodic]:
    return [
        rule
        for rule in rules.of_kind(Periodic)
        if rule.tool in state.tools and is_due(rule, state) and not is_spent(rules, state, rule.tool)
    ]


def _due_note(rule: Periodic) -> str:
    return f"`{rule.tool}` is due in this turn: it should run every {in_words(rule.seconds)}."
