"""The kinds of tool rules, each with its whole behaviour; every class here is one. Their docstrings are shown on the
page Tools and rules. Pure.

Unless a kind says otherwise it is about the calls of one turn. "Ran" means that a call succeeded.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from itertools import product
from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator, Field

from pattern_core.errors import InvalidInput
from pattern_core.models.model import ToolSpec
from pattern_core.rules.facts import OPEN, REFUSED, USED, JudgedCall
from pattern_core.rules.fields import (
    EVERY,
    NAMES_MAX,
    CheckedCondition,
    Count,
    Name,
    Names,
    Pattern,
    Patterns,
    Phrase,
    Seconds,
    condition_in_words,
    covers_any,
    duration,
    holds,
    is_pattern,
    named,
    one_of,
    times,
    to_number,
)
from pattern_core.rules.rule import Missing, Moment, Narrowed, RequestedCall, ToolRule, Verdict, known_as, sentence
from pattern_core.validation import must
from pattern_db.enums import TrustLevel

START_ATTEMPTS = 3  # decisions that may pass a first tool over, or fail with it, before it counts as tried

# Argument names by which tools take what to do, in the order in which they are looked for.
OPERATION_PARAMETERS = ("op", "operation", "command")


def _beside(rule: RequiresPreceding | RequiresFollowing, tools: Collection[str], moment: Moment) -> bool:
    """Order matters where the tool is called together with one of the others."""
    return covers_any((rule.tool,), tools) and covers_any(rule.tools, tools)


def _around(rule: Child | Parent, tools: Collection[str], moment: Moment) -> bool:
    """Order matters where the tool or a child is called."""
    return covers_any((rule.tool, *rule.children), tools)


class ContinueLoop(ToolRule):
    """After the tool ran the model is asked again, even where another rule would end the turn."""

    name, aliases = "continue_loop", ("continue",)
    ends = False
    has_no_order = True
    in_words = sentence("After {tool} your turn continues.")


class ExitLoop(ToolRule):
    """After the tool ran the turn ends; a failed call ends nothing."""

    name, aliases = "exit_loop", ("terminal",)
    ends = True
    in_words = sentence("After {tool} succeeded your turn ends, and calls that you put behind it are not run.")


class StartConstraint(ToolRule):
    """The tool runs before any other; `args` override the model's arguments. Any of `alternatives` will do instead."""

    name, aliases = "start_constraint", ("run_first", "init")
    tool: Name
    args: Mapping[str, Any] = field(default_factory=dict)
    alternatives: Names = ()
    in_words = sentence(
        "In every turn call {first} first, before any other tool.",
        first=lambda rule: " or ".join(f"`{tool}`" for tool in rule.starters),
    )

    @property
    def starters(self) -> tuple[str, ...]:
        """The tools any of which satisfies the rule."""
        return (self.tool, *self.alternatives)

    def narrow(self, moment: Moment) -> Narrowed | None:
        """Leave the first tools of all such rules that wait; the first rule speaks for all."""
        waiting = [one.rule for one in moment.missing if isinstance(one.rule, StartConstraint)]
        if not waiting or waiting[0] is not self:
            return None
        tools = moment.enabled({tool for rule in waiting for tool in rule.starters})
        return Narrowed(
            rule=self,
            tools=tools,
            why=f"{named(sorted(tools))} must run first in a turn, before `{{tool}}`.",
            note=f"Before anything else in this turn call {one_of(sorted(tools))}.",
            prefill={rule.tool: rule.args for rule in waiting if rule.args},
        )

    def lack(self, moment: Moment) -> Missing | None:
        """Lack one of the tools until it ran or was tried often enough."""
        steps = {call.step for call in moment.calls if call.tool in self.starters and call.has_ended}
        if len(steps) >= START_ATTEMPTS or any(map(moment.was_tried, self.starters)):
            return None
        tool = next(filter(moment.is_open, self.starters), None)
        if tool is None:
            return None
        arguments = self.args if tool == self.tool else {}
        return Missing(rule=self, tool=tool, why=f"`{tool}` comes first in every turn.", arguments=arguments)

    def precede(self, decided: Sequence[str], moment: Moment) -> RequestedCall | None:
        """Call a first tool that decisions pass over for the third time."""
        mine = next((one for one in moment.missing if one.rule is self), None)
        if mine is None or any(tool in self.starters for tool in decided):
            return None
        passed = {call.step for call in moment.calls if call.status == REFUSED and call.tool not in self.starters}
        return RequestedCall(tool=mine.tool, arguments=mine.arguments) if len(passed) + 1 >= START_ATTEMPTS else None

    def needs_order(self, tools: Collection[str], moment: Moment) -> bool:
        """While a first tool waits, all calls run in order."""
        return any(one.rule is self for one in moment.missing)


