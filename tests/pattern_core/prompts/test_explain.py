from __future__ import annotations

from dataclasses import replace

import pytest

from pattern_core.errors import NotFound
from pattern_core.memory.block import NewBlock
from pattern_core.memory.edits import AppendText, SetText
from pattern_core.models.model import Usage
from pattern_core.prompts.explain import CHANGED, GONE, TEXT_CHARS_MAX, PartShown, TurnExplained, explain
from pattern_core.testing import calls, says
from pattern_db.connection import Connection
from pattern_db.enums import BlockType
from tests.support import BY_USER, START, Running, note, rows, running


async def why(it: Running, turn_id: str) -> TurnExplained:
    return await explain(it.database, turn_id)


def part(found: TurnExplained, kind: str, step: int = 0) -> PartShown:
    return next(one for one in found.steps[step].parts if one.kind == kind)


async def with_a_block(it: Running, content: str = "Likes tea.") -> str:
    ada = await it.agent(prompt="Be brief.")
    await it.constellation.memory.create(ada.id, NewBlock(label="fact", content=content), by=BY_USER)
    return ada.id


async def test_a_block_is_shown_as_it_was_at_that_time() -> None:
    async with running([calls("note", {"text": "x"})], otherwise=says("done"), tools=[note]) as it:
        ada = await with_a_block(it)
        await it.constellation.roster.update("ada", {"tool_rules": [{"tool": "note", "type": "start_constraint"}]})
        turn = await it.say("Hello")
        await it.constellation.memory.edit(ada, "fact", AppendText(text=" And cake."), by=BY_USER)
        later = await it.say("Again")
        before, after = await why(it, turn.id), await why(it, later.id)
    assert len(before.steps) == 2
    [old] = [one for one in before.steps[0].parts if one.name == "fact"]
    [new] = [one for one in after.steps[0].parts if one.name == "fact"]
    assert (old.version, old.text, old.place) == (0, "Likes tea.", "memory")
    assert (new.version, new.text) == (1, "Likes tea. And cake.")
    assert old.reason == "a core block, the agent's own"
    assert part(before, "instructions").text == "Be brief."
    assert str(part(before, "guide").text).startswith("Your memory stands")
    assert part(before, "reminder").text == "Before anything else in this turn call `note`."
    assert part(before, "time").text == "(It is 2026-01-01 00:00 UTC, Thursday.)"


async def test_tokens_are_the_vendors_or_an_estimate() -> None:
    counted = Usage(input_tokens=1_234, output_tokens=5, cached_tokens=1_000)
    guessed = replace(counted, is_estimate=True)
    async with running([says("one", usage=counted), says("two", usage=guessed)]) as it:
        await with_a_block(it)
        first = (await why(it, (await it.say("Hello")).id)).steps[0]
        second = (await why(it, (await it.say("Hello")).id)).steps[0]
    assert (first.tokens, first.is_estimate, first.cached_tokens) == (1_234, False, 1_000)
    assert second.is_estimate
    assert 0 < second.tokens < 1_000
    assert (first.provider, first.model, first.window, first.status) == ("scripted", "script-1", 8_192, "done")
    assert (first.history.count, second.history.count) == (1, 3)
    assert second.history.first == first.history.first < second.history.last


async def test_what_has_changed_since_is_not_shown_as_if_it_had_been_so() -> None:
    async with running([says("done")], tools=[note]) as it:
        ada = await with_a_block(it)
        await it.database.write(_task, ada)
        turn = await it.say("Hello")
        await it.database.write(rows, "UPDATE agents SET system_prompt = 'Be long.'")
        await it.database.write(rows, "DELETE FROM tasks")
        await it.constellation.memory.edit(ada, "fact", SetText(text="new"), by=BY_USER)
        found = await why(it, turn.id)
    assert (part(found, "instructions").text, part(found, "instructions").note) == (None, CHANGED)
    assert (part(found, "tasks").text, part(found, "tasks").note) == (None, GONE)
    assert [one.text for one in found.steps[0].parts if one.name == "fact"] == ["Likes tea."]


def _task(connection: Connection, agent_id: str) -> None:
    connection.execute(
        "INSERT INTO tasks (id, agent_id, title, created_at, updated_at) VALUES ('t1', ?, 'Pay', ?, ?)",
        (agent_id, START, START),
    )


async def test_what_was_left_out_says_why_and_long_texts_are_short() -> None:
    async with running([says("done")]) as it:
        ada = await with_a_block(it, "long " * 200)
        plan = NewBlock(
            label="plan", content="step " * 5_000, block_type=BlockType.WORKING, pinned=True, char_limit=50_000
        )
        await it.constellation.memory.create(ada, plan, by=BY_USER)
        [step] = (await why(it, (await it.say("Hello")).id)).steps
    [out] = step.left_out
    assert (out.kind, out.name, out.version) == ("pinned", "plan", 0)
    assert out.reason.startswith("no room: ") and out.tokens > 600
    [fact] = [one for one in step.parts if one.name == "fact"]
    assert len(str(fact.text)) == TEXT_CHARS_MAX


async def test_steps_from_before_prompts_were_noted_say_so() -> None:
    async with running([says("done")]) as it:
        await with_a_block(it)
        turn = await it.say("Hello")
        await it.database.write(lambda connection: connection.execute("DELETE FROM prompt_log"))
        [step] = (await why(it, turn.id)).steps
    assert (step.is_known, step.parts, step.window) == (False, [], 0)


async def test_others_activity_is_made_again() -> None:
    async with running([says("one"), says("two")]) as it:
        await it.agent("bob")
        await it.agent("ada", config={"context": {"show": {"activity": True}}})
        await it.say("Count the chairs", "bob")
        found = await why(it, (await it.say("Hello")).id)
    assert part(found, "activity").text == '[00:00] [AGENT:bob] answered a person: "Count the chairs"'
    assert part(found, "activity").place == "question"


async def test_there_is_no_such_turn() -> None:
    async with running() as it:
        with pytest.raises(NotFound, match="no turn turn_none"):
            await why(it, "turn_none")
