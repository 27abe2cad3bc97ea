from __future__ import annotations

from dataclasses import replace

import pytest

from pattern_db.connection import Connection, fetch_all
from pattern_db.enums import ApprovalKind, ApprovalStatus
from pattern_db.errors import RowConflict, RowNotFound
from pattern_db.journal import approvals
from pattern_db.journal.approvals import ApprovalRow, GrantRow
from pattern_db.tables import agents, timers
from tests.pattern_db.conftest import LATER, NOW, MakeTurn


def row(name: str = "apr_1", *, args: bytes = b"a", expires_at: str | None = LATER) -> ApprovalRow:
    return ApprovalRow(
        id=name,
        kind=ApprovalKind.MEMORY,
        request={"label": "human"},
        args_hash=args,
        created_at=NOW,
        audience="partner",
        expires_at=expires_at,
    )


def decide(db: Connection, name: str, status: ApprovalStatus = ApprovalStatus.APPROVED) -> None:
    approvals.decide(db, name, status=status, by="user:usr_1", decision={"note": "done"}, at=LATER)


def test_a_question_knows_its_turn_and_reads_back(db: Connection, make_turn: MakeTurn) -> None:
    key = make_turn("turn_1")
    approvals.insert(db, row(), turn_id="turn_1")
    approvals.insert(db, row("apr_2", args=b"b"))
    assert approvals.get(db, "apr_1") == replace(row(), turn=key)
    assert approvals.get(db, "apr_2").turn is None
    with pytest.raises(RowNotFound, match="apr_3"):
        approvals.get(db, "apr_3")


def test_a_question_is_answered_once(db: Connection) -> None:
    approvals.insert(db, row())
    assert approvals.find_pending(db, b"a", NOW) == row()
    decide(db, "apr_1")
    answered = approvals.get(db, "apr_1")
    assert answered.status is ApprovalStatus.APPROVED
    assert (answered.decided_by, answered.decision) == ("user:usr_1", {"note": "done"})
    assert approvals.find_pending(db, b"a", NOW) is None
    with pytest.raises(RowConflict, match="already answered"):
        decide(db, "apr_1", ApprovalStatus.DENIED)


def test_lists_are_newest_first_and_by_status(db: Connection) -> None:
    for number in range(1, 4):
        approvals.insert(db, row(f"apr_{number}", args=bytes([number])))
    decide(db, "apr_2", ApprovalStatus.DENIED)
    ids = [one.id for one in approvals.recent(db, 10)]
    assert ids == ["apr_3", "apr_2", "apr_1"]
    assert [one.id for one in approvals.recent(db, 1, status=ApprovalStatus.PENDING)] == ["apr_3"]
    assert [one.id for one in approvals.recent(db, 9, status=ApprovalStatus.PENDING, before="apr_3")] == ["apr_1"]
    assert approvals.count_pending(db) == 2


def test_what_is_due(db: Connection) -> None:
    approvals.insert(db, row("apr_1"))
    approvals.insert(db, row("apr_2", args=b"b", expires_at=None))
    assert timers.first_due(db) == LATER
    assert approvals.due(db, NOW) == []
    assert [one.id for one in approvals.due(db, LATER)] == ["apr_1"]
    decide(db, "apr_1", ApprovalStatus.EXPIRED)
    assert timers.first_due(db) is None
    with pytest.raises(RowConflict):
        decide(db, "apr_1")
    assert approvals.get(db, "apr_2").status is ApprovalStatus.PENDING


def test_questions_about_calls_go_with_their_turn(db: Connection, make_turn: MakeTurn) -> None:
    key = make_turn("turn_1")
    for name in ("apr_2", "apr_1"):
        approvals.insert(db, replace(row(name, args=name.encode()), turn=key, step=1, call=0))
    approvals.insert(db, row("apr_3", args=b"b"), turn_id="turn_1")  # about no call: it outlives the turn
    assert [one.id for one in approvals.of_turn(db, key)] == ["apr_2", "apr_1", "apr_3"], "in the order of asking"
    assert sorted(approvals.cancel_calls(db, key, LATER)) == ["apr_1", "apr_2"]
    assert approvals.get(db, "apr_1").status is ApprovalStatus.CANCELLED
    assert approvals.count_pending(db) == 1


def test_what_a_person_changed_is_known_as_it_was(db: Connection, make_turn: MakeTurn) -> None:
    key = make_turn("turn_1")
    for name, said, status in (("apr_1", 1, "edited"), ("apr_2", 2, "edited"), ("apr_3", 3, "approved")):
        call = 1 if name == "apr_3" else 0
        about = replace(row(name, args=name.encode()), request={"arguments": {"n": said}}, turn=key, step=1, call=call)
        approvals.insert(db, about)
        decide(db, name, ApprovalStatus(status))
    assert approvals.arguments_before(db, key, 1) == {0: {"n": 1}}
    assert approvals.arguments_before(db, key, 2) == {}


SAME, OTHER = b"a" * 16, b"b" * 16
GRANT = GrantRow("cgr_1", "agt_ada", "tool:pay", SAME, "apr_1", "user:usr_1", LATER, NOW)


def test_a_grant_covers_its_agent_subject_and_arguments(db: Connection) -> None:
    approvals.insert_grant(db, GRANT)
    assert approvals.is_granted(db, "agt_ada", "tool:pay", SAME, NOW)
    assert not approvals.is_granted(db, "agt_ada", "tool:pay", OTHER, NOW)
    assert not approvals.is_granted(db, "agt_ada", "tool:mail", SAME, NOW)
    assert not approvals.is_granted(db, "agt_bob", "tool:pay", SAME, NOW)
    approvals.insert_grant(db, replace(GRANT, id="cgr_2", args_hash=None))
    assert approvals.is_granted(db, "agt_ada", "tool:pay", OTHER, NOW)


def test_a_grant_holds_until_before_its_end_or_for_good(db: Connection) -> None:
    approvals.insert_grant(db, GRANT)
    assert not approvals.is_granted(db, "agt_ada", "tool:pay", SAME, LATER)
    assert approvals.standing_grants(db, LATER, limit=9) == []
    approvals.insert_grant(db, replace(GRANT, id="cgr_2", expires_at=None))
    assert approvals.is_granted(db, "agt_ada", "tool:pay", SAME, "9" * 24)


def test_a_grant_is_deleted_once_and_with_its_agent(db: Connection) -> None:
    approvals.insert_grant(db, GRANT)
    approvals.insert_grant(db, replace(GRANT, id="cgr_2"))
    approvals.delete_grant(db, "cgr_1")
    with pytest.raises(RowNotFound, match="no consent cgr_1"):
        approvals.delete_grant(db, "cgr_1")
    agents.delete(db, "agt_ada")
    assert approvals.standing_grants(db, NOW, limit=9) == []


def test_only_what_no_longer_holds_is_cleared(db: Connection) -> None:
    for name, until in (("cgr_1", NOW), ("cgr_2", LATER), ("cgr_3", None)):
        approvals.insert_grant(db, replace(GRANT, id=name, expires_at=until))
    approvals.delete_expired_grants(db, NOW)
    assert fetch_all(db, "SELECT id FROM consent_grant ORDER BY id") == [("cgr_2",), ("cgr_3",)]
