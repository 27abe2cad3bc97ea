"""What must hold with any model, however small: seen with one of 135 million parameters."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from tests.real_llm.llama import PING_S, Home, Llama, home

READ_AGAIN_MAX = 30  # tokens per turn where nothing changed
SILENCE_S = 2.5 * PING_S  # before the first word
IDLE_S = 0.75 * PING_S  # allowed between words: less than between two pings
# What a prompt is made of, and no answer: a heading of memory or of what was found, a tag, a line of the clock.
OURS = re.compile(
    r"^#+ (?:Memory|human|persona|Recalled|Tasks|Activity)\b|</?(?:data|block|now|reminders|recalled|open_tasks)\b"
    r"|^\(?It is 20\d\d-|permission=|<\|im_|</?tool",
    re.MULTILINE | re.IGNORECASE,
)
TALK = (
    "Hello!",
    "What is the capital of France?",
    "Tell me something about cats.",
    "My name is Ruth.",
    "What do you remember about me?",
    "Write a short poem about rain.",
)

pytestmark = pytest.mark.slow


@pytest.fixture
async def place(small: Llama, tmp_path: Path) -> AsyncIterator[Home]:
    async with home(small, tmp_path) as one:
        yield one


async def test_no_answer_holds_markup_of_ours(place: Home) -> None:
    await place.agent("ada")
    turns = [await place.say("ada", words) for words in TALK]
    assert [answer for turn in turns for answer in turn.answers if OURS.search(answer)] == []
    assert [turn.error for turn in turns if turn.status != "completed" or not turn.answer] == []


async def test_a_turn_reads_only_what_is_new(place: Home) -> None:
    await place.agent("ada", config={"max_output_tokens": 40})
    seen = 0
    for words in TALK:
        turn = await place.say("ada", words)
        assert turn.steps == 1, "the counts are of more than one call"
        assert turn.usage["cached_tokens"] >= seen - READ_AGAIN_MAX, f"{turn.usage} after {seen} tokens"
        seen = turn.usage["input_tokens"] + turn.usage["output_tokens"]


async def test_the_first_word_is_waited_for_while_the_server_pings(small: Llama, tmp_path: Path) -> None:
    limits = f"model_idle_timeout_s = {IDLE_S}\nlocal_model_idle_timeout_s = {IDLE_S}"
    async with home(small, tmp_path, limits) as place:
        await place.agent("ada", config={"max_output_tokens": 20})
        names: list[str] = []
        async with trio.open_nursery() as nursery:
            with small.busy():
                turn_id = await place.submit("ada", "Hello!")
                nursery.start_soon(_follow, place, turn_id, names)
                await trio.sleep(SILENCE_S)
    assert "text.delta" in names
    assert names[-1] == "turn.completed"
    assert not {"model.retry", "step.superseded"} & {*names}


async def test_a_cancelled_answer_leaves_the_server_free(small: Llama, place: Home) -> None:
    await place.agent("ada", config={"max_output_tokens": 2_000})
    turn_id = await place.submit("ada", "Count from one to one thousand, in words, and leave none out.")
    names = []
    async for name in place.events(turn_id):
        names.append(name)
        if names.count("text.delta") == 1 and name == "text.delta":
            assert not await small.is_idle()
            assert (await place.post(f"/turns/{turn_id}/cancel", {}))["cancelled"]
    assert names[-1] == "turn.cancelled"
    with trio.fail_after(PING_S):  # the answer would have taken far longer
        while not await small.is_idle():
            await trio.sleep(0.05)
    await place.agent("bea")
    assert (await place.say("bea", "Hello!")).status == "completed"


async def _follow(place: Home, turn_id: str, names: list[str]) -> None:
    """Collect the names of a turn's events as they come: the pieces of an answer are deleted when the turn ends."""
    async for name in place.events(turn_id):
        names.append(name)
