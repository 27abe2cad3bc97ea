from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pattern_core.models.embedded.blocks import SeenBlock, change_line, cut_lines, home_of, seen_blocks, without_blocks
from tests.pattern_core.memory.rig import shown_block


def rendered(label: str, content: str, permission: str = "read_write", limit: int = 100) -> str:
    return shown_block(label=label, permission=permission, content=content, char_limit=limit, description='a <"b">')


def test_blocks_are_read_as_they_are_rendered() -> None:
    system = ["Be kind.", rendered("human", "one\n\ntwo\n"), rendered("a b", "", "read_only"), "Guide."]
    human, other = seen_blocks(system)
    assert human == SeenBlock(label="human", permission="read_write", content="one\n\ntwo\n", room=91)
    assert human.lines == ["one", "two"]
    assert (human.may_append, human.may_rewrite) == (True, True)
    assert (other.label, other.content, other.may_append, other.room) == ("a b", "", False, 100)
    assert without_blocks(system) == "Be kind.\n\nGuide."
    assert seen_blocks(["<block:x>no attributes</block:x>", ""]) == []


def block(label: str, permission: str = "read_write", room: int | None = None) -> SeenBlock:
    return SeenBlock(label=label, permission=permission, content="", room=room)


@pytest.mark.parametrize(
    ("blocks", "label"),
    [
        ([block("persona"), block("notes"), block("human")], "human"),
        ([block("persona"), block("notes"), block("human", "read_only")], "notes"),
        ([block("notes", "append"), block("human", room=4)], "notes"),
        ([block("human", "human"), block("notes", "append")], "notes"),
        ([block("notes", "read_only"), block("family", "partner")], "family"),
        ([block("persona")], None),
        ([], None),
    ],
)
def test_where_a_fact_belongs(blocks: list[SeenBlock], label: str | None) -> None:
    home = home_of("fact", blocks)
    assert (home.label if home else None) == label


def applied(content: str, old: str, new: str, mode: str) -> str:
    """What the tool block_edit does with op "replace"."""
    if mode == "first":
        assert old in content
        return content.replace(old, new, 1)
    number, _, words = old.partition(": ")
    at = -1
    for _ in range(int(number)):
        at = content.index(words, at + 1 if at < 0 else at + len(words))
    return content[:at] + new + content[at + len(words) :]


lines = st.lists(st.sampled_from(["tea", "green tea", "tea party", "a", "aa", "1: a", ""]), min_size=1, max_size=6)


@given(lines, st.data())
def test_exactly_one_line_is_changed(content_lines: list[str], data: st.DataObject) -> None:
    line = data.draw(st.sampled_from(content_lines))
    assume(line)
    content = "\n".join(content_lines)
    at = content_lines.index(line)
    edit = change_line(content, line, "new")
    expected = [*content_lines[:at], "new", *content_lines[at + 1 :]]
    assert applied(content, edit.old, edit.new, edit.mode) == "\n".join(expected)


@given(lines, st.data())
def test_exactly_these_lines_are_cut(content_lines: list[str], data: st.DataObject) -> None:
    unwanted = [line for line in data.draw(st.lists(st.sampled_from(content_lines), min_size=1, max_size=3)) if line]
    assume(unwanted)
    content = "\n".join(content_lines)
    edit = cut_lines(content, unwanted)
    expected = list(content_lines)
    for line in dict.fromkeys(unwanted):
        expected.remove(line)
    assert applied(content, edit.old, edit.new, edit.mode) == "\n".join(expected)


def test_a_line_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="not in list"):
        change_line("green tea", "tea", "")
    with pytest.raises(ValueError, match="not in list"):
        cut_lines("green tea", ["tea"])
