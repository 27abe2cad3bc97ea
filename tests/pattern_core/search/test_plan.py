from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_core.search import plan as planning
from pattern_core.search.plan import (
    FULL,
    NOTHING,
    QUICK,
    SESSIONS,
    Breadth,
    Meanings,
    Ranked,
    breadth,
    candidates,
    compare,
    selection,
)
from pattern_core.search.postings import FEW, Few, Many, bits, gather
from pattern_core.search.request import GroupBy, Mode
from pattern_db.connection import Connection
from pattern_db.enums import SearchKind
from pattern_db.search import Row
from tests.pattern_core.memory.rig import ADA, BOB
from tests.pattern_core.search.rig import Past, asked
from tests.pattern_core.texts import DIMENSION

KIND = SearchKind.MESSAGE


def test_a_rare_term_weighs_more_than_a_common_one() -> None:
    rig = Past()
    for _ in range(9):
        rig.say("tea")
    rig.say("assam tea")
    found = rig.plan("tea Assam")
    assert found.spreads[KIND] == [10, 1]
    assert found.weights[1] > 10 * found.weights[0] > 0


@pytest.mark.parametrize(
    ("query", "mode", "takes"),
    [("green tea", Mode.HYBRID, True), ("tea", Mode.HYBRID, False), ("a b", Mode.WORDS, False)],
)
def test_only_a_question_of_several_words_takes_what_stands_beside(query: str, mode: Mode, takes: bool) -> None:
    assert Past().plan(query, mode=mode).takes_neighbours == takes


@pytest.mark.parametrize(
    ("query", "fields", "expected"),
    [
        ("tea", {}, FULL),
        ("tea", {"group_by": GroupBy.SESSION}, SESSIONS),
        ("tea", {"is_quick": True}, QUICK),
        ("tea -milk", {"is_quick": True}, QUICK),
    ],
)
def test_the_request_tells_how_much_is_looked_at(query: str, fields: dict[str, Any], expected: Breadth) -> None:
    assert breadth(asked(query, **fields)) is expected
    assert expected.is_bounded == (expected is QUICK)


def chosen(rig: Past, query: str, count: int, **fields: Any) -> list[str]:
    planned = rig.plan(query, is_quick=True, **fields)
    _postings, rows = candidates(rig.db, planned, KIND, count, selection(rig.db, planned, KIND))
    return [row.id for row in rows.values()]


def steps_of(connection: Connection, act: Callable[[], object]) -> int:
    """About how many instructions SQLite took for it."""
    count = 0

    def counted() -> bool:
        nonlocal count
        count += 1
        return False

    connection.set_progress_handler(counted, 10)
    act()
    connection.set_progress_handler(None)
    return count * 10


def test_what_holds_the_most_telling_words_comes_first_then_the_newest() -> None:
    rig = Past()
    rare = rig.say("tea from Assam")
    common = [rig.say(f"tea number {number}") for number in range(5)]
    assert chosen(rig, "Assam tea", 3) == [rare, common[4], common[3]]


def test_filters_are_asked_until_enough_fit_or_the_bound_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Past()
    own = [rig.say("green tea", session="mine") for _ in range(3)]
    for number in range(60):
        rig.say("green tea", session=f"other {number}")
    assert chosen(rig, "green tea", 2, sessions=["mine"]) == [own[2], own[1]]
    assert chosen(rig, "green tea", 2, before=f"{3:019}") == [own[1], own[0]], "what the prompt shows is left out"
    for most, found in ((50, []), (70, [own[2], own[1]])):
        monkeypatch.setattr(planning, "FITTED_MAX", most)
        assert chosen(rig, "green tea", 2, sessions=["mine"]) == found


def test_what_fits_is_read_by_itself_where_the_newest_rows_hold_too_little_of_it() -> None:
    rig = Past()
    own = [rig.say("green tea", session="mine") for _ in range(3)]
    for number in range(60):
        rig.say("green tea", session=f"other {number}")
    planned = replace(rig.plan("green tea", sessions=["mine"]), breadth=replace(FULL, posted=20))
    _postings, rows = candidates(rig.db, planned, KIND, 2, selection(rig.db, planned, KIND))
    assert [row.id for row in rows.values()] == [own[2], own[1]]


def test_of_words_that_many_hold_the_newest_rows_are_read_and_the_rare_ones_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Past()
    both = rig.say("tea from Assam")
    for _ in range(40):
        rig.say("tea")
    monkeypatch.setattr(planning, "QUICK", replace(planning.QUICK, posted=10))
    assert rig.plan("Assam tea", is_quick=True).spreads[KIND] == [1, 41], "the newest rows show how common a word is"
    assert chosen(rig, "Assam tea", 30)[0] == both
    assert len(chosen(rig, "Assam tea", 30)) == 11


def test_the_work_does_not_grow_with_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "QUICK", replace(planning.QUICK, posted=40, together=100))
    rig = Past()

    def look(*, is_quick: bool = True) -> None:
        assert len(rig.find("green tea with milk please", is_quick=is_quick, limit=5)) == 5

    def fill(count: int) -> None:
        for number in range(count):
            rig.say(f"green tea with milk please {number % 7}", session=f"s{number // 10}")
            rig.entry(f"entry {rig.count}", f"green tea with milk please {number % 7}")

    fill(150)
    few = steps_of(rig.db, look)
    fill(1_350)
    many = steps_of(rig.db, look)
    assert many < 1.5 * few
    assert steps_of(rig.db, lambda: look(is_quick=False)) > 3 * many


