"""The tool rules of one agent, asked at the moments of its turn. Pure.

Nothing is counted anywhere: every answer follows from the turn's calls, so that a restart comes to the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from typing import Any

from pattern_core.errors import InvalidInput
from pattern_core.models.model import ANY_TOOL, ToolSpec
from pattern_core.rules import contradictions
from pattern_core.rules.facts import Call, CallState
from pattern_core.rules.fields import one_of
from pattern_core.rules.read import read
from pattern_core.rules.rule import NOTHING_LEFT, Asked, ForcedCall, Missing, Moment, ToolRule, Verdict, fields_of
from pattern_db.columns import Json

REMINDERS = 2  # before what is missing is done without the model
SKIPPED = "the turn ended with the call before it."
RUN = Verdict(kind="run")


@dataclass(frozen=True)
class RuleSet:
    """An agent's tool rules as they are stored; false if there are none."""

    rules: tuple[ToolRule, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.rules)

    @cached_property
    def ordered(self) -> tuple[ToolRule, ...]:
        """The rules as they are judged, by rank."""
        return tuple(sorted(self.rules, key=lambda rule: rule.rank))

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """What the rules say in the prompt, each sentence once. It depends on nothing but the rules."""
        return tuple(dict.fromkeys(rule.with_message(rule.in_words()) for rule in self.ordered))

    @classmethod
    def of(cls, stored: Json) -> RuleSet:
        """Return the rules of the column `agents.tool_rules`; None is no rules.

        Raises:
            InvalidInput: it is none of the formats that are known; the message names the rule and what it takes.
        """
        return cls(read(stored))

    def to_json(self) -> list[dict[str, Json]]:
        """Return the rules in our format, as they are stored."""
        return [rule.to_json() for rule in self.rules]

    def check_enabled(self, enabled: Collection[str]) -> None:
        """Pass if an agent with these tools enabled has all that its rules need.

        Raises:
            InvalidInput: it lacks a needed tool.
        """
        needed = {rule.tool for rule in self.rules if rule.must_be_enabled}
        missing = sorted(tool for tool in needed if not contradictions.is_enabled(tool, enabled))
        if missing:
            raise InvalidInput(
                f"a tool rule needs {', '.join(missing)}: add it to enabled_tools, or remove the rule `needed`"
            )

    def timed(self, enabled: Collection[str]) -> tuple[str, ...]:
        """Return the enabled tools whose last use in any turn matters to a rule."""
        timed = [rule for rule in self.rules if any(one.form == "seconds" for one in fields_of(type(rule)).values())]
        return tuple(tool for tool in enabled if any(rule.covers(tool) for rule in timed))

    def warnings(self, enabled: Collection[str] = ()) -> tuple[str, ...]:
        """Return what in the rules contradicts or can never be met, a sentence each; with `enabled`, also what they say
        of tools that the agent does not have.
        """
        return tuple(dict.fromkeys(contradictions.find(self.ordered, enabled)))


def warnings_of(stored: Json, enabled: Collection[str]) -> tuple[str, ...]:
    """Return the warnings of stored rules; of rules that cannot be read, why."""
    try:
        return RuleSet.of(stored).warnings(enabled)
    except InvalidInput as error:
        return (error.message,)


def words(rules: RuleSet) -> list[str]:
    """Return one line per rule for the prompt, in the order of judging."""
    return list(rules.lines)


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
        """Return a call's arguments with those that the rules give."""
        return {**arguments, **self.prefill.get(tool, {})}


def offer(rules: RuleSet, state: CallState, tools: Sequence[ToolSpec]) -> Offer:
    """Return what of the enabled `tools` the next decision may use.

    Rules that only say "not now" (cooldown, exclusive groups, what must come before) leave a tool in view: the model
    reads of them and is refused when it calls, so that the tools at the beginning of the prompt stay the same for its
    cache.
    """
    if not rules:
        return Offer(tools=tuple(tools))
    moment = Moment(rules.ordered, state)
    left = {spec.name for spec in tools}
    prefill: dict[str, Mapping[str, Any]] = {}
    notes: list[str] = []
    is_forced = False
    for narrowed in moment.narrowed:
        left &= narrowed.tools
        is_forced = is_forced or narrowed.is_forced
        prefill = {**narrowed.prefill, **prefill}  # the rule that is judged first wins
        notes.append(narrowed.note)
    filters = [rule for rule in rules.ordered if type(rule).show is not ToolRule.show]
    shown = tuple(spec for given in tools if given.name in left and (spec := _shown(filters, given)) is not None)
    if tools and not shown:
        notes = [NOTHING_LEFT]
    notes += [missing.note for missing in moment.missing]
    forced = None if not is_forced or not shown else shown[0].name if len(shown) == 1 else ANY_TOOL
    return Offer(
        tools=shown,
        forced=forced,
        prefill={spec.name: prefill[spec.name] for spec in shown if spec.name in prefill},
        notes=tuple(dict.fromkeys(filter(None, notes))),
    )


def _shown(filters: Sequence[ToolRule], given: ToolSpec) -> ToolSpec | None:
    spec: ToolSpec | None = given
    for rule in filters:
        if spec is not None and rule.covers(given.name):
            spec = rule.show(spec)
    return spec


def added(rules: RuleSet, state: CallState, decided: Sequence[str]) -> tuple[ForcedCall, ...]:
    """Return calls to put before those of a decision: first tools that it passes over for the third time.

    `decided` are the tools that the decision calls, `state` is the moment before it.
    """
    if not rules or not decided:
        return ()
    moment = Moment(rules.ordered, state)
    calls = (rule.precede(decided, moment) for rule in rules.ordered)
    return tuple(call for call in calls if call is not None)


