"""How much harm a command may do: four classes, and a sentence that says why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum


class Danger(IntEnum):
    """What a command may do at worst; a greater number is worse."""

    READ_ONLY = 0  # looks at files and processes
    WRITE = 1  # changes files, or runs a program that is not known here
    NETWORK = 2  # speaks to other machines
    DANGEROUS = 3  # may do great harm, or cannot be read for certain

    @property
    def word(self) -> str:
        """The class as people and models read it."""
        return self.name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What one part of a command line may do. `words` are what an operator's lists are compared with, the program's
    name first; none for what no list can allow. `reason` is words that follow the part's name.
    """

    danger: Danger
    reason: str
    words: Sequence[str] = ()


def reads(words: Sequence[str]) -> Judgement:
    """It only looks."""
    return Judgement(danger=Danger.READ_ONLY, reason="only looks", words=words)


def writes(words: Sequence[str], reason: str = "may change files") -> Judgement:
    """It may change files."""
    return Judgement(danger=Danger.WRITE, reason=reason, words=words)


def reaches(words: Sequence[str], reason: str = "speaks to other machines") -> Judgement:
    """It uses the network."""
    return Judgement(danger=Danger.NETWORK, reason=reason, words=words)


def refused(words: Sequence[str], reason: str) -> Judgement:
    """It may do great harm, or nobody can say what it does."""
    return Judgement(danger=Danger.DANGEROUS, reason=reason, words=words)
