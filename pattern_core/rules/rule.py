"""Kinds of tool rules, and the joint verdict of an agent's rules at a moment of its turn: before a decision, before a
call, before the end. Pure.

Nothing is counted: every verdict follows from the turn's calls, so that it is the same after a restart.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache, cached_property
from itertools import takewhile
from typing import Annotated, Any, ClassVar, Literal, Self, dataclass_transform

import pydantic

from pattern_core.models.model import ANY_TOOL, ToolSpec
from pattern_core.rules.facts import JudgedCall
from pattern_core.rules.fields import (
    EVERY,
    Pattern,
    Phrase,
    covers,
    covers_any,
    duration,
    is_pattern,
    named,
    one_of,
    times,
)
from pattern_core.validation import read
from pattern_db.columns import Json
from pattern_db.enums import TrustLevel

REMINDERS = 2  # before what is missing is done without the model
SKIPPED = "the turn ended with the call before it."
PRIORITY = 5  # of a rule that names none
PRIORITY_MAX = 255
NOTHING_LEFT = "The rules of your tools leave none to call now: answer in words."
# Fields that other formats store with a rule and that have no use here.
_IGNORED = frozenset({"metadata", "prompt_template", "id", "conditions"})
# What a kind must define one of: a rule with none of it would be stored and shown to the model, and enforce nothing.
_EFFECTS = ("judge", "objection", "narrow", "lack", "show", "precede", "ends", "must_be_enabled")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedCall:
    """A call that a model asks for, to judge, or a rule in its place: the tool's name, its arguments, and, for judging,
    the JSON Schema of the tool's parameters. The `call_id` of a rule's call begins with `facts.FORCED_PREFIX`.
    """

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a call runs, is refused (`text` is why, for the model, to follow "Not run: "), or a person is asked
    whether it may (`text` is why); an agreement for `scope` (None: for this tool alone) may cover later calls.
    """

    kind: Literal["run", "refuse", "ask"]
    text: str = ""
    scope: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowed:
    """What a rule leaves for the next call: the enabled tools that may be called.

    `why` is the reason for refusing any other `{tool}`. Where one of them must be called, `note` says so in the prompt.
    `prefill` holds arguments per tool that override the model's. If the turn must not end before one of the tools was
    called, `follows` begins the sentence that says why.
    """

    rule: ToolRule
    tools: frozenset[str]
    why: str
    note: str = ""
    prefill: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    follows: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A tool that the turn cannot end without, the rule that requires it, and why; `note` is a sentence for the prompt.

    Where `others` would do as well the model chooses: it is reminded, and nothing is called in its place.
    """

    rule: ToolRule
    tool: str
    why: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    others: tuple[str, ...] = ()
    note: str = ""


def known_as(*aliases: str, **default: Any) -> Any:
    """Declare a field with its names in other formats, in the order in which they are tried."""
    return field(metadata={"aliases": aliases}, **default)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(known_as,))
@dataclass(frozen=True, kw_only=True)
class ToolRule:
    """A rule about a tool or a pattern of tools; `message` are words of its author, added to what the model reads.

    A kind is a subclass that has a name and words for the model, and defines at least one thing of `_EFFECTS`. One
    that forgets any of these is an error when its module is imported.
    """

    name: ClassVar[str]
    in_words: ClassVar[Callable[..., str]]  # a method: what it asks of the model, in one sentence that only it decides
    aliases: ClassVar[tuple[str, ...]] = ()  # its names in other formats, in snake case
    is_final: ClassVar[bool] = False  # what it refuses stays refused for now, whatever else is called first
    must_be_enabled: ClassVar[bool] = False  # an agent must have its tool
    ends: ClassVar[bool | None] = None  # whether the turn ends after its tool ran (true) or continues (false)
    is_timed: ClassVar[bool] = False  # it asks when its tool was used last, in any turn
    own_fields: ClassVar[Mapping[str, Field[Any]]]  # of a kind, without those of all kinds
    has_no_order: ClassVar[bool] = False  # what it says of a call does not depend on how the calls before it ended

    tool: Pattern
    priority: Annotated[int, pydantic.Field(ge=0, le=PRIORITY_MAX)] = PRIORITY
    message: Phrase | None = None

    def __init_subclass__(cls) -> None:
        for needed in ("name", "in_words"):
            if not hasattr(cls, needed):
                raise TypeError(f"the kind of tool rule {cls.__name__} does not define {needed}")
        if all(getattr(cls, effect) is getattr(ToolRule, effect) for effect in _EFFECTS):
            raise TypeError(f"the kind of tool rule {cls.__name__} does not define any of {', '.join(_EFFECTS)}")
        dataclass(frozen=True, kw_only=True)(cls)
        cls.own_fields = {one.name: one for one in fields(cls) if one.name not in ("tool", "priority", "message")}

    @classmethod
    def of(cls, entry: Mapping[str, Json]) -> Self:
        """Return a rule of this kind from its fields in JSON, under our names or those of other formats.

        Raises:
            InvalidInput: a field is missing, is not known or not valid; the message names it and what is accepted.
        """
        own = cls.own_fields
        # Null is as good as nothing, and so is an empty list, unless the rule would name something without it.
        empty = {name for name, one in own.items() if not one.default or one.default is MISSING}
        given = {key: value for key, value in entry.items() if value is not None and (value != [] or key not in empty)}
        for name, one in own.items():
            found = next((key for key in (name, *one.metadata.get("aliases", ())) if key in given), None)
            if found is not None:
                given[name] = given.pop(found)
        given = {key: value for key, value in given.items() if key not in _IGNORED}
        known = ("tool", "type", *own, "priority", "message")
        rule: Self = read(cls._adapter(), given, lambda _: known, place=cls.name)
        return rule

    @classmethod
    @cache
    def _adapter(cls) -> pydantic.TypeAdapter[Any]:
        return pydantic.TypeAdapter(cls)

    def objection(self, call: RequestedCall, moment: Moment) -> Verdict | None:
        """Return the objection to a call of its tool that is about to run: a refusal, or a question to a person."""
        return None

    def narrow(self, moment: Moment) -> Narrowed | None:
        """Return what may be called next, None if the rule restricts nothing."""
        return None

    def lack(self, moment: Moment) -> Missing | None:
        """Return what the turn must not end without, if that can be called."""
        return None

    def needs_order(self, tools: Collection[str], moment: Moment) -> bool:
        """Return whether calls of these tools must run one after another, since the rule judges by what ran before."""
        return not self.has_no_order and covers_any((self.tool,), tools)

    def show(self, spec: ToolSpec) -> ToolSpec | None:
        """Return its tool as the model may see it, None if it may not."""
        return spec

    def precede(self, decided: Sequence[str], moment: Moment) -> RequestedCall | None:
        """Return the call that must be made before those of a decision."""
        return None

    def judge(self, call: RequestedCall, moment: Moment) -> Verdict | None:
        """Return the objection to any call that is about to run."""
        narrowed = self.narrow(moment)
        if narrowed is not None and call.tool not in narrowed.tools:
            return self.refuse(narrowed.why.replace("{tool}", call.tool))
        return self.objection(call, moment) if self.covers(call.tool) else None

    def covers(self, tool: str) -> bool:
        """Return whether the rule is about calls of this tool."""
        return covers(self.tool, tool)

    def refuse(self, text: str) -> Verdict:
        """Return a refusal with this reason."""
        return Verdict(kind="refuse", text=self.with_message(text))

    def with_message(self, text: str) -> str:
        """Return a text, followed by the author's words."""
        return text if self.message is None else f"{text} {self.message}"

    @property
    def label(self) -> str:
        """The tool in a sentence."""
        if self.tool == EVERY:
            return "any tool"
        return f"any tool named like `{self.tool}`" if is_pattern(self.tool) else f"`{self.tool}`"

    @property
    def rank(self) -> tuple[int, int, bool]:
        """What rules are ordered by: priority, then rules for one tool before patterns and those for all; of equal
        rules one that continues the turn comes first.
        """
        breadth = 2 if self.tool == EVERY else int(is_pattern(self.tool))
        return (-self.priority, breadth, self.ends is not False)

    def to_json(self) -> dict[str, Json]:
        """Return the rule in our format, without what is at its default."""
        own = self._adapter().dump_python(self, mode="json", exclude_defaults=True)
        common = {name: own.pop(name) for name in ("priority", "message") if name in own}
        return {"tool": self.tool, "type": self.name, **own, **common}


