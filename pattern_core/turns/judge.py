"""Verdicts of an agent's rules and the loop detectors during its turn, derived only from the turn's calls.

A restart finds the same calls in their rows, so the verdicts are the same. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pattern_core.errors import LimitReached
from pattern_core.messages import Part, ToolCall
from pattern_core.models.model import ModelReply, ToolSpec
from pattern_core.rules.detectors import DetectorSettings, watch
from pattern_core.rules.facts import REFUSED, JudgedCall
from pattern_core.rules.rule import Moment, Offer, RequestedCall, StepBorder
from pattern_core.rules.ruleset import NO_RULES, RuleSet
from pattern_core.turns.state import FinishedCall
from pattern_db.enums import TrustLevel
from pattern_db.journal.steps import EffectRow, Key


@dataclass(slots=True, kw_only=True)
class Judge:
    """The rules of one turn and the calls that it made.

    `tools` are the names of the tools that it may call, `last_ms` when rules with times saw them used last. `trust` is
    read before a call is judged, if a rule needs it. `calls` are in order, by their keys. `said` are the steps with
    words in their decision, `compactions` the steps that room was made for.
    """

    now_ms: Callable[[], int]
    rules: RuleSet = NO_RULES
    detectors: DetectorSettings = field(default_factory=DetectorSettings)
    tools: Sequence[str] = ()
    last_ms: Mapping[str, int] = field(default_factory=dict)
    trust: TrustLevel = TrustLevel.SOURCE
    calls: dict[Key, JudgedCall] = field(default_factory=dict)
    said: set[int] = field(default_factory=set)
    compactions: list[int] = field(default_factory=list)

    def count(self, step: int) -> int:
        """Return how many calls the step has so far."""
        return [of_step for _turn, of_step, _call in self.calls].count(step)

    def finish(self, finished: FinishedCall, began_ms: int | None = None) -> None:
        """Note the outcome of a call that began at a time in unix ms (None: as noted before)."""
        row, key = finished.row, finished.row.key
        call = self.calls[key]
        at_ms = call.at_ms if began_ms is None else began_ms
        outcome = JudgedCall.of(row, call.arguments, result=finished.content, status=finished.status, at_ms=at_ms)
        self.calls[key] = outcome

    def refuse(self, row: EffectRow) -> None:
        """Note that a call will not run, before its result is stored."""
        self.calls[row.key] = replace(self.calls[row.key], status=REFUSED)

    def _moment(self, step: int, calls: Sequence[JudgedCall] | None = None) -> Moment:
        """Return the turn after `step`, with only `calls` of this step (None: all)."""
        return Moment(
            rules=self.rules.ordered,
            calls=tuple(self.calls.values() if calls is None else calls),
            tools=self.tools,
            step=step,
            last_ms=self.last_ms,
            now_ms=self.now_ms(),
            trust=self.trust,
        )

    def offer(self, specs: Sequence[ToolSpec], step: int) -> Offer:
        """Return what the decision of a step may use, judged from the calls of the steps before it."""
        if not self.rules.rules:
            return Offer(tools=tuple(specs))
        return self._moment(step - 1, [call for call in self.calls.values() if call.step < step]).offer(specs)

    def completed(
        self,
        reply: ModelReply,
        specs: Sequence[ToolSpec],
        step: int,
        forced: Callable[[Sequence[RequestedCall]], Sequence[ToolCall]],
    ) -> ModelReply:
        """Return the reply with the arguments that rules give, and first the calls that must come first, as `forced`
        makes them.
        """
        wanted = [part for part in reply.parts if isinstance(part, ToolCall)] if self.rules.rules else []
        if not wanted:
            return reply
        prefill = self.offer(specs, step).prefill
        parts: list[Part] = [
            replace(part, arguments={**part.arguments, **prefill.get(part.tool, {})})
            if isinstance(part, ToolCall) and part.invalid is None
            else part
            for part in reply.parts
        ]
        place = reply.parts.index(wanted[0])
        parts[place:place] = forced(self._moment(step - 1).added([call.tool for call in wanted]))
        return replace(reply, parts=tuple(parts))

    def runs_in_order(self, tools: Sequence[str], step: int) -> bool:
        """Return whether a rule depends on earlier calls, so that several calls must run one after another."""
        return bool(self.rules.rules) and self._moment(step).in_order(tools)

    def before(self, row: EffectRow) -> Moment:
        """Return the moment before a call of the newest decision, in which it is judged."""
        return self._moment(row.step, [call for key, call in self.calls.items() if key < row.key])

    def exit(self, step: int) -> StepBorder:
        """Return what follows a step after which the turn would end."""
        return self._moment(step).at_exit() if self.rules.rules else StepBorder(ends=True)

    def border(self, step: int) -> StepBorder:
        """Return what follows now that all calls of `step` have ended.

        Raises:
            LimitReached: the agent repeats itself, and was warned before.
        """
        calls = tuple(self.calls.values())
        compactions = [one for one in self.compactions if one <= step]  # a restart may know of the next step's
        finding = watch(self.detectors, calls, compactions=compactions, said=self.said)
        if finding is not None and finding.kind == "stop":
            raise LimitReached(finding.text, detector=finding.detector)
        notes = [] if finding is None else [finding.text]
        # The decision ends the turn: it called nothing, or a call that ends turns has run.
        has_called = any(call.step == step and not call.is_forced for call in calls)
        if not has_called or (self.rules.rules and self._moment(step).ends_after(step)):
            leaving = self.exit(step)
            if leaving.ends or leaving.forced:
                return leaving
            notes += leaving.notes
        return StepBorder(notes=notes)
