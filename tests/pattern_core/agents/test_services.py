"""What a turn's model is shown, put together from the agent, its memory, its tools and its past."""

from __future__ import annotations

from pattern_core.agents.roster import AgentSpec
from pattern_core.limits import Limits, TurnLimits
from pattern_core.memory.block import NewBlock
from pattern_core.prompts.guide import DATA, DEFAULT_INSTRUCTIONS, guide
from pattern_core.testing import calls, says
from tests.support import USER, note, running, shout


async def test_a_prompt_shows_the_agent_its_memory_its_tools_and_its_past() -> None:
    limits = Limits(turn=TurnLimits(output_tokens_max=77))
    async with running([says("hi"), says("again")], tools=[note, shout], limits=limits) as it:
        spec = AgentSpec(
            name="ada",
            model_provider="scripted",
            model_name="script-1",
            system_prompt="Be brief.",
            config={"temperature": 0.5},
            enabled_tools=["note"],
            memory=[NewBlock(label="human", content="Likes tea.")],
        )
        await it.constellation.roster.create(spec, author=USER)
        await it.say("one")
        await it.say("two")
    first, second = it.provider.requests
    instructions, how, block = first.system
    assert (instructions, how) == ("Be brief.", guide(has_blocks=True, has_tools=True))
    assert "human" in block
    assert "Likes tea." in block
    assert [tool.name for tool in first.tools] == ["note"]
    assert (first.model, first.temperature, first.max_output_tokens) == ("script-1", 0.5, 77)
    assert list(second.system) == list(first.system)  # the prefix that vendors cache
    assert [message.text for message in second.messages] == ["one", "hi", "two"]
    assert first.seed != second.seed


async def test_an_agent_without_anything_of_its_own() -> None:
    async with running([says("hi")], tools=[note]) as it:
        spec = AgentSpec(name="ada", model_provider="scripted", model_name="m", enabled_tools=(), memory=())
        await it.constellation.roster.create(spec, author=USER)
        await it.say("one")
    [request] = it.provider.requests
    assert (list(request.system), list(request.tools)) == ([DEFAULT_INSTRUCTIONS, DATA], [])


async def test_all_steps_of_a_turn_draw_from_one_seed() -> None:
    async with running([calls("note", {"text": "x"}), says("done")], tools=[note]) as it:
        await it.agent()
        await it.say("one")
    first, second = it.provider.requests
    assert first.seed == second.seed
    assert [message.role for message in second.messages] == ["user", "assistant", "tool"]
