from __future__ import annotations

import json
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_core.messages import Message, Text, ToolCall, ToolResult, user
from pattern_core.models.embedded.moves import NextCall, next_move, scene_of
from pattern_core.models.model import ModelRequest, ToolSpec
from tests.pattern_core.memory.rig import shown_block

ALL_TOOLS = ("block", "block_edit", "recall", "search", "send_message")


@dataclass
class Life:
    """An agent's memory and tools as small stand-ins that behave, and the loop of its turns."""

    blocks: dict[str, str] = field(default_factory=lambda: {"persona": "I am Ada.", "human": ""})
    permissions: dict[str, str] = field(default_factory=dict)
    tools: tuple[str, ...] = ALL_TOOLS
    archive: list[str] = field(default_factory=list)
    sent: list[tuple[str, str]] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    broken: tuple[str, ...] = ()
    steps: int = 0

    def request(self) -> ModelRequest:
        shown = [
            shown_block(
                label=label, permission=self.permissions.get(label, "read_write"), content=content, char_limit=200
            )
            for label, content in self.blocks.items()
        ]
        tools = [ToolSpec(name=name, description="", parameters={}) for name in self.tools]
        return ModelRequest(
            model="rules-1", system=["You keep notes.", *shown, "Guide."], messages=self.messages, tools=tools
        )

    def say(self, text: str) -> str:
        self.messages.append(user(text))
        for step in range(5):
            move = next_move(scene_of(self.request()))
            if isinstance(move, str):
                self.messages.append(Message(role="assistant", parts=(Text(text=move),)))
                self.steps = step + 1
                return move
            calls = [
                ToolCall(call_id=f"c{len(self.messages)}_{at}", tool=call.tool, arguments=call.arguments)
                for at, call in enumerate(move)
            ]
            self.messages.append(Message(role="assistant", parts=tuple(calls)))
            for call in calls:
                content, is_error = self.run(NextCall(tool=call.tool, arguments=call.arguments))
                result = ToolResult(call_id=call.call_id, tool=call.tool, content=content, is_error=is_error)
                self.messages.append(Message(role="tool", parts=(result,)))
        raise AssertionError("the turn does not end")

    def run(self, call: NextCall) -> tuple[str, bool]:
        assert call.tool in self.tools
        if call.tool in self.broken:
            return "the disk is full", True
        match dict(call.arguments):
            case {"op": "append", "label": str(label), "content": str(content)}:
                self.blocks[label] += content
            case {"op": "replace", "label": str(label), "old": str(old), "new": str(new), "mode": "first"}:
                if old not in self.blocks[label]:
                    return "not found", True
                self.blocks[label] = self.blocks[label].replace(old, new, 1)
            case {"op": "insert", "content": str(content)}:
                self.archive.append(content)
            case {"target": str(target), "content": str(content)}:
                self.sent.append((target, content))
            case {"query": str(query)}:
                return json.dumps({"success": True, "hits": self.find(query)}), False
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
    assert life.say("Remember that my sister Ruth lives in Lisbon.").startswith(
        "I will remember that, in my memory block human"
    )
    life.say("Please remember that Ruth is allergic to walnuts.")
    life.say("Note that the boiler was serviced in March by Mr. Okafor.")
    assert life.blocks["human"].splitlines() == [
        "My sister Ruth lives in Lisbon.",
        "Ruth is allergic to walnuts.",
        "The boiler was serviced in March by Mr. Okafor.",
    ]
    answer = life.say("What do you know about Ruth?")
    assert "Lisbon" in answer
    assert "walnuts" in answer
    assert "boiler" not in answer
    assert "Okafor" in life.say("Who serviced the boiler?")
    assert "Lisbon" in life.say("Where does my sister live?")
    assert "I know that already" in life.say("Remember that Ruth is allergic to walnuts.")
    assert "Lisbon" in life.say("What do you know about me?")
    assert "Ruth" in life.say("Show me your memory")


def test_it_finds_what_was_only_said() -> None:
    life = Life(tools=("search",))
    life.messages = [
        user("The ferry to Korčula leaves at seven."),
        Message(role="assistant", parts=(Text(text="Fine."),)),
    ]
    assert "leaves at seven. (you said, 2026-01-02)" in life.say("When does the ferry leave?")
    assert "leaves at seven" in life.say("What did we say about the ferry?")
    assert "ferry" in life.say("What did we talk about?")
    assert "nothing about submarines" in life.say("What do you know about submarines?")


