"""Sessions as stored: which messages they show, forks, what is deleted, and the plans of the reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import apsw
import pytest

from pattern_db.connection import Connection
from pattern_db.enums import Role
from pattern_db.errors import RowNotFound
from pattern_db.journal import turns, usage
from pattern_db.journal.turns import NewTurn
from pattern_db.journal.usage import UsageRow
from pattern_db.tables import messages, sessions, summaries
from pattern_db.tables.sessions import ChatRow, SessionRow
from pattern_db.tables.summaries import SummaryRow
from tests.pattern_db.conftest import PlanOf, Say

NOW = "2026-01-01T00:00:00.000Z"
ADA = "agt_ada"
ONE, TWO, FORK = (SessionRow(id=f"ses_{name}", created_at=NOW, updated_at=NOW) for name in ("1", "2", "3"))


def at(number: int) -> str:
    return f"{number:019d}"


def shown(db: Connection, session_id: str | None = None) -> list[int]:
    return [int(row.position) for row in messages.shown(db, ADA, 99, session_id=session_id)][::-1]


def summary(number: int, first: int, last: int, before: str | None = None) -> SummaryRow:
    return SummaryRow(
        id=f"sum_{number}",
        agent_id=ADA,
        summary="tea",
        start_position=at(first),
        end_position=at(last),
        message_count=last - first + 1,
        strategy="truncate",
        started_at=NOW,
        ended_at=NOW,
        created_at=NOW,
        previous_summary_id=before,
        session_id=ONE.id,
    )


@pytest.fixture
def talk(db: Connection, say: Say) -> Connection:
    """Messages 1 to 9 in turn of the main conversation (1, 4, 7) and of two sessions (2, 5, 8 of `ONE`)."""
    for row in (ONE, TWO):
        sessions.create(db, ADA, row)
    for number in range(1, 10):
        of = (TWO.id, None, ONE.id)[number % 3]
        say(number, f"tea {number}", role=Role.USER, session_id=of, is_archived=of is not None, batch_id=at(number))
    return db


def test_a_conversation_shows_its_own_messages(talk: Connection) -> None:
    assert (shown(talk), shown(talk, ONE.id), shown(talk, TWO.id)) == ([1, 4, 7], [2, 5, 8], [3, 6, 9])
    assert messages.archive(talk, ADA, [at(1), at(2), at(3)], session_id=ONE.id) == 1
    assert messages.archive(talk, ADA, [at(2)], session_id=ONE.id) == 0
    assert (shown(talk), shown(talk, ONE.id), shown(talk, TWO.id)) == ([1, 4, 7], [5, 8], [3, 6, 9])
    assert messages.archive(talk, ADA, [at(number) for number in range(1, 6)]) == 2
    messages.archive_hidden(talk, ADA, [at(6), at(7)], at(1), at(9), session_id=TWO.id)
    assert (shown(talk), shown(talk, ONE.id), shown(talk, TWO.id)) == ([7], [5, 8], [3, 9])
    assert messages.count_shown(talk, ADA, before=at(9), session_id=TWO.id) == 1
    assert messages.first_shown(talk, ADA, 1, before=at(9), session_id=ONE.id)[0][0] == at(5)
    assert messages.positions_of(talk, ADA, [at(5), at(6)], session_id=ONE.id) == [at(5)]
    assert [int(row.position) for row in messages.recent(talk, ADA, 9, before=at(9), session_id=TWO.id)] == [6, 3]
    assert shown(talk, "ses_none") == []
    assert messages.shown(talk, "agt_bob", 9, session_id=ONE.id) == []


def test_a_fork_begins_with_messages_of_its_parent(talk: Connection, say: Say) -> None:
    messages.archive(talk, ADA, [at(2), at(5)], session_id=ONE.id)
    summaries.insert(talk, summary(1, 2, 2))
    summaries.insert(talk, summary(2, 5, 5, "sum_1"))
    for number, (position, known, seen) in enumerate(
        [(8, "sum_2", [8]), (5, "sum_2", []), (4, "sum_1", []), (1, None, [])]
    ):
        fork = replace(FORK, id=f"ses_f{number}", parent_id=ONE.id)
        sessions.create(talk, ADA, fork)
        sessions.share(talk, sessions.find(talk, ADA, ONE.id), fork.id, at(position))
        assert sessions.find(talk, ADA, fork.id).summary_id == known
        assert shown(talk, fork.id) == seen
        found = summaries.newest(talk, ADA, fork.id)
        assert (found and found.id) == known
        assert [row.id for row in summaries.chain(talk, ADA, head=9, tail=9, session_id=fork.id).head] == [
            f"sum_{one}" for one in range(1, int((known or "sum_0")[-1]) + 1)
        ]
    summaries.insert(talk, summary(3, 8, 8, "sum_2"))
    assert [row.id for row in summaries.recent(talk, ADA, 9, session_id="ses_f0")] == ["sum_2", "sum_1"]
    assert summaries.newest(talk, ADA) is None
    assert sessions.has_forks(talk, ONE.id) and not sessions.has_forks(talk, TWO.id)
    messages.archive(talk, ADA, [at(8)], session_id=ONE.id)
    say(11, "mine", session_id="ses_f0", is_archived=True)
    assert (shown(talk, ONE.id), shown(talk, "ses_f0")) == ([], [8, 11])
    messages.archive(talk, ADA, [at(8)], session_id="ses_f0")
    assert shown(talk, "ses_f0") == [11]


def test_what_left_its_parents_prompts_behind_its_end_is_shown_by_a_fork(talk: Connection) -> None:
    messages.archive(talk, ADA, [at(2), at(5)], session_id=ONE.id)
    summaries.insert(talk, summary(1, 2, 5))
    sessions.create(talk, ADA, replace(FORK, parent_id=ONE.id))
    sessions.share(talk, sessions.find(talk, ADA, ONE.id), FORK.id, at(4))
    assert sessions.find(talk, ADA, FORK.id).summary_id is None
    assert shown(talk, FORK.id) == [2]


def test_sessions_are_listed_and_changed(db: Connection) -> None:
    for row in (ONE, TWO):
        sessions.create(db, ADA, row)
    with pytest.raises(RowNotFound, match="no agent or group"):
        sessions.create(db, "agt_none", FORK)
    with pytest.raises(RowNotFound):
        sessions.find(db, "agt_bob", ONE.id)
    assert [row.id for row in sessions.newest(db, ADA, 9)] == [TWO.id, ONE.id]
    assert [row.id for row in sessions.newest(db, ADA, 9, before=TWO.id)] == [ONE.id]
    sessions.change(db, ONE.id, {"is_archived": True, "title": "Rome"})
    assert sessions.newest(db, ADA, 9, is_archived=True) == [replace(ONE, agent_id=ADA, is_archived=True, title="Rome")]
    assert [row.id for row in sessions.newest(db, ADA, 9)] == [TWO.id]
    assert (sessions.count(db, ADA), sessions.count(db, "agt_bob")) == (2, 0)
    assert sessions.known(db, ADA, {ONE.id, "tag"}) == {ONE.id}
    assert sessions.known(db, "agt_bob", [ONE.id]) == set()
    with pytest.raises(RowNotFound):
        sessions.change(db, "ses_none", {"title": None})


def test_sessions_about_a_project_with_enough_new_messages_are_read_once(talk: Connection, say: Say) -> None:
    assert sessions.unread(talk, ADA, 1) == [], "they are about no project"
    sessions.change(talk, ONE.id, {"working_dir": "/srv"})
    own = [row.position for row in reversed(messages.recent(talk, ADA, 99, session_id=ONE.id))]
    assert sessions.unread(talk, ADA, len(own)) == [(ONE.id, "")]
    assert sessions.unread(talk, ADA, len(own) + 1) == []
    sessions.note_read(talk, ONE.id, own[-1])
    assert sessions.unread(talk, ADA, 1) == []
    say(20, "more tea", role=Role.USER, session_id=ONE.id, is_archived=True)
    assert sessions.unread(talk, ADA, 1) == [(ONE.id, own[-1])]
    assert sessions.unread(talk, "agt_bob", 1) == []
    sessions.note_read(talk, "ses_gone", at(1))
    assert [key for (key,) in talk.execute("SELECT key FROM meta WHERE key GLOB 'reflected/*'")] == ["reflected/ses_1"]


def test_front_ends_list_the_sessions_of_all_agents_with_what_was_said_and_spent(talk: Connection, say: Say) -> None:
    said_at = sessions.find(talk, ADA, ONE.id).said_at or ""
    assert sessions.chat(talk, ONE.id) == ChatRow(
        ONE.id, ADA, None, None, NOW, said_at, status=None, message_count=3, tokens=0, first_said="tea 2"
    )
    later = "2026-01-02T00:00:00.000Z"
    sessions.create(talk, "agt_bob", replace(FORK, created_at=later, working_dir="/srv"))
    assert (sessions.working_dir(talk, FORK.id), sessions.working_dir(talk, "ses_none")) == ("/srv", None)
    for number, used in enumerate([(70, 30), (40, 10), (20, 5)]):
        key = turns.insert(talk, NewTurn(ADA, f"turn_{number}", "user:u", 1, NOW, session_id=ONE.id))
        usage.add(talk, UsageRow(key, 1, 1, ADA, "p", "m", NOW, *used))
        turns.end(talk, key, status=("failed", "failed", "completed")[number], ended_at=NOW)
    say(10, "you are welcome", role=Role.ASSISTANT, session_id=ONE.id, is_archived=True)
    say(11, "a heartbeat", role=Role.SYSTEM, session_id=ONE.id, is_archived=True)
    found = sessions.chat(talk, ONE.id)
    assert (found.status, found.message_count, found.tokens) == ("completed", 4, 175)
    assert [row.id for row in sessions.chats(talk, 9, 0)[0]] == [FORK.id, TWO.id, ONE.id], "the newest first"
    page, total = sessions.chats(talk, 1, 1)
    assert ([row.id for row in page], total) == ([TWO.id], 3)
    sessions.change(talk, TWO.id, {"is_archived": True})
    assert sessions.chats(talk, 9, 0)[1] == 2
    with pytest.raises(RowNotFound):
        sessions.chat(talk, "ses_none")


def test_a_session_is_deleted_with_what_was_said_in_it(talk: Connection) -> None:
    summaries.insert(talk, summary(1, 2, 2))
    key = turns.insert(talk, NewTurn(ADA, "turn_s", "user:u", 1, NOW, session_id=ONE.id))
    assert turns.open_in_session(talk, ONE.id) == ["turn_s"]
    sessions.create(talk, ADA, replace(FORK, parent_id=ONE.id))
    with pytest.raises(apsw.ConstraintError):
        sessions.delete(talk, sessions.find(talk, ADA, ONE.id))
    sessions.delete(talk, sessions.find(talk, ADA, FORK.id))
    sessions.delete(talk, sessions.find(talk, ADA, ONE.id))
    assert [int(row.position) for row in messages.recent(talk, ADA, 99)] == [9, 7, 6, 4, 3, 1]
    assert summaries.recent(talk, ADA, 9, session_id=ONE.id) == []
    assert turns.by_key(talk, key).session_id == ONE.id
    with pytest.raises(RowNotFound):
        sessions.find(talk, ADA, ONE.id)


@pytest.mark.parametrize(
    "read",
    [
        lambda db: messages.recent(db, ADA, 5, session_id=ONE.id),
        lambda db: messages.shown(db, ADA, 5, session_id=ONE.id),
        lambda db: messages.first_shown(db, ADA, 5, before=at(9), session_id=ONE.id),
        lambda db: sessions.find(db, ADA, ONE.id),
        lambda db: sessions.newest(db, ADA, 5),
        lambda db: sessions.count(db, ADA),
        lambda db: sessions.chat(db, ONE.id),
        lambda db: sessions.has_forks(db, ONE.id),
        lambda db: sessions.begun_as(db, b"b" * 16, "tea"),
        lambda db: summaries.newest(db, ADA),
    ],
)
def test_no_read_scans_all_rows(talk: Connection, plan_of: PlanOf, read: Callable[[Connection], object]) -> None:
    plan = plan_of(lambda: read(talk))
    assert not [step for step in plan if step in ("SCAN messages", "SCAN sessions", "SCAN archive_summaries")]


def test_a_session_is_found_by_how_it_began_rather_with_that_first_answer(db: Connection, say: Say) -> None:
    for number in (1, 2):
        sessions.create(db, ADA, replace(ONE, id=f"ses_{number}", beginning=b"b" * 16))
        say(number, f"answer {number} ", role=Role.ASSISTANT, session_id=f"ses_{number}", is_archived=True)

    def found(answer: str, beginning: bytes = b"b" * 16) -> str | None:
        row = sessions.begun_as(db, beginning, answer)
        return None if row is None else row.id

    assert (found("answer 1"), found(" answer 2"), found("another")) == ("ses_1", "ses_2", "ses_2")
    assert found("answer 1", b"c" * 16) is None
    sessions.change(db, "ses_1", {"is_archived": True})
    assert found("answer 1") == "ses_2"
