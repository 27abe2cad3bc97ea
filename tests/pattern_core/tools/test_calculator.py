from __future__ import annotations

import pytest

from pattern_core.errors import InvalidInput
from pattern_core.tools.builtin.calculator import VARIABLES_MAX, calculator
from pattern_db.tables import agents, tool_state
from tests.pattern_core.memory.rig import ADA, BOB
from tests.pattern_core.tools.rig import ToolRig


async def result(tools: ToolRig, expression: str, **more: object) -> str:
    answer = await tools.call(calculator, expression=expression, **more)
    return str(answer["data"]["result"])


async def test_results_say_whether_they_are_exact(tools: ToolRig) -> None:
    assert await tools.call(calculator, expression=" 1 ft to cm ") == {
        "success": True,
        "message": "1 ft to cm = 30.48 cm",
        "data": {"result": "30.48 cm", "is_approximate": False},
    }
    answer = await tools.call(calculator, expression="pi")
    assert answer["message"] == "pi = about 3.14159265358979"
    assert answer["data"]["is_approximate"] is True


async def test_a_conversion_that_was_written_as_a_product_is_explained(tools: ToolRig) -> None:
    answer = await tools.call(calculator, expression="5 miles * 1.60934 km/mile")
    said = "5 miles * 1.60934 km/mile = about 4.99998757257616 mi; this is in mi; write `5 mi to km` to convert"
    assert answer["message"] == said
    assert "5 mi to km" in calculator.description


async def test_variables_are_kept_with_their_units_and_exactness(tools: ToolRig) -> None:
    assert await result(tools, "x = 5; third = 1/3; speed = 60 km/h; root = sqrt(2)") == "1.4142135623731"
    assert await result(tools, "root") == "1.4142135623731"
    assert await result(tools, "x * 2") == "10"
    assert await result(tools, "third * 3") == "1"
    assert await result(tools, "speed * 30 minute to m") == "30000 m"
    assert await result(tools, "x = x + 1") == "6"
    assert await result(tools, "x") == "6"


async def test_reset_forgets(tools: ToolRig) -> None:
    await result(tools, "x = 5")
    assert await result(tools, "z = 7", reset=True) == "7"
    with pytest.raises(InvalidInput, match="x is not known"):
        await result(tools, "x")
    with pytest.raises(InvalidInput, match="x is not known"):
        await result(tools, "x + 1", reset=True)
    assert await result(tools, "z") == "7"


async def test_two_agents_do_not_share_variables(tools: ToolRig) -> None:
    await result(tools, "x = 5")
    tools.agent_id = BOB
    with pytest.raises(InvalidInput, match="x is not known"):
        await result(tools, "x")
    await result(tools, "x = 7")
    tools.agent_id = ADA
    assert await result(tools, "x") == "5"


async def test_a_refused_expression_changes_nothing(tools: ToolRig) -> None:
    await result(tools, "x = 5")
    with pytest.raises(InvalidInput, match="division by zero"):
        await result(tools, "x = 6; y = 1/0", reset=True)
    assert await result(tools, "x") == "5"
    for nothing in ({}, {"expression": " ", "reset": True}):
        with pytest.raises(InvalidInput, match="`expression` is"):
            await tools.call(calculator, **nothing)
    assert await result(tools, "x") == "5"


async def test_variables_are_bounded_and_go_with_the_agent(tools: ToolRig) -> None:
    for first in (0, 50):
        await result(tools, "; ".join(f"v{number} = {number}" for number in range(first, first + 50)))
    with pytest.raises(InvalidInput, match=f"{VARIABLES_MAX} variables"):
        await result(tools, "more = 3")
    assert await result(tools, "v7 = 4") == "4"
    await tools.rig.database.write(agents.delete, ADA)
    assert await tools.rig.database.read(tool_state.read, ADA, "calculator") == {}


async def test_what_was_kept_elsewhere_is_not_known_where_strangers_ask(tools: ToolRig) -> None:
    await tools.call(calculator, expression="code = 1234")
    tools.session_id = "ses_1"  # of a turn that says nothing of whom it is for
    with pytest.raises(InvalidInput, match="code"):
        await tools.call(calculator, expression="code + 1")
    await tools.call(calculator, expression="code = 5")
    tools.session_id = None
    assert await result(tools, "code") == "1234"
