"""What an agent's rules say together at a moment of its turn: before a decision, before a call, before the end. Pure.

Nothing is counted anywhere: every answer follows from the turn's calls, so that a restart comes to the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from pattern_core.models.model import ANY_TOOL, ToolSpec
from pattern_core.rules.fields import one_of
from pattern_core.rules.rule import NOTHING_LEFT, AskedCall, Missing, Moment, Verdict

REMINDERS = 2  # before what is missing is done without the model
SKIPPED = "the turn ended with the call before it."


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


def offer(moment: Moment, tools: Sequence[ToolSpec]) -> Offer:
    """Return what of the enabled `tools` the next decision may use.

    Rules that only say "not now" (cooldown, exclusive groups, what must come before) leave a tool in view: the model
    reads of them and is refused when it calls, so that the tools at the beginning of the prompt stay the same for its
    cache.
    """
    left = {spec.name for spec in tools}.intersection(*(narrowed.tools for narrowed in moment.narrowed))
    shown: list[ToolSpec] = []
    for spec in tools:
        seen = spec if spec.name in left else None
        for rule in moment.rules:
            if seen is not None and rule.covers(spec.name):
                seen = rule.show(seen)
        if seen is not None:
            shown.append(seen)
    prefill: dict[str, Mapping[str, Any]] = {}
    for narrowed in moment.narrowed:
        prefill = {**narrowed.prefill, **prefill}  # the rule that is judged first wins
    notes = [narrowed.note for narrowed in moment.narrowed] if shown or not tools else [NOTHING_LEFT]
    notes += [missing.note for missing in moment.missing]
    is_forced = bool(shown) and any(narrowed.note for narrowed in moment.narrowed)
    return Offer(
        tools=tuple(shown),
        forced=None if not is_forced else shown[0].name if len(shown) == 1 else ANY_TOOL,
        prefill={spec.name: prefill[spec.name] for spec in shown if spec.name in prefill},
        notes=tuple(dict.fromkeys(filter(None, notes))),
    )


def added(moment: Moment, decided: Sequence[str]) -> tuple[AskedCall, ...]:
    """Return calls to put before those of a decision that calls the tools `decided` at this moment: first tools that
    it passes over for the third time.
    """
    calls = (rule.precede(decided, moment) for rule in moment.rules) if decided else ()
    return tuple(call for call in calls if call is not None)


def check(
    moment: Moment, asked: AskedCall, *, is_approved: bool = False, agreed: Collection[str | None] = ()
) -> Verdict:
    """Judge a call of the decision `moment.step`. With `is_approved` a person has agreed to it, and for the scopes
    `agreed` for longer; all other rules still hold.

    The first refusal in the order of judging gives the reason; no question is asked about a call that a rule refuses
    anyway.
    """
    if ends_after(moment, moment.step) and not _pending(moment):
        return Verdict(kind="refuse", text=SKIPPED)
    question = None
    for rule in moment.rules:
        verdict = rule.judge(asked, moment)
        if verdict is not None and verdict.kind == "refuse":
            return verdict
        if verdict is not None and question is None and verdict.scope not in agreed:
            question = verdict
    return Verdict(kind="run") if question is None or is_approved else question


def in_order(moment: Moment, tools: Sequence[str]) -> bool:
    """Return whether the calls of one decision must run one after another, since for some rule it matters what came
    before. Calls that no such rule is about may run side by side.
    """
    return len(tools) > 1 and any(rule.needs_order(tools, moment) for rule in moment.rules)


def ends_after(moment: Moment, step: int) -> bool:
    """Return whether a call of the decision `step` ran that ends the turn, and none that continues it. Of the rules of
    a tool that say either, the first counts.
    """
    ran = [call for call in moment.calls if call.step == step and call.ran and not call.is_forced]
    saying = [rule for rule in moment.rules if rule.ends is not None]
    first = (next((rule for rule in saying if rule.covers(call.tool)), None) for call in ran)
    return {rule.ends for rule in first if rule is not None} == {True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """Whether the turn may end. If not, either the model is asked again with `reminder` in view, or `forced_calls` are
    made at once and `at_exit` is asked again, without a model call in between.
    """

    may_end: bool
    reminder: str | None = None
    forced_calls: tuple[AskedCall, ...] = ()


def at_exit(moment: Moment) -> Exit:
    """Return what happens when the turn wants to end: after a decision without calls, or when `ends_after` says so.

    What is missing is said twice, then done. Terminates: each missing tool is forced at most once, and a forced call
    counts however it ended.
    """
    if not (missing := _pending(moment)):
        return Exit(may_end=True)
    called = {call.step for call in moment.calls if not call.is_forced}
    attempt = sum(step not in called or ends_after(moment, step) for step in range(1, moment.step + 1))
    if attempt <= REMINDERS:
        return Exit(may_end=False, reminder=_reminder(missing, attempt, moment))
    forced: dict[str, AskedCall] = {}
    for one in missing:
        if not one.others:
            forced.setdefault(one.tool, AskedCall(tool=one.tool, arguments=one.arguments))
    return Exit(may_end=not forced, forced_calls=tuple(forced.values()))


def _pending(moment: Moment) -> Sequence[Missing]:
    """Return what the turn cannot end without, what must follow directly first, else in the order of judging."""
    return (*(() if ends_after(moment, moment.step) else _following(moment)), *moment.missing)


def _following(moment: Moment) -> Iterator[Missing]:
    """Yield what must come directly after the last call, where it can come; once forced, it counts as tried."""
    tried = {call.tool for call in takewhile(lambda call: not call.ran, reversed(moment.calls)) if call.is_forced}
    for one in moment.narrowed:
        if one.follows and not one.tools & tried:
            open_to = one.tools.intersection(*(other.tools for other in moment.narrowed))
            if tools := tuple(tool for tool in moment.tools if tool in open_to and moment.is_open(tool)):
                arguments, why = one.prefill.get(tools[0], {}), f"{one.follows} {one_of(tools)}."
                yield Missing(rule=one.rule, tool=tools[0], why=why, arguments=arguments, others=tools[1:])


def _reminder(missing: Sequence[Missing], attempt: int, moment: Moment) -> str:
    tools = ", ".join(dict.fromkeys(one_of((one.tool, *one.others)) for one in missing))
    if attempt < REMINDERS:
        text = f"This turn is not finished: call {tools} before you end it."
    elif all(one.others for one in missing):
        text = f"This turn should not end yet. Call {tools} now."
    else:
        text = f"This turn still cannot end. Call {tools} now; else it will be called for you without your arguments."
    failed = {call.tool for call in moment.calls if call.has_ended}
    said = (f"{one.why} It did not succeed so far." if one.tool in failed else one.why for one in missing)
    reasons = (one.rule.with_message(why) for one, why in zip(missing, said, strict=True))
    return " ".join([text, *dict.fromkeys(reasons)])