def test_it_corrects_and_forgets_whole_lines_only() -> None:
    life = Life()
    life.blocks["human"] = "Ruth lives in Lisbon.\nBo likes tea.\nBo likes green tea.\n"
    assert life.say("Actually, it's Porto, not Lisbon.").endswith("Ruth lives in Porto.")
    assert "In which of these" in life.say("change Bo to Bob")
    assert "Which of these" in life.say("forget that Bo likes tea")
    answer = life.say("forget that Bo likes green tea")
    assert "Bo likes green tea." in answer
    assert "stays where it is" in answer
    assert life.blocks["human"] == "Ruth lives in Porto.\nBo likes tea.\n"
    assert "Which of these" in life.say("forget Ruth's flat in Madrid")
    life.say("forget everything about Bo")
    assert life.blocks["human"] == "Ruth lives in Porto.\n"
    assert "nothing about submarines" in life.say("forget submarines")
    assert "do not find" in life.say("change Berlin to Bonn")
    assert "not forget everything at once" in life.say("forget everything")


def test_forgetting_all_lines_is_one_edit_per_block() -> None:
    life = Life(blocks={"human": "Bo a\nRuth\nBo b\nBo c", "notes": "Bo d\n"})
    answer = life.say("forget everything about Bo")
    assert life.blocks == {"human": "Ruth", "notes": ""}
    assert life.steps == 2
    assert "- Bo a\n- Bo b\n- Bo c\n- Bo d\n" in answer


def test_it_uses_what_it_may() -> None:
    full = Life(blocks={"human": "x" * 195})
    assert "in my archive" in full.say("remember that the key is under the mat")
    assert full.archive == ["The key is under the mat"]
    read_only = Life(permissions={"human": "read_only"})
    assert "in my archive" in read_only.say("remember that tea is at five")
    assert "tea is at five" in read_only.say("when is tea?").casefold()
    assert "none of the tools" in Life(tools=()).say("remember that tea is at five")
    assert "none of the tools" in Life(tools=()).say("forget tea")
    assert "none of the tools" in Life(tools=()).say("change tea to cake")
    assert "human" in Life(tools=(), blocks={"human": "Tea is at five."}).say("when is tea?")


def test_it_does_not_claim_what_a_person_has_to_agree_to() -> None:
    life = Life(blocks={"human": ""}, permissions={"human": "human"})
    said = life.say("Remember that Ruth lives in Lisbon.")
    assert "only if a person agrees" in said
    assert "I will remember" not in said
    assert life.archive == []
    refused = Life(blocks={"human": ""}, permissions={"human": "partner"}, broken=("block_edit",))
    assert "in my archive" in refused.say("Remember that Ruth lives in Lisbon.")


def test_it_says_when_a_tool_fails() -> None:
    life = Life(blocks={"human": "Tea is at five."}, broken=ALL_TOOLS)
    assert "the disk is full" in life.say("remember that cake is at six")
    assert life.steps == 3  # the block, the archive, the answer
    for text in ("forget tea", "change five to six", "tell bob that it rains", "what do you know about cake?"):
        assert "the disk is full" in life.say(text)
    assert "Tea is at five." in life.say("when is tea?")


def test_it_writes_to_other_agents() -> None:
    life = Life()
    assert life.say("Tell bob that dinner is ready") == "I sent that to bob."
    assert life.sent == [("bob", "Dinner is ready")]
    assert "may not use" in Life(tools=()).say("tell bob that dinner is ready")


def test_it_says_what_it_is_and_is_not() -> None:
    life = Life()
    answer = life.say("Who are you?")
    for words in ("You keep notes.", "I am Ada.", "not a language model"):
        assert words in answer
    for text in ("Write a poem.", "help", "Why is the sky blue?"):
        answer = life.say(text)
        for words in (
            "no language model configured",
            "ANTHROPIC_API_KEY",
            "OPENAI_API_KEY",
            "[providers.<name>]",
            "model_name",
        ):
            assert words in answer
    assert life.say("hello").startswith("Hello")
    assert "know nothing about you" in life.say("what do you know about me?")


def test_it_shows_blocks() -> None:
    life = Life(blocks={"human": "Tea.", "empty": ""})
    assert "Tea." in life.say("what is in your memory block human?")
    assert life.say("what's in your empty block?") == "empty is empty."
    assert "no memory block other" in life.say("what is in your block other?")
    assert Life(blocks={}).say("show me your memory") == "I have no memory blocks in view."
    assert Life(blocks={}).say("what did we talk about?").startswith("We have not talked")


@settings(max_examples=100)
@given(
    st.lists(
        st.text(max_size=30) | st.sampled_from(["forget tea", "remember tea", "change tea to x", "tea?"]), max_size=4
    )
)
def test_every_turn_ends_whatever_is_said(texts: list[str]) -> None:
    life = Life(blocks={"human": "Tea is at five.\ntea\n"})
    for text in texts:
        assert life.say(text)


def test_a_request_without_a_person_is_answered_too() -> None:
    assert isinstance(next_move(scene_of(ModelRequest(model="m", system=(), messages=()))), str)
