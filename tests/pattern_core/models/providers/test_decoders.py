"""What every decoder makes of its vendor's streams: cut anywhere, with news of a later version, and broken ones."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_core.messages import ToolCall
from pattern_core.models.errors import ModelError
from pattern_core.models.model import FinishReason, ModelReply
from pattern_core.models.providers.draft import Malformed, StreamEvent
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
def test_any_cut_of_the_bytes_decodes_alike(vendor: Vendor) -> None:
    body = vendor.replies(vendor.reply).body
    for at in range(0, len(body) + 1, 7):
        stream = EventDecoder()
        assert decoded(vendor, (*stream.feed(body[:at]), *stream.feed(body[at:]), *stream.end())) == vendor.reply


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
