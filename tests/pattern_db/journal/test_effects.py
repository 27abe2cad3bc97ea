from __future__ import annotations

from dataclasses import replace

import apsw
import pytest

from pattern_db.connection import Connection, fetch_all
from pattern_db.enums import EffectClass, EffectStatus
from pattern_db.errors import Conflict, translated
from pattern_db.journal import effects
from pattern_db.journal.effects import EffectRow
from tests.pattern_db.journal.conftest import LATER, NOW, MakeTurn

OPEN = {EffectStatus.PLANNED, EffectStatus.STARTED, EffectStatus.AWAITING_APPROVAL}


def row(turn: int, call: int = 0, *, step: int = 1, effect_class: str = "unsafe") -> EffectRow:
    return EffectRow(turn, step, call, f"call_{call}", "mail", '{"to":"bob"}', b"a" * 16, effect_class, f"key_{call}")


def start(db: Connection, key: tuple[int, int, int]) -> None:
    effects.start(db, key, epoch=3, started_at=NOW, deadline_at=LATER)


def finish(db: Connection, key: tuple[int, int, int], status: str = "done") -> None:
    effects.finish(db, key, status=status, message_id="msg_1", ended_at=LATER)


def test_calls_are_planned_in_order(db: Connection, make_turn: MakeTurn) -> None:
    turn, other = make_turn("turn_1"), make_turn("turn_2")
    effects.plan(db, [row(turn, 1), row(turn, 0)])
    effects.plan(db, [row(turn, 0, step=2)])
    effects.plan(db, [row(other, 0)])
    assert effects.of_step(db, turn, 1) == [row(turn, 0), row(turn, 1)]
    assert effects.of_turn(db, turn) == [row(turn, 0), row(turn, 1), row(turn, 0, step=2)]
    assert effects.of_step(db, turn, 3) == []
    effects.plan(db, [])


def test_a_call_is_started_and_finished(db: Connection, make_turn: MakeTurn) -> None:
    turn = make_turn()
    effects.plan(db, [row(turn)])
    start(db, (turn, 1, 0))
    [started] = effects.of_turn(db, turn)
    assert started == replace(row(turn), status="started", attempts=1, deadline_at=LATER)
    finish(db, (turn, 1, 0))
    [done] = effects.of_turn(db, turn)
    assert done == replace(started, status="done", message_id="msg_1")
    assert fetch_all(db, "SELECT epoch, started_at, ended_at FROM effect") == [(3, NOW, LATER)]


@pytest.mark.parametrize("effect_class", list(EffectClass))
def test_only_what_may_be_repeated_starts_twice(db: Connection, make_turn: MakeTurn, effect_class: EffectClass) -> None:
    turn = make_turn()
    effects.plan(db, [row(turn, effect_class=effect_class)])
    start(db, (turn, 1, 0))
    if effect_class in (EffectClass.IDEMPOTENT, EffectClass.VERIFIABLE):
        start(db, (turn, 1, 0))
        assert effects.of_turn(db, turn)[0].attempts == 2
    else:
        with pytest.raises(Conflict, match="not in a state"):
            start(db, (turn, 1, 0))
        assert effects.of_turn(db, turn)[0].attempts == 1


@pytest.mark.parametrize("status", [status for status in EffectStatus if status not in OPEN])
def test_a_call_ends_once_and_never_starts_again(db: Connection, make_turn: MakeTurn, status: EffectStatus) -> None:
    turn = make_turn()
    effects.plan(db, [row(turn, effect_class="idempotent")])
    finish(db, (turn, 1, 0), status)  # without a start: a call within the file commits with its result
    with pytest.raises(Conflict):
        finish(db, (turn, 1, 0))
    with pytest.raises(Conflict):
        start(db, (turn, 1, 0))
    assert effects.of_turn(db, turn)[0].status == status


def test_what_is_refused(db: Connection, make_turn: MakeTurn) -> None:
    turn = make_turn()
    effects.plan(db, [row(turn)])
    for key in ((turn, 1, 1), (turn, 2, 0), (turn + 1, 1, 0)):
        with pytest.raises(Conflict):
            start(db, key)
        with pytest.raises(Conflict):
            finish(db, key)
    with pytest.raises(Conflict), translated():
        effects.plan(db, [row(turn)])
    with pytest.raises(Conflict), translated():
        effects.plan(db, [row(turn + 1)])
    for bad in (replace(row(turn, 1), args="no json"), replace(row(turn, 1), effect_class="odd"), row(turn, -1)):
        with pytest.raises(apsw.ConstraintError):
            effects.plan(db, [bad])
