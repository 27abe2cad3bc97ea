"""What a kind of rule is."""

from __future__ import annotations

import pytest

from pattern_core.rules.kinds import Conditional, Needed
from pattern_core.rules.rule import Asked, Moment, ToolRule, Verdict, fields_of, nothing, sentence
from pattern_core.rules.ruleset import RuleSet
from tests.pattern_core.rules.moments import after, check, rules

MOMENTS = ("objection", "narrow", "lack", "ends", "needs_order", "in_words")
SILENT = dict.fromkeys(MOMENTS, nothing)


def test_a_new_kind_is_enforced_and_explained() -> None:
    class OnlyAtStep(ToolRule):
        name = "only_at_step"
        narrow = lack = ends = needs_order = nothing
        in_words = sentence("Call {tool} at step 2 only.")

        def objection(self, call: Asked, moment: Moment) -> Verdict | None:
            return None if moment.step == 2 else self.refuse("it is not step 2.")

    given = RuleSet((OnlyAtStep(tool="a", message="Sorry."),))
    assert check(given, after(step=1), Asked(tool="a")).text == "it is not step 2. Sorry."
    assert (
        check(given, after(step=2), Asked(tool="a")).kind == check(given, after(step=1), Asked(tool="b")).kind == "run"
    )
    assert given.lines == ("Call `a` at step 2 only. Sorry.",)
    assert given.to_json() == [{"tool": "a", "type": "only_at_step", "message": "Sorry."}]


@pytest.mark.parametrize("left_out", ["name", *MOMENTS])
def test_a_kind_that_leaves_something_out_cannot_be_defined(left_out: str) -> None:
    body = {"name": "forgetful", **SILENT}
    type("Forgetful", (ToolRule,), body)
    del body[left_out]
    with pytest.raises(TypeError, match=f"Forgetful does not define {left_out}"):
        type("Forgetful", (ToolRule,), body)


def test_the_fields_of_a_kind_are_those_that_it_declares() -> None:
    fields = fields_of(Conditional)
    assert {name: (one.form, one.is_required) for name, one in fields.items()} == {
        "outputs": ("outputs", True),
        "default": ("name", False),
        "strict": ("yes_no", False),
    }
    assert fields["default"].aliases == ("default_child",)
    assert fields_of(Needed) == {}


def test_rules_are_judged_by_rank() -> None:
    given = rules(
        *({"tool": tool, "type": "max_calls", "count": number} for number, tool in enumerate(["*", "a*", "ab", "c"])),
        {"tool": "*", "type": "max_calls", "count": 9, "priority": 6},
        {"tool": "a", "type": "max_calls", "count": 8, "priority": 0},
    )
    assert [rule.to_json()["count"] for rule in given.ordered] == [9, 2, 3, 1, 0, 8]
