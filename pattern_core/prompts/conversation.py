"""The conversation as a prompt shows it: results of tools and imports marked as theirs, with totals of tokens.

Each message is rendered and counted once, when it is first shown. A later prompt only adds what was appended since,
unless the history says that something else changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from pattern_core.conversation.history import History
from pattern_core.messages import Message
from pattern_core.models.tokens import message_tokens
from pattern_core.untrusted import marked_import, marked_result

IsForeign = Callable[[str], bool]  # whether what a tool of this name returned may hold text from elsewhere


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The messages to show. `tokens` estimates them; `mark_tokens` is the part of it that the marks take."""

    messages: Sequence[Message]
    tokens: int
    mark_tokens: int
    has_images: bool = False

    @property
    def first(self) -> str:
        """The position of the first message, empty for none; what stands for archived messages has no position."""
        return next((message.position for message in self.messages if message.position), "")


class _Growing:
    def __init__(self, revision: int) -> None:
        self.revision = revision
        self.shown: list[Message] = []
        self.tokens = 0
        self.mark_tokens = 0
        self.has_images = False


class Conversations:
    """What is shown of each history; forgotten with it."""

    def __init__(self, is_foreign: IsForeign) -> None:
        self._is_foreign = is_foreign
        self._known: WeakKeyDictionary[History, _Growing] = WeakKeyDictionary()

    def shown(self, history: History) -> Shown:
        """The history's messages as a prompt shows them now."""
        known = self._known.get(history)
        if known is None or known.revision != history.revision:
            known = self._known[history] = _Growing(history.revision)
        for message, own_tokens in history.after(len(known.shown)):
            shown = self._marked(message)
            tokens = own_tokens if shown is message else message_tokens(shown)
            known.shown.append(shown)
            known.has_images = known.has_images or (message.role == "user" and bool(message.images))
            known.tokens += tokens
            if shown is not message:
                known.mark_tokens += tokens - own_tokens
        return Shown(
            messages=tuple(known.shown),
            tokens=known.tokens,
            mark_tokens=known.mark_tokens,
            has_images=known.has_images,
        )

    def _marked(self, message: Message) -> Message:
        if message.is_imported:
            return marked_import(message)
        if message.role != "tool" or not any(self._is_foreign(getattr(part, "tool", "")) for part in message.parts):
            return message
        return marked_result(message)
