"""What an agent's rules and the loop detectors say at the moments of its turn, judged from the turn's calls alone.

A restart finds the same calls in their rows, so it comes to the same verdicts. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pattern_core.errors import LimitReached
from pattern_core.messages import Part, ToolCall
from pattern_core.models.model import ModelReply, ToolSpec
from pattern_core.rules.detectors import DetectorSettings, Watched, watch
from pattern_core.rules.engine import Exit, Offer, RuleSet, added, at_exit, check, ends_after, in_order, offer
from pattern_core.rules.facts import FORCED_PREFIX, REFUSED, RESULT_CHARS_MAX, Call, CallState, without_note
from pattern_core.rules.rule import Asked, ForcedCall, Verdict
from pattern_core.turns.state import FinishedCall
from pattern_db.journal.steps import EffectRow


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBorder:
    """What follows a step whose calls have all ended: the turn ends, or calls that rules make are run, or the model is
    asked again, with `notes` in view.
    """

    ends: bool = False
    forced: Sequence[ForcedCall] = ()
    notes: Sequence[str] = ()


@dataclass(slots=True, kw_only=True)
class Judge:
    """The rules of one turn and the calls that it made.

    `tools` are the names of the tools that it may call, `last_ms` when rules with times saw them used last. `calls` are
    in order. `said` are the steps with words in their decision, `compactions` the steps that room was made for.
    """

    now_ms: Callable[[], int]
    rules: RuleSet = field(default_factory=RuleSet)
    detectors: DetectorSettings = field(default_factory=DetectorSettings)
    tools: Sequence[str] = ()
    last_ms: Mapping[str, int] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    said: set[int] = field(default_factory=set)
    compactions: list[int] = field(default_factory=list)

    def count(self, step: int) -> int:
        """Return how many calls the step has so far."""
        return sum(call.step == step for call in self.calls)

    def plan(self, rows: Sequence[EffectRow], arguments: Sequence[object]) -> None:
        """Add the calls of a decision."""
        for row, given in zip(rows, arguments, strict=True):
            self.calls.append(
                Call(
                    tool=row.tool,
                    arguments=given if isinstance(given, dict) else {"invalid": given},
                    status=row.status,
                    step=row.step,
                    effect_class=row.effect_class,
                    is_forced=row.call_id.startswith(FORCED_PREFIX),
                )
            )

    def finish(self, finished: FinishedCall, began_ms: int | None = None) -> None:
        """Note the outcome of a call that began at a time in unix ms (None: as noted before)."""
        place = self._place(finished.row)
        call = self.calls[place]
        result = without_note(finished.content)[:RESULT_CHARS_MAX]
        at_ms = call.at_ms if began_ms is None else began_ms
        self.calls[place] = Call(
            tool=call.tool,
            arguments=call.arguments,
            status=finished.status,
            result=result,
            step=call.step,
            at_ms=at_ms,
            effect_class=call.effect_class,
            is_forced=call.is_forced,
        )

    def refuse(self, row: EffectRow) -> None:
        """Note that a call will not run, before its result is stored."""
        place = self._place(row)
        self.calls[place] = replace(self.calls[place], status=REFUSED)

    def _place(self, row: EffectRow) -> int:
        first = next(index for index, call in enumerate(self.calls) if call.step == row.step)
        return first + row.call

    def _state(self, step: int, *, before: EffectRow | None = None) -> CallState:
        """The turn after `step`; `before` one of the newest decision's calls, without it and those after it."""
        calls = self.calls if before is None else self.calls[: self._place(before)]
        return CallState(
            calls=tuple(calls), tools=tuple(self.tools), step=step, last_ms=self.last_ms, now_ms=self.now_ms()
        )

    def offer(self, specs: Sequence[ToolSpec], step: int) -> Offer:
        """Return what the decision of a step may use, judged from the calls of the steps before it."""
        if not self.rules.rules:
            return Offer(tools=tuple(specs))
        calls = tuple(call for call in self.calls if call.step < step)
        return offer(self.rules, replace(self._state(step - 1), calls=calls), specs)

    def completed(
        self, reply: ModelReply, specs: Sequence[ToolSpec], step: int
    ) -> tuple[ModelReply, Sequence[ForcedCall]]:
        """Return the reply with the arguments that rules give, and the calls that its turn must begin with."""
        wanted = [part for part in reply.parts if isinstance(part, ToolCall)] if self.rules.rules else []
        if not wanted:
            return reply, ()
        offered = self.offer(specs, step)
        parts: list[Part] = [
            replace(part, arguments=offered.filled(part.tool, part.arguments))
            if isinstance(part, ToolCall) and part.invalid is None
            else part
            for part in reply.parts
        ]
        made = added(self.rules, self._state(step - 1), [call.tool for call in wanted])
        return replace(reply, parts=tuple(parts)), made

    def runs_in_order(self, tools: Sequence[str], step: int) -> bool:
        """Whether a rule looks at what came before, so that the calls must run one after another."""
        return bool(self.rules.rules) and in_order(self.rules, self._state(step), tools)

    def check(
        self,
        row: EffectRow,
        asked: Asked,
        *,
        is_approved: bool,
        agreed: Collection[str | None] = (),
    ) -> Verdict:
        """Return whether a call of the newest decision runs, after those before it; see `rules.check`."""
        state = self._state(row.step, before=row)
        return check(self.rules, state, asked, is_approved=is_approved, agreed=agreed)

    def exit(self, step: int) -> Exit:
        """Return whether a turn that would end after `step` may."""
        if not self.rules.rules:
            return Exit(may_end=True)
        return at_exit(self.rules, self._state(step))

    def border(self, step: int) -> StepBorder:
        """Return what follows now that all calls of `step` have ended.

        Raises:
            LimitReached: the agent repeats itself, and was warned before.
        """
        notes = []
        compactions = [one for one in self.compactions if one <= step]  # a restart may know of the next step's
        watched = Watched(calls=self.calls, compactions=compactions, said=self.said)
        finding = watch(watched, self.detectors)
        if finding is not None and finding.kind == "stop":
            raise LimitReached(finding.text, detector=finding.detector)
        if finding is not None:
            notes.append(finding.text)
        # The decision ends the turn: it called nothing, or a call that ends turns has run.
        has_called = any(call.step == step and not call.is_forced for call in self.calls)
        if not has_called or (self.rules.rules and ends_after(self.rules, self._state(step))):
            leaving = self.exit(step)
            if leaving.may_end:
                return StepBorder(ends=True)
            if leaving.forced_calls:
                return StepBorder(forced=leaving.forced_calls)
            notes.append(leaving.reminder or "")
        return StepBorder(notes=notes)
