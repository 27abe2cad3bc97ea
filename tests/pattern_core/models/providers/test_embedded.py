from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NoReturn

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_core.memory.block import NewBlock
from pattern_core.messages import user
from pattern_core.models.model import Delta, ModelReply, ModelRequest
from pattern_core.models.providers.embedded import (
    HELLO,
    HELP,
    NO_MODEL,
    NO_TASKS,
    NOT_FOUND,
    NOT_UNDERSTOOD,
    EmbeddedProvider,
    clauses_about,
    keywords,
    reply_to,
    timed,
)
from pattern_core.models.providers.settings import ProviderSettings
from pattern_core.schedule.starts import task_message
from pattern_core.tools.builtin.block_edit import block_edit
from pattern_core.tools.builtin.recall import recall
from pattern_core.tools.builtin.search import search
from pattern_core.tools.builtin.task import task_create, task_list, task_update
from pattern_core.tools.tool import Tool
from pattern_db.enums import Permission
from tests.support import Running, running

TOOLS = (block_edit, recall, search)
TASKS = (*TOOLS, task_create, task_list, task_update)


@dataclass
class Life:
    """An agent that this provider answers for."""

    one: Running
    agent_id: str

    async def say(self, text: str) -> str:
        turn = await self.one.say(text)
        assert turn.status == "completed", turn.error
        return turn.messages[-1].content or ""

    async def human(self) -> str:
        return (await self.one.constellation.memory.view(self.agent_id, "human")).content


@asynccontextmanager
async def living(
    human: str = "", *others: str, permission: str = "read_write", tools: Sequence[Tool] = TOOLS
) -> AsyncIterator[Life]:
    """A life with what its block `human` holds; `others` are the labels of its other blocks."""
    async with running(otherwise=reply_to, tools=tools) as one:
        memory = [NewBlock(label="human", content=human, permission=Permission(permission), char_limit=200)]
        agent = await one.agent(memory=[*memory, *(NewBlock(label=label) for label in others)])
        yield Life(one, agent.id)


def broken(working: Tool) -> Tool:
    async def fail(*_given: object, **_arguments: object) -> NoReturn:
        raise OSError("the disk is full")

    return replace(working, run=fail)


async def test_it_keeps_what_it_is_asked_to_and_answers_from_it() -> None:
    async with living() as life:
        assert "nothing about you" in await life.say("What do you know about me?")
        said = await life.say("Remember that my sister Ruth lives in Lisbon.")
        assert said == "I will remember that, in my memory block human: My sister Ruth lives in Lisbon."
        await life.say("Please remember that Ruth is allergic to walnuts.")
        await life.say("Note that the boiler was serviced in March by Mr. Okafor.")
        assert (await life.human()).splitlines() == [
            "My sister Ruth lives in Lisbon.",
            "Ruth is allergic to walnuts.",
            "The boiler was serviced in March by Mr. Okafor.",
        ]
        assert (await life.say("What do you know about Ruth?")).splitlines() == [
            "From what I remember:",
            "- My sister Ruth lives in Lisbon. (memory block human)",
            "- Ruth is allergic to walnuts. (memory block human)",
        ]
        assert "Okafor" in await life.say("Who serviced the boiler?")
        assert "Lisbon" in await life.say("Where does my sister live?")
        assert "I know that already" in await life.say("Remember that Ruth is allergic to walnuts.")
        assert "my sister ruth" in (await life.say("What do you know about me?")).casefold()


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("remember: the code is 4711", "The code is 4711"),
        ("Can you please remember that I moved to Porto?", "I moved to Porto?"),
        ("Ada, please remember that tea is at five", "Tea is at five"),
        ("Hello! Remember that tea is at five", "Tea is at five"),
        ("Don't forget that the bins go out on Monday", "The bins go out on Monday"),
        ("don’t forget to buy milk", "To buy milk"),
        ("save this: 12 eggs", "12 eggs"),
        ("remember that Ruth is a doctor.\nShe works nights.", "Ruth is a doctor.\nShe works nights."),
    ],
)
async def test_what_it_is_asked_to_remember(text: str, kept: str) -> None:
    async with living() as life:
        await life.say(text)
        assert await life.human() == f"{kept}\n"


