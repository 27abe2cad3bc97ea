from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import apsw
import pytest

from pattern_db import search
from pattern_db.connection import Connection, fetch_all
from pattern_db.enums import BatchType, Role, SearchKind
from pattern_db.errors import RowNotFound
from pattern_db.tables import agents, messages, sessions, summaries
from pattern_db.tables.messages import ImportRow, MessageRow
from pattern_db.tables.sessions import SessionRow
from pattern_db.tables.summaries import SummaryRow
from tests.pattern_db import vector_rows
from tests.pattern_db.conftest import NOW, PlanOf, Say, hits, make_message
from tests.pattern_db.vector_rows import VectorRow


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
    assert positions(messages.recent(db, "agt_ada", 9)) == [6, 5, 4, 3, 2, 1]
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


def test_a_tombstone_is_seen_nowhere_and_its_position_stays_taken(db: Connection, say: Say) -> None:
    row = say(1, "secret", batch_id=at(1), session_id="s")
    vector_rows.insert(db, VectorRow(kind=SearchKind.MESSAGE, ref=row.id, scope="agt_ada"))
    messages.tombstone(db, [row.id, "msg_none"])
    with pytest.raises(RowNotFound):
        messages.get(db, row.id)
    assert messages.recent(db, "agt_ada", 9) == []
    assert messages.by_batch(db, "agt_ada", at(1)) == []
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
    messages.discard_batch(db, "agt_bob", at(4))
    messages.discard_batch(db, "agt_ada", at(4))
    assert positions(messages.recent(db, "agt_ada", 9)) == [7, 3, 2, 1]


def test_a_position_is_given_once_and_all_rows_or_none_are_stored(db: Connection, say: Say) -> None:
    say(2, "first")
    with pytest.raises(apsw.ConstraintError), db:
        messages.append(db, [make_message(1), make_message(2)._replace(id="msg_other")])
    assert positions(messages.recent(db, "agt_ada", 9)) == [2]


@pytest.mark.parametrize(
    "read",
    [
        lambda db: messages.recent(db, "agt_ada", 5, before=at(9)),
        lambda db: messages.by_batch(db, "agt_ada", at(1)),
        lambda db: messages.get(db, f"msg_{at(1)}"),
        messages.newest_position,
        lambda db: messages.archive(db, "agt_ada", [at(1)]),
        lambda db: messages.archive_hidden(db, "agt_ada", [at(1)], at(1), at(2)),
        lambda db: messages.shown(db, "agt_ada", 5),
        lambda db: messages.count_shown(db, "agt_ada", before=at(9)),
        lambda db: messages.positions_of(db, "agt_ada", [at(1), at(2)]),
        lambda db: messages.first_shown(db, "agt_ada", 5, before=at(9)),
        lambda db: messages.newest_between(db, "agt_ada", at(1), at(9)),
        lambda db: messages.imported(db, "agt_ada", "ses_1"),
    ],
)
def test_no_read_scans_all_messages(
    db: Connection, say: Say, plan_of: PlanOf, read: Callable[[Connection], object]
) -> None:
    say(1, "a")
    plan = plan_of(lambda: read(db))
    assert not [step for step in plan if step == "SCAN messages" or "TEMP B-TREE" in step]


# Summaries in their order, the chain that a prompt shows, and the full-text index beside them.

DAY = "2026-11-{:02d}T10:00:00.000Z"


def add(
    db: Connection, number: int, text: str = "tea", *, depth: int = 0, agent: str = "agt_ada", before: str | None = None
) -> SummaryRow:
    row = SummaryRow(
        id=f"sum_{agent}_{number}",
        agent_id=agent,
        summary=text,
        start_position=f"{number:019d}",
        end_position=f"{number + 5:019d}",
        message_count=number,
        strategy="sliding_window",
        started_at=DAY.format(number),
        ended_at=DAY.format(number + 1),
        created_at=DAY.format(28),
        previous_summary_id=before,
        depth=depth,
        is_stub=number % 2 == 0,
        model="scripted/m",
        tokens=7,
    )
    summaries.insert(db, row)
    return row


def test_a_summary_comes_back_as_it_was_stored(db: Connection) -> None:
    first = add(db, 1)
    second = add(db, 2, before=first.id)
    assert summaries.newest(db, "agt_ada") == second
    assert summaries.newest(db, "agt_bob") is None
    with pytest.raises(apsw.ConstraintError):
        add(db, 3, agent="agt_nobody")


def test_the_chain_goes_back_to_the_last_that_stands_for_all_before(db: Connection) -> None:
    assert summaries.chain(db, "agt_ada", head=2, tail=2) == summaries.Chain()
    rows = [add(db, number, depth=1 if number == 3 else 0) for number in range(1, 10)]
    add(db, 12, agent="agt_bob")
    chain = summaries.chain(db, "agt_ada", head=2, tail=3)
    assert list(chain.head) == rows[2:4]
    assert list(chain.tail) == rows[6:]
    assert (chain.left_out, chain.left_out_messages) == (2, 5 + 6)
    whole = summaries.chain(db, "agt_ada", head=4, tail=8)
    assert [*whole.head, *whole.tail] == rows[2:]
    assert (whole.left_out, whole.left_out_messages) == (0, 0)


