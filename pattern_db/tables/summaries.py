"""Summaries of the archived parts of each agent's conversations, in order. Those of its main conversation have no
session.

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
    session_id: str | None = None


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
insert = _SUMMARIES.create
_OWN = "agent_id = ?1 AND session_id IS ?2"
_IN_SESSION = (  # a fork's are also those of the conversation that it began as
    "agent_id = ?1 AND (session_id = ?2 OR id IN (WITH RECURSIVE shared(id) AS (SELECT summary_id FROM sessions"
    " WHERE id = ?2 UNION SELECT s.previous_summary_id FROM shared JOIN archive_summaries AS s ON s.id = shared.id)"
    " SELECT id FROM shared))"
)


def _of(session_id: str | None) -> str:
    return _OWN if session_id is None else _IN_SESSION


def newest(
    connection: Connection, agent_id: str, session_id: str | None = None, *, up_to: str = "~"
) -> SummaryRow | None:
    """Return the newest summary of the agent's main conversation, or of a session, before the first one of
    messages after the position `up_to`; None if there is none.
    """
    of = _of(session_id)
    return _SUMMARIES.first(
        connection,
        f"WHERE {of} AND row < coalesce((SELECT min(row) FROM archive_summaries WHERE {of} AND end_position > ?3),"
        " 9223372036854775807) ORDER BY row DESC LIMIT 1",
        (agent_id, session_id, up_to),
    )


def recent(
    connection: Connection, agent_id: str, limit: int, *, before: str | None = None, session_id: str | None = None
) -> list[SummaryRow]:
    """Return the newest `limit` summaries of the agent's main conversation, or of a session, newest first; only those
    made before the summary `before`, if given.
    """
    return _SUMMARIES.select(
        connection,
        f"WHERE {_of(session_id)}"
        " AND row < coalesce((SELECT row FROM archive_summaries WHERE id = ?3), 9223372036854775807)"
        " ORDER BY row DESC LIMIT ?4",
        (agent_id, session_id, before, limit),
    )


def chain(connection: Connection, agent_id: str, *, head: int, tail: int, session_id: str | None = None) -> Chain:
    """Return the chain of summaries for a prompt: the first `head` and the newest `tail` ones."""
    of = _of(session_id)
    begin = fetch_all(
        connection,
        f"SELECT coalesce(max(row), 0) FROM archive_summaries WHERE {of} AND depth > 0",
        (agent_id, session_id),
    )[0][0]
    rows, where = (agent_id, session_id, begin), f"WHERE {of} AND row >= ?3"
    first = _SUMMARIES.select(connection, f"{where} ORDER BY row LIMIT {head}", rows)
    last = _SUMMARIES.select(connection, f"{where} ORDER BY row DESC LIMIT {tail}", rows)
    total, messages = fetch_all(
        connection, f"SELECT count(*), coalesce(sum(message_count), 0) FROM archive_summaries {where}", rows
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
