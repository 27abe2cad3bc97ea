from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pattern_core.shell.parse import COMMAND_CHARS_MAX, parse
from pattern_core.shell.script import Stdin


def commands(line: str) -> list[str]:
    return [one.shown for one in parse(line).commands]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a | b && c; d & e", ["a", "b", "c", "d", "e"]),
        ("a\nb", ["a", "b"]),
        ("$(a) b", ["a", "… b"]),
        ('echo `a` "$(b "$(c)")"', ["a", "c", "b …", "echo … …"]),
        ("if a; then b; elif c; then d; else e; fi", ["a", "b", "c", "d", "e"]),
        ("case $x in a) b;; *) c;; esac", ["b", "c"]),
        ("while a; do b; done", ["a", "b"]),
        ("until a; do b; done", ["a", "b"]),
        ("for i in $(a); do b; done", ["a", "b"]),
        ("f() { a; }; function g { b; }; h() (c)", ["a", "b", "c"]),
        ("(a; { b; }) > f", ["a", "b"]),
        ("! a", ["a"]),
        ("a <(b) >(c)", ["b", "c", "a /dev/fd/63 /dev/fd/63"]),
        ("cat <<E\n$(a)\nE", ["a", "cat"]),
        ("cat <<'E'\n$(a)\nE", ["cat"]),
        ('cat <<< "$(a)"', ["a", "cat"]),
        ("x=$(a)", ["a"]),
        ("x=(1 $(a))", ["a"]),
        ("a ${x:-$(b)} ${y%.py}", ["b", "a … …"]),
        ('[ -f "$(a)" ]', ["a"]),
        ("[[ -n $(a) && x == $(b) ]]", ["a", "b"]),
        ("export X=$(a)", ["a", "export"]),
        ("a # b", ["a"]),
        ("'a'\"b\"c\\d", ["abcd"]),
    ],
)
def test_every_simple_command_is_found(line: str, expected: list[str]) -> None:
    assert commands(line) == expected
    assert parse(line).doubts == []


def test_where_commands_read_from() -> None:
    for line, stdin in (
        ("sh", Stdin.NONE),
        ("a | sh", Stdin.PIPE),
        ("a | (b; sh)", Stdin.PIPE),
        ("a | while read x; do sh; done", Stdin.PIPE),
        ("sh < f", Stdin.FILE),
        ("{ sh; } < f", Stdin.FILE),
        ("sh <<< x", Stdin.TEXT),
        ("sh <<E\nx\nE", Stdin.TEXT),
        ("cat <<E | sh\nx\nE", Stdin.PIPE),
    ):
        assert {one.stdin for one in parse(line).commands if one.words[0].text == "sh"} == {stdin}, line


def test_redirections() -> None:
    found = parse("a < in > out 2>> log 2>&1 &> all 3>&-").redirections
    assert [(one.target.text, one.is_write) for one in found] == [
        ("in", False),
        ("out", True),
        ("log", True),
        ("all", True),
    ]


def test_variables() -> None:
    found = parse("x=1 y=a; PATH=. a; export Z=1; for i in 1 2; do read w; done; echo ${v:=1}").assignments
    assert {(one.name, one.is_number, one.is_exported) for one in found} == {
        ("x", True, False),
        ("y", False, False),
        ("PATH", False, True),
        ("Z", True, True),
        ("i", True, False),
        ("w", False, False),
        ("v", False, False),
    }


@pytest.mark.parametrize(
    "line",
    [
        "echo 'a",
        "a )",
        "f() { f; }",
        "a\u00a0b",
        "a\u200bb",
        "a\x1b",
        "coproc a",
        "cat <<E\nx\nF",
        "cat <<A <<B\nA\nB",
        "cat <<'E F'\nE F",
        "x=a; echo $((x))",
        "echo $((REPLY))",
        "echo ${x:y}",
        "echo ${!x}",
        "echo ${x@P}",
        "a[x$y]=1",
        "[[ -v x ]]",
        "[ -v x ]",
        "[[ $x -eq $(a) ]]",
        "$(" * 40 + "a" + ")" * 40,
        "a" * (COMMAND_CHARS_MAX + 1),
    ],
)
def test_doubts(line: str) -> None:
    assert parse(line).doubts


def test_arithmetic_over_numbers_is_certain() -> None:
    assert parse("x=1; y=$((x + 1)); for ((i = 0; i < y; i++)); do [[ $i -lt 3 ]] && a; done").doubts == []


@settings(max_examples=500, deadline=None)
@given(st.text(alphabet="ab $(){}[]'\"`\\|&;<>=*?~#!\n-@", max_size=40))
@example("ls >$")
@example("cat <\\ ")
def test_a_command_on_a_line_of_its_own_is_seen_whatever_stands_before_it(line: str) -> None:
    found = parse(line.rstrip("\\") + "\nrm a")
    assert found.doubts or "rm a" in [one.shown for one in found.commands]
