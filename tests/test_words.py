"""Product texts are plain, modern technical English: no word of `BANNED` in messages, docstrings or documents."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator

import pytest

from tests.sources import ROOT, Source, report, sources

# What is banned → what to write.
BANNED = {
    r"mend(?:s|ed|ing)?": "fix, repair",
    r"anew|afresh|once more": "again",
    r"wish(?:es|ed)?": "want, request",
    r"told|retold|retell\w*": "the message, summarised; or name who does what",
    r"no more(?! than)": "no longer, not any longer",
    r"(?:go|goes|going|went) on": "continue",
    r"whose": "with, of the; or a second sentence",
    r"who(?:m)?ever": "anyone who",
    r"nobody|somebody|everybody|anybody": "no one, someone, everyone, anyone; or a noun",
    r"what (?:becomes?|became) of": "the status of, what happens to",
    r"how (?:it|they|things|a \w+) stands?": "status",
    r"stands?(?! for| in for|-in|-by| alone)|stood": "is, comes",
    r"(?:at|to) rest|let \w+ rest|lets? [^.;:]{1,30} rest": "idle, stop",
    r"meanwhile|all the while": "at the same time, since then; or name the other change",
    r"(?<!there )(?:is|are) no(?! longer| one)": "is not a, are not; or means no",
    r"in view": "visible, shown",
    r"at hand": "available",
    r"under way": "running, in progress",
    r"beside": "next to, in addition to, with",
    r"for good": "permanently",
    r"in step": "synchronised",
    r"in vain": "without effect",
    r"at work": "busy, running",
    r"looked (?:at|through)": "checked, searched, scanned",
    r"lately": "recently",
    r"now and then": "periodically",
    r"ill": "failed",
    r"is had|has no business|it is said|at last": "a plain verb",
    r"took": "used, cost, lasted",
    r"takes? (?:no|any|back|away|up|out)": "accept, undo, remove",
    r"taken (?:back|away|for)": "undone, removed, treated as",
    r"(?:values?|names?|fields?|arguments?|request|configuration|settings?) do(?:es)? not fit": "is invalid",
    r"misfits?": "invalid value",
    r"thus|lest|hence|whence|whereof|thereof|thereby|wherein|herein|hitherto|forthwith|amiss|albeit|upon|shall|ought"
    r"|unto|naught|till|likewise|heretofore": "a modern word",
    r"foreign text": "untrusted text",
    r"ledger|purse": "usage, budget",
}
PATTERNS = {
    re.compile(rf"(?<![\w/.-])(?:{pattern})(?![\w/-])", re.IGNORECASE): better for pattern, better in BANNED.items()
}

# Places that hold a banned word for a reason, by file: the words, and why.
EXEMPT: dict[str, tuple[str, str]] = {
    "pattern_core/compaction/summariser.py": (
        "retell, beside",
        "the instructions for summaries were tried on real models",
    ),
    "pattern_core/memory/block.py": ("told, everybody", "models read these texts"),
    "pattern_core/models/providers/embedded.py": ("whose", "people's own words, which the rules look for"),
    "pattern_core/prompts/build.py": ("stands, nobody", "the guide of small models was tried on real ones"),
    "pattern_core/tools/builtin/block.py": ("in view", "models read the description and the results"),
    "pattern_db/search_terms.py": ("whose", "people's own words, which a search leaves out"),
}

# Files that are not cleaned yet. Empty when the whole project is.
DEBTS = ("CHANGELOG.md",)

# Code, and the list of tools, which quotes descriptions: they are checked where they are written.
CODE = re.compile(r"```.*?```|`[^`\n]*`|<!-- generated: tools -->.*?<!-- end -->", re.DOTALL)


def texts_of(source: Source) -> Iterator[tuple[int, str]]:
    """Yield the comments and the strings of more than one word, each with its line."""
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in source.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            yield node.lineno, node.value


def texts() -> Iterator[tuple[str, int, str]]:
    """Yield every product text with its file and first line."""
    for source in sources():
        for line, text in texts_of(source):
            yield source.path, line, text
    documents = [
        *ROOT.glob("*.md"),
        *ROOT.glob("pattern_*/*.md"),
        *ROOT.glob("migrations/*.md"),
        *ROOT.glob("data/**/*.md"),
    ]
    for path in (*documents, *ROOT.glob("data/*.toml")):
        yield path.relative_to(ROOT).as_posix(), 1, path.read_text(encoding="utf-8")


def found_in(text: str) -> list[tuple[int, str, str]]:
    """Return the banned words of a text: line within it (from 0), the word, and what to write instead."""
    prose = CODE.sub(lambda code: "\n" * code[0].count("\n") or "`", text)
    hits = [(match, better) for pattern, better in PATTERNS.items() for match in pattern.finditer(prose)]
    return [(prose.count("\n", 0, match.start()), match[0], better) for match, better in hits]


def test_product_texts_hold_no_banned_word() -> None:
    failures, used = [], set()
    for path, line, text in texts():
        for offset, word, better in found_in(text):
            allowed, _ = EXEMPT.get(path, ("", ""))
            if word.lower() in allowed.split(", "):
                used.add(path)
            elif not path.startswith(DEBTS):
                failures.append(f"{path}:{line + offset}: “{word}”: write {better}")
    report(sorted(failures), "texts are plain, modern technical English; rewrite the sentence, not only the word")
    assert used == set(EXEMPT), "these exemptions are not needed any longer"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It goes on\nand is mended.", ["goes on", "mended"]),
        ("No more than 3 stand-ins for a `told` thing.", []),
        ("It takes no connection.", ["takes no"]),
        ("A place that stands for another.", []),
        ("<!-- generated: tools -->\nIn view.\n<!-- end -->\nBeside it.", ["Beside"]),
    ],
)
def test_banned_words_are_found_in_prose_alone(text: str, words: list[str]) -> None:
    assert sorted(word for _, word, _ in found_in(text)) == words
