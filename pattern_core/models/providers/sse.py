"""Server-sent events out of bytes, without I/O: any slicing of the bytes gives the same events.

Our own, because the vendors' stream classes swallow comments and pings, which are the signs of life that tell a slow
model from a dead connection, and because they set no bound on the size of an event.

Source: WHATWG HTML, section 9.2.6, "Interpreting an event stream". Only `event` and `data` matter here, and `error`,
which is no field of the standard.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

EVENT_BYTES_MAX = 8 * 1024 * 1024

_LINE_END = re.compile(rb"\r\n|\r|\n")
_BOM = b"\xef\xbb\xbf"


class EventTooLong(Exception):
    """An event is larger than `EVENT_BYTES_MAX`: this is no stream of events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEvent:
    """One event; `event` is "" where the stream names none. Bytes that are not UTF-8 became U+FFFD."""

    event: str
    data: str


class EventDecoder:
    """Collects lines into events; an event counts once the empty line after it has come."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._searched = 0  # how much of the rest is known to hold no line end
        self._event = ""
        self._data: list[str] = []
        self._size = 0
        self._begun = False

    def feed(self, chunk: bytes) -> list[StreamEvent]:
        """The events that `chunk` completes, in order.

        Raises:
            EventTooLong: no end of an event came within `EVENT_BYTES_MAX` bytes.
        """
        self._rest += chunk
        if not self._begun and len(self._rest) >= len(_BOM):
            self._begun = True
            if self._rest.startswith(_BOM):
                del self._rest[: len(_BOM)]
        return self._drain(is_end=False)

    def end(self) -> list[StreamEvent]:
        """The events that are complete when no more bytes come; a last one without its empty line counts too.

        The standard would drop that one; some servers end their stream that way.
        """
        events = self._drain(is_end=True)
        if self._rest:
            self._line(bytes(self._rest))
            self._rest.clear()
        last = self._dispatch()
        return [*events, last] if last else events

    def _drain(self, *, is_end: bool) -> list[StreamEvent]:
        events: list[StreamEvent] = []
        start = 0
        for match in _LINE_END.finditer(self._rest, self._searched):
            if match.end() == len(self._rest) and match.group() == b"\r" and not is_end:
                break  # perhaps the first half of \r\n
            line = bytes(self._rest[start : match.start()])
            start = match.end()
            if line:
                self._line(line)
            elif event := self._dispatch():
                events.append(event)
        if start:
            del self._rest[:start]
        self._searched = max(0, len(self._rest) - 1)
        if self._size + len(self._rest) > EVENT_BYTES_MAX:
            raise EventTooLong(f"an event of more than {EVENT_BYTES_MAX} bytes")
        return events

    def _line(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        self._size += len(line)
        if self._size > EVENT_BYTES_MAX:
            raise EventTooLong(f"an event of more than {EVENT_BYTES_MAX} bytes")
        text = value.removeprefix(b" ").decode("utf-8", "replace")
        if name == b"data":
            self._data.append(text)
        elif name == b"event":
            self._event = text
        elif name == b"error":  # older servers of llama.cpp report so what goes wrong in the middle
            self._event = "error"
            self._data.append(text)

    def _dispatch(self) -> StreamEvent | None:
        event = StreamEvent(event=self._event, data="\n".join(self._data)) if self._data else None
        self._event, self._size = "", 0
        self._data.clear()
        return event
