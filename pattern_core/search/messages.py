"""Ranking of messages: by words, neighbouring messages, meaning, speaker and time.

A message of a conversation is short and leaves out what the previous one named: words are searched in a window around
it, at the time of the query, so that storing a message costs nothing more. Figures and the fitting of the weights:
`python -m tests.bench.locomo`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from heapq import nlargest

from pattern_core.search.plan import Meanings, Plan, Ranked, candidates, compare, selection
from pattern_core.search.postings import bits, gather
from pattern_db import search as storage
from pattern_db import vectors
from pattern_db.connection import Connection
from pattern_db.enums import Role, SearchKind
from pattern_db.search import Filters, Row, Surroundings

# The weight of a word this many messages before or after, and how fast repeated ones count less.
BEFORE = (0.7, 0.49, 0.34)
AFTER = (0.35, 0.25, 0.17)
# The same for words that mean the same; where these are compared, exact words and whole messages count less.
ALIKE_BEFORE, ALIKE_AFTER = 0.9, 0.7
BESIDE_ALIKE = 0.75
SATURATION = 1.2
# A message with more words than this is a document; that it holds many words is not a merit.
LONG_WORDS = 64
CAPTION_CHARS_MAX = 400
SHORT_CHARS = 60  # a message of so many may say little without the question that it answers …
QUESTION_CHARS_MAX = 200  # … of which the end is shown
SESSION_BEST = 3  # messages of a session: the mean of their values counts as much as the best one


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The weights of a message's features besides its words (1.0 for the best). Fitted by `tests/bench/locomo.py`."""

    meaning: float = 0.6
    answer_meaning: float = 0.45  # the next message; its vector includes this one
    alike: float = 1.0  # its words, and those of its neighbours, mean the same as the query's
    question: float = -0.44  # who asks does not tell
    speaker: float = 0.29  # the query names who said it
    session: float = 0.49  # what is compared of its session holds the query's terms
    date: float = 0.71  # the query names when


WEIGHTS = Weights()
TOOL_RESULT_FACTOR = 0.7  # results of tools repeat other texts, often from an earlier search

_SPEAKER = re.compile(r"([^\W\d_][\w.'’-]*(?: [^\W\d_][\w.'’-]*)?):\s")
_CAPTION = re.compile(r"\s*[\[(][^\[\]()]*[\])]\s*$")
_WORD = re.compile(r"\w+")
_ENDS = (". ", "! ", ": ", "\n", "。", "！")  # of what a message says before it asks

# Dates that a query names (`in May 2023`, `on 3 March`, `2024-01-31`): only those written with a month's English name
# or as ISO 8601, since what is not read costs nothing, and what is misread would.
_MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_NUMBERS = {key: number for number, name in enumerate(_MONTHS, start=1) for key in (name, name[:3])}
_NAMED = re.compile(
    r"(?:\b(?P<day>\d{1,2})(?:st|nd|rd|th)?\s+(?:of\s+)?)?"
    rf"\b(?P<month>{'|'.join(_MONTHS)}|jan|feb|mar|apr|jun|jul|aug|sep|oct|nov|dec)\b\.?"
    r"(?:\s+(?P<late_day>\d{1,2})(?:st|nd|rd|th)?(?!\d))?"
    r"(?:,?\s+(?:of\s+)?(?P<year>(?:19|20)\d\d)\b)?",
    re.IGNORECASE,
)
_ISO = re.compile(r"\b(?P<year>(?:19|20)\d\d)-(?P<month>\d\d)(?:-(?P<day>\d\d))?\b")
# These are also words or names: they count only with a day or a year, or with a capital; "May" begins questions.
_AMBIGUOUS = frozenset({"may", "march", "april", "june", "august", "mar", "jan", "dec", "sep"})

# People speak of a thing on the day and in the days after it.
_SAME_DAY, _SAME_WEEK, _SAME_MONTH = 1.0, 0.7, 0.3
_NEXT_MONTH = 0.3
_DAYS = ((-1, 1, _SAME_DAY), (0, 8, _SAME_WEEK), (0, 31, _SAME_MONTH))


def rank(connection: Connection, plan: Plan, most: int | None = None) -> tuple[list[Ranked], Meanings]:
    """Return matching messages (at most `most`), best first, and the nearness of the nearest in meaning."""
    pool = _Pool(connection, plan)
    pool.take_by_words()
    meanings = compare(connection, plan, SearchKind.MESSAGE, max(plan.breadth.nearest, plan.request.limit))
    pool.take_near(meanings)
    if plan.takes_neighbours:
        pool.take_neighbours()
    return pool.ranked()[:most], meanings