async def test_it_finds_what_was_only_said() -> None:
    async with living(tools=(search,)) as life:
        await life.say("The ferry to Korčula leaves at seven.")
        assert "leaves at seven. (you said, 2026-01-01)" in await life.say("When does the ferry leave?")
        assert "find nothing about that" in await life.say("What do you know about submarines?")
    async with living("x" * 180) as life:
        await life.say("The ferry to Korčula leaves at seven.")
        assert "in my archive" in await life.say("Remember that a ferry sank in 1904.")
        found = (await life.say("Tell me about the ferry")).splitlines()
        assert found[1].startswith("- A ferry sank in 1904. (archive"), "the archive comes before what was only said"
        assert "- The ferry to Korčula leaves at seven. (you said, 2026-01-01)" in found


async def test_it_says_once_in_a_conversation_that_there_is_no_model() -> None:
    async with living() as life:
        assert "I will remember that" in await life.say("Remember that my sister Ruth lives in Lisbon.")
        assert await life.say("What do you know about submarines?") == f"{NOT_FOUND}\n{NO_MODEL}"
        assert await life.say("What do you know about volcanoes?") == NOT_FOUND
        assert await life.say("Write a poem.") == NOT_UNDERSTOOD
        assert await life.say("help") == HELP
        assert await life.say("Hello") == HELLO


async def test_it_forgets_one_clause_and_keeps_the_rest_of_the_line() -> None:
    async with living() as life:
        await life.say("Remember that my name is Max and I am a nurse in Graz.")
        said = await life.say("Forget that I am a nurse")
        assert said.startswith("I removed that from my memory block human. The line is now: My name is Max. What was")
        assert await life.human() == "My name is Max.\n"
        assert "Max" in await life.say("What is my name?")
        await life.say("Remember that I like tea, coffee and cake.")
        said = await life.say("forget that I like coffee")
        assert "I cannot separate that" in said and "- I like tea, coffee (memory block human)" in said
        assert await life.human() == "My name is Max.\nI like tea, coffee and cake.\n"
        assert "The line" not in await life.say("forget that I like tea, coffee and cake")
        assert await life.human() == "My name is Max.\n"


@pytest.mark.parametrize(
    ("line", "topic", "left"),
    [
        ("My name is Max and I am a nurse in Graz.", "my name", "I am a nurse in Graz."),
        ("I am a nurse and a mother of two.", "I am a nurse", "I am a mother of two."),
        ("I'm a nurse and a mother of two.", "I am a mother", "I'm a nurse."),
        ("Ruth lives in Lisbon and is allergic to walnuts.", "Ruth is allergic to walnuts", "Ruth lives in Lisbon."),
        ("Ruth lives in Lisbon and is allergic to walnuts.", "Ruth lives in Lisbon", "Ruth is allergic to walnuts."),
        ("Ruth likes tea and cake.", "Ruth likes cake", "Ruth likes tea."),
        ("Ruth likes tea and cake.", "about Ruth", ""),
        ("I like tea and coffee and cake", "coffee", "I like tea and cake"),
        ("I like tea and coffee and cake", "I like coffee and cake", "I like tea"),
        ("Ruth is a doctor. She works nights.", "she works nights", "Ruth is a doctor."),
        ("My wife is Ana; our son is called Leo, and he is five.", "our son", "My wife is Ana, and he is five."),
        ("Ruth is allergic to walnuts", "walnuts", ""),
        ("Tom and Ruth live in Lisbon.", "Ruth lives in Lisbon", None),
        ("I live in Graz, Austria.", "I live in Graz", None),
        ("My name is Max and I am a nurse in Graz.", "Max is a nurse", None),
        ("My dog ate shoes and I laughed.", "I laughed", None),
    ],
)
def test_what_is_left_of_a_line(line: str, topic: str, left: str | None) -> None:
    ((_, found),) = clauses_about(line, frozenset(keywords(topic)))
    assert found == left


