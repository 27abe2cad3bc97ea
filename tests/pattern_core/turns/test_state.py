"""The values of a turn."""

from __future__ import annotations

import pytest

from pattern_core.turns.admission import ROLLED_BACK
from pattern_core.turns.state import FinishedCall, cancelled
from pattern_db.enums import EffectStatus
from pattern_db.journal.steps import EffectRow

ROW = EffectRow(1, 1, 0, "call_1", "mail", "{}", b"a" * 16, "unsafe", "key")


@pytest.mark.parametrize("status", list(EffectStatus))
def test_whatever_is_not_done_reads_as_a_failure(status: EffectStatus) -> None:
    assert FinishedCall(row=ROW, status=status, content="words").result.is_error is (status is not EffectStatus.DONE)


def test_only_a_turn_that_was_rolled_back_is_forgotten() -> None:
    assert [cancelled(reason).discards for reason in ("user", "superseded", ROLLED_BACK)] == [False, False, True]
