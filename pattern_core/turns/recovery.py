"""Recovery of turns that an earlier process left unfinished, decided only from the rows. Pure.

| found | consequence |
|---|---|
| it was asked to stop | `turn.cancelled` |
| its deadline passed while nothing ran | `turn.interrupted` |
| the same step was interrupted too often | `turn.interrupted` |
| no step | it starts again, with the same seed |
| step open | asked again as the next attempt; the dead one is superseded and charged at an estimate |
| step done, calls planned | they run |
| call started, pure | cannot be: nothing is stored before it; it is still planned and runs again |
| call started, local | cannot be: it commits with its result |
| call started, idempotent | runs again under the same key |
| call started, verifiable | its tool's probe says: done, absent (runs) or unknown (as unsafe) |
| call planned or started, its tool no longer exists | it waits for a person: needs attention |
| call started, unsafe | in doubt: the model reads it, or a person is asked, or the turn fails: the agent's `on_doubt` |
| call waits for a person | the turn waits for the answer |
| a person approved | it runs, with the approved arguments |
| a person denied it, or it expired | the model reads it |
| calls all ended | the next step |
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from operator import itemgetter

from pattern_core.conversation.history import from_row
from pattern_core.limits import TurnLimits
from pattern_core.messages import Message, Part, Reasoning, Text
from pattern_core.rules.facts import FORCED_PREFIX, OPEN, lowest
from pattern_core.turns.calls import in_doubt
from pattern_core.turns.state import DeadAttempt, Ending, FinishedCall, cancelled
from pattern_db.connection import Connection
from pattern_db.enums import EffectStatus, Role, TrustLevel, TurnStatus
from pattern_db.journal import approvals, budgets, events, steps
from pattern_db.journal.approvals import ApprovalRow
from pattern_db.journal.events import EventRow
from pattern_db.journal.steps import EffectRow, StepRow
from pattern_db.journal.turns import TurnRow
from pattern_db.tables import messages

NOT_RUN = "Not run: the turn ended before."
STARTED, SUPERSEDED, COMPACTED = "step.started", "step.superseded", "history.compacted"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTurn:
    """An unfinished turn from its rows: its newest step, all its calls, and its questions to people.

    `restore` also finds what loop detection needs after a restart: the number of messages, the turns of other agents
    that it started, its source and trust, whether a person wrote after its newest decision, the steps with text, the
    characters that its model wrote, and the steps with compactions, once for each. A decision is one message of the
    agent per step, in order; calls by rules and messages sent by tools are not decisions. A compaction belongs to the
    step that was opened next after it; if none was, to the open step, or else to the next.

    `streamed` is the part of an incomplete answer that clients saw.
    """

    step: StepRow | None
    calls: Sequence[EffectRow]
    approvals: Sequence[ApprovalRow] = ()
    streamed: Sequence[Part] = ()
    messages: int = 0
    children: int = 0
    source: str | None = None
    is_addressed: bool = False
    said: frozenset[int] = frozenset()
    output_chars: int = 0
    compactions: Sequence[int] = ()
    trust: TrustLevel = TrustLevel.SOURCE

    @property
    def unanswered(self) -> list[EffectRow]:
        """Calls without a result."""
        return [
            call
            for call in self.calls
            if call.status in OPEN or (call.status == EffectStatus.DENIED and call.message_id is None)
        ]

    @property
    def is_asking(self) -> bool:
        """Whether the newest step has no decision yet."""
        return self.step is not None and self.step.status == "open"

    def answered(self, call: EffectRow) -> ApprovalRow | None:
        """Return the newest approval about the call, if there is one."""
        return {(row.step, row.call): row for row in self.approvals}.get((call.step, call.call))  # the newest


@dataclass(frozen=True, slots=True)
class RunCalls:
    """The newest step is decided; these of its calls, possibly none, have no result yet, with people's answers."""

    calls: Sequence[tuple[EffectRow, ApprovalRow | None]]


def find(connection: Connection, turn: int) -> FoundTurn:
    """Read a turn's state from the rows."""
    calls, step = steps.calls_of_turn(connection, turn), steps.latest(connection, turn)
    return FoundTurn(
        step=step,
        calls=calls,
        approvals=approvals.of_turn(connection, turn) if calls else (),
        streamed=() if step is None or step.status != "open" else _streamed(connection, step),
    )


