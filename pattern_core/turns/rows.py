"""The rows and events of a turn's moments, made from values, and writes that wait for the turn's next commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pattern_core.errors import PatternError
from pattern_core.events import Draft, Event, resulted
from pattern_core.messages import Message
from pattern_core.models.model import Usage
from pattern_core.turns.state import Asking, FinishedCall
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.connection import Connection
from pattern_db.errors import RAISED, StorageFailed, translate
from pattern_db.journal import steps
from pattern_db.journal.steps import StepRow
from pattern_db.journal.usage import UsageRow
from pattern_db.tables import messages
from pattern_db.tables.messages import MessageRow

Store = Callable[[Connection], object]
"""Writes rows within a transaction; the events of a tool's own writes come back as a list."""


class CallRefused(Exception):
    """The database, or the receiver of a message, refused what a tool wanted to store: nothing was stored."""

    def __init__(self, finished: FinishedCall, reason: str) -> None:
        super().__init__(reason)
        self.finished = finished
        self.reason = reason


@dataclass(slots=True)
class Recorded:
    """One write that waits for the next commit, with the turn's events about it.

    `work` is settled after it, `finished` the call that it is about.
    """

    store: Store
    drafts: Sequence[Draft] = ()
    work: UnitOfWork | None = None
    finished: FinishedCall | None = None
    shown: Message | None = None  # the call's result as the conversation has it
    row: MessageRow | None = None  # and as it is stored
    on_commit: Callable[[], None] | None = None


def step_row(key: int, asking: Asking, *, step: int, attempt: int, now: str) -> StepRow:
    """Return the open step that is about to ask."""
    link, prompt = asking.chain.links[0], asking.prompt
    return StepRow(
        key,
        step,
        attempt,
        "open",
        link.provider,
        link.model,
        prompt.cursor,
        prompt.prefix_hash,
        prompt.request_hash,
        None,
        now,
        prompt.log,
    )


def usage_row(key: int, agent_id: str, asking: Asking, usage: Usage, *, step: int, attempt: int, at: str) -> UsageRow:
    """What the open step's model call cost, of whichever model answered."""
    link = asking.answered
    return UsageRow(
        turn=key,
        step=step,
        attempt=attempt,
        provider=link.provider,
        model=link.model,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_tokens=usage.cached_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        cost_microdollars=asking.cost_of(usage),
        is_estimate=usage.is_estimate,
        at=at,
        agent_id=agent_id,
    )


def finishing(finished: FinishedCall, message: Message, row: MessageRow, work: UnitOfWork | None) -> Recorded:
    """T6, to be recorded."""

    def store(connection: Connection) -> list[Event]:
        try:
            events = [] if work is None else work.run(connection)
        except (PatternError, *RAISED) as error:
            known = error if isinstance(error, PatternError) else translate(error)
            if known is None or isinstance(known, StorageFailed):
                raise
            raise CallRefused(finished, known.message) from error
        messages.append(connection, [row])
        finish_row(connection, finished, message)
        return events

    drafts = [] if work is None else [*work.drafts]
    drafts.append(resulted(finished.row, finished.content, status=finished.status, message_id=message.id))
    return Recorded(store, drafts, work=work, finished=finished, shown=message, row=row)


def finish_row(connection: Connection, finished: FinishedCall, message: Message) -> None:
    """Store the end of a call with its result; the result's message is stored before."""
    row, ended_at = finished.row, message.created_at
    key = (row.turn, row.step, row.call)
    steps.finish_call(connection, key, status=finished.status, message_id=message.id, ended_at=ended_at)
