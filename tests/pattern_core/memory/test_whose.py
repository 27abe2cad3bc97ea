from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pattern_core.memory.changes import applied, change_to
from pattern_core.memory.document import Change, Splice, Spliced, State
from pattern_core.memory.history import LineOrigin, lines_by, lines_by_rendering


def by_character(texts: list[str], changes: list[Change]) -> list[LineOrigin]:
    """The plain way: carry each character's version along from the beginning."""
    versions = [0] * len(texts[0])
    for seq, change in enumerate(changes, 1):
        part = change.get("content")
        if not isinstance(part, Spliced):
            continue
        after: list[int] = []
        at = 0
        for one in part.splices:
            after += versions[at : at + one.skip] + [seq] * len(one.added)
            at += one.skip + len(one.removed)
        versions = after + versions[at:]
    found, at = [], 0
    for line in texts[-1].splitlines(keepends=True):
        found.append(LineOrigin(line.splitlines()[0], max(versions[at : at + len(line)])))
        at += len(line)
    return found


@given(st.lists(st.text(alphabet="ab\n🌍", max_size=12), min_size=1, max_size=8))
def test_lines_belong_to_the_newest_version_that_wrote_any_of_them(texts: list[str]) -> None:
    changes = [
        change_to({"content": before} if before else {}, {"content": after} if after else {})
        for before, after in pairwise(texts)
    ]
    past = list(enumerate(changes, 1))[::-1]
    assert lines_by(texts[-1], past, len(changes)) == by_character(texts, changes)


def test_only_as_much_of_the_past_is_read_as_is_needed() -> None:
    read: list[int] = []

    def past() -> Iterator[tuple[int, Change]]:
        for seq in (9, 8, 7):
            read.append(seq)
            yield seq, {"content": Spliced(True, (Splice(0, "old", "new\n"),))}

    assert lines_by("new\n", past(), 9) == [LineOrigin("new", 9)]
    assert read == [9]


def test_what_is_older_than_the_known_past_is_uncertain() -> None:
    change: Change = {"content": Spliced(True, (Splice(4, "", "two\n"),))}
    assert lines_by("one\ntwo\n", [(5, change)], 5) == [LineOrigin("one", 4, False), LineOrigin("two", 5)]
    assert lines_by("one\n", [], 7) == [LineOrigin("one", 7, False)]
    assert lines_by("one\n", [], 0) == [LineOrigin("one", 0)]
    assert lines_by("", [], 3) == []


def test_other_documents_are_blamed_by_their_rendering() -> None:
    states: list[State] = [
        {},
        {"items": ["a", "b"]},
        {"items": ["a", "x", "b"]},
        {"items": ["a", "x", "b"], "counter_n": 1},
    ]
    past = [(seq, change_to(states[seq - 1], states[seq])) for seq in (3, 2, 1)]
    assert applied(states[2], past[0][1]) == states[3]

    def plain(state: State) -> str:
        return "\n".join(state.get("items", []))

    assert lines_by_rendering(states[3], past, 3, plain) == [LineOrigin("a", 1), LineOrigin("x", 2), LineOrigin("b", 1)]
    assert lines_by_rendering(states[3], past[:2], 3, plain)[0] == LineOrigin("a", 1, False)