class RequiredBeforeExit(ToolRule):
    """The turn does not end before the tool ran."""

    name = "required_before_exit"
    has_no_order = True
    tool: Name
    in_words = sentence("Call {tool} before you end a turn.")

    def lack(self, moment: Moment) -> Missing | None:
        """Lack the tool until it was tried."""
        why = f"`{self.tool}` is required in every turn."
        return None if moment.was_tried(self.tool) else Missing(rule=self, tool=self.tool, why=why)


class RequiredBeforeExitIf(ToolRule):
    """The turn does not end before the tool ran, if the condition holds when the turn wants to end."""

    name = "required_before_exit_if"
    has_no_order = True
    tool: Name
    condition: CheckedCondition = known_as("value", "conditions")
    in_words = sentence(
        "Call {tool} before you end a turn if {holds}.", holds=lambda rule: condition_in_words(rule.condition)
    )

    def lack(self, moment: Moment) -> Missing | None:
        """Lack the tool until it was tried, while the condition holds."""
        if moment.was_tried(self.tool) or not holds(self.condition, moment.calls):
            return None
        return Missing(
            rule=self, tool=self.tool, why=f"`{self.tool}` is required because {condition_in_words(self.condition)}."
        )


class RequiresPreceding(ToolRule):
    """The tool may run only after each of `tools` ran."""

    name, aliases = "requires_preceding", ("requires_preceding_tools",)
    tools: Patterns = known_as("conditions", "value")
    needs_order = _beside
    in_words = sentence("Call {tool} only after {tools} succeeded in the same turn.")

    def objection(self, call: RequestedCall, moment: Moment) -> Verdict | None:
        """Refuse until all ran."""
        left = [name for name in self.tools if not moment.ran(name)]
        return self.refuse(f"{named(left)} must run first.") if left else None


class RequiresFollowing(ToolRule):
    """The tool belongs before `tools`: once one of them ran, it may not run again."""

    name, aliases = "requires_following", ("requires_following_tools",)
    is_final = True
    tools: Patterns = known_as("conditions", "value")
    needs_order = _beside
    in_words = sentence("Call {tool} only before {tools}, not after.")

    def objection(self, call: RequestedCall, moment: Moment) -> Verdict | None:
        """Refuse once one of them ran."""
        there = [name for name in self.tools if moment.ran(name)]
        return self.refuse(f"it belongs before {named(there)}, which ran already in this turn.") if there else None


def _by_child(value: object) -> object:
    """Return arguments by child, which Letta lists as `{name, args}`."""
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        return value
    return {str(one.get("name")): one.get("args") or {} for one in value}


ChildArgs: TypeAlias = Annotated[Mapping[Name, Mapping[str, Any]], BeforeValidator(_by_child)]