def _streamed(connection: Connection, step: StepRow) -> list[Part]:
    """Return the pieces of a step's answer, joined; those of its newest attempt that has any and was not discarded for
    its text.
    """
    found = events.named(connection, step.turn, (*events.DELTAS, SUPERSEDED))
    stored = [(row.name, data) for row in found if (data := json.loads(row.data))["step"] == step.no]
    void = {data["attempt"] for name, data in stored if name == SUPERSEDED and "why" in data}
    pieces = [
        (data["attempt"], name, data["text"])
        for name, data in stored
        if name != SUPERSEDED and data["attempt"] not in void
    ]
    newest = max((attempt for attempt, _name, _text in pieces), default=0)
    texts = [
        (name, "".join(text for _attempt, _name, text in alike))
        for (attempt, name), alike in groupby(pieces, key=itemgetter(0, 1))
        if attempt == newest
    ]
    return [Text(text=text) if name == "text.delta" else Reasoning(text=text) for name, text in texts]


def decide(row: TurnRow, found: FoundTurn, limits: TurnLimits, now: str) -> Ending | DeadAttempt | RunCalls | None:
    """Return what to do with an unfinished turn, None if it has not called a model; `now` is wall time as stored."""
    if row.cancel_reason is not None:
        return cancelled(row.cancel_reason)
    if row.deadline_at is not None and row.deadline_at <= now:
        return _interrupted(
            "deadline_passed", "the turn's time ran out while the server was down; send the message again"
        )
    step = 0 if found.step is None else found.step.no
    # A turn that got as far as waiting has passed the step that was interrupted.
    is_stuck = row.status != TurnStatus.WAITING and row.steps == step
    if is_stuck and row.resumes >= limits.resumes_max:
        times = row.resumes + 1
        message = f"the same step was interrupted {times} times; check the server's log before you send it again"
        return _interrupted("gave_up", message)
    if found.step is None:
        return None
    if found.is_asking:
        return DeadAttempt(is_charged=True)
    return RunCalls([(call, found.answered(call)) for call in found.unanswered if call.step == step])


def _interrupted(code: str, message: str) -> Ending:
    """Return the end of a turn that restarts have interrupted permanently."""
    return Ending(status="interrupted", error={"code": code, "message": message})


def close_calls(unanswered: Sequence[EffectRow]) -> list[FinishedCall]:
    """Return results for calls that will not get one, so that every call has a result when the turn ends.

    A call that was only planned did not run; one that was started, be it before a person was asked about it, may have
    happened.
    """
    return [
        in_doubt(row)
        if row.status == EffectStatus.STARTED.value or row.attempts
        else FinishedCall(row=row, status=EffectStatus.CANCELLED.value, content=NOT_RUN)
        for row in unanswered
    ]


def restore(connection: Connection, turn: TurnRow) -> FoundTurn:
    """Read everything that a restart needs of an unfinished turn."""
    found = find(connection, turn.key)
    rows = messages.by_batch(connection, turn.agent_id, turn.batch_id or "")
    spoken = [row for row in rows if row.role in (Role.USER, Role.ASSISTANT) and not row.is_said_by_call]
    decisions = [one for one in map(from_row, spoken) if one.role == "assistant" and not _is_forced(one)]
    written = [part for one in decisions for part in one.parts if isinstance(part, Text | Reasoning)]
    return replace(
        found,
        messages=len(rows),
        children=budgets.children(connection, turn.key),
        source=rows[0].source if rows else None,
        trust=lowest(row.trust for row in rows),
        is_addressed=bool(spoken) and spoken[-1].role is Role.USER,
        said=frozenset(step for step, one in enumerate(decisions, 1) if one.text),
        output_chars=sum(len(part.text) for part in written),
        compactions=_compactions(events.named(connection, turn.key, (STARTED, COMPACTED)), is_open=found.is_asking),
    )


def _is_forced(message: Message) -> bool:
    calls = message.tool_calls
    return bool(calls) and not message.text and all(call.call_id.startswith(FORCED_PREFIX) for call in calls)


def _compactions(stored: Sequence[EventRow], *, is_open: bool) -> list[int]:
    """Return the steps, once per run of compactions between two model calls."""
    opened = [(before.name, json.loads(one.data)["step"]) for before, one in pairwise(stored) if one.name == STARTED]
    found = [step for before, step in opened if before == COMPACTED]
    if stored and stored[-1].name == COMPACTED:
        latest = max((json.loads(one.data)["step"] for one in stored if one.name == STARTED), default=0)
        found.append(latest if is_open else latest + 1)
    return found
