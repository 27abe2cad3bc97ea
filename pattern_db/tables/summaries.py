"""Summaries of the archived parts of each agent's conversation, in order.

A summary of depth 0 stands for its own messages only, a deeper one also for all earlier summaries. The chain that
a prompt shows therefore goes from the newest summary back to the last deeper one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pattern_db.connection import Connection, Table, fetch_all


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """A summary of `message_count` messages between two positions, from `started_at` to `ended_at`.

    A stub only counts the messages. `model` wrote it (`provider/model`), None for a stub; `tokens` an estimate.
    """

    id: str
    agent_id: str
    summary: str
    start_position: str
    end_position: str
    message_count: int
    strategy: str
    started_at: str
    ended_at: str
    created_at: str
    previous_summary_id: str | None = None
    depth: int = 0
    is_stub: bool = False
    model: str | None = None
    tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The summaries that a prompt shows: the first ones, the number of those left out, and the newest ones.

    `left_out_messages` is the number of messages of those left out.
    """

    head: Sequence[SummaryRow] = ()
    left_out: int = 0
    left_out_messages: int = 0
    tail: Sequence[SummaryRow] = ()


_SUMMARIES = Table("archive_summaries", SummaryRow, types={"is_stub": bool})


def insert(connection: Connection, row: SummaryRow) -> None:
    """Add a summary.

    Raises:
        apsw.ConstraintError: the agent or the previous summary is missing (translated to `RowConflict`).
    """
    _SUMMARIES.insert(connection, [row])


def newest(connection: Connection, agent_id: str) -> SummaryRow | None:
    """Return the agent's newest summary; None if there is none."""
    found = recent(connection, agent_id, 1)
    return found[0] if found else None


def recent(connection: Connection, agent_id: str, limit: int, *, before: str | None = None) -> list[SummaryRow]:
    """Return the agent's newest `limit` summaries, newest first; only those made before the summary `before`, if
    given.
    """
    return _SUMMARIES.select(
        connection,
        "WHERE agent_id = ?1 AND row < coalesce((SELECT row FROM archive_summaries WHERE id = ?2), 9223372036854775807)"
        " ORDER BY row DESC LIMIT ?3",
        (agent_id, before, limit),
    )


def chain(connection: Connection, agent_id: str, *, head: int, tail: int) -> Chain:
    """Return the chain of summaries for a prompt: the first `head` and the newest `tail` ones."""
    begin = fetch_all(
        connection,
        "SELECT coalesce(max(row), 0) FROM archive_summaries WHERE agent_id = ? AND depth > 0",
        (agent_id,),
    )[0][0]
    first = _SUMMARIES.select(
        connection, "WHERE agent_id = ? AND row >= ? ORDER BY row LIMIT ?", (agent_id, begin, head)
    )
    last = _SUMMARIES.select(
        connection, "WHERE agent_id = ? AND row >= ? ORDER BY row DESC LIMIT ?", (agent_id, begin, tail)
    )
    total, messages = fetch_all(
        connection,
        "SELECT count(*), coalesce(sum(message_count), 0) FROM archive_summaries WHERE agent_id = ? AND row >= ?",
        (agent_id, begin),
    )[0]
    known = {row.id for row in first}
    newer = [row for row in reversed(last) if row.id not in known]
    shown = sum(row.message_count for row in (*first, *newer))
    return Chain(
        head=tuple(first),
        left_out=total - len(first) - len(newer),
        left_out_messages=messages - shown,
        tail=tuple(newer),
    )