class Child(ToolRule):
    """Directly after the tool ran one of `children` must be called; `args` (child → arguments) override the model's."""

    name, aliases = "child", ("constrain_child_tools",)
    children: Patterns
    args: ChildArgs = known_as("child_arg_nodes", default_factory=dict)
    needs_order = _around
    in_words = sentence("Directly after {tool} call {one}.", one=lambda rule: one_of(rule.children))

    def __post_init__(self) -> None:
        strange = [name for name in self.args if not covers_any(self.children, (name,))]
        if strange:
            raise InvalidInput(f"`args` names {', '.join(strange)}, which is not among `children`")

    def narrow(self, moment: Moment) -> Narrowed | None:
        """Leave the children, directly after the tool."""
        last, follows = moment.after(self), f"Directly after `{self.tool}` comes"
        return None if last is None else _only(self, self.children, last, moment, prefill=self.args, follows=follows)


class Parent(ToolRule):
    """`children` may be called directly after the tool ran and at no other time, and then nothing else may."""

    name, aliases = "parent", ("parent_last_tool",)
    children: Patterns
    needs_order = _around
    in_words = sentence("Call {children} only directly after {tool}, and after it nothing else.")

    def narrow(self, moment: Moment) -> Narrowed:
        """Leave the children directly after the tool, else all but them."""
        if (last := moment.after(self)) is not None:
            return _only(self, self.children, last, moment)
        others = frozenset(moment.tools) - moment.enabled(self.children)
        return Narrowed(rule=self, tools=others, why=f"it may be called only directly after `{self.tool}`.")


class Conditional(ToolRule):
    """The tool's result decides what is called next: `outputs` maps it to a tool, anything else leads to `default`, or,
    without one, to any tool; where `strict`, to none.
    """

    name = "conditional"
    outputs: Annotated[Mapping[str, Name], Field(min_length=1)] = known_as("child_output_mapping")
    default: Name | None = known_as("default_child", default=None)
    strict: bool = known_as("require_output_mapping", default=False)
    in_words = sentence(
        "What {tool} returns decides what you call next: {ways}{other}.",
        ways=lambda rule: ", ".join(f"“{output}” to `{tool}`" for output, tool in rule.outputs.items()),
        other=lambda rule: f", anything else to `{rule.default}`" if rule.default else "",
    )

    def narrow(self, moment: Moment) -> Narrowed | None:
        """Leave the tool that the last result leads to, directly after the tool."""
        if (last := moment.after(self)) is None:
            return None
        output = _output(last.result)
        tool = next((tool for value, tool in self.outputs.items() if _matches(value, output)), self.default)
        if tool is None and not self.strict:
            return None
        follows = f"What `{self.tool}` returned leads to"
        return _only(self, () if tool is None else (tool,), last, moment, follows=follows)


def _only(rule: ToolRule, tools: Collection[str], last: JudgedCall, moment: Moment, **more: Any) -> Narrowed:
    """Leave only these tools, one of which must be called, directly after the last call."""
    left = sorted(moment.enabled(tools))
    why = f"directly after `{last.tool}` only {named(left) or 'no tool'} may be called."
    note = f"Now call {one_of(left)}." if left else ""
    return Narrowed(rule=rule, tools=frozenset(left), why=why, note=note, **more)


def _output(result: str) -> object:
    """Return what a result says: its JSON, of an object the `message`; a text that is not JSON as it is."""
    try:
        value: object = json.loads(result)
    except (ValueError, RecursionError):
        return result.strip()
    return value.get("message", value) if isinstance(value, dict) else value


def _matches(wanted: str, output: object) -> bool:
    if isinstance(output, bool):
        return wanted.strip().lower() == str(output).lower()
    if isinstance(output, int | float):
        return to_number(wanted) == output
    return wanted == output


Group: TypeAlias = Annotated[
    tuple[Pattern, ...], must(lambda group: len(set(group)) > 1, "a group names at least two different tools")
]


