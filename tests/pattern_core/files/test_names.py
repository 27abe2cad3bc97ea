from __future__ import annotations

import pytest

from pattern_core.errors import InvalidInput
from pattern_core.files.names import DEPTH_MAX, check_name, is_left_out


@pytest.mark.parametrize("name", ["a.md", "notes/garden plan.md", "ä/日本語.txt", "a..b/c...d", "C++/x"])
def test_paths_within_a_folder_are_names(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/etc/passwd",
        "..",
        "../secret",
        "a/../../b",
        "a/./b",
        "a//b",
        "a/",
        ".env",
        "a/.git/config",
        "a\\..\\b",
        "a\0b",
        "a\nb",
        "\ud800",
        "x" * 256,
        "ä" * 128,
        "x/" * 300 + "x",
        "d/" * DEPTH_MAX + "f",
    ],
)
def test_nothing_else_is(name: str) -> None:
    with pytest.raises(InvalidInput):
        check_name(name)


def test_names_are_composed() -> None:
    assert check_name("Gru\u0308n.md") == "Grün.md"


def test_what_programs_leave_is_passed_over() -> None:
    assert is_left_out(".git", is_directory=True)
    assert is_left_out("node_modules", is_directory=True)
    assert not is_left_out("node_modules", is_directory=False)
    assert is_left_out("a.pyc", is_directory=False)
    assert not is_left_out("garden.md", is_directory=False)
