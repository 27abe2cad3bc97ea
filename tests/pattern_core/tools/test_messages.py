from __future__ import annotations

import pytest

from pattern_core.errors import InvalidInput, NotFound
from pattern_core.halt import Halt
from pattern_core.tools.builtin.emergency_halt import emergency_halt
from pattern_core.tools.builtin.send_message import send_message, sent_file
from pattern_db.enums import Role
from pattern_db.tables import messages
from tests.pattern_core.memory.rig import ADA
from tests.pattern_core.tools.rig import ToolRig

CONTENT = "a - b | c\nd"


async def test_words_for_the_user_become_a_message_and_an_event(tools: ToolRig) -> None:
    result = await tools.call(send_message, content=CONTENT)
    [row] = await tools.rig.database.read(messages.recent, ADA, 10)
    assert (row.content, row.role, row.source, row.tool_call_id) == (CONTENT, Role.ASSISTANT, "send_message", "call_1")
    assert row.batch_id == tools.batch_id
    assert result == {"success": True, "message": "Sent to the user", "data": {"message_id": row.id}}
    [event] = tools.rig.events
    assert event.name == "message"
    assert {**event.data, **event.derived} == {
        "message_id": row.id,
        "role": "assistant",
        "channel": "user",
        "content": CONTENT,
    }


async def test_a_file_is_sent_only_to_the_user_and_if_it_is_there(tools: ToolRig) -> None:
    with pytest.raises(InvalidInput, match="only be sent to the user"):
        await tools.call(send_message, to="bob", content=CONTENT, file="papers/a.md")
    with pytest.raises(NotFound):
        await tools.call(send_message, content=CONTENT, file="papers/a.md")
    await tools.call(send_message, content=CONTENT)
    [row] = await tools.rig.database.read(messages.recent, ADA, 10)
    assert sent_file(row) is None
    assert sent_file(row._replace(source_metadata={"file": "papers/a.md"})) == "papers/a.md"
    assert sent_file(row._replace(source="api", source_metadata={"file": "papers/a.md"})) is None


async def test_words_for_an_agent_are_delivered_as_they_are(tools: ToolRig) -> None:
    result = await tools.call(send_message, to="bob", content=CONTENT)
    assert tools.delivered == [("bob", CONTENT)]
    assert result["data"] == {"turn_id": "turn_2"}


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"to": "nobody", "content": "x"}, NotFound, "no agent 'nobody'"),
        ({"to": "bob", "content": " "}, InvalidInput, "nothing to send"),
        ({"to": "user", "target": "bob", "content": "x"}, InvalidInput, "`target` is not known .*`to`"),
        ({"target_type": "user", "target": "bob", "content": "x"}, InvalidInput, "`target_type` is not known"),
    ],
)
async def test_what_cannot_be_sent(
    tools: ToolRig, arguments: dict[str, object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        await tools.call(send_message, **arguments)
    assert tools.delivered == []
    assert await tools.rig.database.read(messages.recent, ADA, 10) == []


async def test_it_halts_with_the_call(tools: ToolRig) -> None:
    tools.halt = Halt(tools.rig.storage, current=None)
    answer = await tools.call(emergency_halt, reason="Bob sends everything away.")
    assert answer["data"]["status"] == "halt_initiated"
    found = tools.halt.current
    assert found is not None
    assert (found.id, found.agent_id, found.severity) == (answer["data"]["halt_id"], ADA, "critical")


async def test_a_halt_needs_a_reason(tools: ToolRig) -> None:
    tools.halt = Halt(tools.rig.storage, current=None)
    for arguments in ({}, {"reason": ""}, {"reason": "x", "severity": "mild"}):
        with pytest.raises(InvalidInput):
            await tools.call(emergency_halt, **arguments)
    assert tools.halt.current is None
