from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pattern_core.errors import InvalidInput
from pattern_core.messages import (
    Image,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    check_text,
    parts_from_json,
    parts_to_json,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
PARTS: st.SearchStrategy[Part] = st.one_of(
    st.builds(Text, text=st.text(), signature=st.none() | st.text()),
    st.builds(Image, media_type=st.text(), url=st.text()),
    st.builds(Image, media_type=st.text(), digest=st.binary(min_size=1, max_size=32).map(bytes.hex)),
    st.builds(Reasoning, text=st.text(), signature=st.none() | st.text()),
    st.builds(
        ToolCall,
        call_id=st.text(),
        tool=st.text(),
        arguments=st.dictionaries(st.text(), JSON, max_size=3),
        invalid=st.none() | st.text(),
        signature=st.none() | st.text(),
    ),
    st.builds(ToolResult, call_id=st.text(), tool=st.text(), content=st.text(), is_error=st.booleans()),
)


@given(st.lists(PARTS, max_size=5))
def test_parts_survive_json(parts: list[Part]) -> None:
    text = json.dumps(parts_to_json(tuple(parts)))
    assert parts_from_json(json.loads(text)) == tuple(parts)


CALL = {"type": "tool_call", "call_id": "c", "tool": "note"}
RESULT: dict[str, object] = {"type": "tool_result", "call_id": "c", "tool": "note", "content": "done"}


@pytest.mark.parametrize(
    ("part", "stored"),
    [
        (Reasoning(text="hm", signature="s"), {"type": "reasoning", "text": "hm", "signature": "s"}),
        (Text(text="hi"), {"type": "text", "text": "hi"}),
        (Text(text="", signature="google:t"), {"type": "text", "text": "", "signature": "google:t"}),
        (ToolCall(call_id="c", tool="note", arguments={"text": "x"}), {**CALL, "arguments": {"text": "x"}}),
        (
            ToolCall(call_id="c", tool="note", invalid='{"text', signature="google:s"),
            {**CALL, "arguments": {}, "invalid": '{"text', "signature": "google:s"},
        ),
        (Image(media_type="a/b", data=b"x", digest="ab"), {"type": "image", "media_type": "a/b", "digest": "ab"}),
        (Image(media_type="", url="https://x/"), {"type": "image", "media_type": "", "url": "https://x/"}),
        (ToolResult(call_id="c", tool="note", content="done"), {**RESULT, "is_error": False}),
    ],
)
def test_the_stored_form(part: Part, stored: dict[str, Any]) -> None:
    assert parts_to_json((part,)) == [stored]


@pytest.mark.parametrize(
    "item",
    [
        {},
        {"type": "image", "url": "x"},
        {"type": "image", "media_type": "image/png"},
        {"type": "image", "media_type": "image/png", "digest": "no hex"},
        {"type": "text"},
        {"type": "text", "text": 3},
        {"type": "tool_call", "call_id": "c", "tool": "t", "arguments": []},
        {"type": "tool_result", "call_id": "c", "tool": "t"},
    ],
)
def test_what_is_not_a_part_is_refused(item: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="unknown message part"):
        parts_from_json([item])


def test_bytes_alone_are_not_stored_in_a_message_and_what_older_rows_leave_out_is_added() -> None:
    with pytest.raises(ValueError, match="stored before"):
        parts_to_json((Image(media_type="image/png", data=b"x"),))
    found = parts_from_json([{"type": "reasoning", "text": "hm"}, RESULT])
    assert found == (Reasoning(text="hm"), ToolResult(call_id="c", tool="note", content="done"))


def test_lone_surrogates_are_refused_and_everything_else_passes() -> None:
    assert check_text("a\x00🌍") == "a\x00🌍"
    for text, place in (("a\udfff", 2), ("ab\ud800", 3)):
        with pytest.raises(InvalidInput, match=f"character {place}"):
            check_text(text)
