"""Chat sessions in the forms of seed 004: what is listed and shown of a session, and its stream.

Source: the project's seed 004, a plan of the HTTP interface of a web server for coding agents.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple
from zlib import crc32

from pattern_core.chat_files import result_of
from pattern_core.constellation import Constellation
from pattern_core.decisions import cut
from pattern_core.errors import InvalidInput
from pattern_core.events import TERMINAL, Event
from pattern_core.sessions import Chat
from pattern_db.enums import EffectStatus, TurnStatus
from pattern_db.journal import usage
from pattern_db.journal.turns import TurnRow
from pattern_server.http.routing import AwakeAccess
from pattern_server.http.sse import EventStream, sent

PREVIEW_UNITS_MAX = 100  # of UTF-16
_NO_STATUS = "idle"
_STATUSES: Mapping[TurnStatus, str] = {
    **dict.fromkeys((TurnStatus.QUEUED, TurnStatus.RUNNING, TurnStatus.WAITING), "running"),
    TurnStatus.LIMIT: "failed",
}


def shown(chat: Chat) -> dict[str, object]:
    """Return what is shown of a session."""
    return {
        "id": chat.id,
        "status": status_of(chat),
        "workingDir": chat.working_dir or "",
        "createdAt": chat.created_at,
        "messageCount": chat.message_count,
        "totalTokens": chat.tokens,
    }


def listed(chat: Chat) -> dict[str, object]:
    """Return what a list has of a session; a title only where there is one, as the original knew none."""
    title = {} if chat.title is None else {"title": chat.title}
    return {**shown(chat), "preview": preview_of(chat.first_said), **title}


def status_of(chat: Chat) -> str:
    """Return the status of a session: `running` from a message to the end of its turn, else how that ended."""
    return _NO_STATUS if chat.status is None else _STATUSES.get(chat.status, chat.status.value)


def preview_of(text: str | None) -> str | None:
    """Return the beginning of a text, at most 100 units of UTF-16; no character is cut in two."""
    if text is None or cut(text, PREVIEW_UNITS_MAX) == text:
        return text
    return cut(text, PREVIEW_UNITS_MAX - 3) + "..."


# The stream


class Mark(NamedTuple):
    """A place in a session's stream, sent as the number of an event.

    One event of a turn may be two or three here: `part` counts them. A piece of text says how many characters of its
    message it completes, and has a checksum of them: pieces are deleted when their turn ends, and a client that
    resumes then is sent the rest of the message.
    """

    seq: int
    part: int = 0
    chars: int = 0
    check: int = 0

    def __str__(self) -> str:
        return f"{self.seq}{self.part}{self.chars:08}{self.check:05}"

    @property
    def is_end(self) -> bool:
        """Whether nothing of the turn follows."""
        return self.part == _DONE

    @classmethod
    def of(cls, text: str | None) -> Mark | None:
        """Return the place that a client names; None if it names none.

        Raises:
            InvalidInput: it is not the number of an event.
        """
        if text is None or not text.strip():
            return None
        found = re.fullmatch(r"([0-9]{1,19})([0-3])([0-9]{8})([0-9]{5})", text.strip())
        if found is None:
            raise InvalidInput("Last-Event-ID is not an `id` of this stream; send the last one received, or none")
        return cls(*map(int, found.groups()))


_TEXT, _USAGE, _REST, _DONE = range(4)  # parts
_NOTHING = (0, 0)


def _extent(text: str) -> tuple[int, int]:
    """Return how long a text is, and its checksum."""
    return len(text), crc32(text.encode("utf-8", "replace")) % 100_000


class SessionStream(EventStream):
    """A turn of a session as the original streams it, after the place `seen`.

    Text comes as it is written. If a restart has the model called again, what a client has of the message is not sent
    a second time, unless the new answer is another one: then that follows as a paragraph of its own.
    """

    def __init__(self, home: AwakeAccess, turn: TurnRow, seen: Mark) -> None:
        super().__init__(partial(home.server.constellations.use, home.caller, home.c), after=0, turn_id=turn.id)
        self._key, self._seen = turn.key, seen
        self._text = ""  # of the message that the model writes
        self._has = (seen.chars, seen.check) if seen.part == _TEXT and seen.chars else _NOTHING  # what the client has
        self._calls: dict[str, dict[str, object]] = {}
        self._has_started = False
        self._unpaid: tuple[int, int] | None = None  # step and attempt with usage that was not sent

    async def piece(self, constellation: Constellation, event: Event) -> bytes:
        """Return what an event of the turn is here; maybe nothing."""
        text = self._written(event)
        used = b""
        if event.name in ("message", "tool.call", *TERMINAL) and self._unpaid is not None:
            mark, step, self._unpaid = Mark(event.seq, _USAGE), self._unpaid, None
            if mark > self._seen:
                rows = await constellation.database.read(usage.of_model_calls, self._key)
                used = b"".join(
                    self._event(mark, "usage", usage=_tokens(row)) for row in rows if (row.step, row.attempt) == step
                )
        return text + used + self._others(event)

    def _event(self, mark: Mark, kind: str, **data: object) -> bytes:
        return sent({"type": kind, **data}, kind, mark) if mark > self._seen else b""

    def _written(self, event: Event) -> bytes:
        """Return the text that an event adds to what the client has."""
        match event.name:
            case "step.started":
                self._text, self._unpaid = "", (int(str(event.data["step"])), int(str(event.data["attempt"])))
            case "text.delta":
                self._text += str(event.data["text"])
                return self._rest(event, is_whole=False)
            case "message":
                streamed, self._text = self._text, str(event.data.get("content") or "")
                is_shortened = bool(streamed) and not self._text.startswith(streamed)
                piece = b"" if is_shortened and _extent(streamed) == self._has else self._rest(event, is_whole=True)
                if event.seq >= self._seen.seq:
                    self._has = _NOTHING
                return piece
        return b""

    def _rest(self, event: Event, *, is_whole: bool) -> bytes:
        """Return what the client has not of the text."""
        mark, has = Mark(event.seq, _TEXT, *_extent(self._text)), self._has[0]
        if mark <= self._seen or (len(self._text) <= has and not is_whole):
            return b""
        is_same = _extent(self._text[:has]) == self._has
        self._has = mark.chars, mark.check
        piece = self._text[has:] if is_same else f"\n\n{self._text}"
        return self._event(mark, "text_delta", text=piece) if piece else b""

    def _others(self, event: Event) -> bytes:
        """Return calls, results and the end."""
        data, mark = event.data, Mark(event.seq, _REST)
        match event.name:
            case "turn.started":
                self._has_started = True
            case "tool.call":
                call = {"id": data.get("call_id"), "name": data.get("tool"), "input": data.get("arguments")}
                self._calls[str(call["id"])] = call
                return self._event(mark, "tool_call", toolCall={**call, "status": "pending"})
            case "tool.result":
                call, content = self._calls.get(str(data.get("call_id")), {}), str(data.get("content") or "")
                if data.get("status") == EffectStatus.DONE:
                    return self._event(
                        mark, "tool_result", toolCall={**call, "status": "completed", "result": result_of(content)}
                    )
                return self._event(mark, "tool_result", toolCall={**call, "status": "error", "error": content})
            case name if name in TERMINAL:
                piece = b"" if name == "turn.completed" else self._event(mark, "error", error=self._why(data))
                return piece + self._event(Mark(event.seq, _DONE), "done")
        return b""

    def _why(self, data: Mapping[str, object]) -> str:
        error = data.get("error")
        words = str(error.get("message")) if isinstance(error, dict) else str(data.get("status"))
        if words != "cancelled: user":
            return words
        return "Aborted by user" if self._has_started else "Aborted before starting"


def _tokens(row: usage.UsageRow) -> dict[str, int]:
    total = row.input_tokens + row.output_tokens
    return {"prompt_tokens": row.input_tokens, "completion_tokens": row.output_tokens, "total_tokens": total}
