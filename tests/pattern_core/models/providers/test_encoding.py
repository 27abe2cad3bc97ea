from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_core.messages import Image, Message, Text, ToolCall, ToolResult, user
from pattern_core.models.providers.encoding import (
    closed_schema,
    is_strict_schema,
    nine_id,
    plain_id,
    plain_name,
    proof_of,
    short_id,
)
from tests.pattern_core.models.providers.rig import ANTHROPIC, GOOGLE, OPENAI, RESPONSES, Vendor, every

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=90)
OPEN: dict[str, Any] = {
    "type": "object",
    "properties": {
        "type": {"type": "string", "enum": ["object"]},
        "rows": {"type": "array", "items": {"properties": {"x": {"type": "integer"}}}},
        "free": {"type": "object", "additionalProperties": True},
    },
    "anyOf": [{"type": "object"}],
    "examples": [{"type": "object"}],
}


@settings(max_examples=50, deadline=None)
@given(TEXTS)
def test_whatever_name_or_id_came_fits_and_is_the_same_each_time(text: str) -> None:
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", plain_name(text))
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", plain_id(text, 64))
    assert re.fullmatch(r"[a-zA-Z0-9]{9}", nine_id(text))
    assert len(short_id(text, 40)) <= 40
    assert plain_id(plain_id(text, 64), 64) == plain_id(text, 64)


def test_a_name_or_id_that_fits_is_left_alone_and_what_does_not_is_told_apart() -> None:
    assert plain_name("search_web-2") == "search_web-2"
    assert (short_id("functions.search:0", 40), nine_id("abcDEF123")) == ("functions.search:0", "abcDEF123")
    assert plain_id("a.b", 64) == "a_b"
    assert short_id("x" * 41, 40) != short_id("x" * 42, 40)
    assert nine_id("call_1") != nine_id("call_2")


def test_a_proof_goes_back_to_its_vendor_only() -> None:
    assert proof_of("google:", "google:a:b+/=") == "a:b+/="
    for signature in ("openai:x", "google", "google:", "", None):
        assert proof_of("google:", signature) is None


def test_every_object_of_a_schema_is_closed_that_does_not_say_otherwise() -> None:
    made = closed_schema(OPEN)
    assert made["additionalProperties"] is False
    properties = made["properties"]
    assert isinstance(properties, dict)
    assert properties["rows"]["items"]["additionalProperties"] is False
    assert properties["free"]["additionalProperties"] is True
    assert properties["type"] == {"type": "string", "enum": ["object"]}
    assert made["anyOf"] == [{"type": "object", "additionalProperties": False}]
    assert made["examples"] == [{"type": "object"}]
    assert "additionalProperties" not in OPEN


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        ({"type": "string"}, True),
        ({"type": "object", "properties": {}, "additionalProperties": False}, True),
        ({"type": "object", "properties": {"a": {}}, "required": ["a"], "additionalProperties": False}, True),
        ({"type": "object", "properties": {"a": {}}, "additionalProperties": False}, False),
        ({"type": "object", "properties": {"a": {}}, "required": ["a"]}, False),
        ({"anyOf": [{"type": "object"}]}, False),
        (OPEN, False),
    ],
)
def test_schemas_that_openai_takes_as_strict(schema: dict[str, Any], strict: bool) -> None:
    assert is_strict_schema(schema) is strict


@pytest.mark.parametrize(
    ("vendor", "held", "linked"),
    [
        (
            ANTHROPIC,
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}},
            {"type": "image", "source": {"type": "url", "url": "https://x/a.webp"}},
        ),
        (
            GOOGLE,
            {"inlineData": {"mimeType": "image/png", "data": "iVBORw=="}},
            {"fileData": {"mimeType": "image/webp", "fileUri": "https://x/a.webp"}},
        ),
        (
            OPENAI,
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}},
            {"type": "image_url", "image_url": {"url": "https://x/a.webp"}},
        ),
        (
            RESPONSES,
            {"type": "input_image", "image_url": "data:image/png;base64,iVBORw=="},
            {"type": "input_image", "image_url": "https://x/a.webp"},
        ),
    ],
    ids=str,
)
def test_images_by_their_bytes_by_address_and_gone(
    vendor: Vendor, held: dict[str, Any], linked: dict[str, Any]
) -> None:
    gone, unsafe = Image(media_type="image/png", digest="ab"), Image(media_type="", url="http://x/a")
    images = (
        Image(media_type="image/png", data=b"\x89PNG"),
        Image(media_type="", url="https://x/a.webp"),
        Text(text="see"),
    )
    body = json.dumps(vendor.body(Message(role="user", parts=images)))
    assert '"see"' in body and json.dumps(held) in body and json.dumps(linked) in body
    assert "no longer available" in json.dumps(vendor.body(Message(role="user", parts=(gone,))))
    fetched = json.dumps(vendor.body(Message(role="user", parts=(unsafe,))))
    assert ("http://x/a" in fetched) == (vendor is not ANTHROPIC)
    assert ("image/jpeg" in fetched) == (vendor is GOOGLE)


@every
def test_names_and_ids_from_elsewhere_fit_the_vendors_rule(vendor: Vendor) -> None:
    call_id, tool = "functions.find tea:0" + "x" * 60, "functions.find tea"
    called = Message(role="assistant", parts=(ToolCall(call_id=call_id, tool=tool),))
    result = Message(role="tool", parts=(ToolResult(call_id=call_id, tool=tool, content="no"),))
    body = json.dumps(vendor.body(user("a"), called, result))
    ids = re.findall(r'"(?:id|call_id|tool_call_id|tool_use_id)": "(.+?)"', body)
    assert '"name": "functions_find_tea"' in body
    assert len(ids) == 2 and ids[0] == ids[1]
    if vendor is GOOGLE:
        assert ids[0] == call_id
    else:
        assert len(ids[0]) <= (40 if vendor is OPENAI else 64)
