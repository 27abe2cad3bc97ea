"""What a ranking makes: rows with what speaks for each, and how near in meaning they are; before the kinds meet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pattern_core.search.plan import Plan
from pattern_db import search as storage
from pattern_db import vectors
from pattern_db.connection import Connection
from pattern_db.enums import EMBEDDED, SearchKind
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


@dataclass(frozen=True, slots=True)
class Meanings:
    """`nearness` by ref: 1.0 for the nearest, 0.0 for the last of those compared and all beyond. `best` is the
    greatest cosine, 0 without any.
    """

    nearness: Mapping[str, float]
    best: float


NOTHING = Meanings({}, 0.0)


def compare(connection: Connection, plan: Plan, kind: SearchKind, count: int) -> Meanings:
    """The `count` texts of `kind` (or as many as are asked for) that fit the filters and are nearest to the query.

    Nothing where there is no vector, nor for a kind that has none.
    """
    if plan.vector is None or kind not in EMBEDDED:
        return NOTHING
    # Vectors of blocks and files are under their owner and folder; who may see them is a matter of the rows.
    owned = kind in (SearchKind.MESSAGE, SearchKind.ARCHIVAL, SearchKind.SUMMARY)
    narrow = storage.is_narrow(plan.filters) or plan.filters.before is not None or kind is not SearchKind.MESSAGE
    if vectors.dimension_of(connection) != len(plan.vector) // 4:
        return NOTHING  # another model's index became the active one while the query was made a vector: words answer
    found = vectors.nearest(
        connection,
        kind,
        plan.vector,
        plan.filters.agents if owned else None,
        max(count, plan.request.limit),
        condition=storage.condition(kind, plan.filters) if narrow else None,
    )
    cosines: dict[str, float] = {}
    for neighbour in found:
        cosines[neighbour.ref] = max(cosines.get(neighbour.ref, -1.0), 1.0 - neighbour.distance)
    if not cosines:
        return NOTHING
    least, greatest = min(cosines.values()), max(cosines.values())
    span = greatest - least
    nearness = {ref: (cosine - least) / span if span > 0 else 1.0 for ref, cosine in cosines.items()}
    return Meanings(nearness, max(greatest, 0.0))
