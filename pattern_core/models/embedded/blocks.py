"""The memory blocks as they stand in a prompt; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import unescape

_BLOCK = re.compile(
    r'<block:(?P<label>[^\n<>"]+?) permission="(?P<permission>[a-z_]+)"(?P<more>[^<>\n]*)>\n'
    r"(?P<content>.*?)\n?</block:(?P=label)>",
    re.DOTALL,
)
_CHARS = re.compile(r'\bchars="(\d{1,12})/(\d{1,12})"')
_MAY_APPEND = frozenset({"append", "read_write", "admin"})
_MAY_REWRITE = frozenset({"read_write", "admin"})
_ASKS_CONSENT = frozenset({"partner", "human"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenBlock:
    """A block that the prompt shows; `room` is how many characters still fit, None if it does not say."""

    label: str
    permission: str
    content: str
    room: int | None = None

    @property
    def may_append(self) -> bool:
        """Whether lines may be added."""
        return self.permission in _MAY_APPEND

    @property
    def may_rewrite(self) -> bool:
        """Whether lines may be changed and removed."""
        return self.permission in _MAY_REWRITE

    @property
    def asks_consent(self) -> bool:
        """Whether it is changed only after a person was asked, and said yes."""
        return self.permission in _ASKS_CONSENT

    @property
    def lines(self) -> list[str]:
        """The lines with words in them."""
        return [line for line in self.content.split("\n") if line.strip()]


def seen_blocks(system: Iterable[str]) -> list[SeenBlock]:
    """The blocks that the system prompt shows, in its order."""
    found: list[SeenBlock] = []
    for part in system:
        for match in _BLOCK.finditer(part):
            chars = _CHARS.search(match["more"])
            found.append(
                SeenBlock(
                    label=unescape(match["label"]),
                    permission=match["permission"],
                    content=match["content"],
                    room=int(chars[2]) - int(chars[1]) if chars else None,
                )
            )
    return found


def without_blocks(system: Iterable[str]) -> str:
    """What else the system prompt says, without its blocks."""
    return "\n\n".join(rest for part in system if (rest := _BLOCK.sub("", part).strip()))


def home_of(fact: str, blocks: Sequence[SeenBlock]) -> SeenBlock | None:
    """The block where a fact belongs: "human", else the first with room that is not "persona"; None without one.

    One that needs a person's consent only if there is no other.
    """
    with_room = [
        block for block in blocks if block.label != "persona" and (block.room is None or block.room > len(fact) + 1)
    ]
    fitting = [block for block in with_room if block.may_append] or [one for one in with_room if one.asks_consent]
    return next((block for block in fitting if block.label == "human"), fitting[0] if fitting else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """Arguments of one replacement: `old` and `new` with `mode` "first", or "nth" where `old` begins with `N: `."""

    old: str
    new: str
    mode: str


def change_line(content: str, line: str, new: str) -> Rewrite:
    """The replacement that turns the first line equal to `line` into `new`.

    Raises:
        ValueError: there is no such line.
    """
    lines = content.split("\n")
    at = _offset(lines, lines.index(line))
    return _rewrite(content, at, at + len(line), new)


def cut_lines(content: str, unwanted: Sequence[str]) -> Rewrite:
    """The one replacement that removes these lines with their endings; of equal lines the first.

    Raises:
        ValueError: one of them is not there.
    """
    lines = content.split("\n")
    places = sorted(lines.index(line) for line in dict.fromkeys(unwanted))
    first, last = places[0], places[-1]
    kept = [lines[place] for place in range(first, last + 1) if place not in places]
    start, end = _offset(lines, first), _offset(lines, last) + len(lines[last])
    if not kept and end < len(content):
        end += 1
    elif not kept and start > 0:
        start -= 1
    return _rewrite(content, start, end, "\n".join(kept))


def _offset(lines: Sequence[str], index: int) -> int:
    return sum(len(line) + 1 for line in lines[:index])


def _rewrite(content: str, start: int, end: int, new: str) -> Rewrite:
    old = content[start:end]
    before = content.count(old, 0, start + len(old) - 1)
    return (
        Rewrite(old=f"{before + 1}: {old}", new=new, mode="nth") if before else Rewrite(old=old, new=new, mode="first")
    )
