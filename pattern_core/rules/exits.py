"""May the turn end? What is missing is said twice, then done. Pure.

The number of times that a turn wanted to end is not kept anywhere: it follows from its calls. A decision wanted to
end if it called nothing, or ran a tool that ends the turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from pattern_core.rules.conditions import holds, in_words
from pattern_core.rules.durations import in_words as seconds_in_words
from pattern_core.rules.narrowing import narrowings, starter, waiting_starts
from pattern_core.rules.rule import (
    Child,
    Conditional,
    ContinueLoop,
    ExitLoop,
    Periodic,
    RequiredBeforeExit,
    Rule,
    StartConstraint,
    named,
)
from pattern_core.rules.ruleset import RuleSet, rank
from pattern_core.rules.spent import is_spent
from pattern_core.rules.state import Call, CallState

REMINDERS = 2  # before what is missing is done without the model


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedCall:
    """A call that a rule makes instead of the model. Its `call_id` begins with `state.FORCED_PREFIX`."""

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """Whether the turn may end. If not, either the model is asked again with `reminder` in view, or `forced_calls` are
    made at once, after which one asks again without a model call in between.
    """

    may_end: bool
    reminder: str | None = None
    forced_calls: tuple[ForcedCall, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A tool that the turn cannot end without, and the rule that says so. Where `others` would do as well, the choice
    is the model's: it is reminded, and nothing is called in its place.
    """

    tool: str
    rule: Rule
    arguments: Mapping[str, Any] = field(default_factory=dict)
    others: tuple[str, ...] = ()

    @property
    def named(self) -> str:
        """The tools in a sentence."""
        return f"one of {named((self.tool, *self.others))}" if self.others else named((self.tool,))


def ends_after(rules: RuleSet, state: CallState) -> bool:
    """Whether a call of the decision `state.step` ran that ends the turn, and none that goes on."""
    return _ends_turn(rules, [call for call in state.calls if call.step == state.step and not call.is_forced])


def _ends_turn(rules: RuleSet, decided: Iterable[Call]) -> bool:
    found = [_ends(rules, call) for call in decided if call.ran]
    return True in found and False not in found


def _ends(rules: RuleSet, call: Call) -> bool | None:
    """Whether a call that ran ends the turn (true), keeps it going (false), or neither (None)."""
    deciding = [rule for rule in rules.ordered if isinstance(rule, ExitLoop | ContinueLoop) and rule.covers(call.tool)]
    if not deciding:
        return None
    return isinstance(min(deciding, key=rank), ExitLoop)


def at_exit(rules: RuleSet, state: CallState) -> Exit:
    """What happens when the turn wants to end: after a decision without calls, or when `ends_after` says so.

    Terminates: each missing tool is forced at most once, and a forced call counts however it ended.
    """
    missing = pending(rules, state)
    if not missing:
        return Exit(may_end=True)
    attempt = exit_attempts(rules, state)
    if attempt > REMINDERS:
        forced: dict[str, ForcedCall] = {}
        for one in missing:
            if not one.others:
                forced.setdefault(one.tool, ForcedCall(tool=one.tool, arguments=one.arguments))
        return Exit(may_end=not forced, forced_calls=tuple(forced.values()))
    return Exit(may_end=False, reminder=_reminder(missing, attempt, state))


def pending(rules: RuleSet, state: CallState) -> list[Missing]:
    """What the turn cannot end without, what must follow directly first, else in the order of judging. Tools that are
    not enabled, or that cannot be called any more, keep nobody.
    """
    waiting = waiting_starts(rules, state)
    found = [] if ends_after(rules, state) else list(_following(rules, state))
    for rule in rules.ordered:
        match rule:
            case StartConstraint() if rule in waiting:
                tool = starter(rules, rule, state) or rule.tool
                one = Missing(tool=tool, rule=rule, arguments=rule.args if tool == rule.tool else {})
            case RequiredBeforeExit() if _is_required(rule, state):
                one = Missing(tool=rule.tool, rule=rule)
            case Periodic() if is_due(rule, state):
                one = Missing(tool=rule.tool, rule=rule)
            case _:
                continue
        if one.tool in state.tools and not is_spent(rules, state, one.tool):
            found.append(one)
    return found


def _following(rules: RuleSet, state: CallState) -> Iterator[Missing]:
    """What must come directly after the last call, where it can come; once forced, it counts as tried."""
    if not any(isinstance(rule, Child | Conditional) for rule in rules.rules):
        return
    left = list(narrowings(rules, state))
    tried = {call.tool for call in takewhile(lambda call: not call.ran, reversed(state.calls)) if call.is_forced}
    for one in left:
        if not isinstance(one.rule, Child | Conditional) or not one.is_forced or one.tools & tried:
            continue
        open_to = one.tools.intersection(*(other.tools for other in left))
        tools = [tool for tool in state.tools if tool in open_to and not is_spent(rules, state, tool)]
        if tools:
            first, *others = tools
            yield Missing(tool=first, rule=one.rule, arguments=one.prefill.get(first, {}), others=tuple(others))


def _is_required(rule: RequiredBeforeExit, state: CallState) -> bool:
    if any(call.tool == rule.tool and (call.ran or (call.is_forced and call.has_ended)) for call in state.calls):
        return False
    return rule.condition is None or holds(rule.condition, state.calls)


def is_due(rule: Periodic, state: CallState) -> bool:
    """Whether the tool has not run for as long as the rule says, in this turn or before."""
    if any(call.tool == rule.tool and (call.ran or (call.is_forced and call.has_ended)) for call in state.calls):
        return False
    last = state.last_ms.get(rule.tool)
    # A time that lies far ahead was told by a clock that has been set back since: it must not put the tool off.
    return last is None or abs(state.now_ms - last) >= rule.seconds * 1000


def exit_attempts(rules: RuleSet, state: CallState) -> int:
    """How many decisions of the turn so far wanted to end it."""
    decided: dict[int, list[Call]] = {step: [] for step in range(1, state.step + 1)}
    for call in state.calls:
        if not call.is_forced and call.step <= state.step:
            decided[call.step].append(call)
    return sum(not calls or _ends_turn(rules, calls) for calls in decided.values())


def _reminder(missing: list[Missing], attempt: int, state: CallState) -> str:
    tools = ", ".join(dict.fromkeys(one.named for one in missing))
    details = list(dict.fromkeys(_why(one, state) for one in missing))
    if attempt < REMINDERS:
        opening = f"This turn is not finished: call {tools} before you end it."
    elif all(one.others for one in missing):
        opening = f"This turn should not end yet. Call {tools} now."
    else:
        opening = (
            f"This turn still cannot end. Call {tools} now; else it will be called for you without your arguments."
        )
    return " ".join([opening, *details])


def _why(one: Missing, state: CallState) -> str:
    match one.rule:
        case StartConstraint():
            why = f"`{one.tool}` comes first in every turn."
        case RequiredBeforeExit(condition=condition) if condition is not None:
            why = f"`{one.tool}` is required because {in_words(condition)}."
        case Periodic(seconds=seconds):
            why = f"`{one.tool}` is due: it should run every {seconds_in_words(seconds)}."
        case Child(tool=after):
            why = f"Directly after `{after}` comes {one.named}."
        case Conditional(tool=after):
            why = f"What `{after}` returned leads to {one.named}."
        case _:
            why = f"`{one.tool}` is required in every turn."
    failed = next((call for call in reversed(state.calls) if call.tool == one.tool and call.has_ended), None)
    if failed is not None:
        why += " It did not succeed so far."
    return why if one.rule.message is None else f"{why} {one.rule.message}"
