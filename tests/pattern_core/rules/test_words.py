"""The rules in words."""

from __future__ import annotations

from typing import Any

import pytest

from pattern_core.rules import words
from pattern_core.rules.kinds import KINDS
from tests.pattern_core.rules.moments import rules
from tests.pattern_core.rules.test_reading import OURS

LINES = [
    "Call any tool named like `a*` only before `b`, not after.",
    "After `a` your turn goes on.",
    "In every turn call `a` or `b` first, before any other tool. First.",
    "Call `a` before you end a turn.",
    "Call `a` before you end a turn if `b` did not run.",
    "Call `a` only after `b`, `web_*` succeeded in the same turn.",
    "Directly after `a` call one of `b`, `c`.",
    "Call `b` only directly after `a`, and after it nothing else.",
    "What `a` returns decides what you call next: “yes” to `b`, anything else to `c`.",
    "Between two uses of `a` 0.5 seconds must pass.",
    "Call `a` every 1 hour; you are told when it is due.",
    "A person must agree to each call of `a` (mail); you wait for the answer.",
    "With `a` you may only do: read.",
    "`a` must stay available: other parts rely on it.",
    "In one turn use only one tool of each of these groups: `a`, `b`; `c`, `d`.",
    "Call any tool together at most 0 times in a turn.",
    "After any tool succeeded your turn ends, and calls that you put behind it are not run.",
]


def test_every_rule_has_a_line_in_the_order_of_judging() -> None:
    assert words(rules(*OURS)) == LINES


@pytest.mark.parametrize("rule", OURS, ids=lambda rule: str(rule["type"]))
def test_a_line_names_its_tool(rule: dict[str, Any]) -> None:
    [line] = words(rules(rule))
    assert f"`{rule['tool']}`" in line or rule["tool"] == "*"
    assert {one["type"] for one in OURS} == set(KINDS)


def test_a_group_rule_may_concern_one_tool_and_equal_lines_are_said_once() -> None:
    group = {"tool": "a", "type": "exclusive_groups", "groups": [["a", "b"]]}
    assert words(rules(group, group)) == [
        "In one turn use only one tool of each of these groups (this concerns `a`): `a`, `b`."
    ]