def check(
    rules: RuleSet, state: CallState, asked: Asked, *, is_approved: bool = False, agreed: Collection[str | None] = ()
) -> Verdict:
    """Judge a call. With `is_approved` a person has agreed to it, and for the scopes `agreed` for longer; all other
    rules still hold.

    The first refusal in the order of judging gives the reason; no question is asked about a call that a rule refuses
    anyway. `state.step` is the number of the decision that the call is of.
    """
    if not rules:
        return RUN
    moment = Moment(rules.ordered, state)
    if ends_after(rules, state) and not _pending(rules, moment):
        return Verdict(kind="refuse", text=SKIPPED)
    question = None
    for rule in rules.ordered:
        verdict = rule.judge(asked, moment)
        if verdict is not None and verdict.kind == "refuse":
            return verdict
        if verdict is not None and question is None and verdict.scope not in agreed:
            question = verdict
    return RUN if question is None or is_approved else question


def in_order(rules: RuleSet, state: CallState, tools: Sequence[str]) -> bool:
    """Return whether the calls of one decision must run one after another, since for some rule it matters what came
    before. Calls that no such rule is about may run side by side.
    """
    if not rules or len(tools) < 2:
        return False
    moment = Moment(rules.ordered, state)
    return any(rule.needs_order(tools, moment) for rule in rules.ordered)


def ends_after(rules: RuleSet, state: CallState) -> bool:
    """Return whether a call of the decision `state.step` ran that ends the turn, and none that continues it."""
    if not rules:
        return False
    return _end_turn(rules, (call for call in state.calls if call.step == state.step and not call.is_forced))


def _end_turn(rules: RuleSet, calls: Iterable[Call]) -> bool:
    """Return whether a call ends the turn and none continues it; the first rule of a tool that says either counts."""
    ending = [rule for rule in rules.ordered if rule.ends() is not None]
    first = [next((rule for rule in ending if rule.covers(call.tool)), None) for call in calls if call.ran]
    said = {rule.ends() for rule in first if rule is not None}
    return said == {True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """Whether the turn may end. If not, either the model is asked again with `reminder` in view, or `forced_calls` are
    made at once and `at_exit` is asked again, without a model call in between.
    """

    may_end: bool
    reminder: str | None = None
    forced_calls: tuple[ForcedCall, ...] = ()


def at_exit(rules: RuleSet, state: CallState) -> Exit:
    """Return what happens when the turn wants to end: after a decision without calls, or when `ends_after` says so.

    What is missing is said twice, then done. Terminates: each missing tool is forced at most once, and a forced call
    counts however it ended.
    """
    missing = _pending(rules, Moment(rules.ordered, state)) if rules else ()
    if not missing:
        return Exit(may_end=True)
    attempt = _attempts(rules, state)
    if attempt > REMINDERS:
        forced: dict[str, ForcedCall] = {}
        for one in missing:
            if not one.others:
                forced.setdefault(one.tool, ForcedCall(tool=one.tool, arguments=one.arguments))
        return Exit(may_end=not forced, forced_calls=tuple(forced.values()))
    return Exit(may_end=False, reminder=_reminder(missing, attempt, state))


def _pending(rules: RuleSet, moment: Moment) -> Sequence[Missing]:
    """Return what the turn cannot end without, what must follow directly first, else in the order of judging."""
    return (() if ends_after(rules, moment.state) else tuple(_following(moment))) + tuple(moment.missing)


def _following(moment: Moment) -> Iterator[Missing]:
    """Yield what must come directly after the last call, where it can come; once forced, it counts as tried."""
    calls = moment.state.calls
    tried = {call.tool for call in takewhile(lambda call: not call.ran, reversed(calls)) if call.is_forced}
    for one in moment.narrowed:
        if one.follows and not one.tools & tried:
            open_to = one.tools.intersection(*(other.tools for other in moment.narrowed))
            tools = tuple(tool for tool in moment.state.tools if tool in open_to and moment.is_open(tool))
            if tools:
                arguments, why = one.prefill.get(tools[0], {}), f"{one.follows} {one_of(tools)}."
                yield Missing(rule=one.rule, tool=tools[0], why=why, arguments=arguments, others=tools[1:])


def _attempts(rules: RuleSet, state: CallState) -> int:
    """Return how many decisions of the turn wanted to end it: they called nothing, or a tool that ends it ran."""
    decided: dict[int, list[Call]] = {step: [] for step in range(1, state.step + 1)}
    for call in state.calls:
        if not call.is_forced and call.step <= state.step:
            decided[call.step].append(call)
    return sum(not calls or _end_turn(rules, calls) for calls in decided.values())


def _reminder(missing: Sequence[Missing], attempt: int, state: CallState) -> str:
    tools = ", ".join(dict.fromkeys(one_of((one.tool, *one.others)) for one in missing))
    if attempt < REMINDERS:
        opening = f"This turn is not finished: call {tools} before you end it."
    elif all(one.others for one in missing):
        opening = f"This turn should not end yet. Call {tools} now."
    else:
        opening = (
            f"This turn still cannot end. Call {tools} now; else it will be called for you without your arguments."
        )
    failed = {call.tool for call in state.calls if call.has_ended}
    said = (f"{one.why} It did not succeed so far." if one.tool in failed else one.why for one in missing)
    reasons = (one.rule.with_message(why) for one, why in zip(missing, said, strict=True))
    return " ".join([opening, *dict.fromkeys(reasons)])
