"""What a vendor's decoder makes of streams that break the format, and of what a later version of it adds."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Protocol, get_args

from hypothesis import strategies as st

from pattern_core.models.errors import ModelError
from pattern_core.models.model import Delta, FinishReason, ModelReply
from pattern_core.models.providers.draft import Malformed, StreamEvent
from pattern_core.models.providers.exchange import EventDecoder

ADDED: st.SearchStrategy[object] = (
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.just([{}]) | st.just({"x": {"type": "y"}})
)


class Decoder(Protocol):
    """A decoder of one vendor's stream."""

    def feed(self, event: StreamEvent, /) -> Iterable[Delta]:
        """The pieces that the event brings."""
        ...

    def reply(self, request_id: str | None, /) -> ModelReply:
        """The whole answer."""
        ...


def check_malformed(decoder: Decoder, datas: Iterable[str]) -> None:
    """Fail unless the decoder refuses the stream with words, or makes a reply of it that can be stored."""
    try:
        for data in datas:
            list(decoder.feed(StreamEvent(event="", data=data)))
        reply = decoder.reply(None)
    except (Malformed, ModelError) as error:
        assert str(error)
        return
    assert reply.finish_reason in get_args(FinishReason)
    assert min(reply.usage.input_tokens, reply.usage.output_tokens) >= 0
    for part in reply.parts:
        json.dumps(repr(part), ensure_ascii=False).encode()


def with_news(decoder: Decoder, body: bytes, added: object) -> ModelReply:
    """The reply of a sound stream, to whose objects an unknown field was added."""
    stream = EventDecoder()
    for event in (*stream.feed(body), *stream.end()):
        data = event.data
        if data.startswith("{"):
            data = json.dumps(_grown(json.loads(data), added, depth=2))
        list(decoder.feed(StreamEvent(event=event.event, data=data)))
    return decoder.reply(None)


def _grown(value: Any, added: object, *, depth: int) -> Any:
    """JSON with one more field in its outer objects. What lies deeper may be a tool's arguments, and stays."""
    if isinstance(value, list):
        return [_grown(one, added, depth=depth) for one in value]
    if not isinstance(value, dict) or depth == 0:
        return value
    return {**{name: _grown(one, added, depth=depth - 1) for name, one in value.items()}, "of_tomorrow": added}
