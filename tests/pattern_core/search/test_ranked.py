from __future__ import annotations

from pattern_core.search.ranked import ranked, reason
from pattern_db.enums import SearchKind
from pattern_db.search import Row

ROW = Row(kind=SearchKind.BLOCK, row=1, ref="b", id="b", agent_id="a", content="", created_at="")


def test_the_value_is_the_sum_of_its_parts_and_never_below_zero() -> None:
    assert ranked(ROW, {"words": 0.5, "question": -0.25}).value == 0.25
    assert ranked(ROW, {"words": 0.5}, 0.5).value == 0.25
    assert ranked(ROW, {"question": -0.25}).value == 0.0


def test_the_reason_names_what_counts() -> None:
    assert reason(ranked(ROW, {"words": 0.5, "question": -0.17, "length": 0.001})) == (
        "its words fit (+0.50), it asks (-0.17)"
    )
    assert reason(ranked(ROW, {"meaning": 0.5}, 0.7)) == "near in meaning (+0.50), a tool's result (×0.7)"
