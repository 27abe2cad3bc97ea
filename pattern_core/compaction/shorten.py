"""Making the turn under way smaller in view when it alone passes the window; pure.

Nothing of it is archived, and every call that is still shown keeps its result: first the results of its older steps
are cut, then those steps are left out, then the newest step's results and arguments are cut. What it was asked stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from pattern_core.messages import Message, ToolCall, ToolResult
from pattern_core.models.tokens import clip_middle, estimate_text, message_tokens

RESULT_TOKENS_MIN = 40
NOTE = " [… left out to make room; the whole is in the history …] "
_ARGUMENTS_CHARS_MAX = 200

Change = tuple[Message, Message | None]


def shortened(messages: Sequence[Message], excess: int) -> list[Change]:
    """Which messages of a turn to show shorter (or, with None, not at all) to save `excess` tokens, as far as it goes.

    `messages` are the turn's, oldest first, each call before its results.
    """
    work = _Work(messages, excess)
    steps = [place for place, message in enumerate(messages) if message.role == "assistant"]
    newest = steps[-1] if steps else len(messages)
    for place in range(newest):
        work.cut_result(place, RESULT_TOKENS_MIN)
    for begin, end in pairwise(steps):
        work.leave_out([place for place in range(begin, end) if messages[place].role in ("assistant", "tool")])
    results = [place for place in range(newest, len(messages)) if messages[place].role == "tool"]
    for number, place in enumerate(results):
        share = work.missing // (len(results) - number) + 1
        work.cut_result(place, max(work.tokens(place) - share, RESULT_TOKENS_MIN))
    for place in results:
        work.cut_result(place, RESULT_TOKENS_MIN)
    if steps:
        work.cut_arguments(newest)
    return work.changes()


class _Work:
    """The messages as they are to be shown, and how many tokens are still to be saved."""

    def __init__(self, messages: Sequence[Message], excess: int) -> None:
        self._originals = messages
        self._shown: list[Message | None] = list(messages)
        self.missing = excess

    def tokens(self, place: int) -> int:
        """What the message takes now."""
        message = self._shown[place]
        return 0 if message is None else message_tokens(message)

    def cut_result(self, place: int, tokens_max: int) -> None:
        """Show beginning and end of a result, if that saves anything and is needed."""
        message = self._originals[place]  # what was cut already would keep the note of its first cut
        if self.missing <= 0 or self._shown[place] is None or message.role != "tool":
            return
        result = message.parts[0]
        if isinstance(result, ToolResult) and estimate_text(result.content) > tokens_max:
            self._put(place, replace(message, parts=(replace(result, content=_cut(result.content, tokens_max)),)))

    def leave_out(self, places: Sequence[int]) -> None:
        """Do not show a step, if that is needed."""
        if self.missing > 0:
            for place in places:
                self._put(place, None)

    def cut_arguments(self, place: int) -> None:
        """Show of long arguments only that they were long, if that is needed."""
        message = self._shown[place]
        if self.missing <= 0 or message is None:
            return
        parts = tuple(_brief(part) if isinstance(part, ToolCall) else part for part in message.parts)
        self._put(place, replace(message, parts=parts))

    def changes(self) -> list[Change]:
        """The messages that are shown otherwise than they were."""
        pairs = zip(self._originals, self._shown, strict=True)
        return [(original, shown) for original, shown in pairs if shown is not original]

    def _put(self, place: int, message: Message | None) -> None:
        before = self.tokens(place)
        after = 0 if message is None else message_tokens(message)
        if after < before:
            self._shown[place] = message
            self.missing -= before - after


def _cut(text: str, tokens_max: int) -> str:
    return clip_middle(text, max(tokens_max, RESULT_TOKENS_MIN), NOTE)


def _brief(call: ToolCall) -> ToolCall:
    arguments = {key: _short(value) for key, value in call.arguments.items()}
    invalid = call.invalid
    if invalid is not None and len(invalid) > _ARGUMENTS_CHARS_MAX:
        invalid = invalid[:_ARGUMENTS_CHARS_MAX] + NOTE
    return replace(call, arguments=arguments, invalid=invalid)


def _short(value: object) -> object:
    text = value if isinstance(value, str) else str(value)
    return value if len(text) <= _ARGUMENTS_CHARS_MAX else f"{text[:_ARGUMENTS_CHARS_MAX]}{NOTE}"
