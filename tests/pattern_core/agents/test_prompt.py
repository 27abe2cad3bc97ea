from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pattern_core.agents.history import History, make_message
from pattern_core.agents.prompt import (
    DEFAULT_INSTRUCTIONS,
    GUIDE,
    PromptInput,
    build_prompt,
    hash_prefix,
)
from pattern_core.limits import PromptLimits
from pattern_core.messages import Message, Text
from pattern_core.models.model import ToolSpec


def said(*words: str) -> History:
    conversation: list[Message] = [
        make_message("user", [Text(text=word)], position=f"{number:019d}", created_at="")
        for number, word in enumerate(words, 1)
    ]
    return History(conversation, PromptLimits())


def spec(name: str = "note", description: str = "Note it.") -> ToolSpec:
    return ToolSpec(name=name, description=description, parameters={"type": "object"})


SOURCE = PromptInput(
    model="script-1",
    instructions="Be brief.",
    blocks=["<block:a/>", "<block:b/>"],
    history=said("one", "two"),
    tools=[spec()],
    config={"temperature": 0.5},
    seed=7,
    output_tokens_max=100,
)


def test_stable_parts_come_first() -> None:
    prompt = build_prompt(SOURCE)
    request = prompt.request
    assert list(request.system) == ["Be brief.", "<block:a/>", "<block:b/>", GUIDE]
    assert [message.text for message in request.messages] == ["one", "two"]
    assert list(request.tail) == []
    assert (request.model, request.seed, request.max_output_tokens, request.temperature) == ("script-1", 7, 100, 0.5)
    assert prompt.cursor == f"{2:019d}"
    assert (len(prompt.prefix_hash), len(prompt.request_hash)) == (16, 16)


def test_the_same_input_gives_the_same_bytes() -> None:
    again = replace(SOURCE, history=said("one", "two"), tools=[spec()], blocks=list(SOURCE.blocks))
    assert build_prompt(again) == build_prompt(SOURCE)


def test_what_is_said_later_does_not_show_in_it() -> None:
    source = replace(SOURCE, history=said("one"))
    prompt = build_prompt(source)
    source.history.append(make_message("user", [Text(text="two")], position="2", created_at=""))
    assert [message.text for message in prompt.request.messages] == ["one"]


@pytest.mark.parametrize(
    ("changed", "is_in_prefix"),
    [
        (replace(SOURCE, instructions="Be long."), True),
        (replace(SOURCE, blocks=["<block:a/>"]), True),
        (replace(SOURCE, blocks=["<block:b/>", "<block:a/>"]), True),
        (replace(SOURCE, blocks=["<block:a/><block:b/>"]), True),
        (replace(SOURCE, tools=[]), True),
        (replace(SOURCE, tools=[spec(description="Note it well.")]), True),
        (replace(SOURCE, tools=[spec(), spec("other")]), True),
        (replace(SOURCE, history=said("one")), False),
        (replace(SOURCE, history=said("one", "two", "three")), False),
    ],
)
def test_hashes_tell_what_was_shown(changed: PromptInput, is_in_prefix: bool) -> None:
    before, after = build_prompt(SOURCE), build_prompt(changed)
    assert after.request_hash != before.request_hash
    assert (after.prefix_hash != before.prefix_hash) == is_in_prefix


def test_the_order_of_a_schemas_keys_does_not_matter() -> None:
    one = ToolSpec(name="a", description="b", parameters={"x": 1, "y": 2})
    two = ToolSpec(name="a", description="b", parameters={"y": 2, "x": 1})
    assert one.digest == two.digest


@given(st.lists(st.text(max_size=4), max_size=4), st.lists(st.text(max_size=4), max_size=4))
def test_the_prefix_keeps_its_parts_apart(one: list[str], two: list[str]) -> None:
    assert (hash_prefix(one, []) == hash_prefix(two, [])) == (one == two)


def test_what_is_left_out() -> None:
    bare = replace(SOURCE, instructions="", blocks=[], tools=[])
    assert list(build_prompt(bare).request.system) == [DEFAULT_INSTRUCTIONS]
    assert GUIDE not in build_prompt(replace(SOURCE, tools=[])).request.system
    assert GUIDE not in build_prompt(replace(SOURCE, blocks=[])).request.system
    empty = build_prompt(replace(SOURCE, history=said()))
    assert (empty.cursor, list(empty.request.messages)) == ("", [])


@pytest.mark.parametrize(
    ("config", "tokens", "temperature", "top_p"),
    [
        ({}, 100, None, None),
        ({"max_output_tokens": 5, "temperature": 1, "top_p": 0.9}, 5, 1.0, 0.9),
        ({"max_output_tokens": 0, "temperature": "hot", "top_p": None}, 100, None, None),
        ({"max_output_tokens": -5, "temperature": True}, 100, None, None),
        ({"max_output_tokens": True, "temperature": 0}, 100, 0.0, None),
        ({"max_output_tokens": "5"}, 100, None, None),
    ],
)
def test_settings_that_do_not_fit_are_as_if_unset(
    config: dict[str, object], tokens: int, temperature: float | None, top_p: float | None
) -> None:
    request = build_prompt(replace(SOURCE, config=config)).request
    assert (request.max_output_tokens, request.temperature, request.top_p) == (tokens, temperature, top_p)
