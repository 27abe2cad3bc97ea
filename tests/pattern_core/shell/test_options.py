from __future__ import annotations

import pytest

from pattern_core.shell.options import after_options, has_option, operands
from pattern_core.shell.script import UNCERTAIN, Word, word


def words(line: str) -> list[Word]:
    return [UNCERTAIN if part == "?" else word(part) for part in line.split()]


@pytest.mark.parametrize("line", ["-o a", "-uo a", "--output=a", "--output a", "--outp=a", "a -o", "?"])
def test_an_option_is_found(line: str) -> None:
    assert has_option(words(line), ("o", "output"))


@pytest.mark.parametrize("line", ["a", "-u", "--unique", "-- -o", "-- ?", "-"])
def test_an_option_is_not_there(line: str) -> None:
    assert not has_option(words(line), ("o", "output"))


def test_operands() -> None:
    assert [one.shown for one in operands(words("-r a -- -b ?"))] == ["a", "-b", "…"]


def test_what_follows_the_options() -> None:
    def rest(line: str) -> list[str] | None:
        found = after_options(words(line), ("-n", "--num"), ("-v",))
        return None if found is None else [one.shown for one in found]

    assert rest("-n 5 ls -l") == ["ls", "-l"]
    assert rest("-v -- ls") == ["ls"]
    assert rest("-v") == []
    assert rest("-n5 --num=5 ls") == ["ls"]
    assert rest("-v ? ls") is None
    assert rest("-x ls") is None  # it may take a value, and then another word is the command
