"""What every decoder makes of its vendor's streams: cut anywhere, with news of a later version, and broken ones."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_core.messages import Message, Reasoning, Text, ToolCall, user
from pattern_core.models.errors import ModelError
from pattern_core.models.model import FinishReason, ModelReply, ModelRequest, ReasoningDelta, TextDelta
from pattern_core.models.providers.draft import (
    CALLS_MAX,
    REPLY_CHARS_MAX,
    Malformed,
    ReplyDraft,
    StreamEvent,
    loads,
    tool_call,
)
from pattern_core.models.providers.encoding import JsonObject, valid_unicode
from pattern_core.models.providers.exchange import EventDecoder
from pattern_core.testing import says
from tests.pattern_core.models.providers.rig import GOOGLE, Vendor, every


def events_of(vendor: Vendor) -> list[StreamEvent]:
    stream = EventDecoder()
    return [*stream.feed(vendor.replies(vendor.reply).body), *stream.end()]


def decoded(vendor: Vendor, events: Iterable[StreamEvent]) -> ModelReply:
    decoder = vendor.decoder()
    for event in events:
        decoder.feed(event)
    return decoder.reply(None)


@every
@pytest.mark.parametrize("finish", [reason for reason in get_args(FinishReason) if reason != "tool_calls"])
def test_reasons_why_an_answer_ended(vendor: Vendor, finish: FinishReason) -> None:
    stream = EventDecoder().feed(vendor.replies(replace(says("so"), finish_reason=finish)).body)
    assert decoded(vendor, stream).finish_reason == finish


@every
def test_a_call_cut_off_before_its_arguments_is_no_call_without_any(vendor: Vendor) -> None:
    cut = replace(vendor.reply, parts=(ToolCall(call_id="c", tool="forget_all", invalid=""),), finish_reason="length")
    if vendor is not GOOGLE:  # which sends whole calls only
        assert decoded(vendor, EventDecoder().feed(vendor.replies(cut).body)).parts == cut.parts
    stopped = EventDecoder().feed(vendor.replies(replace(cut, finish_reason="tool_calls")).body)
    assert decoded(vendor, stopped).parts == (ToolCall(call_id="c", tool="forget_all"),)


JUNK: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "id", "name", "text", "index", "message", "x"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@every
@settings(deadline=None)
@given(added=JUNK)
def test_what_a_vendor_adds_changes_nothing(vendor: Vendor, added: object) -> None:
    def grown(value: Any, *, depth: int) -> Any:
        """JSON with one more field in its outer objects. What lies deeper may be a tool's arguments, and stays."""
        if isinstance(value, list):
            return [grown(one, depth=depth) for one in value]
        if not isinstance(value, dict) or depth == 0:
            return value
        return {**{name: grown(one, depth=depth - 1) for name, one in value.items()}, "of_tomorrow": added}

    newer = [
        StreamEvent(event=event.event, data=json.dumps(grown(json.loads(event.data), depth=2)))
        if event.data.startswith("{")
        else event
        for event in events_of(vendor)
    ]
    assert decoded(vendor, newer) == vendor.reply


@every
@settings(max_examples=150, deadline=None)
@given(number=st.integers(0, 50), path=st.lists(st.integers(0, 20), max_size=6), junk=JUNK, text=st.none() | st.text())
def test_a_broken_event_is_refused_with_words_or_makes_a_reply_that_can_be_stored(
    vendor: Vendor, number: int, path: list[int], junk: object, text: str | None
) -> None:
    def spoiled(value: Any, at: list[int]) -> Any:
        """JSON with junk in one place."""
        if not at or not value or not isinstance(value, dict | list):
            return junk
        key = [*(value if isinstance(value, dict) else range(len(value)))][at[0] % len(value)]
        made = value.copy()
        made[key] = spoiled(value[key], at[1:])
        return made

    events = events_of(vendor)
    event = events[number % len(events)]
    data = json.loads(event.data) if event.data.startswith("{") else {}
    broken = json.dumps(spoiled(data, path)) if text is None else text
    events[number % len(events)] = StreamEvent(event=event.event, data=broken)
    try:
        reply = decoded(vendor, events)
    except (Malformed, ModelError) as error:
        assert str(error).encode()
        return
    assert reply.finish_reason in get_args(FinishReason)
    assert min(reply.usage.input_tokens, reply.usage.output_tokens) >= 0
    for part in reply.parts:
        json.dumps(repr(part), ensure_ascii=False).encode()


# What all decoders share

REQUEST = ModelRequest(model="m", system=(), messages=[user("hi")])


def test_parts_keep_the_order_in_which_they_began() -> None:
    draft = ReplyDraft(REQUEST)
    assert draft.is_empty
    assert draft.words("hm", is_reasoning=True) == [ReasoningDelta(text="hm")]
    assert draft.words("Hel") == [TextDelta(text="Hel")]
    call = draft.begin_call("c1", "search")
    draft.words("lo")
    call.arguments += ['{"q":', "1}"]
    draft.words("!")
    assert draft.parts() == (
        Reasoning(text="hm"),
        Text(text="Hel"),
        ToolCall(call_id="c1", tool="search", arguments={"q": 1}),
        Text(text="lo!"),
    )
    assert draft.has_calls
    assert not draft.is_empty


