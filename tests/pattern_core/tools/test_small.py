"""The short tools of the profile `small`, and which tools a model is offered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from pattern_core.agents import Agent
from pattern_core.errors import InvalidInput, NotFound
from pattern_core.memory.block import NewBlock
from pattern_core.models.catalogue import Catalogue, ProviderModels
from pattern_core.testing import calls, says
from pattern_core.tools.builtin import BUILTIN
from pattern_core.tools.builtin.search import search
from pattern_core.tools.builtin.small import archive, remember, tell
from pattern_core.tools.registry import suited
from pattern_core.tools.tool import Tool
from pattern_db.enums import Permission
from tests.pattern_core.memory.rig import ADA
from tests.pattern_core.tools.rig import ToolRig
from tests.support import Running, rows, running

SMALL = ["remember", "search", "archive", "calculator"]  # of an agent that is alone
TOOLS: list[Tool] = [tool for tool in BUILTIN if tool.name not in ("web", "shell")]


def known(**figures: Any) -> Catalogue:
    models = ProviderModels(kind="scripted", overrides={"script-1": figures})
    return Catalogue.packaged().configured({"scripted": models})


def offered(it: Running) -> list[list[str]]:
    return [[tool.name for tool in request.tools] for request in it.provider.requests]


async def agent(it: Running, *tools: str, **fields: Any) -> Agent:
    return await it.agent(tools=tools or ["auto"], **fields)


async def test_a_small_model_remembers_and_sees_it_in_its_next_prompt() -> None:
    script = [calls("remember", {"text": "Her name is Ruth."}), says("ok"), says("Ruth")]
    async with running(script, tools=TOOLS, catalogue=known(window=8_192)) as it:
        await agent(it)
        await it.say("Remember that my name is Ruth.")
        await it.say("What is my name?")
        assert offered(it) == [SMALL] * 3
        spec = next(tool for tool in it.provider.requests[0].tools if tool.name == "search")
        assert spec.description == search.brief
        assert repr(it.provider.requests[2]).count("Her name is Ruth.") > 1  # the call, and the block


@pytest.mark.parametrize(
    ("tools", "figures", "config", "names"),
    [
        (["auto"], {"window": 32_000}, {}, None),
        (["auto"], {"window": 32_000}, {"context_window": 8_000}, SMALL),
        (["auto"], {"window": 32_000, "tool_profile": "small"}, {}, SMALL),
        (["auto"], {"window": 8_000, "tool_profile": "full"}, {}, None),
        (["small"], {"window": 32_000}, {}, SMALL),
        (["full"], {"window": 8_000}, {}, None),
        (["auto", "file_save"], {"window": 8_000}, {}, [*SMALL, "file_save"]),
        (["block_edit", "search"], {"window": 8_000}, {}, ["block_edit", "search"]),
    ],
)
async def test_which_tools_a_model_is_offered(
    tools: list[str], figures: Mapping[str, Any], config: Mapping[str, Any], names: list[str] | None
) -> None:
    async with running([says("ok")], tools=TOOLS, catalogue=known(**figures)) as it:
        await agent(it, *tools, config=config)
        await it.say("Hello")
        assert offered(it) == [names or [tool.name for tool in TOOLS if tool.enabled_by_default]]


async def test_tell_is_offered_while_there_is_another_agent() -> None:
    async with running(otherwise=says("ok"), tools=TOOLS, catalogue=known(window=8_192)) as it:
        await agent(it)
        await it.say("Hello")
        await it.agent("bob")
        await it.say("Hello")
        assert offered(it) == [SMALL, ["remember", "search", "archive", "tell", "calculator"]]


def test_the_embedded_rules_have_the_tools_that_they_call_in_any_window() -> None:
    found = suited(["auto"], Catalogue.packaged().facts("embedded", "rules-1"), 4_000)
    assert found.profile == "full"


async def test_rules_know_the_tools_that_the_model_is_offered() -> None:
    rules = [{"tool": "archive", "type": "start_constraint"}, {"tool": "block_edit", "type": "max_calls", "count": 1}]
    script = [calls("archive", {"text": "x"}), calls("search", {"query": "x"}), says("ok")]
    async with running(script, tools=TOOLS, catalogue=known(window=8_192)) as it:
        await agent(it, tool_rules=rules)
        assert (await it.say("Go")).status == "completed"
        assert offered(it) == [["archive"], SMALL, SMALL]
        with pytest.raises(InvalidInput, match="needs shout"):
            await agent(it, name="bob", tool_rules=[{"tool": "shout", "type": "needed"}])
        await agent(it, name="cy", tool_rules=[{"tool": "remember", "type": "needed"}])


async def test_calls_of_the_other_profile_run_since_the_history_shows_them() -> None:
    script = [calls("recall", {"op": "insert", "content": "x"}), calls("shell", {}), says("ok")]
    async with running(script, tools=TOOLS, catalogue=known(window=8_192)) as it:
        await agent(it)
        await it.say("Go")
        assert await it.database.read(rows, "SELECT status FROM effect ORDER BY step") == [("done",), ("error",)]
        assert f"your tools: {', '.join(SMALL)}" in str(it.provider.requests[-1].messages[-1].parts[0])


# What each of them does


async def content(tools: ToolRig) -> str:
    return (await tools.rig.store.view(ADA, "human")).content


async def test_facts_are_lines_of_the_block_about_the_person(tools: ToolRig) -> None:
    assert (await tools.call(remember, text=" Her name is Ruth. "))["message"] == "Kept in memory"
    view = await tools.rig.store.view(ADA, "human")
    assert (view.content, view.description) == ("Her name is Ruth.", "What you know about the person.")
    for text, said in (("Likes tea.", "Kept in memory"), ("Likes tea.", "You knew this already")):
        assert (await tools.call(remember, text=text))["message"] == said
    assert await content(tools) == "Her name is Ruth.\nLikes tea."


@pytest.mark.parametrize(("before", "after"), [("", "b"), ("a\n", "a\nb"), ("a", "a\nb"), ("a\n\n", "a\n\nb")])
async def test_a_fact_begins_a_line(tools: ToolRig, before: str, after: str) -> None:
    await tools.rig.block(before, label="human")
    await tools.call(remember, text="b")
    assert await content(tools) == after


async def test_a_fact_is_an_item_where_the_block_is_a_list(tools: ToolRig) -> None:
    await tools.rig.block(label="human", schema={"List": {}})
    for fact in ("a", "b"):
        await tools.call(remember, text=fact)
    view = await tools.rig.store.view(ADA, "human")
    assert await tools.rig.store.value_of(view) == ["a", "b"]


async def test_what_is_not_kept_says_what_to_do(tools: ToolRig) -> None:
    with pytest.raises(InvalidInput, match="`text` is empty"):
        await tools.call(remember, text=" \n")
    await tools.rig.block("x" * 95, label="human", char_limit=100)
    with pytest.raises(InvalidInput, match="memory is full; store this text with the tool archive"):
        await tools.call(remember, text="Likes tea.")
    assert await content(tools) == "x" * 95


async def test_a_block_that_only_people_change_is_left_alone(tools: ToolRig) -> None:
    await tools.rig.block("x", label="human", permission=Permission.READ_ONLY)
    with pytest.raises(Exception, match="read"):
        await tools.call(remember, text="Likes tea.")


async def test_what_is_archived_is_found(tools: ToolRig) -> None:
    minutes = "Minutes of 3 May: the roof is paid."
    answers = [await tools.call(archive, text=minutes) for _ in range(2)]
    assert "already" in answers[1]["message"]
    await tools.call(archive, text="Minutes of 4 May: the roof is paid.")  # however similar
    found = await tools.call(search, query="roof")
    assert len(found["hits"]) == 2


async def test_another_agent_is_told(tools: ToolRig) -> None:
    assert (await tools.call(tell, agent="bob", text="Lunch?"))["message"] == "Sent to the agent bob"
    assert tools.delivered == [("bob", "Lunch?")]
    with pytest.raises(NotFound, match="no agent 'nobody'"):
        await tools.call(tell, agent="nobody", text="Lunch?")


def test_a_new_block_is_as_that_of_a_new_agent() -> None:
    from pattern_core.agents import DEFAULT_MEMORY

    assert NewBlock(label="human", description="What you know about the person.") in DEFAULT_MEMORY
