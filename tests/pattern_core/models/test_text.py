from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pattern_core.models.text import Joiner, as_count, as_dict, as_str, json_object, mended, tool_call

ANY_TEXT = st.text(alphabet=st.characters(codec=None))


def test_halves_are_joined_or_replaced() -> None:
    assert mended("plain") == "plain"
    assert mended("zażółć 😀") == "zażółć 😀"
    assert mended("\ud83d\ude00!") == "😀!"
    assert mended("a\ud83db\ude00") == "a\ufffdb\ufffd"


def test_a_character_in_two_pieces_comes_out_whole() -> None:
    joiner = Joiner()
    assert [joiner.feed("a\ud83d"), joiner.feed("\ude00b"), joiner.feed("\ud83d"), joiner.end(), joiner.end()] == [
        "a",
        "😀b",
        "",
        "\ufffd",
        "",
    ]


@given(ANY_TEXT, st.integers(min_value=0))
def test_any_cut_gives_the_same_storable_text(text: str, cut: int) -> None:
    at = cut % (len(text) + 1)
    joiner = Joiner()
    joined = joiner.feed(text[:at]) + joiner.feed(text[at:]) + joiner.end()
    assert joined == mended(text)
    assert joined.encode().decode() == joined


@pytest.mark.parametrize(
    ("raw", "arguments"),
    [
        ("", {}),
        ("  ", {}),
        ("{}", {}),
        ('{"a": [1, null, "ż"]}', {"a": [1, None, "ż"]}),
        ('{"a": "\\ud83d\\ude00"}', {"a": "😀"}),
        ('{"a": "\\uD83D"}', {"a": "\ufffd"}),
    ],
)
def test_arguments_are_parsed(raw: str, arguments: dict[str, object]) -> None:
    call = tool_call("c1", "search", raw)
    assert (call.arguments, call.invalid, call.call_id, call.tool) == (arguments, None, "c1", "search")


@pytest.mark.parametrize(
    "raw",
    [
        *(
            '{"a":',
            "[1]",
            "null",
            '"text"',
            '{"a": NaN}',
            '{"a": -Infinity}',
            '{"a": 1e999}',
            "[" * 100_000,
            "1" * 5_000,
        ),
        '{"a": ' + "[" * 64 + "]" * 64 + "}",  # stored, it could not be served
    ],
)
def test_what_is_no_json_object_is_kept_as_it_came(raw: str) -> None:
    call = tool_call("c1", "search", raw)
    assert (call.arguments, call.invalid) == ({}, raw)


@given(st.text(alphabet=st.characters(codec=None)) | st.text(alphabet='{}[]":,0123456789eE\\udDcC'))
def test_any_text_gives_a_call_that_can_be_stored(raw: str) -> None:
    call = tool_call("c1", "search", raw)
    json.dumps(dict(call.arguments), ensure_ascii=False, allow_nan=False).encode()
    (call.invalid or "").encode()


def test_what_is_no_json_object_counts_as_an_empty_one() -> None:
    assert json_object('{"id": "x"}') == {"id": "x"}
    assert [json_object(text) for text in (None, "", "[1]", "{", "[" * 100_000)] == [{}] * 5


def test_optional_values() -> None:
    assert (as_dict({"a": 1}), as_dict(None), as_dict([])) == ({"a": 1}, {}, {})
    assert (as_str("a"), as_str(None), as_str(3)) == ("a", "", "")
    assert [as_count(value) for value in (3, 0, -1, True, 1.5, "3", None, 1 << 60)] == [3, 0, *[None] * 6]
