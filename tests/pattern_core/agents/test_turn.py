"""One turn: the loop of steps, the stream of an answer, and how a turn can end."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from pattern_core.admission import Incoming
from pattern_core.agents.prompting import SQUEEZES_MAX
from pattern_core.limits import Limits, TurnLimits
from pattern_core.messages import Image, Text
from pattern_core.models.catalogue import Catalogue, ModelFacts
from pattern_core.models.errors import ModelRejected, ModelServerError, WindowExceeded
from pattern_core.models.model import ModelReply, ModelRequest, Usage
from pattern_core.testing.model import Paced, ScriptedProvider, calls, says
from tests.support import USER, note, rows, running


async def test_a_plain_answer_is_one_step() -> None:
    async with running([says("hello Ada")]) as world:
        await world.agent()
        view = await world.say("hello")
        assert (view.status, view.steps) == ("completed", 1)
        assert [(message.role, message.content) for message in view.messages] == [
            ("user", "hello"),
            ("assistant", "hello Ada"),
        ]
        assert await world.names(view.id) == [
            "turn.queued",
            "turn.started",
            "step.started",
            "message",
            "turn.completed",
        ]


async def test_tools_run_between_steps_and_the_model_sees_their_results() -> None:
    async with running([calls("note", {"text": "tea"}), says("noted")], tools=[note]) as world:
        await world.agent()
        view = await world.say("I like tea")
        assert view.steps == 2
        shown = world.provider.requests[1].messages
        assert [message.role for message in shown] == ["user", "assistant", "tool"]
        assert "noted tea" in str(shown[-1].parts[0])
        assert (await world.names(view.id)).count("turn.completed") == 1


async def test_the_next_turn_sees_the_last_one() -> None:
    async with running([says("one"), says("two")]) as world:
        await world.agent()
        await world.say("first")
        await world.say("second")
        assert [message.text for message in world.provider.requests[1].messages] == ["first", "one", "second"]


async def test_usage_is_stored_as_reported() -> None:
    script = [calls("note", {"text": "x"}, usage=Usage(input_tokens=7, output_tokens=3)), says("y")]
    async with running(script, tools=[note]) as world:
        await world.agent()
        view = await world.say("hi")
        assert (view.usage.input_tokens, view.usage.output_tokens) == (17, 8)


async def test_a_provider_that_refuses_fails_the_turn_with_its_code() -> None:
    refused = ModelRejected("the request is too odd", provider="scripted", status=400)
    async with running([refused, says("better")]) as world:
        await world.agent()
        view = await world.say("hi")
        assert (view.status, view.error) == ("failed", {"code": "model_rejected", "message": "the request is too odd"})
        assert (await world.names(view.id))[-1] == "turn.failed"
        assert (await world.say("again")).status == "completed"


async def test_an_image_that_a_vendor_refuses_is_told_in_words_instead() -> None:
    facts = ModelFacts(provider="scripted", model="script-1", window=100_000, output_max=1_000, images=True)
    refused = ModelRejected("could not fetch the image", provider="scripted", status=400)
    async with running(
        [refused, says("no picture"), refused, refused], catalogue=Catalogue({"scripted": {"script-1": facts}})
    ) as world:
        agent = await world.agent()
        picture = Image(media_type="image/png", url="https://example.org/gone.png")
        incoming = Incoming(agent_id=agent.id, content="See?", sender=USER, parts=(Text(text="See?"), picture))
        view = await world.constellation.wait((await world.constellation.submit(incoming)).turn_id)
        assert (view.status, view.usage.calls) == ("completed", 1)
        assert (await world.names(view.id)).count("step.superseded") == 1
        seeing, blind = world.provider.requests
        assert seeing.messages[-1].images
        assert not blind.messages[-1].images
        assert (await world.say("Is it still there?")).status == "failed"  # without an image it was another reason


async def test_an_unknown_provider_fails_the_turn_and_says_how_to_mend_it() -> None:
    async with running([]) as world:
        agent = await world.agent()
        await world.constellation.roster.update(agent.id, {"model_provider": "nowhere"})
        view = await world.say("hi")
        assert view.status == "failed"
        assert (view.error or {})["code"] == "model_not_configured"


async def test_too_many_steps_end_in_a_limit() -> None:
    limits = Limits(turn=TurnLimits(steps_max=3))
    async with running(otherwise=calls("note", {"text": "again"}), tools=[note], limits=limits) as world:
        await world.agent()
        view = await world.say("loop")
        assert view.status == "limit"
        assert "3 steps" in str((view.error or {})["message"])
        unanswered = await world.database.read(rows, "SELECT count(*) FROM effect WHERE message_id IS NULL")
        assert unanswered == [(0,)]


async def test_too_many_calls_end_in_a_limit() -> None:
    limits = Limits(turn=TurnLimits(tool_calls_max=2))
    async with running(otherwise=calls("note", {"text": "again"}), tools=[note], limits=limits) as world:
        await world.agent()
        assert (await world.say("loop")).status == "limit"


async def test_an_answer_in_pieces_is_stored_in_pieces_and_then_as_one() -> None:
    answer = Paced(answer=says("abcdefghij"), between_s=0.05)
    async with running(provider=ScriptedProvider([answer], slice_chars=2)) as world:
        await world.agent()
        seen: list[tuple[str, str]] = []
        turn_id = await world.submit("spell")
        async with world.constellation.events.subscribe(after=0, turn_id=turn_id) as stream:
            async for event in stream:
                if event.name in ("text.delta", "message"):
                    seen.append((event.name, str(event.data.get("text", event.data.get("content")))))
        pieces = [text for name, text in seen if name == "text.delta"]
        assert len(pieces) >= 2
        assert "".join(pieces) == "abcdefghij"
        assert seen[-1] == ("message", "abcdefghij")
        assert "text.delta" not in await world.names(turn_id)  # the message says it all


async def test_an_answer_that_breaks_off_is_superseded_by_another_attempt() -> None:
    broken = Paced(
        answer=says("wrong answer"), shown=2, breaks=ModelServerError("it broke", provider="scripted", status=500)
    )
    async with running(provider=ScriptedProvider([broken, says("right")], slice_chars=3)) as world:
        await world.agent()
        view = await world.say("hi")
        assert [message.content for message in view.messages] == ["hi", "right"]
        names = await world.names(view.id)
        assert names.count("step.superseded") == 1
        attempts = await world.database.read(rows, "SELECT attempt, status FROM step ORDER BY attempt")
        assert attempts == [(1, "superseded"), (2, "done")]


async def test_an_answer_that_breaks_off_again_and_again_fails() -> None:
    broken = Paced(answer=says("wrong answer"), shown=1, breaks=ModelServerError("it broke", provider="scripted"))
    async with running(provider=ScriptedProvider(otherwise=broken, slice_chars=3)) as world:
        await world.agent()
        view = await world.say("hi")
        assert view.status == "failed"
        assert world.provider.asked == Limits().turn.attempts_max
        statuses = await world.database.read(rows, "SELECT status FROM step ORDER BY attempt")
        assert statuses == [("superseded",), ("failed",)]


async def test_a_turn_that_takes_too_long_ends_in_a_limit(autojump_clock: trio.testing.MockClock) -> None:
    limits = Limits(turn=TurnLimits(turn_timeout_s=30.0, model_timeout_s=1000.0))
    slow = Paced(answer=says("late"), delay_s=500.0)
    async with running([slow], limits=limits) as world:
        await world.agent()
        view = await world.constellation.wait(await world.submit("hi"))
        assert (view.status, (view.error or {})["code"]) == ("limit", "deadline")


@pytest.mark.parametrize(("refusals", "status"), [(SQUEEZES_MAX, "completed"), (SQUEEZES_MAX + 1, "failed")])
async def test_a_prompt_that_a_vendor_finds_too_long_is_made_shorter_a_few_times(refusals: int, status: str) -> None:
    too_long = WindowExceeded("too long", provider="scripted")
    summary = says("So far: words.")
    async with running(otherwise=summary) as one:
        await one.agent()
        for number in range(12):
            await one.say(f"{number} " + "word " * 50)
        refused: list[int] = []

        def answer(request: ModelRequest) -> ModelReply | WindowExceeded:
            if any("keep the memory" in text for text in request.system) or len(refused) == refusals:
                return summary
            refused.append(len(request.messages))
            return too_long

        one.provider._otherwise = answer
        assert (await one.say("and now?")).status == status
        assert refused == sorted(refused, reverse=True)
        assert len(set(refused)) > 1
