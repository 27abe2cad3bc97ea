from __future__ import annotations

from pattern_core.search.plan import plan, selection
from pattern_core.search.request import Mode, check
from pattern_db.enums import SearchKind
from tests.pattern_core.search.rig import asked, past

KIND = SearchKind.MESSAGE


def test_a_rare_term_weighs_more_than_a_common_one() -> None:
    rig = past()
    for _ in range(9):
        rig.say("tea")
    rig.say("assam tea")
    request = asked("tea Assam")
    found = plan(rig.connection, request, check(request), None)
    assert found.spreads[KIND] == [10, 1]
    assert found.weights[1] > 10 * found.weights[0] > 0


def test_required_and_excluded_terms_leave_rows() -> None:
    rig = past()
    for text in ("green tea", "tea green", "green tea with milk"):
        rig.say(text)
    request = asked('"green tea" -milk')
    found = plan(rig.connection, request, check(request), None)
    chosen = selection(rig.connection, found, KIND)
    assert [row for row in (1, 2, 3) if chosen.holds(row)] == [1]


def test_only_a_question_of_several_words_takes_what_stands_beside() -> None:
    rig = past()

    def takes(query: str, mode: Mode) -> bool:
        request = asked(query, mode=mode)
        return plan(rig.connection, request, check(request), None).takes_neighbours

    assert takes("green tea", Mode.HYBRID)
    assert not takes("tea", Mode.HYBRID)
    assert not takes("green tea", Mode.WORDS)
