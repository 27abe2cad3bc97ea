from __future__ import annotations

from pattern_core.shell.script import UNCERTAIN, SimpleCommand, Word, word


def test_what_may_be_an_option() -> None:
    assert word("-x").may_be_option
    assert not word("x").may_be_option
    assert not word("-").may_be_option
    assert UNCERTAIN.may_be_option
    assert Word(text=None, start="").may_be_option
    assert Word(text=None, start="-").may_be_option
    assert Word(text=None, start="a", is_one=False).may_be_option  # `a$x` may become two words
    assert not Word(text=None, start="a").may_be_option


def test_a_command_is_shown_with_gaps() -> None:
    assert SimpleCommand(words=(word("cat"), Word(text=None, start="a/"), UNCERTAIN)).shown == "cat a/… …"
