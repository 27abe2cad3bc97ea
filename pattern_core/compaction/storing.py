"""What a compaction stores, in one transaction: the marks of the messages, their summary, and the event."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pattern_core.conversation.opening import Opening, opening_message, shown_chain
from pattern_core.errors import Conflict
from pattern_core.events import Draft, Event, append
from pattern_core.models.tokens import estimate_text, message_tokens
from pattern_db.connection import Connection
from pattern_db.journal import turns
from pattern_db.tables import messages, summaries
from pattern_db.tables.summaries import Chain, SummaryRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """What leaves a conversation: positions and times of the messages that were shown, and positions of others that go
    with them.

    `turn` (key and id) is whose room is made, None where a person asked for it. `summary` is what is kept: a stub, or
    the words of `model` (`provider/model`). It also stands for `merged`, the summaries before it. `tokens_before` are
    those of the conversation, `rest` those of what stays without its opening, which may have `opening_max`; `unloaded`
    messages are still to be read.
    """

    summary_id: str
    agent_id: str
    turn: tuple[int, str] | None
    messages: Sequence[tuple[str, str]]
    hidden: Sequence[str] = ()
    summary: str
    strategy: str
    model: str | None = None
    merged: Chain | None = None
    tokens_before: int
    rest: int
    opening_max: int
    unloaded: int
    now: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived:
    """What was stored: how many messages left, and what opens the conversation from now on."""

    messages: int
    opening: Opening


def store(connection: Connection, leaving: Leaving) -> tuple[Archived, list[Event]]:
    """Archive the messages and add their summary.

    Raises:
        Conflict: they were archived meanwhile; or the agent began a turn while a person compacts.
    """
    agent_id, now = leaving.agent_id, leaving.now
    if leaving.turn is None:
        refuse_at_work(connection, agent_id)
    positions = [position for position, _time in leaving.messages]
    first, last = min(positions), max(positions)
    count = messages.archive(connection, agent_id, positions)
    if count == 0:
        raise Conflict("these messages were archived meanwhile; read the conversation again")
    messages.archive_hidden(connection, agent_id, leaving.hidden, first, last)
    row = _row(connection, leaving, count)
    summaries.insert(connection, row)
    opening = Opening(chain=shown_chain(connection, agent_id), unloaded=leaving.unloaded)
    shown = opening_message(opening, leaving.opening_max)
    compacted = {
        "agent_id": agent_id,
        "messages": count,
        "from": first,
        "to": last,
        "tokens_before": leaving.tokens_before,
        "tokens_after": leaving.rest + (0 if shown is None else message_tokens(shown)),
        "strategy": leaving.strategy,
        "summary_id": row.id,
        "is_stub": row.is_stub,
    }
    events = append(connection, leaving.turn, [Draft("history.compacted", compacted)], created_at=now)
    return Archived(messages=count, opening=opening), events


def refuse_at_work(connection: Connection, agent_id: str) -> None:
    """Allow a person's compaction only while the agent rests.

    Raises:
        Conflict: a turn of it is under way.
    """
    if turns.unfinished(connection, agent_id) is not None:
        raise Conflict("the agent is at work; compact its conversation when its turn has ended")


def _row(connection: Connection, leaving: Leaving, count: int) -> SummaryRow:
    before, merged = summaries.newest(connection, leaving.agent_id), leaving.merged or Chain()
    covered = (*merged.head, *merged.tail)
    # A summary that was added since the chain was read is not retold in this one, which must not hide it then.
    if before is None or not covered or covered[-1].id != before.id:
        merged, covered = Chain(), ()
    positions, times = zip(*leaving.messages, strict=True)
    return SummaryRow(
        id=leaving.summary_id,
        agent_id=leaving.agent_id,
        summary=leaving.summary,
        start_position=min((*positions, *(row.start_position for row in covered))),
        end_position=max((*positions, *(row.end_position for row in covered))),
        message_count=count + sum(row.message_count for row in covered) + merged.left_out_messages,
        strategy=leaving.strategy,
        started_at=min((*times, *(row.started_at for row in covered))),
        ended_at=max((*times, *(row.ended_at for row in covered))),
        created_at=leaving.now,
        previous_summary_id=None if before is None else before.id,
        depth=1 + max(row.depth for row in covered) if covered else 0,
        is_stub=leaving.model is None,
        model=leaving.model,
        tokens=estimate_text(leaving.summary),
    )
