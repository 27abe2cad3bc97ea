from __future__ import annotations

from dataclasses import replace

import apsw
import pytest

from pattern_db.connection import Connection, fetch_all
from pattern_db.errors import Conflict, translated
from pattern_db.journal import usage
from pattern_db.journal.usage import UsageRow, UsageSum
from tests.pattern_db.journal.conftest import MakeTurn


def row(turn: int, step: int = 1, attempt: int = 1) -> UsageRow:
    return UsageRow(
        turn=turn,
        step=step,
        attempt=attempt,
        provider="scripted",
        model="script-1",
        input_tokens=100,
        output_tokens=10,
        cached_tokens=40,
        cost_microdollars=7,
    )


def test_all_calls_of_a_turn_are_summed(db: Connection, make_turn: MakeTurn) -> None:
    turn, other = make_turn("turn_1"), make_turn("turn_2")
    for call in (row(turn), row(turn, 1, 2), row(turn, 2), row(other)):
        usage.add(db, call)
    assert usage.of_turn(db, turn) == UsageSum(300, 30, 120, 21, False)
    assert usage.of_turn(db, other) == UsageSum(100, 10, 40, 7, False)


def test_a_turn_without_calls(db: Connection, make_turn: MakeTurn) -> None:
    assert usage.of_turn(db, make_turn()) == UsageSum(0, 0, 0, None, False)


def test_one_unknown_price_makes_the_sum_unknown(db: Connection, make_turn: MakeTurn) -> None:
    turn = make_turn()
    usage.add(db, row(turn))
    usage.add(db, replace(row(turn, 2), cost_microdollars=None))
    assert usage.of_turn(db, turn).cost_microdollars is None


def test_one_estimate_makes_the_sum_an_estimate(db: Connection, make_turn: MakeTurn) -> None:
    turn = make_turn()
    usage.add(db, row(turn))
    usage.add(db, replace(row(turn, 2), is_estimate=True))
    assert usage.of_turn(db, turn).is_estimate
    assert fetch_all(db, "SELECT is_estimate FROM usage ORDER BY step") == [(0,), (1,)]


def test_what_is_refused(db: Connection, make_turn: MakeTurn) -> None:
    turn = make_turn()
    usage.add(db, row(turn))
    with pytest.raises(Conflict), translated():
        usage.add(db, row(turn))
    with pytest.raises(Conflict), translated():
        usage.add(db, row(turn + 1))
    with pytest.raises(apsw.ConstraintError):
        usage.add(db, replace(row(turn, 2), output_tokens=-1))
