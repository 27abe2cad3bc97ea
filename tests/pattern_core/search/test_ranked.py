from __future__ import annotations

from typing import Any

from pattern_core.embeddings.providers.deterministic import hashed_words
from pattern_core.search.plan import plan
from pattern_core.search.ranked import NOTHING, Meanings, compare, ranked
from pattern_core.search.request import check
from pattern_db.enums import SearchKind
from pattern_db.search import Row
from tests.pattern_core.memory.rig import ADA, BOB
from tests.pattern_core.search.rig import DIMENSION, Past, asked, past

ROW = Row(kind=SearchKind.BLOCK, row=1, ref="b", id="b", agent_id="a", content="", created_at="")


def test_the_value_is_the_sum_of_its_parts_and_never_below_zero() -> None:
    assert ranked(ROW, {"words": 0.5, "question": -0.25}).value == 0.25
    assert ranked(ROW, {"words": 0.5}, 0.5).value == 0.25
    assert ranked(ROW, {"question": -0.25}).value == 0.0


def compared(rig: Past, meant: str | None, dimension: int = DIMENSION, **fields: Any) -> Meanings:
    request = asked("anything", **fields)
    vector = None if meant is None else hashed_words(meant, dimension)
    return compare(rig.connection, plan(rig.connection, request, check(request), vector), SearchKind.MESSAGE, 10)


def test_nearness_goes_from_the_last_to_the_nearest() -> None:
    rig = past()
    for text in ("boat trip", "boat", "mountain"):
        rig.embed(SearchKind.MESSAGE, rig.say(text), text)
    found = compared(rig, "boat trip")
    assert found.nearness["1"] == 1.0
    assert 0 < found.nearness["2"] < 1
    assert found.nearness["3"] == 0.0
    assert 0.99 < found.best < 1.01


def test_without_a_vector_or_with_another_models_there_is_nothing() -> None:
    rig = past()
    rig.embed(SearchKind.MESSAGE, rig.say("boat"), "boat")
    assert compared(rig, None) == NOTHING
    assert compared(rig, "boat", dimension=DIMENSION // 2) == NOTHING


def test_filters_hold() -> None:
    rig = past()
    rig.embed(SearchKind.MESSAGE, rig.say("boat", session="a"), "boat")
    rig.embed(SearchKind.MESSAGE, rig.say("boat", session="b"), "boat")
    assert set(compared(rig, "boat", sessions=["b"]).nearness) == {"2"}
    assert set(compared(rig, "boat", agents=[ADA]).nearness) == {"1", "2"}
    assert compared(rig, "boat", agents=[BOB]) == NOTHING
