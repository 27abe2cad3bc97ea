from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pattern_core.memory.changes import applied, change_to
from pattern_core.memory.document import Change, Splice, Spliced, State
from pattern_core.memory.history import line_versions


def text_of(state: State) -> str:
    return str(state.get("content", ""))


@given(st.lists(st.text(alphabet="ab\n🌍", max_size=12), min_size=1, max_size=8))
def test_a_line_is_there_since_the_version_that_made_it(texts: list[str]) -> None:
    states: list[State] = [{"content": text} if text else {} for text in texts]
    changes = [change_to(before, after) for before, after in pairwise(states)]
    found = line_versions(states[-1], list(enumerate(changes, 1))[::-1], len(changes), text_of)
    for line, (version, is_certain) in zip(texts[-1].splitlines(), found, strict=True):
        assert is_certain
        assert all(line in text.splitlines() for text in texts[version:])
        if texts[-1].splitlines().count(line) == 1 and version:  # else any of those that are the same
            before = texts[version - 1].splitlines()
            assert line not in before or before != texts[version].splitlines()


def test_a_line_of_which_something_went_is_another_line() -> None:
    texts = ["one\ntwo and more\n", "one\ntwo\n"]
    change = change_to({"content": texts[0]}, {"content": texts[1]})
    assert line_versions({"content": texts[1]}, [(1, change)], 1, text_of) == [(0, True), (1, True)]


def test_only_as_much_of_the_past_is_read_as_is_needed() -> None:
    read: list[int] = []

    def past() -> Iterator[tuple[int, Change]]:
        for seq in (9, 8, 7):
            read.append(seq)
            yield seq, {"content": Spliced(True, (Splice(0, "old", "new\n"),))}

    assert line_versions({"content": "new\n"}, past(), 9, text_of) == [(9, True)]
    assert read == [9]


def test_what_is_older_than_the_known_past_is_uncertain() -> None:
    change: Change = {"content": Spliced(True, (Splice(4, "", "two\n"),))}
    assert line_versions({"content": "one\ntwo\n"}, [(5, change)], 5, text_of) == [(4, False), (5, True)]
    assert line_versions({"content": "one\n"}, [], 7, text_of) == [(7, False)]
    assert line_versions({"content": "one\n"}, [], 0, text_of) == [(0, True)]
    assert line_versions({}, [], 3, text_of) == []


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

    assert line_versions(states[3], past, 3, plain) == [(1, True), (2, True), (1, True)]
    assert line_versions(states[3], past[:2], 3, plain)[0] == (1, False)