def sentence(template: str, **parts: Callable[[Any], str]) -> Callable[[ToolRule], str]:
    """Return a method that fills a template with the rule's `{tool}`, its fields, and what `parts` make of the rule."""

    def in_words(rule: ToolRule) -> str:
        said = {name: _said(getattr(rule, name)) for name in rule.own_fields}
        return template.format(**{"tool": rule.label, **said, **{name: part(rule) for name, part in parts.items()}})

    return in_words


def _said(value: object) -> str:
    match value:
        case int():
            return times(value)
        case float():
            return duration(value)
        case tuple():
            return named(value)
    return str(value)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBorder:
    """What follows a step after all its calls have ended: the turn ends, or calls by rules are run, or the model is
    called again, with `notes` in the prompt.
    """

    ends: bool = False
    forced: Sequence[RequestedCall] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Moment:
    """A moment of a turn: what the rules judge by, and what they together make of it, each worked out at most once.

    `rules` are in the order of judging. `calls` are the turn's calls so far in order: when one is judged, those before
    it in the same decision are among them, those after it are not. `tools` are the names of the agent's enabled tools;
    `step` is the number of the last decision, 0 before the first; `last_ms` says per tool when it last started with
    success, in any turn (unix ms); `trust` is how far the turn is trusted.
    """

    rules: Sequence[ToolRule] = ()
    calls: Sequence[JudgedCall] = ()
    tools: Sequence[str] = ()
    step: int = 0
    last_ms: Mapping[str, int] = field(default_factory=dict)
    now_ms: int = 0
    trust: TrustLevel = TrustLevel.SOURCE

    @cached_property
    def narrowed(self) -> Sequence[Narrowed]:
        """What each rule that restricts the next call leaves, in the order of judging."""
        return [found for rule in self.rules if (found := rule.narrow(self)) is not None]

    @cached_property
    def missing(self) -> Sequence[Missing]:
        """What the turn cannot end without and can still be called, in the order of judging."""
        return [found for rule in self.rules if (found := rule.lack(self)) is not None and self.is_open(found.tool)]

    def after(self, rule: ToolRule) -> JudgedCall | None:
        """Return the call that ran last, if the rule is about it."""
        last = next((call for call in reversed(self.calls) if call.ran), None)
        return last if last is not None and rule.covers(last.tool) else None

    def enabled(self, patterns: Collection[str]) -> frozenset[str]:
        """Return the agent's tools that one of the names or patterns means."""
        return frozenset(tool for tool in self.tools if covers_any(patterns, (tool,)))

    def is_open(self, tool: str) -> bool:
        """Return whether the agent has the tool and no rule refuses it permanently."""
        final = (rule for rule in self.rules if rule.is_final and rule.covers(tool))
        return tool in self.tools and all(rule.judge(RequestedCall(tool=tool), self) is None for rule in final)

    def ran(self, name: str) -> bool:
        """Return whether a tool of this name or pattern ran."""
        return any(call.ran and covers(name, call.tool) for call in self.calls)

    def was_tried(self, tool: str) -> bool:
        """Return whether the tool ran, or was called by a rule, with whatever result."""
        return any(call.tool == tool and (call.ran or (call.is_forced and call.has_ended)) for call in self.calls)

    def offer(self, tools: Sequence[ToolSpec]) -> Offer:
        """Return what of the enabled `tools` the next decision may use.

        Rules that only say "not now" (cooldown, exclusive groups, what must come before) do not hide a tool: the model
        reads of them and is refused when it calls, so that the tools at the beginning of the prompt stay the same for
        its cache.
        """
        left = {spec.name for spec in tools}.intersection(*(narrowed.tools for narrowed in self.narrowed))
        shown: list[ToolSpec] = []
        for spec in tools:
            seen = spec if spec.name in left else None
            for rule in self.rules:
                if seen is not None and rule.covers(spec.name):
                    seen = rule.show(seen)
            if seen is not None:
                shown.append(seen)
        prefill = ChainMap(*(dict(narrowed.prefill) for narrowed in self.narrowed))  # the rule judged first wins
        notes = [narrowed.note for narrowed in self.narrowed] if shown or not tools else [NOTHING_LEFT]
        notes += [missing.note for missing in self.missing]
        is_forced = bool(shown) and any(narrowed.note for narrowed in self.narrowed)
        return Offer(
            tools=tuple(shown),
            forced=None if not is_forced else shown[0].name if len(shown) == 1 else ANY_TOOL,
            prefill={spec.name: prefill[spec.name] for spec in shown if spec.name in prefill},
            notes=tuple(dict.fromkeys(filter(None, notes))),
        )

    def added(self, decided: Sequence[str]) -> tuple[RequestedCall, ...]:
        """Return calls to put before those of a decision that calls the tools `decided`: first tools that it passes
        over for the third time.
        """
        calls = (rule.precede(decided, self) for rule in self.rules) if decided else ()
        return tuple(call for call in calls if call is not None)

    def check(self, asked: RequestedCall, *, is_approved: bool = False, agreed: Collection[str | None] = ()) -> Verdict:
        """Judge a call of the decision `self.step`. With `is_approved` a person has agreed to it, and for the scopes
        `agreed` for longer; all other rules still hold.

        The first refusal in the order of judging gives the reason; no question is asked about a call that a rule
        refuses anyway.
        """
        if self.ends_after(self.step) and not self._pending():
            return Verdict(kind="refuse", text=SKIPPED)
        question = None
        for rule in self.rules:
            verdict = rule.judge(asked, self)
            if verdict is not None and verdict.kind == "refuse":
                return verdict
            if verdict is not None and question is None and verdict.scope not in agreed:
                question = verdict
        return Verdict(kind="run") if question is None or is_approved else question

    def in_order(self, tools: Sequence[str]) -> bool:
        """Return whether the calls of one decision must run one after another, since for some rule it matters what came
        before. Calls that no such rule is about may run side by side.
        """
        return len(tools) > 1 and any(rule.needs_order(tools, self) for rule in self.rules)

    def ends_after(self, step: int) -> bool:
        """Return whether a call of the decision `step` ran that ends the turn, and none that continues it. Of the rules
        of a tool that say either, the first counts.
        """
        ran = [call for call in self.calls if call.step == step and call.ran and not call.is_forced]
        saying = [rule for rule in self.rules if rule.ends is not None]
        first = (next((rule for rule in saying if rule.covers(call.tool)), None) for call in ran)
        return {rule.ends for rule in first if rule is not None} == {True}

    def at_exit(self) -> StepBorder:
        """Return what happens when the turn wants to end: after a decision without calls, or when `ends_after` says so.

        What is missing is said twice, then done. Terminates: each missing tool is forced at most once, and a forced
        call counts however it ended.
        """
        if not (missing := self._pending()):
            return StepBorder(ends=True)
        called = {call.step for call in self.calls if not call.is_forced}
        attempt = sum(step not in called or self.ends_after(step) for step in range(1, self.step + 1))
        if attempt <= REMINDERS:
            return StepBorder(notes=(_reminder(missing, attempt, self.calls),))
        forced: dict[str, RequestedCall] = {}
        for one in missing:
            if not one.others:
                forced.setdefault(one.tool, RequestedCall(tool=one.tool, arguments=one.arguments))
        return StepBorder(ends=not forced, forced=tuple(forced.values()))

    def _pending(self) -> Sequence[Missing]:
        """Return what the turn cannot end without, what must follow directly first, else in the order of judging."""
        return (*(() if self.ends_after(self.step) else self._following()), *self.missing)

    def _following(self) -> Iterator[Missing]:
        """Yield what must come directly after the last call, where it can come; once forced, it counts as tried."""
        tried = {call.tool for call in takewhile(lambda call: not call.ran, reversed(self.calls)) if call.is_forced}
        for one in self.narrowed:
            if one.follows and not one.tools & tried:
                open_to = one.tools.intersection(*(other.tools for other in self.narrowed))
                if tools := tuple(tool for tool in self.tools if tool in open_to and self.is_open(tool)):
                    arguments, why = one.prefill.get(tools[0], {}), f"{one.follows} {one_of(tools)}."
                    yield Missing(rule=one.rule, tool=tools[0], why=why, arguments=arguments, others=tools[1:])


def _reminder(missing: Sequence[Missing], attempt: int, calls: Sequence[JudgedCall]) -> str:
    tools = ", ".join(dict.fromkeys(one_of((one.tool, *one.others)) for one in missing))
    if attempt < REMINDERS:
        text = f"This turn is not finished: call {tools} before you end it."
    elif all(one.others for one in missing):
        text = f"This turn should not end yet. Call {tools} now."
    else:
        text = f"This turn still cannot end. Call {tools} now; else it will be called for you without your arguments."
    failed = {call.tool for call in calls if call.has_ended}
    said = (f"{one.why} It did not succeed so far." if one.tool in failed else one.why for one in missing)
    reasons = (one.rule.with_message(why) for one, why in zip(missing, said, strict=True))
    return " ".join([text, *dict.fromkeys(reasons)])
