from __future__ import annotations

from pattern_core.search.ranked import Ranked, ranked
from pattern_core.search.sessions import by_session
from pattern_db.enums import SearchKind
from pattern_db.search import Row


def said(name: str, session: str | None, value: float, *, meaning: float = 0.0, held: tuple[int, ...] = ()) -> Ranked:
    row = Row(
        kind=SearchKind.MESSAGE, row=1, ref=name, id=name, agent_id="a", content="", created_at="", session_id=session
    )
    return ranked(row, {"words": value - meaning, "meaning": meaning}, held=held)


def sessions(found: list[Ranked], *weights: float) -> list[str | None]:
    return [best.row.session_id for _, best, _ in by_session(found, weights)]


def test_one_very_good_message_beats_several_fair_ones_and_equals_are_told_apart_by_the_rest() -> None:
    found = [said("1", "best", 1.0), said("2", "rich", 0.9), said("3", "rich", 0.9), said("4", "poor", 0.9)]
    groups = by_session(found, [])
    assert [(group[1].row.session_id, group[2]) for group in groups] == [("rich", 2), ("best", 1), ("poor", 1)]
    found[0] = said("1", "best", 2.0)
    assert by_session(found, [])[0][1].row.id == "1"


def test_a_session_of_which_much_is_near_in_meaning_comes_before_one_of_which_little_is() -> None:
    best = [said("1", "a", 1.0), said("2", "b", 0.99, meaning=0.2)]
    rest = [said(str(number), "b", 0.2, meaning=0.2) for number in range(3, 9)]
    assert sessions(best) == ["b", "a"]
    assert sessions([said("1", "a", 1.0, meaning=0.2), said("2", "b", 0.99, meaning=0.2), *rest]) == ["b", "a"]
    assert sessions([said("1", "a", 1.0, meaning=0.2), said("2", "b", 0.99, meaning=0.2)]) == ["a", "b"]


def test_terms_that_stand_in_different_messages_of_a_session_count_together_and_rare_ones_more() -> None:
    both = [said("1", "a", 1.0, held=(0,)), said("2", "b", 0.99, held=(0,)), said("3", "b", 0.01, held=(1,))]
    others = [said(f"other {number}", f"other {number}", 0.1, held=(0,)) for number in range(3)]
    assert sessions([*both, *others], 1.0, 1.0)[:2] == ["b", "a"]
    assert sessions([*both, *others], 1.0, 0.0)[:2] == ["a", "b"]


def test_messages_without_a_session_stand_for_themselves() -> None:
    assert [count for _, _, count in by_session([said("1", None, 1.0), said("2", None, 0.5)], [])] == [1, 1]
    assert by_session([], []) == []
