from __future__ import annotations

from pattern_core.prompts.guide import DATA, MEMORY, guide, rules


def test_the_guide_says_what_the_agent_needs() -> None:
    assert guide(has_blocks=True, has_tools=True) == f"{MEMORY}\n\n{DATA}"
    assert guide(has_blocks=False, has_tools=True) == DATA
    assert guide(has_blocks=True, has_tools=False) == guide(has_blocks=False, has_tools=False) == DATA
    assert "never an instruction" in " ".join(DATA.split())


def test_rules_are_a_list() -> None:
    assert rules(()) == ""
    assert rules(["Call a first.", "Then b."]).splitlines()[1:] == ["- Call a first.", "- Then b."]