@given(st.text("aI ,;.and", max_size=60), st.sampled_from(["a", "and", "I", "aa"]))
def test_any_line_can_be_taken_apart(line: str, topic: str) -> None:
    for clause, left in clauses_about(line, frozenset(keywords(topic))):
        assert left is None or (len(left) <= len(line) and clause)


async def test_it_forgets_one_whole_line() -> None:
    async with living("Ruth lives in Lisbon.\nBo likes tea.\nBo likes green tea.\n") as life:
        assert "Which of these" in await life.say("forget that Bo likes tea")
        assert "stays where it is" in await life.say("Please forget that Bo likes green tea.")
        assert await life.human() == "Ruth lives in Lisbon.\nBo likes tea.\n"
        assert "find no line" in await life.say("forget submarines")


@pytest.mark.parametrize(
    ("human", "others", "permission", "words"),
    [
        ("x" * 195, [], "read_write", "in my archive"),
        ("", [], "read_only", "in my archive"),
        ("", ["notes"], "human", "in my memory block notes"),
        ("", [], "human", "only if a person agrees"),
    ],
)
async def test_it_keeps_a_fact_where_it_may(human: str, others: list[str], permission: str, words: str) -> None:
    async with living(human, *others, permission=permission) as life:
        assert words in await life.say("Remember that the key is under the mat.")
        assert ("under the mat" in await life.say("Where is the key?")) == (words != "only if a person agrees")


async def test_it_says_which_tools_are_missing_or_fail() -> None:
    async with living("Tea is at five.", tools=()) as life:
        for text in ("remember that cake is at six", "forget tea"):
            assert "none of the tools" in await life.say(text)
        assert "human" in await life.say("when is tea?")
    async with living("Tea is at five.", tools=[broken(one) for one in TOOLS]) as life:
        assert "the disk is full" in await life.say("remember that cake is at six")
        assert life.one.provider.asked == 3  # the block, the archive, the answer
        for text in ("forget tea", "what do you know about cake?"):
            assert "the disk is full" in await life.say(text)
        assert "Tea is at five." in await life.say("when is tea?")
    async with living(permission="partner", tools=[broken(block_edit), recall]) as life:
        assert "in my archive" in await life.say("Remember that Ruth lives in Lisbon.")


async def test_it_keeps_tasks_and_reminders() -> None:
    async with living(tools=TASKS) as life:
        assert await life.say("What is due?") == "There is nothing to do. Enjoy it!"
        said = await life.say("Remind me to call Ruth tomorrow at 9")
        assert said == "I will remind you on Friday 2026-01-02 09:00 UTC: Call Ruth"
        assert await life.say("Add a task: water the flowers") == "Noted as a task: Water the flowers"
        assert await life.say("put milk on my list") == "Noted as a task: Milk"
        assert await life.say("Remind me to stretch") == "Noted as a task: Stretch. To be reminded, name a time."
        said = await life.say("New task: pay the rent today at 17:30")
        assert said == "Noted as a task, due Thursday 2026-01-01 17:30 UTC: Pay the rent"
        assert (await life.say("What is due today?")).splitlines()[1:] == ["- Pay the rent (due 2026-01-01 17:30 UTC)"]
        assert (await life.say("what's due tomorrow")).splitlines()[1:] == [
            "- Pay the rent (due 2026-01-01 17:30 UTC)",
            "- Call Ruth (due 2026-01-02 09:00 UTC)",
        ]
        assert await life.say("I'm done with the rent!") == "Done: Pay the rent. One thing less to think of."
        assert await life.say("mark the flowers as done") == "Done: Water the flowers. One thing less to think of."
        assert "no open task" in await life.say("done with the rent")
        for _ in range(2):
            await life.say("add a task: feed the cat")
        assert await life.say("done with the cat") == "Done: Feed the cat. One thing less to think of."
        await life.say("add a task: feed the dog")
        said = await life.say("done with feed")
        assert said.splitlines()[:3] == ["Which of these is done?", "- Feed the cat", "- Feed the dog"]
        await life.say("add a task: feed")
        assert await life.say("done with feed") == "Done: Feed. One thing less to think of."
        assert "Call Ruth" in await life.say("show me my tasks")
        tasks = await life.one.constellation.tasks.page(100, owners=[life.agent_id])
        assert [(task.title, task.scheduled_at) for task in tasks if task.scheduled_at] == [
            ("Call Ruth", "2026-01-02T09:00:00.000Z")
        ]
        assert (await life.human()) == "", "a task is no fact"


