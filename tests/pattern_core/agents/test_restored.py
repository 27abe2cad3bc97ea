"""What a turn's process knew is told again from its rows: the same as the process itself would say."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
import trio

from pattern_core.agents import restored
from pattern_core.messages import Part, Reasoning, Text
from pattern_core.models.model import ModelReply
from pattern_core.testing.model import NO_USAGE, calls, says
from pattern_core.tools.builtin.send_message import send_message
from pattern_core.tools.tool import ToolContext, tool
from pattern_db.connection import Connection
from pattern_db.enums import EffectClass
from pattern_db.journal import turns
from pattern_db.journal.events import EventRow
from pattern_db.journal.turns import TurnRow
from tests.support import PATIENCE_S, START, note, rows, running


def story(*told: str) -> list[EventRow]:
    """Events in short: `n` a step that is opened, `c` room that is made."""
    return [
        EventRow(seq, 1, "history.compacted", "{}", START)
        if one == "c"
        else EventRow(seq, 1, "step.started", json.dumps({"step": int(one), "attempt": 1}), START)
        for seq, one in enumerate(told, 1)
    ]


@pytest.mark.parametrize(
    ("told", "is_open", "steps"),
    [
        ("", True, []),
        ("12", True, []),
        ("c1", True, [1]),
        ("1cc2", False, [2]),  # a stub and a summary make room together
        ("1c2c2", True, [2, 2]),  # the vendor found the second prompt too long
        ("1c", True, [1]),
        ("1c", False, [2]),
    ],
)
def test_room_is_made_for_the_step_that_follows(told: Sequence[str], is_open: bool, steps: list[int]) -> None:
    assert restored._compactions(story(*told), is_open=is_open) == steps


def thought(*parts: Part) -> ModelReply:
    return ModelReply(parts=parts, finish_reason="tool_calls", usage=NO_USAGE)


async def test_what_was_said_and_written_is_told_as_the_process_knew_it() -> None:
    looking = trio.Event()

    @tool(effect=EffectClass.PURE)
    async def look(_context: ToolContext) -> str:
        """Look until the process dies."""
        looking.set()
        await trio.sleep_forever()

    sent = {"target_type": "user", "target": "ada", "content": "hello from a tool"}
    script = [
        thought(Reasoning(text="hm"), Text(text="One."), *calls("note", {"text": "x"}).parts),
        calls("send_message", sent),
        says(""),  # wants to end, and may not
        says("Four."),  # likewise
        thought(Reasoning(text="well")),  # likewise, so that the rule makes the call
    ]
    async with running(script, tools=[note, look, send_message]) as one:
        await one.agent()
        rules = [{"tool": "look", "type": "required_before_exit"}]
        await one.constellation.roster.update("ada", {"tool_rules": rules})
        turn_id = await one.submit("go")
        with trio.fail_after(PATIENCE_S):
            await looking.wait()
        row = await one.database.read(turns.by_id, turn_id)
        told = await one.database.read(read, row)
        forced = await one.database.read(rows, "SELECT step FROM effect WHERE tool = 'look'")
    assert forced == [(5,)]
    assert set(told.said) == {1, 4}
    assert told.output_chars == len("hmOne.Four.well")
    assert (told.source, told.compactions) == (None, [])


def read(connection: Connection, row: TurnRow) -> restored.Restored:
    return restored.read(connection, row, is_open=False)
