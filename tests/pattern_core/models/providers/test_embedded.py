from __future__ import annotations

from pattern_core.messages import ToolCall, user
from pattern_core.models.model import Delta, ModelReply, ModelRequest, ToolSpec
from pattern_core.models.providers.embedded import MODEL_NAME, EmbeddedProvider, reply_to
from pattern_core.tools.builtin import BUILTIN
from tests.support import running

SEARCH = ToolSpec(name="search", description="", parameters={})


async def ask(text: str, *, tools: tuple[ToolSpec, ...] = (), tokens: int = 4_096) -> tuple[ModelReply, list[str]]:
    seen: list[str] = []

    async def on_delta(delta: Delta) -> None:
        seen.append(delta.text)

    provider = EmbeddedProvider()
    request = ModelRequest(
        model=MODEL_NAME, system=("You keep notes.",), messages=[user(text)], tools=tools, max_output_tokens=tokens
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
    assert first.usage.input_tokens > 0
    assert first.usage.output_tokens > 0


async def test_calls_tools_with_ids_of_their_own() -> None:
    reply, seen = await ask("Who is Ruth?", tools=(SEARCH,))
    call = reply.parts[0]
    assert isinstance(call, ToolCall)
    assert (call.tool, call.arguments["query"], call.arguments["domain"]) == ("search", "ruth", "all")
    assert call.call_id
    assert (reply.finish_reason, seen) == ("tool_calls", [])


async def test_the_bound_on_output_holds() -> None:
    reply, seen = await ask("help", tokens=5)
    assert reply.finish_reason == "length"
    assert len("".join(seen)) <= 20


async def test_halves_of_characters_do_not_come_back() -> None:
    reply, seen = await ask("what do you know about \ud83d tea?")
    "".join(seen).encode()
    assert reply.finish_reason == "stop"


async def test_it_lives_with_the_real_tools() -> None:
    async with running(otherwise=reply_to, tools=BUILTIN) as life:
        ada = await life.agent()
        await life.agent("bob")

        async def say(text: str) -> str:
            turn = await life.say(text)
            assert turn.status == "completed"
            return "\n".join(message.content or "" for message in turn.messages if message.role == "assistant")

        await say("Remember that my sister Ruth lives in Lisbon.")
        await say("Please remember that Ruth is allergic to walnuts.")
        await say("Note that the boiler was serviced in March by Mr. Okafor.")
        answer = await say("What do you know about Ruth?")
        assert "Lisbon" in answer
        assert "walnuts" in answer
        assert "boiler" not in answer
        assert "Okafor" in await say("What do you remember about the boiler?")
        await say("The ferry leaves at seven.")
        assert "leaves at seven" in await say("When does the ferry leave?")
        assert "Porto" in await say("Actually, it's Porto, not Lisbon.")
        assert "walnuts" in await say("forget that Ruth is allergic to walnuts")
        assert "I sent that" in await say("Tell bob that dinner is ready")
        assert "could not send" in await say("Tell carla that dinner is ready")
        human = await life.constellation.memory.view(ada.id, "human")
        assert human.content == ("My sister Ruth lives in Porto.\nThe boiler was serviced in March by Mr. Okafor.\n")
