from __future__ import annotations

import json
import time
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_core.messages import Message, ToolCall, ToolResult, user
from pattern_core.models.model import Delta, ModelReply, ModelRequest, ToolSpec
from pattern_core.models.providers.embedded import (
    HELLO,
    HELP,
    NO_MODEL,
    EmbeddedProvider,
    keywords,
    reply_to,
)
from pattern_core.models.providers.settings import ProviderSettings
from pattern_core.tools.builtin import BUILTIN
from pattern_core.untrusted import marked
from pattern_db.enums import Permission
from tests.pattern_core.memory.rig import shown_block
from tests.support import running

ALL_TOOLS = ("block_edit", "recall", "search")


@dataclass
class Life:
    """An agent's memory and tools as small stand-ins that behave, and the loop of its turns."""

    blocks: dict[str, str] = field(default_factory=lambda: {"persona": "I am Ada.", "human": ""})
    permissions: dict[str, str] = field(default_factory=dict)
    tools: tuple[str, ...] = ALL_TOOLS
    archive: list[str] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    broken: tuple[str, ...] = ()
    steps: int = 0

    def request(self) -> ModelRequest:
        shown = [
            shown_block(
                content, label=label, permission=Permission(self.permissions.get(label, "read_write")), char_limit=200
            )
            for label, content in self.blocks.items()
        ]
        tools = [ToolSpec(name=name, description="", parameters={}) for name in self.tools]
        return ModelRequest(
            model="rules-1", system=["You keep notes.", *shown, "Guide."], messages=self.messages, tools=tools
        )

    def say(self, text: str) -> str:
        self.messages.append(user(text))
        for step in range(1, 6):
            reply = reply_to(self.request())
            made = Message(role="assistant", parts=reply.parts)
            self.messages.append(made)
            self.steps = step
            if not made.tool_calls:
                return made.text
            for call in made.tool_calls:
                content, is_error = self.run(call)
                result = ToolResult(call_id=call.call_id, tool=call.tool, content=content, is_error=is_error)
                self.messages.append(Message(role="tool", parts=(result,)))
        raise AssertionError("the turn does not end")

    def run(self, call: ToolCall) -> tuple[str, bool]:
        assert call.tool in self.tools
        if call.tool in self.broken:
            return "the disk is full", True
        match dict(call.arguments):
            case {"op": "append", "label": str(label), "content": str(content)}:
                self.blocks[label] += content
            case {"op": "edit_range", "label": str(label), "content": str(content)}:
                number, _, text = content.partition("-")
                assert text == f"{number}: "
                lines = self.blocks[label].split("\n")
                del lines[int(number) - 1]
                self.blocks[label] = "\n".join(lines)
            case {"op": "insert", "content": str(content)}:
                self.archive.append(content)
            case {"query": str(query)}:
                return marked(json.dumps({"success": True, "hits": self.find(query)}), "tool search"), False
            case other:
                return f"cannot {other}", True
        return '{"success": true}', False

    def find(self, query: str) -> list[dict[str, object]]:
        words = set(query.casefold().split())
        hits: list[dict[str, object]] = [
            {"kind": "message", "id": "m", "content": message.text, "role": message.role, "created_at": "2026-01-02T"}
            for message in self.messages
            if words & set(message.text.casefold().replace(".", "").split())
        ]
        return hits + [
            {"kind": "archival", "content": text} for text in self.archive if words & set(text.casefold().split())
        ]


def test_it_keeps_what_it_is_told_and_answers_from_it() -> None:
    life = Life()
    said = life.say("Remember that my sister Ruth lives in Lisbon.")
    assert said == "I will remember that, in my memory block human: My sister Ruth lives in Lisbon."
    life.say("Please remember that Ruth is allergic to walnuts.")
    life.say("Note that the boiler was serviced in March by Mr. Okafor.")
    assert life.blocks["human"].splitlines() == [
        "My sister Ruth lives in Lisbon.",
        "Ruth is allergic to walnuts.",
        "The boiler was serviced in March by Mr. Okafor.",
    ]
    assert life.say("What do you know about Ruth?").splitlines() == [
        "From what I remember:",
        "- My sister Ruth lives in Lisbon. (memory block human)",
        "- Ruth is allergic to walnuts. (memory block human)",
    ]
    assert "Okafor" in life.say("Who serviced the boiler?")
    assert "Lisbon" in life.say("Where does my sister live?")
    assert "I know that already" in life.say("Remember that Ruth is allergic to walnuts.")
    assert "Lisbon" in life.say("What do you know about me?")
    assert "nothing about you" in Life().say("What do you know about me?")


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
def test_what_it_is_asked_to_remember(text: str, kept: str) -> None:
    life = Life()
    life.say(text)
    assert life.blocks["human"] == f"{kept}\n"


def test_it_finds_what_was_only_said() -> None:
    life = Life(tools=("search",))
    life.messages = [user("The ferry to Korčula leaves at seven."), user("Remember the ferry.")]
    assert "leaves at seven. (you said, 2026-01-02)" in life.say("When does the ferry leave?")
    life.archive.append("A ferry sank in 1904.")
    found = life.say("Tell me about the ferry").splitlines()
    assert found[1:] == [
        "- A ferry sank in 1904. (archive)",
        "- The ferry to Korčula leaves at seven. (you said, 2026-01-02)",
    ]
    assert "find nothing about that" in life.say("What do you know about submarines?")


