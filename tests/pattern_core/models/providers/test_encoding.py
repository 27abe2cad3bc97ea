from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_core.messages import Image
from pattern_core.models.providers.encoding import (
    GOOGLE,
    OPENAI,
    closed_schema,
    image_base64,
    image_url,
    is_strict_schema,
    nine_id,
    plain_id,
    plain_name,
    proof_of,
    short_id,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=90)
OPEN: dict[str, Any] = {
    "type": "object",
    "properties": {
        "type": {"type": "string", "enum": ["object"]},
        "rows": {"type": "array", "items": {"properties": {"x": {"type": "integer"}}}},
        "free": {"type": "object", "additionalProperties": True},
    },
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


def test_an_images_bytes_come_before_its_address() -> None:
    held = Image(media_type="image/png", data=b"\x89PNG", digest="ab")
    assert (image_base64(held), image_url(held)) == ("iVBORw==", "data:image/png;base64,iVBORw==")
    linked = Image(media_type="", url="https://x/a.png")
    assert (image_base64(linked), image_url(linked)) == (None, "https://x/a.png")
    assert image_url(Image(media_type="image/png", digest="ab")) is None


def test_a_proof_goes_back_to_its_vendor_only() -> None:
    assert proof_of(GOOGLE, "google:a:b+/=") == "a:b+/="
    for signature in ("openai:x", "google", "google:", "", None):
        assert proof_of(GOOGLE, signature) is None
    assert proof_of(OPENAI, "google:x") is None


def test_every_object_of_a_schema_is_closed_that_does_not_say_otherwise() -> None:
    made = closed_schema(OPEN)
    assert made["additionalProperties"] is False
    properties = made["properties"]
    assert isinstance(properties, dict)
    assert properties["rows"]["items"]["additionalProperties"] is False
    assert properties["free"]["additionalProperties"] is True
    assert properties["type"] == {"type": "string", "enum": ["object"]}
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
