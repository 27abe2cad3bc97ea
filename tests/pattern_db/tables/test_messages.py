from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import apsw
import pytest

from pattern_db import vectors
from pattern_db.connection import Connection
from pattern_db.enums import BatchType, Role, SearchKind
from pattern_db.errors import NotFound
from pattern_db.tables import agents, messages
from pattern_db.tables.messages import MessageRow
from tests.pattern_db import vector_rows
from tests.pattern_db.vector_rows import VectorRow

Say = Callable[..., MessageRow]


def positions(rows: list[MessageRow]) -> list[int]:
    return [int(row.position) for row in rows]


def at(number: int) -> str:
    return f"{number:019d}"


def test_what_a_prompt_may_show_is_what_is_not_archived(db: Connection, say: Say) -> None:
    for number in range(1, 7):
        said = {"role": Role.ASSISTANT, "tool_call_id": "call_1"} if number == 5 else {}
        say(number, "hi", **said)
    say(9, "hi", agent="bob")
    assert messages.archive(db, "agt_ada", [at(1), at(4), at(9), at(99)]) == 2
    assert messages.archive(db, "agt_ada", [at(1)]) == 0
    messages.archive_hidden(db, "agt_ada", [], at(1), at(5))
    assert positions(messages.shown(db, "agt_ada", 2)) == [6, 3]
    assert positions(messages.shown(db, "agt_ada", 9)) == [6, 3, 2]
    assert messages.count_shown(db, "agt_ada", before=at(6)) == 2
    assert [int(position) for position, _time in messages.first_shown(db, "agt_ada", 5, before=at(6))] == [2, 3]
    assert positions(messages.recent(db, "agt_ada", 9, include_archived=True)) == [6, 5, 4, 3, 2, 1]
    assert positions(messages.shown(db, "agt_bob", 9)) == [9]


def test_what_the_calls_of_an_unfinished_turn_said_stays(db: Connection, say: Say) -> None:
    for number, batch in ((1, at(1)), (2, at(2)), (3, None)):
        say(number, "told", role=Role.ASSISTANT, tool_call_id="call_1", batch_id=batch)
    db.execute(
        "INSERT INTO turn (key, id, agent_id, sender, seed, status, batch_id, created_at, ended_at) VALUES"
        " (1, 'turn_1', 'agt_ada', 'user:x', 0, 'running', ?1, ?3, NULL),"
        " (2, 'turn_2', 'agt_ada', 'user:x', 0, 'completed', ?2, ?3, ?3),"
        " (3, 'turn_3', 'agt_ada', 'user:x', 0, 'queued', NULL, ?3, NULL)",
        (at(1), at(2), "2026-01-01T00:00:00.000Z"),
    )
    messages.archive_hidden(db, "agt_ada", [at(1)], at(1), at(3))
    assert positions(messages.shown(db, "agt_ada", 9)) == [1]
    db.execute("UPDATE turn SET status = 'completed', ended_at = created_at WHERE key = 1")
    messages.archive_hidden(db, "agt_ada", [at(1)], at(2), at(3))
    assert messages.shown(db, "agt_ada", 9) == []


def test_the_messages_of_some_turns(db: Connection, say: Say) -> None:
    for number in range(1, 7):
        say(number, "hi", batch_id=at(1 + number % 2), is_archived=number == 3)
    assert messages.positions_of(db, "agt_ada", [at(2)]) == [at(5)]  # what stands before its own batch is none of it
    assert messages.positions_of(db, "agt_ada", [at(1), at(2)]) == [at(1), at(2), at(4), at(5), at(6)]
    assert messages.positions_of(db, "agt_ada", [at(9)]) == messages.positions_of(db, "agt_ada", []) == []


def test_a_message_comes_back_as_it_was_stored(db: Connection, say: Say) -> None:
    row = say(
        1,
        "Grüße 🌍",
        role=Role.TOOL,
        parts=[{"type": "tool_result", "content": "4"}],
        batch_id=at(1),
        sequence_in_batch=0,
        batch_type=BatchType.USER_REQUEST,
        tool_call_id="call_1",
        tool_name="add",
        tool_args={"a": 2},
        tool_result={"sum": 4},
        source="cli",
        source_metadata={"host": "x"},
        session_id="s1",
        workspace="w",
        is_archived=True,
    )
    assert messages.get(db, row.id) == row


def test_recent_is_newest_first_and_pages(db: Connection, say: Say) -> None:
    for number in range(1, 6):
        say(number, str(number))
    say(6, "of somebody else", agent="bob")
    assert positions(messages.recent(db, "agt_ada", 2)) == [5, 4]
    assert positions(messages.recent(db, "agt_ada", 2, before=at(4))) == [3, 2]
    assert positions(messages.after(db, "agt_ada", at(3), 9)) == [4, 5]


def test_archived_messages_leave_the_prompt_but_not_the_history(db: Connection, say: Say) -> None:
    for number in range(1, 5):
        say(number, str(number))
    assert messages.archive(db, "agt_ada", [at(1), at(2)]) == 2
    assert messages.archive(db, "agt_ada", [at(1), at(2)]) == 0
    assert positions(messages.recent(db, "agt_ada", 9)) == [4, 3]
    assert positions(messages.recent(db, "agt_ada", 9, include_archived=True)) == [4, 3, 2, 1]
    assert messages.count(db, "agt_ada") == 4
    assert messages.count(db, "agt_ada", include_archived=False) == 2


