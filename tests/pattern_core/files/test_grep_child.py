from __future__ import annotations

from pattern_core.files.grep_child import answer


def test_lines_are_matched_one_by_one() -> None:
    texts = [[(3, "a beet\nno\nA bean")], [(1, "bean")]]
    assert answer("be.", texts, 10, ignore_case=False) == {
        "matches": [(0, 3, "a beet"), (0, 5, "A bean"), (1, 1, "bean")]
    }
    assert answer("^a", texts, 10, ignore_case=True) == {"matches": [(0, 3, "a beet"), (0, 5, "A bean")]}
    assert answer("be.", texts, 1, ignore_case=False) == {"matches": [(0, 3, "a beet")]}


def test_a_malformed_pattern_is_told() -> None:
    assert "error" in answer("(", [], 1, ignore_case=False)