class _Pool:
    """The compared messages and their features."""

    def __init__(self, connection: Connection, plan: Plan) -> None:
        self._connection = connection
        self._plan = plan
        self._count = max(plan.breadth.candidates, plan.request.limit)
        self._chosen = selection(connection, plan, SearchKind.MESSAGE)
        self._postings = gather([])
        self._rows: dict[int, Row] = {}
        self._around: dict[int, Surroundings] = {}
        self._near: dict[int, float] = {}
        self._alike: Mapping[int, float] = {}
        self._beside_alike = 1.0
        self._masks: dict[int, int] = {}  # of these and what is around them; bit n: it holds term n
        self._heard: dict[int, Sequence[tuple[int, float]]] = {}  # in and around: term, how much

    def take_by_words(self) -> None:
        """Add the messages with the best-matching words."""
        if self._plan.compares_words:
            self._postings, rows = candidates(
                self._connection, self._plan, SearchKind.MESSAGE, self._count, self._chosen
            )
            self._rows = dict(sorted(rows.items()))  # of equal leaders the first counts

    def take_near(self, meanings: Meanings) -> None:
        """Add the messages that are near in meaning, and read the neighbours of the whole pool."""
        named = storage.rows(self._connection, SearchKind.MESSAGE, list(meanings.nearness), self._plan.request)
        self._keep(named.values())
        self._near = {number: meanings.nearness[row.ref] for number, row in named.items()}
        self._look_around(list(self._rows))

    def take_neighbours(self) -> None:
        """Add the direct neighbours of the best finds: often the answers to them."""
        words = self._windows(self._plan.weights)
        greatest = max(words.values(), default=0.0) or 1.0
        value = {row: words[row] / greatest + WEIGHTS.meaning * self._near.get(row, 0.0) for row in self._rows}
        leaders = [self._around[row] for row in nlargest(self._plan.breadth.leaders, value, key=value.__getitem__)]
        beside = {row for around in leaders for row in (*around.before[:1], *around.after[:1])} - self._rows.keys()
        found = storage.rows(self._connection, SearchKind.MESSAGE, sorted(beside), self._plan.request)
        self._keep(found.values())
        self._look_around([number for number in found if number in self._rows])

    def ranked(self) -> list[Ranked]:
        """Return those that match the query, best first; of equals the newest."""
        plan = self._plan
        asked = {word for term in plan.wanted.terms for part in term.words for word in _WORD.findall(part)}
        speakers = {number: speaker(row.speaker, row.content) for number, row in self._rows.items()}
        weights = _without_names(plan, {word for name in speakers.values() for word in name_words(name)})
        words, sessions = self._windows(weights), self._sessions(weights)
        self._compare()
        greatest = (max(words.values(), default=0.0) or 1.0) / self._trust(weights)
        dates = named_dates(plan.request.query)
        found: list[Ranked] = []
        for number, row in self._rows.items():
            parts = self._meaning(number)
            if words[number] > 0:
                parts["words"] = words[number] / greatest
            if parts:
                is_named = bool(asked) and not asked.isdisjoint(name_words(speakers[number]))
                factor = TOOL_RESULT_FACTOR if row.role is Role.TOOL else 1.0
                parts |= _priors(row, dates, is_named=is_named)
                if self._alike.get(number, 0.0) > 0:
                    parts["alike"] = WEIGHTS.alike * self._alike[number]
                if sessions[number] > 0:
                    parts["session"] = WEIGHTS.session * sessions[number]
                found.append(Ranked(row=row, parts=parts, factor=factor))
        found.sort(key=lambda one: (-one.value, -one.row.row))
        return found

    def _keep(self, rows: Iterable[Row]) -> None:
        self._rows |= {row.row: row for row in rows if self._chosen.holds(row.row)}

    def _look_around(self, numbers: Sequence[int]) -> None:
        """Read the neighbours of these messages of the pool, and the terms in them."""
        around = storage.surroundings(self._connection, numbers, len(BEFORE))
        self._around |= around
        wanted = set(numbers).union(*[(*one.before, *one.after) for one in around.values()])
        self._masks |= self._postings.masks(wanted - self._masks.keys())
        self._heard |= {number: self._terms_around(number) for number in numbers}

    def _terms_around(self, number: int) -> Sequence[tuple[int, float]]:
        """Return the terms in and around the message, and how much each counts: less with every time it recurs."""
        around = self._around.get(number)
        counts = dict.fromkeys(bits(self._masks.get(number, 0)), 1.0)
        if around is not None:
            for share, row in (*zip(BEFORE, around.before, strict=False), *zip(AFTER, around.after, strict=False)):
                for term in bits(self._masks.get(row, 0)):
                    counts[term] = counts.get(term, 0.0) + share
        saturation = SATURATION * math.sqrt(max(1.0, self._rows[number].content.count(" ") / LONG_WORDS))
        return [(term, count * (1 + SATURATION) / (count + saturation)) for term, count in counts.items()]

    def _windows(self, weights: Sequence[float]) -> dict[int, float]:
        """Return for each message of the pool the weight of the terms in it and around it."""
        return {row: sum([weights[term] * share for term, share in self._heard[row]]) for row in self._rows}

    def _compare(self) -> None:
        """Compute how near all of the pool and the messages after them are: 1.0 the nearest, 0.0 nothing in common."""
        if self._plan.vector is not None:
            beside = {row for one in self._around.values() for row in (*one.before[:1], *one.after[:1])}
            found = vectors.of_messages(self._connection, self._plan.vector, sorted(beside | self._rows.keys()))
            far = self._plan.far
            span = max([cosine for cosine, _codes in found.values()], default=0.0) - far
            self._near = {row: (max(one - far, 0.0) / span) ** 2 for row, (one, _codes) in found.items() if span > 0}
            self._alike = self._words_alike({row: codes for row, (_cosine, codes) in found.items()})
            self._beside_alike = BESIDE_ALIKE if self._alike else 1.0

    def _words_alike(self, codes: Mapping[int, bytes]) -> dict[int, float]:
        """Return how near each message's words, and its neighbours', are to the query's: 1.0 the nearest, 0.0 the least
        near.
        """
        beside = {row: [next(iter(each), 0) for each in self._around.get(row, ((), ()))] for row in self._rows}
        dimension = len(self._plan.vector or b"") // 4
        near = vectors.alike(codes, self._plan.codes, dimension, beside, (ALIKE_BEFORE, ALIKE_AFTER))
        least, most = min(near.values(), default=0.0), max(near.values(), default=0.0)
        return {row: (value - least) / (most - least or 1.0) for row, value in near.items()}

    def _trust(self, weights: Sequence[float]) -> float:
        """Return the weight of words relative to meaning: low if no message has much of the query itself."""
        if self._plan.vector is None:
            return 1.0
        held = max((sum([weights[term] for term in bits(mask)]) for mask in self._masks.values()), default=0.0)
        return (math.sqrt(held / (sum(weights) or 1.0)) or 1.0) * self._beside_alike

    def _sessions(self, weights: Sequence[float]) -> dict[int, float]:
        """Return for each message of the pool which share of the terms those of its session hold together."""
        session_of = {number: row.session_id or row.id for number, row in self._rows.items()}
        held: Counter[str] = Counter()
        for number, session in session_of.items():
            held[session] |= self._masks.get(number, 0)
        total = sum(weights) or 1.0
        worth = {session: sum([weights[term] for term in bits(mask)]) / total for session, mask in held.items()}
        return {number: worth[session] for number, session in session_of.items()}

    def _meaning(self, number: int) -> dict[str, float]:
        parts: dict[str, float] = {}
        scale = self._beside_alike / (1.0 if self._plan.compares_words else WEIGHTS.meaning)
        near = self._near.get(number, 0.0)
        if near > 0:
            parts["meaning"] = scale * WEIGHTS.meaning * near
        after = self._around[number].after if number in self._around else ()
        answer = self._near.get(after[0], 0.0) if after else 0.0
        if answer > 0:
            parts["answer"] = scale * WEIGHTS.answer_meaning * answer
        return parts


