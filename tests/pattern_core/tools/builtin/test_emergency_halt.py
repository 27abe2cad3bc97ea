from __future__ import annotations

import pytest

from pattern_core.errors import InvalidInput
from pattern_core.halt import Halt
from pattern_core.tools.builtin.emergency_halt import emergency_halt
from pattern_core.unit_of_work import Storage
from tests.pattern_core.memory.rig import ADA
from tests.pattern_core.tools.builtin.rig import ToolRig


def halt_of(tools: ToolRig) -> Halt:
    rig = tools.rig
    return Halt(Storage(database=rig.database, commit=rig.commit, clock=rig.clock, ids=tools.ids), current=None)


async def test_it_halts_with_the_call(tools: ToolRig) -> None:
    tools.halt = halt_of(tools)
    answer = await tools.call(emergency_halt, reason="Bob sends everything away.")
    assert answer["data"]["status"] == "halt_initiated"
    assert tools.halt.current is not None
    assert (tools.halt.current.id, tools.halt.current.agent_id) == (answer["data"]["halt_id"], ADA)
    assert tools.halt.current.severity == "critical"


async def test_it_wants_a_reason(tools: ToolRig) -> None:
    tools.halt = halt_of(tools)
    for arguments in ({}, {"reason": ""}, {"reason": "x", "severity": "mild"}):
        with pytest.raises(InvalidInput):
            await tools.call(emergency_halt, **arguments)
    assert tools.halt.current is None
