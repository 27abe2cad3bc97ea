"""What a word of a command line stands for once its quotes and escapes are taken away, where that is certain."""

from __future__ import annotations

import re

from pattern_core.shell.script import UNCERTAIN, Word, word

NOT_STATIC = Word(text=None, start="\0")  # the grammar and bash may disagree about this word
_META = re.compile(r"[;|&<>()\s'\"`]")
_ESCAPED = re.compile(r"\\(?s:.)")
_GLOB = re.compile(r"[*?\[]")
_SIMPLE_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\", "'": "'", '"': '"'}
_NUMBER = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]+|[0-9]+)")


def is_number(text: str) -> bool:
    """Whether it is a whole number and nothing else."""
    return _NUMBER.fullmatch(text) is not None


def static_word(raw: str) -> Word:
    """An unquoted word. `NOT_STATIC` if it holds what would end it, or begins as a comment does."""
    bare = _ESCAPED.sub("", raw)
    if raw.startswith("#") or _META.search(bare):
        return NOT_STATIC
    if "{" in bare and ("," in bare or ".." in bare):
        return UNCERTAIN
    glob = _GLOB.search(bare)
    if glob is not None:
        # The expansion goes on with what the pattern begins with, and may be several names.
        start = "" if "\\" in raw else bare[: glob.start()]
        return Word(text=None, start=start, is_one=bool(start) and not start.startswith("-"), is_glob=True)
    return word(re.sub(r"\\\n", "", raw) if raw == "\\\n" else re.sub(r"\\((?s:.))", _unescaped, raw))


def _unescaped(found: re.Match[str]) -> str:
    return "" if found[1] == "\n" else found[1]


def static_string(raw: str) -> Word:
    """A string in double quotes without expansions."""
    return word(re.sub(r"\\([\\\"$`\n])", _unescaped, raw[1:-1]))


def static_ansi(raw: str) -> Word:
    r"""A string such as `$'a\tb'`; numbered characters in it are not certain, since that is how names are hidden."""
    text = raw[2:-1]
    if re.search(r"\\[^nt\\'\"]", text):
        return UNCERTAIN
    return word(re.sub(r"\\(.)", lambda found: _SIMPLE_ESCAPES[found[1]], text))