def test_a_tombstone_is_seen_nowhere_and_its_position_stays_taken(db: Connection, say: Say, now: str) -> None:
    row = say(1, "secret", batch_id=at(1), session_id="s")
    vector_rows.insert(
        db,
        VectorRow(
            kind=SearchKind.MESSAGE,
            ref=row.id,
            scope="agt_ada",
            vector=vectors.packed([1, 0, 0, 0]),
            content_hash="h",
            created_at=now,
        ),
    )
    assert messages.tombstone(db, [row.id, "msg_none"]) == 1
    assert messages.tombstone(db, [row.id]) == 0
    with pytest.raises(NotFound):
        messages.get(db, row.id)
    with pytest.raises(NotFound):
        messages.replace(db, row)
    assert messages.recent(db, "agt_ada", 9, include_archived=True) == []
    assert messages.by_batch(db, "agt_ada", at(1)) == []
    assert messages.by_session(db, "s", 9) == []
    assert messages.count(db, "agt_ada") == 0
    assert vector_rows.count(db, SearchKind.MESSAGE) == 0
    assert messages.newest_position(db) == at(1)


def test_a_batch_is_the_messages_of_one_turn(db: Connection, say: Say) -> None:
    for number, batch in ((1, 1), (2, 1), (4, 4), (5, 4), (6, 4), (7, 7)):
        say(number, "x", batch_id=at(batch), sequence_in_batch=number - batch)
    say(3, "imported between the turns")
    assert positions(messages.by_batch(db, "agt_ada", at(1))) == [1, 2]
    assert positions(messages.by_batch(db, "agt_ada", at(4))) == [4, 5, 6]
    assert positions(messages.by_batch(db, "agt_ada", at(7))) == [7]
    assert messages.by_batch(db, "agt_bob", at(1)) == []


def test_sessions(db: Connection, say: Say) -> None:
    say(1, "a", session_id="s1")
    say(2, "b", session_id="s2")
    say(3, "c", session_id="s1")
    assert positions(messages.by_session(db, "s1", 9)) == [3, 1]
    assert positions(messages.by_session(db, "s1", 9, before=at(3))) == [1]


def test_newest_position_over_all_agents(db: Connection, say: Say) -> None:
    assert messages.newest_position(db) is None
    say(2, "a")
    say(9, "b", agent="bob")
    assert messages.newest_position(db) == at(9)


def test_replace_changes_the_words_and_not_the_place(db: Connection, say: Say) -> None:
    row = say(1, "before", batch_id=at(1))
    changed = MessageRow(
        id=row.id, agent_id="agt_bob", position=at(5), role=Role.SYSTEM, created_at=row.created_at, content="after"
    )
    messages.replace(db, changed)
    stored = messages.get(db, row.id)
    assert (stored.content, stored.agent_id, stored.position, stored.role) == ("after", "agt_ada", at(1), Role.USER)


def test_a_position_is_given_once_and_all_rows_or_none_are_stored(db: Connection, say: Say) -> None:
    taken = say(2, "first")
    with pytest.raises(apsw.ConstraintError), db:
        messages.append(
            db,
            [
                MessageRow(id="msg_x", agent_id="agt_ada", position=at(1), role=Role.USER, created_at=taken.created_at),
                MessageRow(id="msg_y", agent_id="agt_ada", position=at(2), role=Role.USER, created_at=taken.created_at),
            ],
        )
    assert positions(messages.recent(db, "agt_ada", 9)) == [2]


def test_messages_go_with_their_agent(db: Connection, say: Say) -> None:
    say(1, "a")
    agents.delete(db, "agt_ada")
    assert db.execute("SELECT count(*) FROM messages").fetchall() == [(0,)]


@pytest.mark.parametrize(
    "read",
    [
        lambda db: messages.recent(db, "agt_ada", 5, before=at(9)),
        lambda db: messages.after(db, "agt_ada", at(1), 5),
        lambda db: messages.by_batch(db, "agt_ada", at(1)),
        lambda db: messages.get(db, "msg_1"),
        lambda db: messages.by_session(db, "s", 5),
        lambda db: messages.newest_position(db),
        lambda db: messages.archive(db, "agt_ada", [at(1)]),
        lambda db: messages.archive_hidden(db, "agt_ada", [at(1)], at(1), at(2)),
        lambda db: messages.shown(db, "agt_ada", 5),
        lambda db: messages.count_shown(db, "agt_ada", before=at(9)),
        lambda db: messages.positions_of(db, "agt_ada", [at(1), at(2)]),
        lambda db: messages.first_shown(db, "agt_ada", 5, before=at(9)),
    ],
)
def test_no_read_scans_all_messages(db: Connection, say: Say, read: Callable[[Connection], object]) -> None:
    say(1, "a")
    statements: list[tuple[str, object]] = []

    def remember(_cursor: object, sql: str, bindings: object) -> bool:
        statements.append((sql, bindings))
        return True

    db.exec_trace = remember
    with suppress(NotFound):
        read(db)
    db.exec_trace = None
    plans = [
        str(step[3])
        for sql, bindings in statements
        if sql.startswith(("SELECT", "UPDATE"))
        for step in db.execute(f"EXPLAIN QUERY PLAN {sql}", bindings)  # type: ignore[arg-type]  # as they were bound
    ]
    assert plans
    assert not [step for step in plans if step == "SCAN messages"], plans
    assert not [step for step in plans if "TEMP B-TREE" in step], plans
