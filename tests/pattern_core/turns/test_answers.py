"""Answers that are none: asked for once more, then said plainly; cut ones marked; and what was never answered."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio
import trio.lowlevel

from pattern_core.conversation.history import UNANSWERED, load_history
from pattern_core.limits import PromptLimits
from pattern_core.messages import Reasoning
from pattern_core.models.errors import ModelRejected
from pattern_core.models.model import FinishReason, ModelReply
from pattern_core.prompts.build import DATA
from pattern_core.testing.model import NO_USAGE, Answer, Paced, calls, says
from pattern_core.tools.builtin.send_message import send_message
from pattern_core.turns.turn import ECHOED, EMPTY
from pattern_db.journal import usage
from pattern_db.journal.usage import UsageFilter
from tests.support import Running, acting, note, rows

THOUGHT = ModelReply(parts=(Reasoning(text="hm"),), finish_reason="stop", usage=NO_USAGE)
NOTHING = ModelReply(parts=(), finish_reason="length", usage=NO_USAGE)


def reminders(world: Running) -> list[str]:
    """Return the reminders in the newest prompt."""
    return [text for text in (EMPTY, ECHOED) if text in repr(world.provider.requests[-1])]


async def texts(world: Running) -> list[str]:
    """Say something more and return the conversation that its model is shown, without the newest message."""
    await world.say("and now?")
    return [message.text for message in world.provider.requests[-1].messages][:-1]


@pytest.mark.parametrize("empty", [says(""), says(" \n"), THOUGHT, NOTHING], ids=["none", "blank", "thought", "parts"])
async def test_an_empty_answer_is_asked_for_once_more(empty: ModelReply) -> None:
    async with acting([empty, says("Hello!")], otherwise=says("fine")) as world:
        view = await world.say("hi")
        assert (view.status, [message.content for message in view.messages]) == ("completed", ["hi", "Hello!"])
        assert reminders(world) == [EMPTY]
        assert await world.database.read(rows, "SELECT attempt, status FROM step") == [(1, "superseded"), (2, "done")]
        again = next(event for event in await world.events(view.id) if event.name == "step.superseded")
        assert again.data == {"step": 1, "attempt": 1, "why": "no_answer"}
        total = await world.database.read(usage.total, UsageFilter())
        assert (total.calls, total.input_tokens, total.output_tokens, total.estimated_calls) == (2, 20, 10, 0)
        assert await texts(world) == ["hi", "Hello!"]
        assert reminders(world) == []


@pytest.mark.parametrize(
    "script", [[says(""), THOUGHT], [calls("note", {"text": "x"}, text="Let me see."), says(""), says(" ")]]
)
async def test_a_second_empty_answer_is_said_plainly_and_paid(script: list[Answer]) -> None:
    async with acting(script, otherwise=says("fine"), tools=[note]) as world:
        view = await world.say("hi")
        error = view.error or {}
        assert (view.status, error["code"]) == ("failed", "no_answer")
        assert "answered nothing (finish reason: stop)" in str(error["message"])
        *_before, end = await world.events(view.id)
        assert (end.name, end.data["error"]) == ("turn.failed", error)
        total = await world.database.read(usage.total, UsageFilter())
        assert (total.output_tokens, total.estimated_calls) == (5 * len(script), 0)


async def test_whoever_was_spoken_to_by_a_tool_or_is_an_agent_needs_no_words() -> None:
    spoken = calls("send_message", {"content": "Here it is."})
    async with acting([spoken, says("")], otherwise=says(""), tools=[send_message]) as world:
        assert (await world.say("send it")).status == "completed"
        bob = await world.agent("bob")
        told = calls("send_message", {"to": "bob", "content": "Thanks."})
        world.provider._script = iter([told, says("Done."), says("")])
        await world.say("thank bob")
        while not world.constellation.is_idle:
            await trio.lowlevel.checkpoint()
        ends = await world.database.read(rows, "SELECT status FROM turn WHERE agent_id = ?", bob.id)
        assert ends == [("completed",)]


async def test_a_copy_of_the_prompt_is_asked_again_once_and_then_cut_out() -> None:
    copied = says(f"{DATA}\nHello!")
    async with acting([copied, says("Hi!"), copied, copied, copied, says(DATA)], otherwise=says("fine")) as world:
        first = await world.say("hi")
        assert (first.messages[-1].content, reminders(world)) == ("Hi!", [ECHOED])
        assert (await world.say("hi")).messages[-1].content == "Hello!"
        assert ((await world.say("hi")).error or {})["code"] == "no_answer"
        assert not [text for text in await texts(world) if DATA[:40] in text]


async def test_a_copy_is_not_kept_as_a_part_of_a_turn_that_ends_while_it_is_asked_again() -> None:
    copied = says(f"{DATA}\nHello!")
    async with acting([copied, Paced(answer=says("late"), gate=trio.Event())]) as world:
        turn_id = await world.submit("hi")
        while world.provider.asked < 2 or not world.provider.running:
            await trio.lowlevel.checkpoint()
        assert await world.constellation.cancel(turn_id)
        view = await world.constellation.wait(turn_id)
        assert (view.status, [message.content for message in view.messages]) == ("cancelled", ["hi"])


async def test_what_a_call_comes_with_is_cleaned_and_the_call_is_run() -> None:
    both = calls("note", {"text": "x"}, text=f"{DATA}\nSo:")
    async with acting([both, says("Done.")], tools=[note]) as world:
        view = await world.say("note it")
        assert [message.content for message in view.messages] == ["note it", "So:", "noted x", "Done."]


@pytest.mark.parametrize(
    ("finish", "text", "kept", "why"),
    [
        ("length", "one two", "one two", "it was cut at max_output_tokens"),
        ("content_filter", "one two", "one two", "its vendor withheld the rest"),
        ("length", "ha " * 3_000, "ha ha", "it repeated itself without end"),
    ],
)
async def test_an_answer_that_is_not_whole_is_marked(finish: FinishReason, text: str, kept: str, why: str) -> None:
    cut = replace(says(text), finish_reason=finish)
    async with acting([cut], otherwise=says("fine")) as world:
        view = await world.say("count")
        said = view.messages[-1]
        reason = finish if kept == text else "repetition"
        assert (view.status, said.content, said.finish_reason) == ("completed", kept, reason)
        *_before, message, end = await world.events(view.id)
        assert (message.data["partial"], message.data["content"]) == (reason, kept)
        assert (end.data["finish_reason"], end.data["text"]) == (reason, kept)
        assert await texts(world) == ["count", f"{kept}\n\n[This answer is not complete: {why}.]"]
        assert "finish_reason" not in (await world.events())[-1].data


@pytest.mark.parametrize("ending", ["failed", "cancelled", "limit"])
async def test_what_was_never_answered_is_not_answered_with_the_next_message(ending: str) -> None:
    gate = trio.Event()
    refused: Answer = ModelRejected("no", provider="scripted", status=400)
    slow = Paced(answer=says("late"), gate=gate)
    again = calls("note", {"text": "x"})
    scripts: dict[str, list[Answer]] = {"failed": [refused], "cancelled": [slow], "limit": [again, again]}
    async with acting(scripts[ending], otherwise=says("fine"), tools=[note]) as world:
        await world.constellation.roster.update("ada", {"config": {"limits": {"steps": 2}}})
        turn_id = await world.submit("Tell me of a fox.")
        while ending == "cancelled" and not world.provider.running:
            await trio.lowlevel.checkpoint()
        if ending == "cancelled":
            assert await world.constellation.cancel(turn_id)
        assert (await world.constellation.wait(turn_id)).status == ending
        first, *_calls, mark = await texts(world)
        assert (first, mark) == ("Tell me of a fox.", UNANSWERED.format(ending))
        ada = (await world.constellation.roster.get("ada")).id
        remembered = world.constellation._actors._histories[ada, None]
        stored = await world.database.read(
            load_history, ada, PromptLimits(), active=None, is_untrusted=world.constellation.tools.is_untrusted
        )
        assert stored.messages == remembered.messages
        assert stored.digest == remembered.digest