def _priors(row: Row, dates: Sequence[NamedDate], *, is_named: bool) -> dict[str, float]:
    parts: dict[str, float] = {}
    said = _spoken(row.content)
    asked = question_in(said)
    if asked:  # a message with a statement and a question still has the statement
        parts["question"] = WEIGHTS.question * math.sqrt(len(asked) / len(said))
    if is_named:
        parts["speaker"] = WEIGHTS.speaker
    near = nearness(dates, row.created_at)
    if near > 0:
        parts["date"] = WEIGHTS.date * near
    return parts


def _without_names(plan: Plan, names: set[str]) -> Sequence[float]:
    """Return the terms' weights. Names of speakers say who is meant, not what: they count by the speaker, unless the
    query has nothing else.
    """
    is_name = [bool(term.words) and names.issuperset(term.words) for term in plan.wanted.terms]
    if all(is_name):
        return plan.weights
    return [0.0 if name else weight for name, weight in zip(is_name, plan.weights, strict=True)]


def speaker(stored: str | None, content: str) -> str:
    """Return who said it: the name it was stored under, or one at its beginning (`Ada: …`); empty if unknown."""
    named = None if stored else _SPEAKER.match(content)
    return named[1] if named is not None else stored or ""


def question_in(text: str) -> str:
    """Return the questions that the text ends with, an appended note in brackets aside; empty if it does not ask."""
    text = _spoken(text)
    if not text.endswith(("?", "？")):
        return ""
    begin = max((at + len(end) for end in _ENDS if (at := text.rfind(end)) >= 0), default=0)
    return text[begin:].strip()