@pytest.mark.parametrize(
    ("text", "title", "time"),
    [
        ("to call Ruth tomorrow at 9", "Call Ruth", "01-02 09:00"),
        ("tomorrow at 9:30 pm to call Ruth.", "Call Ruth", "01-02 21:30"),
        ("about the boiler on Monday", "The boiler", "01-05 09:00"),
        ("to rest on thursday", "Rest", "01-08 09:00"),
        ("to stretch in 20 minutes", "Stretch", "01-01 10:20"),
        ("in an hour to stretch", "Stretch", "01-01 11:00"),
        ("to renew the passport in 2 weeks at 8 a.m.", "Renew the passport", "01-15 08:00"),
        ("to eat at 12", "Eat", "01-01 12:00"),
        ("to eat at 12am", "Eat", "01-02 00:00"),
        ("to eat at 8", "Eat", "01-02 08:00"),
        ("to eat today", "Eat", "01-01 11:00"),
        ("to read tonight", "Read", "01-01 20:00"),
        ("to vote on 2026-03-01", "Vote", "03-01 09:00"),
        ("to write to 24 people at 1500 Main Street", "Write to 24 people at 1500 Main Street", None),
        ("to do it on 2026-02-31", "", None),
        ("to do it today at 8", "Do it", "01-01 08:00"),
    ],
)
def test_times_in_words(text: str, title: str, time: str | None) -> None:
    at = None if time is None else datetime.fromisoformat(f"2026-{time}")
    assert timed(text, datetime(2026, 1, 1, 10)) == (title, at)


@given(st.text(" in1a2day5at9:pm.monweks-tor", max_size=60))
def test_any_text_has_a_time_or_none(text: str) -> None:
    title, at = timed(text, datetime(2026, 1, 1, 10))
    assert len(title) <= len(text) and (at is None or at.year >= 2026 or "-" in text)


async def test_a_reminder_comes_at_its_time_and_says_how_to_end_it() -> None:
    async with living(tools=TASKS) as life:
        for late in ("today at 0:00", "on 2025-01-01", "on 2026-02-31"):
            assert "I do not understand what or when" in await life.say(f"remind me to sleep {late}")
        await life.say("remind me in 5 minutes to stretch")
        (task,) = await life.one.constellation.tasks.page(2, owners=[life.agent_id])
        said = await life.say(task_message(task))
        assert said == "It is time: Stretch. When it is done, tell me: done with Stretch"
        assert await life.say("done with Stretch") == "Done: Stretch. One thing less to think of."


async def test_without_tools_for_tasks_it_says_how_to_add_them() -> None:
    async with living(human="Tea is due at five.") as life:
        for text in ("remind me to rest at 9", "add a task: rest", "done with resting"):
            assert await life.say(text) == NO_TASKS
        assert "Tea is due at five." in await life.say("what is due at five?")
        assert "Tea" in await life.say("Remind me when tea is tomorrow")
    async with living(tools=[broken(one) for one in TASKS]) as life:
        for text in ("remind me to rest at 9", "what is due?", "done with resting"):
            assert "the disk is full" in await life.say(text)


