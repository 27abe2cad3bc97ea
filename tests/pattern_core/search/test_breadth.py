from __future__ import annotations

from pattern_core.search.breadth import FULL, QUICK, SESSIONS, breadth
from pattern_core.search.request import GroupBy
from tests.pattern_core.search.rig import asked


def test_a_request_tells_how_much_is_looked_at() -> None:
    assert breadth(asked("tea")) is FULL
    assert breadth(asked("tea", group_by=GroupBy.SESSION)) is SESSIONS
    assert breadth(asked("tea", is_quick=True)) is QUICK


def test_only_the_quick_one_is_bounded() -> None:
    assert (FULL.is_bounded, SESSIONS.is_bounded, QUICK.is_bounded) == (False, False, True)
    assert QUICK.together < FULL.together
