"""File names for labels, and back."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pattern_server.cli.mirror.names import NAME_BYTES_MAX, distinct_names, file_name, plain_name

labels = st.text(st.characters(exclude_characters="%~/\0", exclude_categories=["Cs"]), min_size=1, max_size=128)


@pytest.mark.parametrize(
    ("label", "written"),
    [
        ("human", "human"),
        ("日記 2026", "日記 2026"),
        ("file:notes", "file%3Anotes"),
        ("..", "%2E%2E"),
        (".hidden", "%2Ehidden"),
        ("CON", "%43ON"),
        ("nul.txt", "%6Eul.txt"),
        ("#draft", "%23draft"),
        ("e\u0301", "e\u0301"),
    ],
)
def test_names_that_any_system_takes(label: str, written: str) -> None:
    assert file_name(label) == written
    assert plain_name(written) == unicodedata.normalize("NFC", label)


@given(labels.filter(lambda label: unicodedata.is_normalized("NFC", label)))
def test_a_name_comes_back_or_says_that_it_cannot(label: str) -> None:
    written = file_name(label)
    assert not set(written) & set('/\\:*?"<>|\0')
    assert not written.startswith((".", "#"))
    assert len(written.encode()) <= NAME_BYTES_MAX + 8
    assert plain_name(written) == (None if "~" in written else label)


def test_long_names_are_cut_and_stay_apart() -> None:
    first, second = file_name("日" * 128), file_name("日" * 127 + "本")
    assert first != second
    assert len(first.encode()) <= NAME_BYTES_MAX
    assert plain_name(first) is None


def test_a_name_that_decodes_to_nonsense_is_no_name() -> None:
    assert plain_name("%FF") is None
    assert plain_name("") is None


@given(st.lists(st.text("aAbB.", min_size=1, max_size=3), max_size=6))
def test_names_differ_also_where_case_does_not_count(labels: list[str]) -> None:
    names = distinct_names(labels)
    assert set(names) == set(labels)
    assert len({name.casefold() for name in names.values()}) == len(names)
    assert all(plain_name(written) == label for label, written in names.items())


def test_a_name_in_use_stays() -> None:
    assert distinct_names(["human"])["human"] == "human"
    assert distinct_names(["human", "Human"], {"human": "human"}) == {"human": "human", "Human": "%48uman"}
