from __future__ import annotations

import pytest

from pattern_core.errors import InvalidInput
from pattern_core.tools.builtin.result import result
from pattern_core.tools.results import Origin
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.connection import Connection
from pattern_db.errors import NotFound
from tests.pattern_core.memory.rig import ADA, BOB
from tests.pattern_core.tools.builtin.rig import ToolRig

TEXT = "".join(f"line {number:05d}\n" for number in range(1_000))


async def stored(tools: ToolRig) -> str:
    work = UnitOfWork()
    await tools.results.shorten(
        TEXT, limit=100, origin=Origin(agent_id=ADA, tool="web", call_id="c", reader="result"), work=work
    )
    await tools.rig.commit(work)

    def newest(connection: Connection) -> str:
        return str(connection.execute("SELECT id FROM tool_results").fetchall()[0][0])

    return await tools.rig.database.read(newest)


async def test_reading_on_to_the_end(tools: ToolRig) -> None:
    result_id = await stored(tools)
    first = await tools.call(result, op="read", id=result_id)
    head, _, text = first.partition(":\n")
    assert head.startswith("Characters 0 to 8000 of 11000 of a result of web")
    assert head.endswith("read on with offset=8000")
    second = await tools.call(result, op="read", id=result_id, offset=8_000)
    assert "this is the end" in second
    assert text + second.partition(":\n")[2] == TEXT


async def test_finding(tools: ToolRig) -> None:
    result_id = await stored(tools)
    found = await tools.call(result, op="find", id=result_id, pattern="LINE 00777")
    assert f"[offset {TEXT.index('line 00777')}]" in found
    assert "There are more" not in found
    assert "find again from offset 210" in await tools.call(result, op="find", id=result_id, pattern="line")
    assert "Nothing in" in await tools.call(result, op="find", id=result_id, pattern="owl")


async def test_errors_say_what_to_do(tools: ToolRig) -> None:
    result_id = await stored(tools)
    with pytest.raises(InvalidInput, match="needs `pattern`"):
        await tools.call(result, op="find", id=result_id)
    tools.agent_id = BOB
    with pytest.raises(NotFound, match="call the tool again"):
        await tools.call(result, op="read", id=result_id)
