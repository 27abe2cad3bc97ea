from __future__ import annotations

import apsw
import pytest

from pattern_db.connection import Connection, fetch_all
from pattern_db.errors import Conflict, translated
from pattern_db.journal import steps
from pattern_db.journal.steps import StepRow
from tests.pattern_db.journal.conftest import LATER, NOW, MakeTurn


def row(turn: int, no: int = 1, attempt: int = 1, status: str = "open") -> StepRow:
    return StepRow(turn, no, attempt, status, "scripted", "script-1", "7", b"p" * 16, b"r" * 16, None, NOW)


def test_a_step_is_opened_and_closed(db: Connection, make_turn: MakeTurn) -> None:
    turn = make_turn()
    assert steps.latest(db, turn) is None
    steps.open_step(db, row(turn))
    assert steps.latest(db, turn) == row(turn)
    steps.close(db, (turn, 1, 1), status="done", ended_at=LATER, finish_reason="stop", request_id="req_1")
    found = steps.latest(db, turn)
    assert found is not None
    assert (found.status, found.finish_reason) == ("done", "stop")
    assert fetch_all(db, "SELECT provider_request_id, ended_at FROM step") == [("req_1", LATER)]


def test_a_step_is_always_opened_open(db: Connection, make_turn: MakeTurn) -> None:
    turn = make_turn()
    steps.open_step(db, row(turn, status="done"))
    assert steps.latest(db, turn) == row(turn)


def test_the_latest_is_the_newest_attempt_of_the_newest_step(db: Connection, make_turn: MakeTurn) -> None:
    turn, other = make_turn("turn_1"), make_turn("turn_2")
    for no, attempt in ((1, 1), (2, 1), (1, 2), (2, 2), (1, 3)):
        steps.open_step(db, row(turn, no, attempt))
    steps.open_step(db, row(other, 9))
    assert steps.latest(db, turn) == row(turn, 2, 2)


def test_a_step_is_closed_once(db: Connection, make_turn: MakeTurn) -> None:
    turn = make_turn()
    steps.open_step(db, row(turn))
    steps.close(db, (turn, 1, 1), status="superseded", ended_at=LATER)
    for key in ((turn, 1, 1), (turn, 1, 2), (turn, 2, 1), (turn + 1, 1, 1)):
        with pytest.raises(Conflict, match="is not open"):
            steps.close(db, key, status="done", ended_at=LATER)


def test_what_is_refused(db: Connection, make_turn: MakeTurn) -> None:
    turn = make_turn()
    steps.open_step(db, row(turn))
    with pytest.raises(Conflict), translated():
        steps.open_step(db, row(turn))
    with pytest.raises(Conflict), translated():
        steps.open_step(db, row(turn + 1))
    for bad in (row(turn, 0), row(turn, 1, 0)):
        with pytest.raises(apsw.ConstraintError):
            steps.open_step(db, bad)
    with pytest.raises(apsw.ConstraintError):
        steps.close(db, (turn, 1, 1), status="lost", ended_at=LATER)
