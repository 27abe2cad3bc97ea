from __future__ import annotations

import pytest

from pattern_core.shell.script import UNCERTAIN
from pattern_core.shell.unquote import NOT_STATIC, is_number, static_ansi, static_string, static_word


@pytest.mark.parametrize(
    ("raw", "text"), [("ls", "ls"), (r"r\m", "rm"), (r"a\ b", "a b"), ("l\\\ns", "ls"), ("a#b", "a#b")]
)
def test_words(raw: str, text: str) -> None:
    assert static_word(raw).text == text


@pytest.mark.parametrize("raw", ["#x", "a;b", "a b", "a'b", "a`b", "a|b", "a>b"])
def test_words_that_bash_may_read_otherwise(raw: str) -> None:
    assert static_word(raw) is NOT_STATIC


def test_what_a_word_becomes_only_when_it_is_expanded() -> None:
    assert static_word("{a,b}") == UNCERTAIN
    glob = static_word("src/*.py")
    assert (glob.text, glob.start, glob.is_one, glob.is_glob) == (None, "src/", True, True)
    assert static_word("*").may_be_option  # a file may be called -rf
    assert not static_word("./*").may_be_option
    assert static_word(r"\*").text == "*"


def test_strings() -> None:
    assert static_string(r'"a\"b\n\$"').text == r'a"b\n$'
    assert static_ansi(r"$'a\tb'").text == "a\tb"
    assert static_ansi(r"$'\x72m'") == UNCERTAIN


def test_numbers() -> None:
    assert [text for text in ("1", "-1", "0x1f", "1a", "a", "", "1+1") if is_number(text)] == ["1", "-1", "0x1f"]
