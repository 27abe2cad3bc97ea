"""What a command line holds, as far as it is certain without running it.

A word is known whole, or only by how it begins: `"$x"` is one word that nobody knows before it runs, `$x` may be none
or several. Whatever the reader could not place is a doubt, in words that follow "because".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum


class Stdin(Enum):
    """Where a command reads from: nothing, the output of another command, a file, or a text in the line itself."""

    NONE = "none"
    PIPE = "pipe"
    FILE = "file"
    TEXT = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """A word after quotes are taken away. `text` is None if it is not certain; `start` is what it surely begins with;
    `is_one` says that it is exactly one word whatever it becomes, `is_glob` that it becomes names of files that exist.
    """

    text: str | None
    start: str = ""
    is_one: bool = True
    is_glob: bool = False

    @property
    def may_be_option(self) -> bool:
        """Whether it begins with a dash, or may."""
        if self.text is not None:
            return self.text.startswith("-") and self.text != "-"
        return not (self.is_one and self.start and not self.start.startswith("-"))

    @property
    def shown(self) -> str:
        """The word for a sentence; … stands for what is not certain."""
        return self.text if self.text is not None else f"{self.start}…"


UNCERTAIN = Word(text=None, is_one=False)


def word(text: str) -> Word:
    """A word that is known whole."""
    return Word(text=text, start=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimpleCommand:
    """One program or builtin with its arguments, wherever in the line it stands; `words` begins with its name, `at` is
    where it begins (a count of bytes).
    """

    words: tuple[Word, ...]
    stdin: Stdin = Stdin.NONE
    at: int = 0

    @property
    def shown(self) -> str:
        """The command for a sentence."""
        return " ".join(one.shown for one in self.words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Redirection:
    """A file that is opened for a command. `is_write` where it is written to or made."""

    target: Word
    is_write: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A variable that is set: `is_number` if its value can only be a number, `is_exported` if programs see it."""

    name: str
    is_number: bool
    is_exported: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """All that a command line does. `functions` are those that it surely defines, with where that ends."""

    commands: Sequence[SimpleCommand] = ()
    redirections: Sequence[Redirection] = ()
    assignments: Sequence[Assignment] = ()
    functions: Mapping[str, int] = field(default_factory=dict)
    doubts: Sequence[str] = ()
