"""Views of a constellation for people and programs: turns with their messages, and its condition."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pattern_core.rules.facts import trust
from pattern_db.connection import Connection
from pattern_db.enums import ApprovalStatus, Role, TrustLevel, TurnStatus
from pattern_db.journal import approvals, group_runs, turns, usage
from pattern_db.journal.group_runs import Branch, GroupSaid
from pattern_db.journal.turns import TurnRow
from pattern_db.journal.usage import UsageSum
from pattern_db.tables import embedding_indexes, folders, messages, sources
from pattern_db.tables.embedding_indexes import IndexRow
from pattern_db.tables.folders import FolderRow
from pattern_db.tables.messages import MessageRow
from pattern_db.tables.sources import PersonRow, SourceRow

StoredMessage = MessageRow
TREE_MAX = 500  # turns below a group's turn


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnView:
    """A turn of an agent or a group with its messages (oldest first; none in a list) and what it used; `error` is
    `{"code", "message"}` or None. `text` is what the agent said last, or the group's answer (None in a list).
    `approvals` are the questions that it waits for. The messages of a group's turn are its members' answers, and it
    used what they did. `trust` is that of its least trusted message.
    """

    key: int
    id: str
    agent_id: str | None
    group_id: str | None
    status: TurnStatus
    error: Mapping[str, object] | None
    text: str | None
    messages: list[MessageRow]
    usage: UsageSum
    steps: int
    approvals: Sequence[str]
    sender: str
    trust: TrustLevel
    session_id: str | None
    created_at: str
    started_at: str | None
    ended_at: str | None

    @property
    def has_ended(self) -> bool:
        """Whether its terminal event is stored."""
        return self.ended_at is not None

    @property
    def rests(self) -> bool:
        """Whether it pauses: it has ended, or waits for a person."""
        return self.has_ended or bool(self.approvals)


def view_turn(connection: Connection, turn_id: str) -> TurnView:
    """Return the turn with this id.

    Raises:
        pattern_db.errors.RowNotFound: there is none.
    """
    row = turns.by_id(connection, turn_id)
    if row.group_id is not None:
        answers = group_runs.answers(connection, row.key)
        return _view(connection, row, answers, group_runs.get(connection, row.key).answer)
    said = [] if row.batch_id is None else messages.by_batch(connection, row.agent_id, row.batch_id)
    words = (one.content for one in reversed(said) if one.role is Role.ASSISTANT and one.content)
    return _view(connection, row, said, next(words, None))


def view_turns(
    connection: Connection,
    limit: int,
    *,
    before: int | None,
    status: TurnStatus | None,
    agent_id: str | None,
    group_id: str | None,
) -> list[TurnView]:
    """Return turns as `turns.newest` selects them, without their messages."""
    found = turns.newest(connection, limit, before=before, status=status, agent_id=agent_id, group_id=group_id)
    return [_view(connection, row, [], None) for row in found]


def _view(connection: Connection, row: TurnRow, said: list[MessageRow], text: str | None) -> TurnView:
    asked = approvals.of_turn(connection, row.key) if row.status == TurnStatus.WAITING else []
    return TurnView(
        key=row.key,
        id=row.id,
        agent_id=row.agent_id or None,
        group_id=row.group_id,
        status=TurnStatus(row.status),
        error=None if row.error is None else json.loads(row.error),
        text=text,
        messages=said,
        usage=(usage.of_turn if row.group_id is None else usage.of_tree)(connection, row.key),
        steps=row.steps,
        approvals=[one.id for one in asked if one.status is ApprovalStatus.PENDING],
        sender=row.sender,
        trust=trust(connection, row.key),
        session_id=row.session_id,
        created_at=row.created_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
    )


def view_tree(connection: Connection, view: TurnView) -> list[Branch]:
    """Return the turns below a group's turn, oldest first; none of an agent's."""
    return [] if view.group_id is None else group_runs.tree(connection, view.key, TREE_MAX)


def view_conversation(
    connection: Connection, group_id: str, limit: int, *, before: int | None, session_id: str | None
) -> list[tuple[GroupSaid, TrustLevel]]:
    """Return what was said in a group, newest first, in one session or in all, with how far it is trusted."""
    is_all = session_id is None
    said = group_runs.conversation(connection, group_id, limit, before=before, session_id=session_id, is_all=is_all)
    return [(one, trust(connection, one.key)) for one in said]


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """The condition of a constellation's contents, from its file alone, which can be read while it is parked.

    `index` is used for search by meaning, None before the first text; `done` of `total` texts have been processed for
    it. `unavailable` are the folders that could not be read at the last scan. Of each of the `sources` it is known how
    many answers are in doubt, and who has been given a pairing code.
    """

    index: IndexRow | None
    done: int
    total: int
    unavailable: Sequence[FolderRow]
    sources: Sequence[tuple[SourceRow, int, Sequence[PersonRow]]]


def condition(connection: Connection) -> Condition:
    """Return the condition of a file's contents; reads only a few rows."""
    active = embedding_indexes.active(connection)
    coverage = embedding_indexes.coverage(connection, active)
    unavailable = [folder for folder in folders.list_all(connection) if folder.status != "ready"]
    known = [
        (one, sources.in_doubt(connection, one.id), [who for who in sources.people(connection, one.id) if who.code])
        for one in sources.list_all(connection)
    ]
    return Condition(index=active, done=coverage.done, total=coverage.total, unavailable=unavailable, sources=known)