def test_it_forgets_one_whole_line() -> None:
    life = Life()
    life.blocks["human"] = "Ruth lives in Lisbon.\nBo likes tea.\nBo likes green tea.\n"
    assert "Which of these" in life.say("forget that Bo likes tea")
    assert "stays where it is" in life.say("Please forget that Bo likes green tea.")
    assert life.blocks["human"] == "Ruth lives in Lisbon.\nBo likes tea.\n"
    assert "find no line" in life.say("forget submarines")


def test_it_uses_what_it_may() -> None:
    full = Life(blocks={"human": "x" * 195})
    assert "in my archive" in full.say("remember that the key is under the mat")
    assert full.archive == ["The key is under the mat"]
    assert "in my archive" in Life(permissions={"human": "read_only"}).say("remember that tea is at five")
    other = Life(blocks={"human": "", "notes": "", "persona": ""}, permissions={"human": "human"})
    assert "block notes" in other.say("remember that tea is at five")
    assert "none of the tools" in Life(tools=()).say("remember that tea is at five")
    assert "none of the tools" in Life(tools=()).say("forget tea")
    assert "human" in Life(tools=(), blocks={"human": "Tea is at five."}).say("when is tea?")


def test_it_does_not_claim_what_a_person_has_to_agree_to() -> None:
    life = Life(blocks={"human": ""}, permissions={"human": "human"})
    said = life.say("Remember that Ruth lives in Lisbon.")
    assert "only if a person agrees" in said
    assert life.archive == []
    refused = Life(blocks={"human": ""}, permissions={"human": "partner"}, broken=("block_edit",))
    assert "in my archive" in refused.say("Remember that Ruth lives in Lisbon.")


def test_it_says_when_a_tool_fails() -> None:
    life = Life(blocks={"human": "Tea is at five."}, broken=ALL_TOOLS)
    assert "the disk is full" in life.say("remember that cake is at six")
    assert life.steps == 3  # the block, the archive, the answer
    for text in ("forget tea", "what do you know about cake?"):
        assert "the disk is full" in life.say(text)
    assert "Tea is at five." in life.say("when is tea?")


def test_it_says_what_it_is_and_is_not() -> None:
    life = Life()
    for text in ("Write a poem.", "help", "Why is the sky blue?", "Who are you?", "What can you do?"):
        answer = life.say(text)
        for words in (
            "no language model configured",
            "ANTHROPIC_API_KEY",
            "OPENAI_API_KEY",
            "pattern.toml",
            "base_url",
        ):
            assert words in answer
    assert "not a language model" in HELP
    assert life.say("Hello") == HELLO
    assert life.say("") == NO_MODEL
    assert reply_to(ModelRequest(model="m", system=(), messages=())).finish_reason == "stop"


def test_keywords_are_stems_without_small_words() -> None:
    assert keywords("What do you know about Ruth's walnuts?") == ["ruth", "walnut"]
    assert keywords("lives live living lived") == ["liv"]
    assert keywords("wing gas seed") == ["wing", "gas", "seed"], "what would be left is too short"
    assert keywords("Żółw żółw 日本 7 x") == ["żółw", "日本", "7"]


@settings(max_examples=100)
@given(
    st.lists(
        st.text(alphabet=st.characters(codec=None), max_size=30)
        | st.sampled_from(["forget tea", "remember tea", "tea?"]),
        max_size=4,
    )
)
def test_every_turn_ends_whatever_is_said(texts: list[str]) -> None:
    life = Life(blocks={"human": "Tea is at five.\ntea\n"})
    for text in texts:
        life.say(text).encode()


@pytest.mark.parametrize("text", ["remember that ", "is ", "hello, ", "hello. ", "please ", "? ", "can you ", "a, "])
def test_long_messages_take_little_time(text: str) -> None:
    started = time.thread_time()  # of the processor: the machine may be busy
    Life().say(text * 40_000)
    Life().say(text * 40_000 + "?")
    assert time.thread_time() - started < 10


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


async def test_it_lives_with_the_real_tools() -> None:
    async with running(otherwise=reply_to, tools=BUILTIN) as life:
        ada = await life.agent()

        async def say(text: str) -> str:
            turn = await life.say(text)
            assert turn.status == "completed"
            return "\n".join(message.content or "" for message in turn.messages if message.role == "assistant")

        await say("Remember that my sister Ruth lives in Lisbon.")
        await say("Note that the boiler was serviced in March by Mr. Okafor.")
        answer = await say("What do you know about Ruth?")
        assert "Lisbon" in answer and "boiler" not in answer
        await say("The ferry leaves at seven.")
        assert "leaves at seven" in await say("When does the ferry leave?")
        assert "removed" in await say("forget that the boiler was serviced")
        human = await life.constellation.memory.view(ada.id, "human")
        assert human.content == "My sister Ruth lives in Lisbon.\n"
