"""What fits: each kind has its share of the extra tokens, and what it does not need is left to the kinds after it.

A part is shown whole or not at all. Core blocks are always shown. Pinned blocks stand where vendors cache, so what is
found for the moment must never decide which of them are shown: nothing flows up to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pattern_core.prompts.parts import Kind, LeftOut, Part, left_out
from pattern_core.prompts.settings import ContextSettings

# A person pinned the block: a block of the usual size is shown also where the extra tokens are few.
PINNED_WINDOW_SHARE = 5  # one part in so many of the window is theirs, if that is more than their share
CORE_WINDOW_SHARE = 2  # core blocks that take more than one part in so many of it are remarked on
# Kinds that draw on another one's share.
_DRAWS_ON = {Kind.REFERRED: Kind.PINNED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """The parts to show, in the order given, those left out, and remarks for whoever asks why."""

    shown: Sequence[Part]
    left_out: Sequence[LeftOut]
    notes: Sequence[str] = ()

    def and_left_out(self, others: Sequence[LeftOut]) -> Fitted:
        """The same, with others that were left out before there was a budget."""
        return replace(self, left_out=[*self.left_out, *others])


def fit(parts: Sequence[Part], settings: ContextSettings, window: int) -> Fitted:
    """Choose among the parts, of which the better ones of a kind come first; `window` is the model's, in tokens."""
    out: dict[int, str] = {}
    room = 0
    for kind, share in settings.shares.items():
        room += settings.extra_tokens * share // 100
        own = max(room, window // PINNED_WINDOW_SHARE) if kind is Kind.PINNED else room
        used = 0
        for number, part in enumerate(parts):
            if part.kind is not kind or kind in settings.hidden:
                continue
            if used + part.tokens <= own:
                used += part.tokens
            else:
                out[number] = _no_room(part, own - used, settings)
        room = max(room - used, 0)
        if kind is Kind.PINNED:
            room = _referred(parts, settings, room, window, out)
    for number, part in enumerate(parts):
        if part.kind in settings.hidden:
            out[number] = f"switched off by context.show.{part.kind}"
    return Fitted(
        shown=[part for number, part in enumerate(parts) if number not in out],
        left_out=[left_out(parts[number], reason) for number, reason in sorted(out.items())],
        notes=_notes(parts, window),
    )


def _referred(parts: Sequence[Part], settings: ContextSettings, room: int, window: int, out: dict[int, str]) -> int:
    """Blocks that the message names: as the pinned ones, and of the share what those left."""
    own, used = max(room, window // PINNED_WINDOW_SHARE), 0
    for number, part in enumerate(parts):
        if part.kind is not Kind.REFERRED or part.kind in settings.hidden:
            continue
        if used + part.tokens <= own:
            used += part.tokens
        else:
            out[number] = _no_room(part, own - used, settings)
    return max(room - used, 0)


def _no_room(part: Part, room: int, settings: ContextSettings) -> str:
    kind = _DRAWS_ON.get(part.kind, part.kind)
    share = f"{settings.shares[kind]} % of {settings.extra_tokens} for {kind.value}"
    return f"no room: {max(room, 0)} tokens are left (context: {share})"


def _notes(parts: Sequence[Part], window: int) -> list[str]:
    core = sum(part.tokens for part in parts if part.kind is Kind.CORE)
    if core * CORE_WINDOW_SHARE <= window:
        return []
    return [
        f"the core blocks take about {core} of the window's {window} tokens; shorten them, or make some of them working"
        " blocks"
    ]