def test_summaries_are_found_by_words_time_and_agent(db: Connection) -> None:
    first = add(db, 1, "They drank green tea.")
    second = add(db, 5, "About teas and 我喜欢猫.", agent="agt_bob")
    assert [row.id for row in hits(db, SearchKind.SUMMARY, "tea")] == [first.id, second.id]
    assert [row.id for row in hits(db, SearchKind.SUMMARY, "喜欢")] == [second.id]
    assert [row.id for row in hits(db, SearchKind.SUMMARY, "tea", agents=["agt_bob"])] == [second.id]
    assert [row.id for row in hits(db, SearchKind.SUMMARY, "tea", since=DAY.format(2))] == [
        first.id,
        second.id,
    ]  # it ends on that day
    assert [row.id for row in hits(db, SearchKind.SUMMARY, "tea", since=DAY.format(3))] == [second.id]
    assert [row.id for row in hits(db, SearchKind.SUMMARY, "tea", until=DAY.format(2))] == [first.id]  # it began before
    assert hits(db, SearchKind.SUMMARY, "tea", until=DAY.format(1)) == []
    for filters in ({"tags": ["x"]}, {"sessions": ["s"]}, {"workspace": "w"}):
        assert hits(db, SearchKind.SUMMARY, "tea", **filters) == []
    (row,) = hits(db, SearchKind.SUMMARY, "green")
    assert (row.kind, row.agent_id, row.created_at) == (SearchKind.SUMMARY, "agt_ada", first.ended_at)


def test_the_index_follows_its_table(db: Connection) -> None:
    add(db, 1, "They drank green tea.")
    search.rebuild(db)
    db.execute("INSERT INTO summary_fts(summary_fts) VALUES ('integrity-check')")
    db.execute("UPDATE archive_summaries SET summary = 'coffee'")
    assert hits(db, SearchKind.SUMMARY, "tea") == []
    assert len(hits(db, SearchKind.SUMMARY, "coffee")) == 1
    agents.delete(db, "agt_ada")
    assert fetch_all(db, "SELECT count(*) FROM archive_summaries")[0][0] == 0
    db.execute("INSERT INTO summary_fts(summary_fts) VALUES ('integrity-check')")
    assert hits(db, SearchKind.SUMMARY, "coffee") == []


KEY, PRINT = b"k" * 16, b"f" * 16


def test_an_import_is_found_by_its_key(db: Connection) -> None:
    row = ImportRow(idempotency=KEY, fingerprint=PRINT, agent_id="agt_ada", positions=(3, 1, 2**63 - 1), created_at=NOW)
    messages.note_import(db, row)
    assert messages.find_import(db, KEY) == row
    assert messages.find_import(db, PRINT) is None
    with pytest.raises(apsw.ConstraintError):
        messages.note_import(db, replace(row, positions=()))
    agents.delete(db, "agt_ada")
    assert messages.find_import(db, KEY) is None


def test_what_a_session_has_from_elsewhere_is_found_by_its_ids_there(db: Connection, say: Say) -> None:
    sessions.create(db, "agt_ada", SessionRow(id="ses_1", created_at=NOW, updated_at=NOW))
    for number, known_as in ((1, {"id": "m1"}), (2, {"id": 2}), (3, None), (4, {"id": "m4"})):
        say(number, session_id="ses_1", source_metadata=known_as)
    say(5, source_metadata={"id": "m5"})
    messages.tombstone(db, ["msg_" + at(4)])
    assert messages.imported(db, "agt_ada", "ses_1") == {"m1": at(1)}


def test_the_newest_position_that_is_taken(db: Connection, say: Say) -> None:
    def newest(first: int, last: int, agent: str = "agt_ada") -> str | None:
        return messages.newest_between(db, agent, at(first), at(last))

    assert newest(0, 9) is None
    say(3)
    say(5, agent="bob")
    assert newest(0, 9) == at(5)  # another agent's message has the id that belongs to the position
    assert newest(0, 4) == newest(3, 3) == at(3)
    assert newest(6, 9) is None
    db.execute("UPDATE messages SET id = 'msg_elsewhere' WHERE agent_id = 'agt_ada'")
    assert newest(0, 4) == at(3)
    assert newest(0, 4, "agt_bob") is None


def test_a_note_is_set_and_taken_away(db: Connection, say: Say) -> None:
    for number in (1, 2):
        say(number, "hi")
    messages.set_note(db, "agt_ada", at(2), "It is noon.")
    assert [one.note for one in messages.shown(db, "agt_ada", 9)] == ["It is noon.", None]
    messages.set_note(db, "agt_ada", at(2), "")
    assert [one.note for one in messages.shown(db, "agt_ada", 9)] == [None, None]