class ExclusiveGroups(ToolRule):
    """Of each group of two tools or more only one is used in a turn, as often as one likes."""

    name = "exclusive_groups"
    is_final = has_no_order = True
    tool: Pattern = EVERY
    groups: Annotated[tuple[Group, ...], Field(min_length=1)] = known_as("value")
    in_words = sentence(
        "In one turn use only one tool of each of these groups{among}: {groups}.",
        groups=lambda rule: "; ".join(map(named, rule.groups)),
        among=lambda rule: "" if rule.tool == EVERY else f" (this concerns {rule.label})",
    )

    def objection(self, call: RequestedCall, moment: Moment) -> Verdict | None:
        """Refuse a tool of a group of which another was used, or is about to be."""
        mine = [group for group in self.groups if covers_any(group, (call.tool,))]
        for group, other in product(mine, moment.calls):
            if other.tool != call.tool and other.status in USED and covers_any(group, (other.tool,)):
                return self.refuse(f"of {named(group)} only one is used in a turn, and `{other.tool}` was.")
        return None


class MaxCalls(ToolRule):
    """The tool (all that the pattern means, together) runs at most `count` times. What was refused or failed is free;
    what may have happened counts.
    """

    name, aliases = "max_calls", ("max_count_per_step",)
    is_final = has_no_order = True
    count: Count = known_as("value", "max_count_limit", "max_count", "max", "params", "param")
    in_words = sentence(
        "Call {tool}{together} at most {count} in a turn.",
        together=lambda rule: " together" if is_pattern(rule.tool) else "",
    )

    def narrow(self, moment: Moment) -> Narrowed | None:
        """Leave the other tools, once all calls are used."""
        if sum(self.covers(call.tool) and call.status in USED for call in moment.calls) < self.count:
            return None
        what = "tools run" if self.tool == EVERY else f"`{self.tool}` runs"
        left = frozenset(tool for tool in moment.tools if not self.covers(tool))
        return Narrowed(rule=self, tools=left, why=f"{what} at most {times(self.count)} in a turn.")


class Cooldown(ToolRule):
    """`seconds` must pass from one successful start of the tool to the next, across turns."""

    name = "cooldown"
    is_final = is_timed = has_no_order = True
    seconds: Seconds = known_as("value", "duration", "params", "param")
    in_words = sentence("Between two uses of {tool} {seconds} must pass.")

    def objection(self, call: RequestedCall, moment: Moment) -> Verdict | None:
        """Refuse during the cooldown. A running call counts from now."""
        used = [one for one in moment.calls if one.ran or one.status in OPEN]
        here = [(one.tool, moment.now_ms if one.at_ms is None else one.at_ms) for one in used]
        passed_s = [(moment.now_ms - at) / 1000 for tool, at in (*moment.last_ms.items(), *here) if self.covers(tool)]
        # A start further in the future than a cooldown was measured by a clock that has been set back since.
        left_s = max((self.seconds - max(one, 0.0) for one in passed_s if one > -self.seconds), default=0.0)
        text = f"it rests after each use; call it again in {duration(math.ceil(left_s))}."
        return self.refuse(text) if left_s > 0 else None


class Periodic(ToolRule):
    """The tool should run every `seconds`: once it is due, a turn does not end without it."""

    name = "periodic"
    is_timed = has_no_order = True
    tool: Name
    seconds: Seconds = known_as("value", "duration", "params", "param")
    in_words = sentence("Call {tool} every {seconds}; you are reminded when it is due.")

    def lack(self, moment: Moment) -> Missing | None:
        """Lack the tool if it was not used for so long, in this turn or before."""
        last, now = moment.last_ms.get(self.tool), moment.now_ms
        # A time far ahead was measured by a clock that has been set back since: it must not put the tool off.
        if moment.was_tried(self.tool) or not (last is None or abs(now - last) >= self.seconds * 1000):
            return None
        every = f"it should run every {duration(self.seconds)}."
        note = f"`{self.tool}` is due in this turn: {every}"
        return Missing(rule=self, tool=self.tool, why=f"`{self.tool}` is due: {every}", note=note)