def test_a_quick_look_finds_entries_by_their_words() -> None:
    rig = Past()
    rig.entry("long", "the greenhouse keys hang behind the clock " + "and much more was said " * 40)
    rig.entry("short", "the greenhouse keys hang behind the clock")
    rig.entry("other", "the keys of the car")
    found = rig.find("greenhouse keys", is_quick=True, kinds=[SearchKind.ARCHIVAL])
    assert found == ["short", "long", "other"]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("green tea", {"1", "2"}),
        ("C++ tea", {"1", "2"}),
        ("猫 が 好き", {"3"}),
        ("?!", set()),
        ('"', set()),
        ("NEAR(", set()),
        ("NEAR(milk", {"2"}),
        ("milk* AND (*", {"2"}),
        ('content:"milk', {"2"}),
    ],
)
def test_a_quick_search_finds_what_any_other_finds(query: str, found: set[str]) -> None:
    """But `C++`, which no index answers, and it takes a minus for a dash."""
    rig = Past()
    for text in ("green tea", "tea with milk", "C++ code 猫が好き", "vitamin C"):
        rig.say(text, session=text)  # of its own, so that none is found for what stands beside it
    assert set(rig.find(query, is_quick=True)) == found
    assert set(rig.find(query)) == found | ({"3"} if "C++" in query else set())
    assert set(rig.find(f"{query} -xyz", is_quick=True)) == found
    assert rig.find("tea -milk") == ["1"]
    assert set(rig.find("tea -milk", is_quick=True)) == {"1", "2"}


ROW = Row(kind=SearchKind.BLOCK, row=1, ref="b", id="b", agent_id="a", content="", created_at="")


def test_the_value_is_the_sum_of_its_parts_and_never_below_zero() -> None:
    assert Ranked(row=ROW, parts={"words": 0.5, "question": -0.25}).value == 0.25
    assert Ranked(row=ROW, parts={"words": 0.5}, factor=0.5).value == 0.25
    assert Ranked(row=ROW, parts={"question": -0.25}).value == 0.0


def compared(rig: Past, meant: str | None, dimension: int = DIMENSION, **fields: Any) -> Meanings:
    return compare(rig.db, rig.plan("anything", meant, dimension=dimension, **fields), KIND, 10)


def test_nearness_goes_from_the_last_to_the_nearest() -> None:
    rig = Past()
    for text in ("boat trip", "boat", "mountain"):
        rig.embed(SearchKind.MESSAGE, rig.say(text), text)
    found = compared(rig, "boat trip")
    assert found.nearness["1"] == 1.0
    assert 0 < found.nearness["2"] < 1
    assert found.nearness["3"] == 0.0
    assert 0.99 < found.best < 1.01


def test_without_a_vector_or_with_another_models_there_is_nothing() -> None:
    rig = Past()
    rig.embed(SearchKind.MESSAGE, rig.say("boat"), "boat")
    assert compared(rig, None) == NOTHING
    assert compared(rig, "boat", dimension=DIMENSION // 2) == NOTHING


def test_filters_hold() -> None:
    rig = Past()
    rig.embed(SearchKind.MESSAGE, rig.say("boat", session="a"), "boat")
    rig.embed(SearchKind.MESSAGE, rig.say("boat", session="b"), "boat")
    assert set(compared(rig, "boat", sessions=["b"]).nearness) == {"2"}
    assert set(compared(rig, "boat", agents=[ADA]).nearness) == {"1", "2"}
    assert compared(rig, "boat", agents=[BOB]) == NOTHING


@given(
    terms=st.lists(st.lists(st.integers(1, 30), unique=True), max_size=5),
    weights=st.lists(st.sampled_from([0.0, 0.1, 0.7, 2.0]), min_size=5, max_size=5),
    most=st.integers(1, 12),
)
@settings(max_examples=60, deadline=None)
def test_both_ways_find_the_same(terms: list[list[int]], weights: list[float], most: int) -> None:
    posted = [(number, json.dumps(rows)) for number, rows in enumerate(terms)]
    values = {row: sum([weights[n] for n, rows in enumerate(terms) if row in rows]) for rows in terms for row in rows}
    expected = sorted(values, key=lambda row: (-values[row], -row))[:most]
    masks = {row: sum(1 << n for n, rows in enumerate(terms) if row in rows) for row in values}
    for one in (Few(posted), Many(posted)):
        assert one.best(weights, most) == expected
        assert one.masks(range(40)) == masks


def test_sixty_four_terms_are_distinct() -> None:
    posted = [(number, json.dumps([number + 1])) for number in range(64)]
    for one in (Many(posted), Few(posted)):
        assert one.masks([1, 64, 65]) == {1: 1, 64: 1 << 63}
    assert bits(1 << 63 | 1) == (0, 63)


def test_numpy_is_for_many_alone() -> None:
    assert isinstance(gather([(0, json.dumps(list(range(1, FEW + 10))))]), Many)
    assert isinstance(gather([(0, "[1,2]")]), Few)
