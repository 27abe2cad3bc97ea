from __future__ import annotations

import pytest

from pattern_core.agents.active import COMPLETED, Ending, Finished
from pattern_core.messages import ToolResult
from pattern_db.enums import EffectStatus
from pattern_db.journal.effects import EffectRow
from tests.pattern_core.agents.rig import accepted

ROW = EffectRow(1, 1, 0, "call_1", "mail", "{}", b"a" * 16, "unsafe", "key")


async def test_a_turns_messages_are_numbered_from_zero() -> None:
    async with accepted() as rig:
        assert [rig.turn.next_sequence() for _time in range(3)] == [0, 1, 2]
        assert (rig.turn.step, rig.turn.attempt) == (1, 1)


@pytest.mark.parametrize("status", list(EffectStatus))
def test_whatever_is_not_done_reads_as_a_failure(status: EffectStatus) -> None:
    result = Finished(row=ROW, status=status, content="words").result
    assert result == ToolResult(
        call_id="call_1", tool="mail", content="words", is_error=status is not EffectStatus.DONE
    )


def test_a_turn_that_completes_has_no_error() -> None:
    assert Ending(status="completed") == COMPLETED
