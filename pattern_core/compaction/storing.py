"""What a compaction stores, in one transaction: the marks of the messages, their summary, and the event."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pattern_core.conversation.opening import HEAD_SHOWN, TAIL_SHOWN, Opening, opening_message
from pattern_core.errors import Conflict
from pattern_core.events import Draft, Event, append
from pattern_core.models.tokens import estimate_text, message_tokens
from pattern_db.connection import Connection
from pattern_db.journal import turns
from pattern_db.tables import messages, summaries
from pattern_db.tables.summaries import Chain, SummaryRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """What leaves a conversation: positions of the messages that were shown, oldest first, the times of the first and
    the last, and positions of others that go with them.

    `summary` is what is kept: a stub, or the words of `model` (`provider/model`). With `merges` it also stands for
    `chain`, the summaries before it. `turn` (key and id) is whose room is made, None where a person asked for it.
    """

    agent_id: str
    turn: tuple[int, str] | None
    positions: Sequence[str]
    hidden: Sequence[str]
    started_at: str
    ended_at: str
    summary: str
    strategy: str
    chain: Chain
    model: str | None = None
    merges: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The conversation in tokens: before, without what leaves (and without its opening), and the opening's bound."""

    before: int
    rest: int
    opening_max: int | None
    unloaded: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived:
    """What was stored: how many messages left, their summary's id, and what opens the conversation from now on."""

    messages: int
    summary_id: str
    opening: Opening


def store(
    connection: Connection, leaving: Leaving, sizes: Sizes, *, summary_id: str, now: str
) -> tuple[Archived, list[Event]]:
    """Archive the messages and add their summary.

    Raises:
        Conflict: they were archived meanwhile; or the agent began a turn while a person compacts.
    """
    if leaving.turn is None:
        refuse_at_work(connection, leaving.agent_id)
    first, last = min(leaving.positions), max(leaving.positions)
    count = messages.archive(connection, leaving.agent_id, leaving.positions)
    if count == 0:
        raise Conflict("these messages were archived meanwhile; read the conversation again")
    messages.archive_hidden(connection, leaving.agent_id, leaving.hidden, first, last)
    row = _row(connection, leaving, count, summary_id, now)
    summaries.insert(connection, row)
    chain = summaries.chain(connection, leaving.agent_id, head=HEAD_SHOWN, tail=TAIL_SHOWN)
    opening = Opening(chain=chain, unloaded=sizes.unloaded)
    shown = opening_message(opening, sizes.opening_max)
    compacted = {
        "agent_id": leaving.agent_id,
        "messages": count,
        "from": first,
        "to": last,
        "tokens_before": sizes.before,
        "tokens_after": sizes.rest + (0 if shown is None else message_tokens(shown)),
        "strategy": leaving.strategy,
        "summary_id": summary_id,
        "is_stub": row.is_stub,
    }
    told = append(connection, leaving.turn, [Draft("history.compacted", compacted)], created_at=now)
    return Archived(messages=count, summary_id=summary_id, opening=opening), told


def refuse_at_work(connection: Connection, agent_id: str) -> None:
    """Let a person's compaction go on only while the agent rests.

    Raises:
        Conflict: a turn of it is under way.
    """
    if turns.unfinished(connection, agent_id) is not None:
        raise Conflict("the agent is at work; compact its conversation when its turn has ended")


def _row(connection: Connection, leaving: Leaving, count: int, summary_id: str, now: str) -> SummaryRow:
    before = summaries.newest(connection, leaving.agent_id)
    chain = leaving.chain
    known = (*chain.head, *chain.tail)
    # A summary that was added since the chain was read is not retold in this one, which must not hide it then.
    covered = known if leaving.merges and before is not None and known[-1:] and known[-1].id == before.id else ()
    return SummaryRow(
        id=summary_id,
        agent_id=leaving.agent_id,
        summary=leaving.summary,
        start_position=min((*leaving.positions, *(row.start_position for row in covered))),
        end_position=max((*leaving.positions, *(row.end_position for row in covered))),
        message_count=count + sum(row.message_count for row in covered) + (chain.left_out_messages if covered else 0),
        strategy=leaving.strategy,
        started_at=min((leaving.started_at, *(row.started_at for row in covered))),
        ended_at=max((leaving.ended_at, *(row.ended_at for row in covered))),
        created_at=now,
        previous_summary_id=None if before is None else before.id,
        depth=1 + max(row.depth for row in covered) if covered else 0,
        is_stub=leaving.model is None,
        model=leaving.model,
        tokens=estimate_text(leaving.summary),
    )
