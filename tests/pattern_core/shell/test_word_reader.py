from __future__ import annotations

from pattern_core.shell.parse import parse
from pattern_core.shell.script import Word


def words(line: str) -> list[Word]:
    [command] = parse(line).commands
    return list(command.words[1:])


def test_what_is_known_of_words() -> None:
    assert [one.text for one in words("a 'b c' \"d\\\"e\" f\\ g 1 $'h\\n' i'j'\"k\"")] == [
        "b c",
        'd"e',
        "f g",
        "1",
        "h\n",
        "ijk",
    ]


def test_what_words_surely_begin_with() -> None:
    found = words('a "b$x" $x "$x" "$@" c$x "-$x" {d,e} *.f g/*.h')
    assert [(one.text, one.start, one.is_one) for one in found] == [
        (None, "b", True),
        (None, "", False),
        (None, "", True),
        (None, "", False),
        (None, "c", False),
        (None, "-", True),
        (None, "", False),
        (None, "", False),
        (None, "g/", True),
    ]


def test_values_and_what_is_computed() -> None:
    script = parse("x=$((1 + 2)) y=(1 2) z=(1 a); echo $((x + y))")
    assert [(one.name, one.is_number) for one in script.assignments] == [("x", True), ("y", True), ("z", False)]
    assert script.doubts == []
    assert parse("z=a; echo $((z))").doubts == ["it computes with z, whose value may hold a command"]