def _spoken(text: str) -> str:
    """Return the text without a note in brackets at its end, such as a picture's caption."""
    text = text.rstrip()
    if text.endswith(("]", ")")):
        text = text[:-CAPTION_CHARS_MAX] + _CAPTION.sub("", text[-CAPTION_CHARS_MAX:])
    return text.rstrip()


def answered(connection: Connection, found: Iterable[Row], request: Filters) -> dict[int, str]:
    """Return by row the question that a short message follows and without which it says little."""
    short = [row.row for row in found if row.kind is SearchKind.MESSAGE and len(row.content) <= SHORT_CHARS]
    around = storage.surroundings(connection, short, 1) if short else {}
    before = {number: beside.before[0] for number, beside in around.items() if beside.before}
    rows = storage.rows(connection, SearchKind.MESSAGE, sorted(set(before.values())), request)
    asked = {number: question_in(rows[row].content) for number, row in before.items() if row in rows}
    return {number: question[-QUESTION_CHARS_MAX:] for number, question in asked.items() if question}


@lru_cache(maxsize=1024)
def name_words(name: str) -> frozenset[str]:
    """Return the words of a name, in lower case."""
    return frozenset(_WORD.findall(name.lower()))


def by_session(found: Sequence[Ranked]) -> list[tuple[float, Ranked, int]]:
    """Return for each session its value, its best message and how many were found, best first: of `found` messages,
    best first.

    The work is bounded by the messages that were compared (`SESSIONS`), however many sessions there are. A session is
    worth what its best messages are. A message without a session stands for itself.
    """
    together: dict[tuple[str | None, str], list[Ranked]] = {}
    for one in found:
        key = (one.row.agent_id, one.row.id if one.row.session_id is None else f"session {one.row.session_id}")
        together.setdefault(key, []).append(one)
    means = {key: sum(one.value for one in group[:SESSION_BEST]) / SESSION_BEST for key, group in together.items()}
    ranked = [((group[0].value + means[key]) / 2, group[0], len(group)) for key, group in together.items()]
    ranked.sort(key=lambda session: -session[0])
    return ranked


@dataclass(frozen=True, slots=True)
class NamedDate:
    """A month, perhaps of a year, perhaps a day of it."""

    year: int | None
    month: int
    day: int | None


def named_dates(query: str) -> list[NamedDate]:
    """Return the dates that `query` names."""
    dates: list[NamedDate] = []
    for found in _ISO.finditer(query):
        dates.append(NamedDate(int(found["year"]), int(found["month"]), int(found["day"]) if found["day"] else None))
    for found in _NAMED.finditer(query):
        day, year = found["day"] or found["late_day"], found["year"]
        name = found["month"].lower()
        is_clear = name not in _AMBIGUOUS or (name != "may" and found["month"][0].isupper())
        if day is None and year is None and not is_clear:
            continue
        dates.append(NamedDate(int(year) if year else None, _NUMBERS[name], int(day) if day else None))
    return [named for named in dates if 1 <= named.month <= 12]


def nearness(dates: Sequence[NamedDate], created_at: str) -> float:
    """Return how near the moment (a column time) is to one of the dates: 1.0 the same day or month, 0.0 far from it."""
    if not dates:
        return 0.0
    moment = date.fromisoformat(created_at[:10])
    either = (moment.year - 1, moment.year)  # for what names no year
    return max(_near(named, year, moment) for named in dates for year in ((named.year,) if named.year else either))


def _near(named: NamedDate, year: int, moment: date) -> float:
    if named.day is None:
        months = 12 * (moment.year - year) + moment.month - named.month
        return {0: _SAME_DAY, 1: _NEXT_MONTH}.get(months, 0.0)
    try:
        days = (moment - date(year, named.month, named.day)).days
    except ValueError:
        return 0.0  # the 30th of February
    return next((value for low, high, value in _DAYS if low <= days <= high), 0.0)
