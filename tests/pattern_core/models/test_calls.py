from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pattern_core.messages import user
from pattern_core.models.calls import made_up_call_id, tool_call
from pattern_core.models.model import ModelRequest


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


def test_made_up_ids_depend_on_the_question_and_the_index() -> None:
    def ask(text: str) -> ModelRequest:
        return ModelRequest(model="any", system=(), messages=[user(text)])

    assert made_up_call_id(ask("a"), 0) == made_up_call_id(ask("a"), 0)
    empty = ModelRequest(model="any", system=(), messages=[])
    ids = {made_up_call_id(asked, index) for asked in (ask("a"), ask("b\ud800"), empty) for index in (0, 1)}
    assert len(ids) == 6
    assert all(one.startswith("call_") for one in ids)
