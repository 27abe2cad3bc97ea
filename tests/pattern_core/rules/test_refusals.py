"""All reasons why a call may not run; the single rules are tested in test_check.py."""

from __future__ import annotations

from pattern_core.rules.reading import name_of
from pattern_core.rules.refusals import Asked, refusals
from tests.pattern_core.rules.moments import after, ran, rules


def test_every_rule_that_refuses_says_so_in_order() -> None:
    given = rules(
        {"tool": "*", "type": "max_calls", "count": 1},
        {"tool": "b", "type": "requires_preceding", "tools": ["c"]},
        {"tool": "d", "type": "parent", "children": ["b"], "priority": 9},
        {"tool": "a", "type": "max_calls", "count": 0},
    )
    found = [(name_of(rule), text) for rule, text in refusals(given, after(ran("a")), Asked(tool="b"))]
    assert found == [
        ("parent", "it may be called only directly after `d`."),
        ("requires_preceding", "`c` must run first."),
        ("max_calls", "tools run at most once in a turn."),
    ]