class RequiresConsent(ToolRule):
    """A person must approve each call; a grant for a `scope` covers all calls of that scope."""

    name, aliases = "requires_consent", ("requires_approval",)
    has_no_order = True
    scope: Phrase | None = known_as("value", default=None)
    in_words = sentence(
        "A person must agree to each call of {tool}{of}; you wait for the answer.",
        of=lambda rule: f" ({rule.scope})" if rule.scope else "",
    )

    def objection(self, call: RequestedCall, moment: Moment) -> Verdict:
        """Ask a person."""
        text = f"`{call.tool}` needs a person's consent{f' ({self.scope})' if self.scope else ''}."
        return Verdict(kind="ask", text=self.with_message(text), scope=self.scope)


class RequiresTrust(ToolRule):
    """The tool runs only in turns for someone of these `levels`: `partner` (who may change the constellation; also
    schedules), `agent` (an agent or heartbeat by itself), `conversant` (who may only chat), `source` (anything else).
    What a turn led to, and a turn that a message joined, are for the least trusted of all.
    """

    name = "requires_trust"
    has_no_order = True
    levels: Annotated[tuple[TrustLevel, ...], Field(min_length=1)] = known_as("value", default=(TrustLevel.PARTNER,))
    in_words = sentence("Call {tool} only if you act for a {who}.", who=lambda rule: " or ".join(rule.levels))

    def objection(self, call: RequestedCall, moment: Moment) -> Verdict | None:
        """Refuse in a turn for anyone else."""
        if moment.trust in self.levels:
            return None
        return self.refuse(f"it needs the trust level {' or '.join(self.levels)}, and this turn has {moment.trust}.")


class AllowedOperations(ToolRule):
    """Only these values of the argument that names the operation; others are not shown to the model and refused.

    `parameter` None means the first of `OPERATION_PARAMETERS` that the tool has.
    """

    name = "allowed_operations"
    has_no_order = True
    operations: Annotated[tuple[str, ...], Field(min_length=1, max_length=NAMES_MAX)] = known_as("value", "conditions")
    parameter: Phrase | None = None
    in_words = sentence("With {tool} you may only do: {all}.", all=lambda rule: ", ".join(rule.operations))

    def objection(self, call: RequestedCall, moment: Moment) -> Verdict | None:
        """Refuse any other operation. An argument that is left out has the schema's default; if the schema has none,
        the tool's own check decides.
        """
        name, schema = self.argument(call.parameters)
        operation = call.arguments.get(name, schema.get("default"))
        if not name or operation is None or operation in self.operations:
            return None
        return self.refuse(f"{operation!r} is not allowed; allowed are: {', '.join(self.operations)}.")

    def argument(self, parameters: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        """Return the name and the schema of the argument that names the operation, both empty if the tool has none."""
        properties = parameters.get("properties", {})
        names = OPERATION_PARAMETERS if self.parameter is None else (self.parameter,)
        name = next((one for one in names if one in properties), "")
        schema = properties.get(name)
        return name, schema if isinstance(schema, Mapping) else {}  # `true` is a schema too

    def show(self, spec: ToolSpec) -> ToolSpec | None:
        """Show the allowed operations only, nothing if none is left."""
        name, schema = self.argument(spec.parameters)
        if not name:
            return spec
        there = schema.get("enum", [schema["const"]] if "const" in schema else self.operations)
        left = [one for one in there if one in self.operations]
        if not left:
            return None
        kept = {key: value for key, value in schema.items() if key != "const"}
        if kept.get("default") not in (None, *left):
            del kept["default"]
        parameters: Mapping[str, Any] = spec.parameters
        properties = {**parameters["properties"], name: {**kept, "enum": left}}
        return replace(spec, parameters={**parameters, "properties": properties})


class Needed(ToolRule):
    """The tool must stay enabled: something else relies on it."""

    name = "needed"
    must_be_enabled = has_no_order = True
    tool: Name
    in_words = sentence("{tool} must stay available: other parts rely on it.")


KINDS: Mapping[str, type[ToolRule]] = {kind.name: kind for kind in ToolRule.__subclasses__()}
