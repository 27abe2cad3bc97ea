"""The arm of a search that compares meanings: nearest vectors, and how near they are among themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pattern_core.search.plan import Plan
from pattern_db import search as storage
from pattern_db import vectors
from pattern_db.connection import Connection
from pattern_db.enums import EMBEDDED, SearchKind


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
