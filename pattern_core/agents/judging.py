"""What an agent's rules and the loop detectors say at the moments of its turn, judged from the turn's calls alone.

A restart finds the same calls in their rows, so it comes to the same verdicts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from pattern_core.agents.active import ActiveTurn, Finished
from pattern_core.errors import LimitReached, PatternError
from pattern_core.models.model import ToolSpec
from pattern_core.rules.check import Verdict, check
from pattern_core.rules.detectors import Watched, watch
from pattern_core.rules.exits import Exit, ForcedCall, at_exit, ends_after
from pattern_core.rules.offer import Offer, offer
from pattern_core.rules.refusals import Asked
from pattern_core.rules.state import FORCED_PREFIX, REFUSED, RESULT_CHARS_MAX, Call, CallState, without_note
from pattern_db.journal.effects import EffectRow


class TurnStopped(PatternError):
    """The turn ends at this step border, because somebody wished so."""

    code = "stopped"

    def __init__(self, reason: str) -> None:
        super().__init__(f"stopped: {reason}", reason=reason)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Border:
    """What follows a step whose calls have all ended: the turn ends, or calls that rules make are run, or the model is
    asked again, with `notes` in view.
    """

    ends: bool = False
    forced: Sequence[ForcedCall] = ()
    notes: Sequence[str] = ()


def state_of(turn: ActiveTurn, now_ms: int, *, before: EffectRow | None = None) -> CallState:
    """The turn as it stands; `before` one of the newest decision's calls, without it and those after it."""
    calls = turn.log if before is None else turn.log[: _place(turn, before)]
    return CallState(
        calls=tuple(calls),
        tools=tuple(turn.tools),
        step=turn.step,
        last_ms=turn.last_ms,
        now_ms=now_ms,
    )


def offer_of(turn: ActiveTurn, specs: Sequence[ToolSpec], now_ms: int, *, step: int) -> Offer:
    """What the decision of a step may use, from the calls of those before it."""
    calls = tuple(call for call in turn.log if call.step < step)
    return offer(turn.rules, replace(state_of(turn, now_ms), calls=calls, step=step - 1), specs)


def judge(
    turn: ActiveTurn,
    row: EffectRow,
    asked: Asked,
    now_ms: int,
    *,
    is_approved: bool,
    agreed: Collection[str | None] = (),
) -> Verdict:
    """Whether a call of the newest decision runs, after those before it; see `check`."""
    return check(turn.rules, state_of(turn, now_ms, before=row), asked, is_approved=is_approved, agreed=agreed)


def note_planned(turn: ActiveTurn, rows: Sequence[EffectRow], arguments: Sequence[object]) -> None:
    """Take the calls of a decision among the turn's."""
    for row, given in zip(rows, arguments, strict=True):
        turn.log.append(
            Call(
                tool=row.tool,
                arguments=given if isinstance(given, dict) else {"invalid": given},
                status=row.status,
                step=row.step,
                effect_class=row.effect_class,
                is_forced=row.call_id.startswith(FORCED_PREFIX),
            )
        )


def note_finished(turn: ActiveTurn, finished: Finished, began_ms: int) -> None:
    """Note what a call came to."""
    place = _place(turn, finished.row)
    result = without_note(finished.content)[:RESULT_CHARS_MAX]
    turn.log[place] = replace(turn.log[place], status=finished.status, result=result, at_ms=began_ms)


def note_refused(turn: ActiveTurn, row: EffectRow) -> None:
    """Note that a call will not run, before its result is stored."""
    place = _place(turn, row)
    turn.log[place] = replace(turn.log[place], status=REFUSED)


def _place(turn: ActiveTurn, row: EffectRow) -> int:
    first = next(index for index, call in enumerate(turn.log) if call.step == row.step)
    return first + row.call


def wants_to_end(turn: ActiveTurn, now_ms: int) -> bool:
    """Whether the newest decision would end the turn: it called nothing, or a call that ends turns has run."""
    has_called = any(call.step == turn.step and not call.is_forced for call in turn.log)
    return not has_called or ends_after(turn.rules, state_of(turn, now_ms))


def exit_of(turn: ActiveTurn, now_ms: int) -> Exit:
    """Whether a turn that wants to end may."""
    return at_exit(turn.rules, state_of(turn, now_ms))


def at_border(turn: ActiveTurn, now_ms: int) -> Border:
    """What follows now that all calls of the newest decision have ended.

    Raises:
        TurnStopped: somebody wished that it goes no further.
        LimitReached: the agent goes in circles, and was told so before.
    """
    if turn.wishes.stop is not None:
        raise TurnStopped(turn.wishes.stop)
    notes = []
    compactions = [step for step in turn.compactions if step <= turn.step]  # a restart may know of the next step's
    finding = watch(Watched(calls=turn.log, compactions=compactions, said=turn.said), turn.settings.detectors)
    if finding is not None and finding.kind == "stop":
        raise LimitReached(finding.text, detector=finding.detector)
    if finding is not None:
        notes.append(finding.text)
    if wants_to_end(turn, now_ms):
        leaving = exit_of(turn, now_ms)
        if leaving.may_end:
            return Border(ends=True)
        if leaving.forced_calls:
            return Border(forced=leaving.forced_calls)
        notes.append(leaving.reminder or "")
    return Border(notes=notes)


def notes_before(turn: ActiveTurn, now_ms: int) -> Sequence[str]:
    """What the open step's prompt said at its end: as `at_border` said after the step before it."""
    if turn.step == 1:
        return ()
    open_step = turn.step
    turn.step -= 1
    try:
        return at_border(turn, now_ms).notes
    except (TurnStopped, LimitReached):
        return ()  # it was decided otherwise then
    finally:
        turn.step = open_step
