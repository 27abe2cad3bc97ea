from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pattern_core.conversation.history import make_message
from pattern_core.messages import Message, Text
from pattern_core.models.model import ToolSpec
from pattern_core.models.tokens import estimate_messages, estimate_request
from pattern_core.prompts.budget import Fitted
from pattern_core.prompts.conversation import Shown
from pattern_core.prompts.log import read_log
from pattern_core.prompts.parts import Kind, LeftOut, Part
from pattern_core.prompts.prompt import PromptInput, build_prompt, halves_of, has_opening, hash_prefix
from pattern_core.prompts.settings import Sampling


def conversation(*words: str, mark_tokens: int = 0) -> Shown:
    messages: list[Message] = [
        make_message("user", [Text(text=word)], position=f"{number:019d}", created_at="")
        for number, word in enumerate(words, 1)
    ]
    return Shown(messages=messages, tokens=estimate_messages(messages), mark_tokens=mark_tokens)


def spec(name: str = "note", description: str = "Note it.") -> ToolSpec:
    return ToolSpec(name=name, description=description, parameters={"type": "object"})


def part(kind: Kind, text: str) -> Part:
    return Part(kind=kind, text=text, reason="")


STABLE = [
    part(Kind.INSTRUCTIONS, "Be brief."),
    part(Kind.GUIDE, "How it works."),
    part(Kind.CORE, "<block:a/>"),
    part(Kind.PINNED, "<block:b/>"),
]
VOLATILE = [
    part(Kind.REFERRED, "<block:plan/>"),
    part(Kind.RECALLED, "one"),
    part(Kind.RECALLED, "two"),
    part(Kind.TASKS, "- rent"),
    part(Kind.ACTIVITY, "[10:00] bob"),
    part(Kind.TIME, "2026"),
    part(Kind.REMINDER, "Call done."),
]
SOURCE = PromptInput(
    model="script-1",
    halves=halves_of(Fitted(shown=[*STABLE, *VOLATILE], left_out=[]), [spec()], 8_192),
    conversation=conversation("one", "two"),
    cursor=f"{2:019d}",
    history_digest=b"h" * 16,
    tools=[spec()],
    sampling=Sampling(temperature=0.5),
    output_max=100,
    seed=7,
    window=8_192,
)


def with_parts(*parts: Part) -> PromptInput:
    return replace(SOURCE, halves=halves_of(Fitted(shown=parts, left_out=[]), SOURCE.tools, SOURCE.window))


def with_tools(*tools: ToolSpec) -> PromptInput:
    halves = halves_of(Fitted(shown=[*STABLE, *VOLATILE], left_out=[]), tools, SOURCE.window)
    return replace(SOURCE, tools=tools, halves=halves)


def test_stable_parts_come_first_and_volatile_ones_behind_the_conversation() -> None:
    prompt = build_prompt(SOURCE)
    request = prompt.request
    assert list(request.system) == ["Be brief.", "How it works.", "<block:a/>", "<block:b/>"]
    assert [message.text for message in request.messages] == ["one", "two"]
    assert [text.split("\n")[0] for text in request.tail] == [
        "<block:plan/>",
        "<recalled>",
        "<open_tasks>",
        "<agent_activity>",
        "<now>",
        "<reminders>",
    ]
    assert request.tail[1].split("\n")[2:] == ["one", "two", "</recalled>"]
    assert (request.model, request.seed, request.max_output_tokens, request.temperature) == ("script-1", 7, 100, 0.5)
    assert (len(prompt.prefix_hash), len(prompt.request_hash)) == (16, 16)


def test_a_section_without_parts_is_absent() -> None:
    assert list(build_prompt(with_parts(*STABLE)).request.tail) == []


def test_how_to_answer_is_passed_on() -> None:
    sampling = Sampling(
        max_output_tokens=5,
        top_p=0.9,
        stop=("END",),
        reasoning_effort="low",
        response_schema={"type": "object"},
    )
    request = build_prompt(replace(SOURCE, sampling=sampling, force_tool="*")).request
    assert request.max_output_tokens == 5
    assert (request.top_p, request.stop, request.reasoning_effort) == (0.9, ("END",), "low")
    assert (request.response_schema, request.force_tool, request.temperature) == ({"type": "object"}, "*", None)


def test_the_same_input_gives_the_same_prompt() -> None:
    again = replace(SOURCE, conversation=conversation("one", "two"), tools=[spec()])
    assert build_prompt(again) == build_prompt(SOURCE)


