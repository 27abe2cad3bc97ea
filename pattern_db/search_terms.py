"""A person's query as terms for the indexes. Pure.

Any text is a legal query: user text reaches FTS5 only as quoted strings. "Words in quotes" are a phrase, a star after
a word or phrase matches its beginnings, a minus before it excludes. Everything else is text.

Source of the query syntax: "SQLite FTS5 Extension", sqlite.org/fts5.html, section 3.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache

TERMS_MAX = 64  # of one search; a longer query is a document, and its rarest words are enough
TERMS_READ = 256  # of a query, from its beginning, of which the rarest are chosen

# English words that nearly every text holds; they are used only if there are no others.
_FREQUENT_WORDS = (
    "a about an and are as at be been but by can could did do does for from had has have he her him his how i if in is"
    " it its me my not of on or our s she should so t than that the their them then there they this to us was we were"
    " what when where which who whom whose why will with would you your"
)
_FREQUENT = frozenset(_FREQUENT_WORDS.split())
# A phrase in quotes, or text between blanks; each may have a minus before and a star after it.
_PIECE = re.compile(r'(?P<minus>-)?(?:"(?P<phrase>[^"]*)"|(?P<text>[^\s"]+))(?P<star>\*)?')
# C++, C#, F#: the index has only the letter, so the text itself is compared.
_SIGNED = re.compile(r"(?<!\w)[^\W\d_]{1,3}(?:\+\+|#)(?![\w#+])")
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_EMOJI = re.compile("[☀-➿⬀-⯿\U0001f000-\U0001faff]")
_HUMPS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_AS_ONE = {"ae": "ä", "oe": "ö", "ue": "ü", "ss": "ß"}
_AS_TWO = {ord(one): two for two, one in _AS_ONE.items()}
_POSSESSIVE = re.compile(r"['’]s?$")
# The same characters as in the index of Chinese, Japanese and Korean text (migration 0014).
_CJK_CHARACTERS = "⺀-〿぀-ヿ㄀-㿿一-鿿가-힯豈-﫿𠀀-𳎯"
_CJK = re.compile(f"[{_CJK_CHARACTERS}]+")
_CJK_PUNCTUATION = re.compile("[　-〿・ー]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One search term.

    `match` is an FTS5 string; `literal` in lower case must occur in the text, too; `cjk` are one or two characters that
    must occur, instead of `match`. `words` are its words in lower case, `is_phrase` means that it was in quotes,
    `is_filler` that nearly every text holds it.
    """

    match: str = ""
    literal: str | None = None
    cjk: str | None = None
    words: tuple[str, ...] = ()
    is_phrase: bool = False
    is_filler: bool = False

    @property
    def is_plain(self) -> bool:
        """True for one unmodified word, which may have other forms."""
        return self.match == f'"{self.match[1:-1]}"' and self.literal is None and not self.is_phrase


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a text should hold (`terms`, each once), must hold (`required`), and must not hold (`excluded`).

    `count` says how many terms there were, if some may have been left out.
    """

    terms: tuple[Term, ...] = ()
    required: tuple[Term, ...] = ()
    excluded: tuple[Term, ...] = ()
    count: int = 0

    def longest(self, count: int) -> Wanted:
        """Return the longest terms that an index can answer alone, in their order; any of them is enough."""
        plain = [term for term in self.terms if term.literal is None]
        kept = set(sorted(plain, key=lambda term: -len("".join(term.words)))[:count])
        return Wanted(terms=tuple(term for term in plain if term in kept))


@lru_cache(maxsize=128)
def parse(text: str) -> Wanted:
    """Parse a query. Without terms there is nothing to search for.

    One matching term is enough: a question in plain language rarely recurs word for word. Fillers are left out if other
    words remain. Phrases in quotes must occur, unless the query is a question (`?` at the end).
    """
    wanted: list[Term] = []
    excluded: list[Term] = []
    text = _clean(text)
    for piece in _PIECE.finditer(text):
        if piece["text"] == "OR":
            continue  # one of them is enough
        if piece["phrase"] is not None:
            terms = _phrase(piece["phrase"], starred=piece["star"] is not None)
        else:
            terms = _words(piece["text"])
        (excluded if piece["minus"] else wanted).extend(terms)
    telling = [term for term in wanted if not term.is_filler] or wanted
    terms = list(dict.fromkeys(telling))
    is_question = text.rstrip().endswith(("?", "？"))
    return Wanted(
        terms=tuple(terms[:TERMS_READ]),
        required=() if is_question else tuple(term for term in terms if term.is_phrase)[:TERMS_MAX],
        excluded=tuple(dict.fromkeys(excluded))[:TERMS_MAX],
        count=len(terms),
    )


def _phrase(text: str, *, starred: bool) -> list[Term]:
    if _CJK.search(text):
        return _cjk_terms(text)
    quoted = _quoted(text, starred=starred)
    if quoted is None:
        return []
    words = tuple(word.lower() for word in _WORD.findall(text))
    signed = _SIGNED.search(text)
    return [Term(match=quoted, words=words, is_phrase=True, literal=None if signed is None else text.lower().strip())]


def _words(text: str) -> list[Term]:
    """Return the terms of a text between two blanks: `foo-bar` is two words, `don't` is one."""
    if text.isascii() and text.isalnum():
        low = text.lower()
        return [Term(match=f'"{text}"', words=(low,), is_filler=low in _FREQUENT)]
    starred = text.endswith("*")
    terms = [
        Term(match=f'"{found[0].rstrip("+#")}"', literal=found[0].lower(), words=(found[0].lower(),))
        for found in _SIGNED.finditer(text)
    ]
    text = _SIGNED.sub(" ", text)
    terms += [Term(literal=emoji, words=(emoji,)) for emoji in _EMOJI.findall(text)]
    terms += _cjk_terms(text)
    words = [_POSSESSIVE.sub("", word) for word in _WORD.findall(_CJK.sub(" ", text))]
    for number, word in enumerate(words):
        quoted = _quoted(word, starred=starred and number == len(words) - 1)
        if quoted is not None:
            low = word.lower()
            terms.append(Term(match=quoted, words=(low,), is_filler=low in _FREQUENT))
    return terms


def _cjk_terms(text: str) -> list[Term]:
    """Return all pairs of neighbouring characters: there are no blanks between words."""
    terms: list[Term] = []
    for run in _CJK.findall(_CJK_PUNCTUATION.sub(" ", text)):
        pairs = [run[at : at + 2] for at in range(len(run) - 1)] or [run]
        terms += [Term(cjk=pair, words=(pair,)) for pair in pairs]
    return terms


def spellings(word: str) -> list[str]:
    """Return other spellings of the word: a name in code as its parts, one character of Unicode as several, German
    letters as two.
    """
    plain = unicodedata.normalize("NFKC", word)
    low = plain.lower()
    spelled = [
        " ".join(_HUMPS.findall(plain)) if plain.isascii() else "",
        plain,
        low.translate(_AS_TWO),
        re.sub("|".join(_AS_ONE), lambda found: _AS_ONE[found[0]], low),
    ]
    return [one for one in dict.fromkeys(spelled) if one and one.lower() != word.lower()]


def _quoted(words: str, *, starred: bool) -> str | None:
    """Return a term as an FTS5 string; None if the tokenizer finds no word in it: it would match nothing."""
    words = words.rstrip("*")
    if not any(unicodedata.category(character)[0] in "LN" for character in words):
        return None
    return f'"{words}"' + ("*" if starred else "")


def _clean(text: str) -> str:
    # FTS5 reads a query up to the first NUL, and half of a surrogate pair is not text to SQLite.
    return text.replace("\0", " ").encode("utf-8", "replace").decode("utf-8")