def test_reasoning_is_signed_and_kept_apart() -> None:
    draft = ReplyDraft(REQUEST)
    draft.sign("nothing to sign")
    for number in ("1", "2"):
        draft.begin_words(is_reasoning=True, mark="x:")
        draft.words(f"thought {number}", is_reasoning=True)
        draft.sign("")
        draft.sign("sig")
        draft.sign(number)
    draft.begin_words(is_reasoning=True, mark="x:")
    draft.sign("only")
    draft.begin_words(is_reasoning=False)
    assert draft.parts() == (
        Reasoning(text="thought 1", signature="x:sig1"),
        Reasoning(text="thought 2", signature="x:sig2"),
        Reasoning(text="", signature="x:only"),
    )


def test_halves_of_characters_wait_for_each_other() -> None:
    draft = ReplyDraft(REQUEST)
    assert draft.words("a\ud83d") == [TextDelta(text="a")]
    assert draft.words("\ude00") == [TextDelta(text="😀")]
    assert draft.words("\ud83d") == []
    assert draft.parts() == (Text(text="a😀\ufffd"),)


def test_ids_of_calls_are_made_up_where_missing_repeated_or_used_before() -> None:
    earlier = Message(role="assistant", parts=(ToolCall(call_id="before", tool="search"),))
    draft = ReplyDraft(replace(REQUEST, messages=[user("hi"), earlier]))
    for call_id in ("", "same", "same", "", "before"):
        draft.begin_call(call_id, "search")
    ids = [part.call_id for part in draft.parts() if isinstance(part, ToolCall)]
    assert len({*ids, "before"}) == 6
    assert ids[1] == "same"


def test_a_call_cut_off_before_its_arguments_is_invalid() -> None:
    draft = ReplyDraft(REQUEST)
    draft.begin_call("a", "x")
    draft.begin_call("b", "y").arguments.append(" ")
    whole, cut = draft.parts(is_cut=True)
    assert whole == ToolCall(call_id="a", tool="x")
    assert cut == ToolCall(call_id="b", tool="y", invalid="")
    draft.words("then")
    assert ToolCall(call_id="b", tool="y") in draft.parts(is_cut=True)


def test_thoughts_are_signed_all_together() -> None:
    draft = ReplyDraft(REQUEST)
    draft.words("one", is_reasoning=True)
    draft.words("said")
    draft.words("two", is_reasoning=True)
    draft.sign_thoughts("s", last="t")
    assert draft.parts() == (
        Reasoning(text="one", signature="s"),
        Text(text="said"),
        Reasoning(text="two", signature="t"),
    )
    silent = ReplyDraft(REQUEST)
    silent.begin_call("c", "x")
    silent.sign_thoughts("s", last="s")
    assert silent.parts() == (Reasoning(text="", signature="s"), ToolCall(call_id="c", tool="x"))


def test_bounds_and_missing_names() -> None:
    draft = ReplyDraft(REQUEST)
    draft.words("x" * REPLY_CHARS_MAX)
    with pytest.raises(Malformed, match="longer"):
        draft.words("x")
    draft = ReplyDraft(REQUEST)
    for _ in range(CALLS_MAX):
        draft.begin_call()
    with pytest.raises(Malformed, match="more than"):
        draft.begin_call()
    with pytest.raises(Malformed, match="without a name"):
        draft.parts()


@pytest.mark.parametrize("text", ["", "[1]", "{", "[" * 100_000, "1" * 5_000, "\ud800"])
def test_what_is_no_object_is_malformed(text: str) -> None:
    with pytest.raises(Malformed) as caught:
        loads(text)
    str(caught.value).encode()


ANY_TEXT = st.text(alphabet=st.characters(codec=None))


def test_halves_are_joined_or_replaced() -> None:
    assert valid_unicode("plain") == "plain"
    assert valid_unicode("zażółć 😀") == "zażółć 😀"
    assert valid_unicode("\ud83d\ude00!") == "😀!"
    assert valid_unicode("a\ud83db\ude00") == "a\ufffdb\ufffd"


@given(ANY_TEXT, st.integers(min_value=0))
def test_any_cut_gives_the_same_storable_text(text: str, cut: int) -> None:
    at = cut % (len(text) + 1)
    draft = ReplyDraft(REQUEST)
    shown = "".join(delta.text for piece in (text[:at], text[at:]) for delta in draft.words(piece))
    joined = "".join(part.text for part in draft.parts() if isinstance(part, Text))
    assert joined == valid_unicode(text)
    assert joined.startswith(shown)
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
    assert JsonObject.parse('{"id": "x"}') == {"id": "x"}
    assert [JsonObject.parse(text) for text in (None, "", "[1]", "{", "[" * 100_000)] == [{}] * 5


def test_optional_values() -> None:
    said = JsonObject.of({"a": 1, "b": "x", "c": {"d": 2}, "e": [{"f": 3}, None], "g": None})
    assert JsonObject.of(None) == JsonObject.of([]) == {}
    assert [said.text(name) for name in "abgx"] == ["", "x", "", ""]
    assert [said.nested(name) for name in "acgx"] == [{}, {"d": 2}, {}, {}]
    assert [said.listed(name) for name in "aegx"] == [[], [{"f": 3}, {}], [], []]
    counts = [JsonObject(n=value).count("n") for value in (3, 0, -1, True, 1.5, "3", None, 1 << 60)]
    assert counts == [3, 0, *[None] * 6]