@pytest.mark.parametrize(
    ("changed", "is_in_prefix"),
    [
        (with_parts(part(Kind.INSTRUCTIONS, "Be long."), *STABLE[1:], *VOLATILE), True),
        (with_parts(*STABLE[:3], *VOLATILE), True),
        (with_parts(*STABLE[:2], STABLE[3], STABLE[2], *VOLATILE), True),
        (with_tools(), True),
        (with_tools(spec(description="Note it well.")), True),
        (with_tools(spec(), spec("other")), True),
        (replace(SOURCE, history_digest=b"i" * 16), False),
    ],
)
def test_hashes_tell_what_was_shown(changed: PromptInput, is_in_prefix: bool) -> None:
    before, after = build_prompt(SOURCE), build_prompt(changed)
    assert after.request_hash != before.request_hash
    assert (after.prefix_hash != before.prefix_hash) == is_in_prefix


def test_what_changes_with_every_call_changes_no_hash() -> None:
    before, after = build_prompt(SOURCE), build_prompt(with_parts(*STABLE, part(Kind.TIME, "2027")))
    assert (after.prefix_hash, after.request_hash) == (before.prefix_hash, before.request_hash)


@given(st.lists(st.text(max_size=4), max_size=4), st.lists(st.text(max_size=4), max_size=4))
def test_the_prefix_keeps_its_parts_apart(one: list[str], two: list[str]) -> None:
    assert (hash_prefix(one, []) == hash_prefix(two, [])) == (one == two)


def test_the_order_of_a_schemas_keys_does_not_matter() -> None:
    one = ToolSpec(name="a", description="b", parameters={"x": 1, "y": 2})
    two = ToolSpec(name="a", description="b", parameters={"y": 2, "x": 1})
    assert one.digest == two.digest


def test_tokens_are_those_of_the_whole_request_by_the_ratio() -> None:
    prompt = build_prompt(SOURCE)
    assert prompt.tokens == prompt.estimate == estimate_request(prompt.request)
    scaled = build_prompt(replace(SOURCE, ratio=1.5))
    assert scaled.estimate == prompt.estimate
    assert scaled.tokens == scaled.log.tokens == -(-prompt.estimate * 3 // 2)


def test_the_room_for_a_conversation_is_what_the_rest_and_the_answer_leave() -> None:
    prompt = build_prompt(SOURCE)
    assert prompt.history_room == 8_192 - 100 - (prompt.estimate - SOURCE.conversation.tokens)
    full = replace(SOURCE, conversation=replace(SOURCE.conversation, tokens=prompt.history_room))
    assert build_prompt(full).tokens + 100 == 8_192
    dense = build_prompt(replace(SOURCE, ratio=2.0))
    full = replace(SOURCE, ratio=2.0, conversation=replace(SOURCE.conversation, tokens=dense.history_room))
    assert build_prompt(full).tokens + 100 <= 8_192
    marked = build_prompt(replace(SOURCE, conversation=conversation("one", "two", mark_tokens=30)))
    assert marked.history_room == prompt.history_room - 30


def test_what_was_shown_is_noted() -> None:
    out = [LeftOut(kind=Kind.PINNED, reason="no room"), LeftOut(kind=Kind.RECALLED, reason="too slow")]
    fitted = Fitted(shown=[*STABLE, *VOLATILE], left_out=out, notes=["much"])
    log = build_prompt(replace(SOURCE, halves=halves_of(fitted, SOURCE.tools, SOURCE.window))).log
    stable, volatile = read_log(log.stable.parts), read_log(log.volatile.parts)
    assert [one.kind for one in stable.parts] == ["instructions", "guide", "core", "pinned"]
    assert [one.kind for one in volatile.parts][:3] == ["referred", "recalled", "recalled"]
    assert ([one.kind for one in stable.left_out], [one.kind for one in volatile.left_out]) == (
        ["pinned"],
        ["recalled"],
    )
    assert (stable.notes, stable.window, stable.tool_count) == (["much"], 8_192, 1)
    assert (log.history_from, log.history_count) == (f"{1:019d}", 2)


def test_a_conversation_that_begins_with_a_summary_says_so() -> None:
    opening = Message(role="user", parts=(Text(text="Before: tea."),), id="opening")
    shown = conversation("one")
    assert has_opening([opening, *shown.messages])
    halves = halves_of(Fitted(shown=STABLE, left_out=[]), SOURCE.tools, SOURCE.window, is_opened=True)
    source = replace(SOURCE, halves=halves, conversation=replace(shown, messages=[opening, *shown.messages]))
    log = build_prompt(source).log
    assert read_log(log.stable.parts).notes == ["the conversation begins with what is kept of archived messages"]
    assert (log.history_from, log.history_count) == (f"{1:019d}", 2)
    empty = build_prompt(replace(SOURCE, conversation=conversation(), cursor=""))
    assert (empty.log.history_from, empty.log.history_count) == ("", 0)
