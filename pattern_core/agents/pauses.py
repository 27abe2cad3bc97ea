"""Moments between the steps of a turn, each one transaction: it waits for people, is joined, is taken up again.

| moment | function | in one transaction |
|---|---|---|
| T4 asks people | `ask` | effects that wait, a question for each, `approval.requested` |
| T4′ rests | `wait` | turn waiting, `turn.waiting`; the answer itself is `agents.consent`'s |
| goes on | `resume` | turn running again, `turn.resumed`; or that another process takes it up |
| as T3, by a rule | `force` | a message with the calls, one effect per call, `tool.call` |
| is joined | `join` | inbox row becomes a message of this turn, its own turn ends, `message.joined` |
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from pattern_core.admission import parts_of
from pattern_core.agents.active import ActiveTurn
from pattern_core.agents.journal import Journal, Told, add_events
from pattern_core.agents.rows import call_planned, effect_key, message_row
from pattern_core.approvals import requested
from pattern_core.budgets import ledger
from pattern_core.events import Draft, append, ended
from pattern_core.messages import ToolCall
from pattern_db.connection import Connection
from pattern_db.enums import ApprovalStatus
from pattern_db.journal import approvals, effects, inbox, turns
from pattern_db.journal.approvals import ApprovalRow
from pattern_db.journal.effects import EffectRow
from pattern_db.journal.inbox import InboxRow
from pattern_db.tables import messages


async def ask(journal: Journal, turn: ActiveTurn, questions: Sequence[tuple[EffectRow, ApprovalRow]]) -> None:
    """T4: have calls wait for a person: those that need consent, or whose outcome nobody knows."""
    now = journal.now()
    drafts = [Draft("approval.requested", requested(question)) for _row, question in questions]

    def store(connection: Connection) -> tuple[None, Told]:
        """The questions, and the calls that they are about."""
        for row, question in questions:
            effects.ask(connection, effect_key(row))
            approvals.insert(connection, question)
        return None, add_events(connection, turn, drafts, now)

    await journal.commit(store)


async def wait(journal: Journal, turn: ActiveTurn, *, left_s: float) -> None:
    """T4′: let the turn rest until its questions are answered; `left_s` is what remains of its time."""
    now = journal.now()
    left_ms = max(0, round(left_s * 1000))
    turn.is_waiting = True

    def store(connection: Connection) -> tuple[None, Told]:
        """The turn without a deadline; the event names what is open now, as some may be answered already."""
        turns.wait(connection, turn.key, time_left_ms=left_ms)
        asked = [row.id for row in approvals.of_turn(connection, turn.key) if row.status is ApprovalStatus.PENDING]
        return None, add_events(connection, turn, [Draft("turn.waiting", {"approvals": asked})], now)

    await journal.commit(store)


async def resume(journal: Journal, turn: ActiveTurn, *, waited: bool) -> None:
    """Note that this process takes up an unfinished turn, or one that `waited` for a person."""

    def store(connection: Connection) -> tuple[None, Told]:
        """The turn as running here; what a dead process held for its calls is charged."""
        if waited:
            turns.go_on(connection, turn.key, deadline_at=turn.deadline_at)
            return None, add_events(connection, turn, [Draft("turn.resumed", {})], journal.now())
        turns.resume(connection, turn.key, epoch=journal.epoch, step=turn.step)
        ledger.recover(connection, turn.key, at=journal.now())
        return None, []

    await journal.commit(store)


async def force(journal: Journal, turn: ActiveTurn, calls: Sequence[ToolCall], planned: Sequence[EffectRow]) -> None:
    """As T3, for calls that a rule makes instead of the model."""
    now = journal.now()
    message = journal.new_message("assistant", *calls)
    row = message_row(turn, message)

    def store(connection: Connection) -> tuple[None, Told]:
        """The message and the calls that it asks for."""
        messages.append(connection, [row])
        effects.plan(connection, planned)
        return None, add_events(connection, turn, [call_planned(effect) for effect in planned], now)

    await journal.commit(store)
    turn.history.append(message)


async def join(journal: Journal, turn: ActiveTurn, joining: Sequence[InboxRow]) -> None:
    """Take messages that were sent meanwhile into the turn under way; the turns that they had end with that.

    Raises:
        Conflict: one of them was cancelled in this moment; nothing is stored.
    """
    if not joining:
        return
    now = journal.now()
    payloads = [json.loads(row.payload) for row in joining]
    taken = [journal.new_message("user", *parts_of(payload)) for payload in payloads]
    rows = [message_row(turn, message, origin=payload) for message, payload in zip(taken, payloads, strict=True)]

    def store(connection: Connection) -> tuple[None, Told]:
        """The ends of the turns that the messages had, and the messages in this one."""
        told: Told = []
        for row, message in zip(joining, taken, strict=True):
            inbox.take(connection, row.turn)
            turns.join(connection, row.turn, turn.key, ended_at=now)
            ends = turns.by_key(connection, row.turn)
            done = Draft("turn.completed", {"joined": turn.id}, ended("completed", None))
            told += append(connection, (ends.key, ends.id), [done], created_at=now)
            place = {"turn_id": ends.id, "message_id": message.id}
            joined = Draft("message.joined", place, {"content": message.text})
            told += add_events(connection, turn, [joined], now)
        messages.append(connection, rows)
        return None, told

    await journal.commit(store)
    for message in taken:
        turn.history.append(message)
