"""A row with what speaks for it, before the kinds are put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pattern_db.search import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """`value` is comparable within one kind; it is the sum of `parts`, times `factor`.

    `held` are the numbers of the query's terms that the row itself holds, as far as they were looked up.
    """

    row: Row
    value: float
    parts: Mapping[str, float]
    factor: float = 1.0
    held: Sequence[int] = ()


def worth(parts: Mapping[str, float], factor: float = 1.0) -> float:
    """What these parts are worth together, never less than nothing."""
    return max(sum(parts.values()), 0.0) * factor


def ranked(row: Row, parts: Mapping[str, float], factor: float = 1.0, held: Sequence[int] = ()) -> Ranked:
    """The row with its value."""
    return Ranked(row=row, value=worth(parts, factor), parts=parts, factor=factor, held=held)


_WORDS = {
    "words": "its words fit",
    "meaning": "near in meaning",
    "answer": "what was said next is near in meaning",
    "length": "it says much",
    "question": "it asks",
    "speaker": "said by whom the query names",
    "date": "near the date that the query names",
}


def reason(one: Ranked) -> str:
    """Why the row was found, in words, with what each part adds: `its words fit (+0.81), it asks (-0.17)`."""
    told = [f"{_WORDS[name]} ({value:+.2f})" for name, value in one.parts.items() if round(value, 2)]
    if one.factor != 1.0:
        told.append(f"a tool's result (×{one.factor})")
    return ", ".join(told)
