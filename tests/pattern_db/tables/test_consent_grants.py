from __future__ import annotations

from dataclasses import replace

import apsw
import pytest

from pattern_db.connection import Connection, fetch_all
from pattern_db.errors import NotFound
from pattern_db.tables import agents, consent_grants
from pattern_db.tables.consent_grants import GrantRow

NOW = "2026-11-21T22:24:40.123Z"
LATER = "2026-11-21T23:00:00.000Z"
SAME, OTHER = b"a" * 16, b"b" * 16
ROW = GrantRow("cgr_1", "agt_ada", "tool:pay", SAME, "apr_1", "user:usr_1", LATER, NOW)


def test_a_grant_covers_its_agent_subject_and_arguments(db: Connection) -> None:
    consent_grants.insert(db, ROW)
    assert consent_grants.covers(db, "agt_ada", "tool:pay", SAME, NOW)
    assert not consent_grants.covers(db, "agt_ada", "tool:pay", OTHER, NOW)
    assert not consent_grants.covers(db, "agt_ada", "tool:mail", SAME, NOW)
    assert not consent_grants.covers(db, "agt_bob", "tool:pay", SAME, NOW)
    consent_grants.insert(db, replace(ROW, id="cgr_2", args_hash=None))
    assert consent_grants.covers(db, "agt_ada", "tool:pay", OTHER, NOW)


def test_a_grant_holds_until_before_its_end_or_for_good(db: Connection) -> None:
    consent_grants.insert(db, ROW)
    assert not consent_grants.covers(db, "agt_ada", "tool:pay", SAME, LATER)
    assert consent_grants.standing(db, LATER, limit=9) == []
    consent_grants.insert(db, replace(ROW, id="cgr_2", expires_at=None))
    assert consent_grants.covers(db, "agt_ada", "tool:pay", SAME, "9" * 24)


def test_the_newest_stand_first_and_in_pages(db: Connection) -> None:
    made = [replace(ROW, id=f"cgr_{number}") for number in range(3)]
    for row in made:
        consent_grants.insert(db, row)
    assert consent_grants.standing(db, NOW, limit=9) == made[::-1]
    assert consent_grants.standing(db, NOW, limit=1) == [made[2]]
    assert consent_grants.standing(db, NOW, limit=9, before="cgr_2") == [made[1], made[0]]


def test_a_grant_is_deleted_once_and_with_its_agent(db: Connection) -> None:
    consent_grants.insert(db, ROW)
    consent_grants.insert(db, replace(ROW, id="cgr_2"))
    consent_grants.delete(db, "cgr_1")
    with pytest.raises(NotFound, match="no consent cgr_1"):
        consent_grants.delete(db, "cgr_1")
    agents.delete(db, "agt_ada")
    assert consent_grants.standing(db, NOW, limit=9) == []


def test_only_what_no_longer_holds_is_cleared(db: Connection) -> None:
    for name, until in (("cgr_1", NOW), ("cgr_2", LATER), ("cgr_3", None)):
        consent_grants.insert(db, replace(ROW, id=name, expires_at=until))
    consent_grants.delete_expired(db, NOW)
    assert fetch_all(db, "SELECT id FROM consent_grant ORDER BY id") == [("cgr_2",), ("cgr_3",)]


def test_what_is_refused(db: Connection) -> None:
    consent_grants.insert(db, ROW)
    for bad in (ROW, replace(ROW, id="cgr_2", agent_id="agt_x"), replace(ROW, id="cgr_2", subject="")):
        with pytest.raises(apsw.ConstraintError):
            consent_grants.insert(db, bad)


def test_a_question_is_judged_by_an_index(db: Connection) -> None:
    plan = fetch_all(db, "EXPLAIN QUERY PLAN SELECT 1 FROM consent_grant WHERE agent_id = '' AND subject = ''")
    assert "consent_grant_agent" in str(plan)
