"""Laws of tool rules: whatever they are and whatever a model calls, judging ends, and what it refused is forgotten."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pattern_core.errors import InvalidInput
from pattern_core.rules.facts import USED, JudgedCall
from pattern_core.rules.kinds import KINDS, MaxCalls
from pattern_core.rules.rule import Moment, RequestedCall
from pattern_core.rules.ruleset import RuleSet, warnings_of
from tests.pattern_core.rules.moments import TOOLS, specs, under

names = st.sampled_from(TOOLS)
patterns = st.sampled_from((*TOOLS, "*", "?"))
lists = st.lists(patterns, min_size=1, max_size=2)
seconds = st.integers(1, 5)


def rule(kind: str, tool: Any = patterns, **fields: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {"type": st.just(kind), "tool": tool, "priority": st.integers(4, 6), **fields},
    )


any_rule = st.one_of(
    rule("continue_loop"),
    rule("exit_loop"),
    rule("start_constraint", names, args=st.just({"n": 1})),
    rule("required_before_exit", names),
    rule("required_before_exit_if", names, condition=st.builds(lambda tool: {"tool_called": tool}, names)),
    rule("requires_preceding", tools=lists),
    rule("requires_following", tools=lists),
    rule("child", children=lists),
    rule("parent", children=lists),
    rule("conditional", outputs=st.dictionaries(st.sampled_from(["0", "1"]), names, min_size=1), strict=st.booleans()),
    rule("exclusive_groups", groups=st.just([["a", "b"], ["b", "*"]])),
    rule("max_calls", count=st.integers(0, 2)),
    rule("cooldown", seconds=seconds),
    rule("periodic", names, seconds=seconds),
    rule("requires_consent"),
    rule("allowed_operations", operations=st.just(["x"])),
    rule("needed", names),
)
# What may be stored: a rule with some fields of it, and of others, replaced by what does not fit.
junk = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 300) | st.floats() | st.sampled_from(["", "a b", "3", *TOOLS, *KINDS]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "type", "secs", "args"]), inner),
    max_leaves=4,
)
aliases = {
    alias for kind in KINDS.values() for one in kind.own_fields.values() for alias in one.metadata.get("aliases", ())
}
keys = st.sampled_from(sorted({"tool", "tool_name", "type", "rule_type", "parents", "message", "priority", *aliases}))
odd_rule = st.builds(lambda rule, odd: {**rule, **odd}, any_rule, st.dictionaries(keys, junk, max_size=2))
outcomes = st.sampled_from(["done", "done", "error", "timeout", "denied", "in_doubt"])
decisions = st.lists(st.lists(st.tuples(names, outcomes, st.sampled_from("01")), max_size=3), max_size=6)


class Turn:
    """A model that calls what it likes, and an executor that asks the rules."""

    def __init__(self, rules: RuleSet) -> None:
        self.rules = rules
        self.state = Moment(tools=TOOLS, last_ms={"a": 0})

    def run(self, tool: str, outcome: str, result: str, *, is_forced: bool = False) -> str:
        """Judge and run one call, and return the verdict; a person agrees to everything that does not end as denied."""
        found = under(self.rules, self.state).check(RequestedCall(tool=tool))
        if found.kind == "ask" and outcome != "denied":
            found = under(self.rules, self.state).check(RequestedCall(tool=tool), is_approved=True)
        status = outcome if found.kind == "run" else "denied"
        given: dict[str, Any] = {"step": self.state.step, "at_ms": self.state.now_ms, "is_forced": is_forced}
        self.state = replace(
            self.state, calls=(*self.state.calls, JudgedCall(tool=tool, status=status, result=result, **given))
        )
        return found.kind

    def begin(self) -> None:
        """Go on to the next decision, half a second later."""
        self.state = replace(self.state, step=self.state.step + 1, now_ms=self.state.now_ms + 500)


@settings(max_examples=300)
@given(st.lists(any_rule | odd_rule, max_size=3) | st.dictionaries(names, odd_rule | junk, max_size=2) | junk)
def test_whatever_is_stored_is_refused_in_words_or_comes_back_the_same(stored: Any) -> None:
    try:
        rules = RuleSet.of(stored)
    except InvalidInput as error:
        assert warnings_of(stored, ()) == (error.message,)
    else:
        assert RuleSet.of(rules.to_json()).to_json() == rules.to_json()
        assert rules.warnings() == warnings_of(rules.to_json(), ())
        assert len(rules.lines) <= len(rules.rules)


@settings(max_examples=150)
@given(st.lists(any_rule, max_size=5), decisions)
def test_judging_ends_and_holds(stored: list[dict[str, Any]], decided: list[list[tuple[str, str, str]]]) -> None:
    rules = RuleSet.of(stored)
    assert RuleSet.of(rules.to_json()) == rules
    assert len(rules.lines) <= len(stored) == len(rules.rules)
    rules.warnings(TOOLS)
    turn = Turn(rules)
    for calls in decided:
        shown = under(rules, turn.state).offer(specs(*TOOLS))
        assert {spec.name for spec in shown.tools} <= set(TOOLS)
        assert shown.forced in (None, "*", *(spec.name for spec in shown.tools))
        before = turn.state
        turn.begin()
        under(rules, turn.state).in_order([tool for tool, *_ in calls])
        for forced in under(rules, turn.state).added([tool for tool, *_ in calls]):
            turn.run(forced.tool, "error", "", is_forced=True)
        for place, (tool, outcome, result) in enumerate(calls):
            verdict = turn.run(tool, outcome, result)
            if place == 0 and len(turn.state.calls) == len(before.calls) + 1 and verdict != "refuse":
                # What may run was in view; but time may have gone by since.
                assert tool in {spec.name for spec in shown.tools}
        for limit in rules.rules:
            if isinstance(limit, MaxCalls):
                used = [call for call in turn.state.calls if limit.covers(call.tool) and call.status in USED]
                assert len(used) <= limit.count
        under(rules, turn.state).ends_after(turn.state.step)


@settings(max_examples=100)
@given(st.lists(any_rule, max_size=5), decisions)
def test_every_turn_can_end(stored: list[dict[str, Any]], decided: list[list[tuple[str, str, str]]]) -> None:
    rules = RuleSet.of(stored)
    turn = Turn(rules)
    for calls in decided:
        turn.begin()
        for tool, outcome, result in calls:
            turn.run(tool, outcome, result)
    asked = 0
    while not (found := under(rules, turn.state).at_exit()).ends:
        asked += 1
        assert asked <= 3 + 2 * len(TOOLS), "the turn never ends"
        if found.notes:
            turn.begin()  # and the model says nothing but words again
        for forced in found.forced:
            turn.run(forced.tool, "error", "", is_forced=True)


@settings(max_examples=60)
@given(st.lists(any_rule, max_size=4), st.lists(st.tuples(names, outcomes, st.just("1")), max_size=4), names)
def test_what_was_refused_is_forgotten(
    stored: list[dict[str, Any]], calls: list[tuple[str, str, str]], tool: str
) -> None:
    stored = [one for one in stored if one["type"] not in ("start_constraint",)]  # counts who passes it over
    turn = Turn(RuleSet.of([*stored, {"tool": tool, "type": "max_calls", "count": 1}]))
    turn.begin()
    for one, outcome, result in [*calls, (tool, "done", "")]:
        turn.run(one, outcome, result)
    assume(turn.run(tool, "done", "") == "refuse")  # unless a person is to be asked
    before = turn.state
    kept = Moment(calls=before.calls[:-1], tools=TOOLS, step=1, last_ms=before.last_ms, now_ms=before.now_ms)
    for other in TOOLS:
        asked = RequestedCall(tool=other)
        assert under(turn.rules, before).check(asked) == under(turn.rules, kept).check(asked)