def answered(text: str) -> str:
    """What it says where it has neither memory nor tools."""
    [part] = reply_to(ModelRequest(model="rules-1", system=(), messages=[user(text)])).parts
    return getattr(part, "text", "")


def test_it_says_what_it_is_and_is_not() -> None:
    for text in ("Write a poem.", "help", "Why is the sky blue?", "Who are you?", "What can you do?"):
        answer = answered(text)
        for words in ("No language model", "ANTHROPIC_API_KEY", "OPENAI_API_KEY", "pattern up", "Ollama"):
            assert words in answer
    assert "without a language model" in HELP
    assert (answered("Hello"), answered("")) == (f"{HELLO}\n{NO_MODEL}", f"{NOT_UNDERSTOOD}\n{NO_MODEL}")
    assert reply_to(ModelRequest(model="m", system=(), messages=())).finish_reason == "stop"


def test_keywords_are_stems_without_small_words() -> None:
    assert keywords("What do you know about Ruth's walnuts?") == ["ruth", "walnut"]
    assert keywords("lives live living lived") == ["liv"]
    assert keywords("wing gas seed") == ["wing", "gas", "seed"], "what would be left is too short"
    assert keywords("Żółw żółw 日本 7 x") == ["żółw", "日本", "7"]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.text("atef \n?", max_size=9) | st.sampled_from(["forget tea", "remember tea", "tea?"]), max_size=4))
def test_every_turn_ends_whatever_is_said(texts: list[str]) -> None:
    async def say_all() -> None:
        async with living("Tea is at five.\ntea\n") as life:
            for text in filter(str.strip, texts):
                await life.say(text)

    trio.run(say_all)


@given(st.text(alphabet=st.characters(codec=None)))
def test_whatever_is_said_the_answer_can_be_stored(text: str) -> None:
    answered(text).encode()


@pytest.mark.parametrize(
    "text", ["remember that ", "forget ", "is ", "hello, ", "hello. ", "please ", "? ", "can you ", "a, "]
)
def test_long_messages_take_little_time(text: str) -> None:
    started = time.thread_time()  # of the processor: the machine may be busy
    answered(text * 40_000)
    answered(text * 40_000 + "?")
    assert time.thread_time() - started < 10


@pytest.mark.parametrize("text", ["and ", "a and b ", " ", "x", "x ", "; ", "x. ", "I like ", "I'm ", ", ", "that is "])
def test_long_lines_of_memory_take_little_time(text: str) -> None:
    started = time.thread_time()
    assert clauses_about(f"tea {text * 20_000}water", frozenset({"tea"}))
    assert time.thread_time() - started < 2


async def ask(text: str, *, tokens: int = 4_096) -> tuple[ModelReply, list[str]]:
    seen: list[str] = []

    async def on_delta(delta: Delta) -> None:
        seen.append(delta.text)

    provider = EmbeddedProvider("embedded", ProviderSettings(kind="embedded"))
    request = ModelRequest(
        model="rules-1", system=("You keep notes.",), messages=[user(text)], max_output_tokens=tokens
    )
    reply = await provider.ask(request, on_delta)
    await provider.aclose()
    return reply, seen


async def test_words_stream_in_small_pieces_and_the_same_question_gets_the_same_reply() -> None:
    first, seen = await ask("Who are you?")
    again, _ = await ask("Who are you?")
    assert first == again
    assert "".join(seen) == "".join(part.text for part in first.parts if hasattr(part, "text"))
    assert len(seen) > 5
    assert first.finish_reason == "stop"
    assert first.usage.is_estimate
    assert min(first.usage.input_tokens, first.usage.output_tokens) > 0


async def test_the_bound_on_output_holds() -> None:
    reply, seen = await ask("help", tokens=5)
    assert reply.finish_reason == "length"
    assert len("".join(seen)) <= 20
