from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_core.search.postings import FEW, Few, Many, bits, gather, is_numpy_there

TERMS = st.lists(st.lists(st.integers(1, 30), unique=True), min_size=1, max_size=5)


@given(
    terms=TERMS,
    weights=st.lists(st.sampled_from([0.0, 0.1, 0.7, 2.0]), min_size=5, max_size=5),
    most=st.integers(1, 12),
    apart=st.sampled_from([1, 1_000]),
)
@settings(max_examples=60, deadline=None)
def test_both_ways_find_the_same(terms: list[list[int]], weights: list[float], most: int, apart: int) -> None:
    terms = [[apart * row for row in rows] for rows in terms]
    few = Few(list(enumerate(terms)))
    many = Many([(number, json.dumps(rows)) for number, rows in enumerate(terms)])
    values = {row: sum([weights[n] for n, rows in enumerate(terms) if row in rows]) for rows in terms for row in rows}
    expected = sorted(values, key=lambda row: (-values[row], -row))[:most]
    assert few.best(weights, most) == many.best(weights, most) == expected
    masks = {row: sum(1 << n for n, rows in enumerate(terms) if row in rows) for row in values}
    looked = [*range(40), *(apart * row for row in range(40))]
    assert few.masks(looked) == many.masks(looked) == masks


def test_sixty_four_terms_are_told_apart() -> None:
    posted = [(number, json.dumps([number + 1])) for number in range(64)]
    for one in (Many(posted), Few([(number, json.loads(text)) for number, text in posted])):
        assert one.masks([1, 64, 65]) == {1: 1, 64: 1 << 63}
    assert bits(1 << 63 | 1) == (0, 63)


def test_nothing_is_found_in_nothing() -> None:
    for one in (gather([]), gather([(0, "[]")]), Many([]), Many([(0, "[]")])):
        assert one.best([1.0], 5) == []
        assert one.masks([1, 2]) == {}


def test_numpy_is_for_many_alone() -> None:
    assert is_numpy_there()
    assert isinstance(gather([(0, json.dumps(list(range(1, FEW + 10))))]), Many)
    assert isinstance(gather([(0, "[1,2]")]), Few)
