"""A provider that answers from a script, for tests, simulations and benchmarks: no network, no waiting of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import trio

from pattern_core.messages import Part, Reasoning, Text, ToolCall
from pattern_core.models.model import (
    FinishReason,
    ModelReply,
    ModelRequest,
    OnDelta,
    Provider,
    ReasoningDelta,
    TextDelta,
    Usage,
    made_up_call_id,
)

REQUESTS_KEPT_MAX = 10_000
NO_USAGE = Usage(input_tokens=10, output_tokens=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Paced:
    """An answer that takes its time, or stops in the middle.

    `gate` is awaited and `delay_s` slept before the first piece, `between_s` after each piece. With `breaks` the first
    `shown` pieces are streamed and then that error is raised.
    """

    answer: ModelReply
    gate: trio.Event | None = None
    delay_s: float = 0.0
    between_s: float = 0.0
    breaks: Exception | None = None
    shown: int = 0


Answer = ModelReply | Paced | Exception | Callable[[ModelRequest], "ModelReply | Paced | Exception"]


def says(text: str, *, reasoning: str | None = None, usage: Usage = NO_USAGE) -> ModelReply:
    """Return an answer of plain words, after some reasoning if given."""
    thought: tuple[Part, ...] = () if reasoning is None else (Reasoning(text=reasoning),)
    return ModelReply(parts=(*thought, Text(text=text)), finish_reason="stop", usage=usage)


def calls(
    tool: str,
    arguments: Mapping[str, object] | None = None,
    *,
    text: str = "",
    call_id: str = "",
    usage: Usage = NO_USAGE,
) -> ModelReply:
    """Return an answer that calls one tool, after some words if given; `ScriptedProvider` fills an empty `call_id`
    in.
    """
    call = ToolCall(call_id=call_id, tool=tool, arguments=dict(arguments or {}))
    words: tuple[Part, ...] = (Text(text=text),) if text else ()
    return ModelReply(parts=(*words, call), finish_reason="tool_calls", usage=usage)


def together(*replies: ModelReply) -> ModelReply:
    """Return one answer of all parts of `replies`: several tool calls at once, words between them."""
    parts = tuple(part for reply in replies for part in reply.parts)
    finish: FinishReason = "tool_calls" if any(isinstance(part, ToolCall) for part in parts) else "stop"
    return ModelReply(parts=parts, finish_reason=finish, usage=replies[0].usage if replies else NO_USAGE)


class ScriptedProvider(Provider):
    """Answers the n-th question with the n-th entry of a script.

    An entry is a reply, an error to raise, a `Paced` reply, or a function of the request that gives one of these.
    After the script `otherwise` answers; without one, a further question is a bug of the test (AssertionError).
    `slice_chars` streams each part in pieces of that many characters, None each part at once. Calls may overlap.
    """

    def __init__(
        self,
        script: Iterable[Answer] = (),
        *,
        name: str = "scripted",
        otherwise: Answer | None = None,
        slice_chars: int | None = None,
    ) -> None:
        self.name = name
        self.asked = 0
        self.running = 0
        self.cancelled = 0
        self._script = iter(script)
        self._otherwise = otherwise
        self._slice_chars = slice_chars
        self._requests: deque[ModelRequest] = deque(maxlen=REQUESTS_KEPT_MAX)

    @property
    def requests(self) -> list[ModelRequest]:
        """What was asked, oldest first; the newest `REQUESTS_KEPT_MAX` only."""
        return list(self._requests)

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        """Play the next entry of the script.

        Raises:
            Exception: whatever the script holds for this question.
            AssertionError: the script is over and there is no `otherwise`.
        """
        self.asked += 1
        self._requests.append(request)
        answer = next(self._script, self._otherwise)
        if answer is None:
            last = request.messages[-1].text[:200] if request.messages else ""
            raise AssertionError(f"the script has no answer to question {self.asked} (last words: {last!r})")
        self.running += 1
        try:
            await trio.lowlevel.checkpoint()
            return await self._play(answer, request, on_delta)
        except trio.Cancelled:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1

    async def _play(self, answer: Answer, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        if callable(answer):
            answer = answer(request)
        if isinstance(answer, Exception):
            raise answer
        paced = answer if isinstance(answer, Paced) else Paced(answer=answer)
        if paced.gate is not None:
            await paced.gate.wait()
        if paced.delay_s:
            await trio.sleep(paced.delay_s)
        deltas: list[TextDelta | ReasoningDelta] = []
        parts: list[Part] = []
        for index, part in enumerate(paced.answer.parts):
            made = part
            match part:
                case Text() | Reasoning() if size := self._slice_chars or len(part.text):
                    delta = TextDelta if isinstance(part, Text) else ReasoningDelta
                    deltas += [delta(text=part.text[at : at + size]) for at in range(0, len(part.text), size)]
                case ToolCall(call_id=""):
                    made = replace(part, call_id=made_up_call_id(request, index))
            parts.append(made)
        for piece in deltas if paced.breaks is None else deltas[: paced.shown]:
            await on_delta(piece)
            if paced.between_s:
                await trio.sleep(paced.between_s)
        if paced.breaks is not None:
            raise paced.breaks
        return replace(paced.answer, parts=tuple(parts))
