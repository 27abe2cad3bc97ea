"""How well decisions fit a question: exact numbers, from words alone. Pure functions.

Source: the ranking of the decision store of pi-lodestone 0.2 (its scores, not its lists of words). It compared projects
by the names of their folders; here a decision is of the same project if it is in the same workspace.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from pattern_db.columns import from_json, unix_ms
from pattern_db.connection import Connection
from pattern_db.enums import DecisionSource
from pattern_db.tables import decisions, meta
from pattern_db.tables.decisions import DecisionRow, DecisionWords

SHOWN_SCORE_MIN, SHOWN_MAX = 8, 3  # of decisions in a prompt
SCORED_MAX = 32  # of those that share two words with a message
INDEXES_MAX = 16  # workspaces with their words in memory
WORDS_CHARS_MIN = 8  # of a message: a shorter one says too little
QUESTION_TOKENS_MAX = 32
SIMILAR_ABOVE = 0.6
LEADING_CHARS = 200  # of a text, which are compared besides the title
TOKEN_CHARS_MIN, WORD_CHARS_MIN = 3, 4
IN_TITLE, IN_TAGS, IN_BODY, WITHIN = 6, 4, 3, 1
DAY_MS = 86_400_000

_TOKEN = re.compile(r"[a-z0-9_./:-]+")
_WORD = re.compile(rf"[a-z0-9]{{{WORD_CHARS_MIN},}}")
_STOP = """about after all also and any are been but can did does for from had has have how into its not now our out
should than that the their then there this use was what when where which will with would you your"""
# Words of a request rather than of its topic: a prompt is not searched for them.
_REQUEST = """add again append ask build change check code create delete explain file files find fix follow format give
help instruction instructions keep let like list look make move need please read remove rename reply return run save say
see show start tell test tests text try update using want work write"""
_GENERIC = "decision decided preference workflow implementation manual important pinned"
STOP, REQUEST, GENERIC = (frozenset(words.split()) for words in (_STOP, _REQUEST, _GENERIC))
DURABLE = frozenset(("decision", "preference", "workflow"))  # tags
_TOOL_VERB = re.compile(r"(?:read|ran|executed|wrote|edited|listed|searched|fetched|opened)\b", re.IGNORECASE)


def tokens_of(text: str) -> list[str]:
    """Return the words, paths and names of a text in their order, with repeats."""
    found = (token.strip(".:-") for token in _TOKEN.findall(text.lower()) if len(token) >= TOKEN_CHARS_MIN)
    return [token for token in found if len(token) >= TOKEN_CHARS_MIN and token not in STOP]


def prompt_tokens(text: str) -> list[str]:
    """Return the first tokens of a person's message that may be its topic, each once."""
    return [token for token in dict.fromkeys(tokens_of(text)) if token not in REQUEST][:QUESTION_TOKENS_MAX]


class DecisionIndex:
    """In which decisions of a workspace each word is."""

    def __init__(self, rows: Sequence[DecisionWords]) -> None:
        self._rows: Sequence[DecisionWords] = ()
        self._found = defaultdict[str, int](int)  # by token: a bit for each of `_rows` that is not archived
        self.update(rows)

    def update(self, rows: Sequence[DecisionWords]) -> None:
        """Let it be of these decisions. Only those that have changed are read, unless one is gone."""
        count = len(self._rows)
        if any(old.id != row.id for old, row in zip(self._rows, rows, strict=False)) or len(rows) < count:
            self._rows, count = (), 0
            self._found.clear()
        for at, row in enumerate(rows):
            if at >= count or self._rows[at] != row:
                for token in _tokens(row) ^ (_tokens(self._rows[at]) if at < count else set()):
                    self._found[token] ^= 1 << at
        self._rows = rows
        self._every = sum(not row.archived for row in rows) + 1
        self._standing = int("".join("01"[row.is_shown] for row in reversed(rows)) or "0", 2)

    def weight(self, token: str) -> float:
        """Return the weight of a word: the more, the fewer decisions that are not archived have it."""
        count = self._found.get(token, 0).bit_count()
        return 0.75 + min(1.75, math.log(self._every / (count + 1))) if count else 1.0

    def likely(self, tokens: Sequence[str]) -> list[str]:
        """Return the ids of decisions that a prompt may show, because two of the words are in them: at most
        `SCORED_MAX`, those with most of the words, then the newest.
        """
        levels = [0] * (len(tokens) + 1)  # which ones have at least so many of the words, and one more
        for token in tokens:
            found = self._found.get(token, 0)
            for level, there in enumerate(levels):
                levels[level], found = there | found, there & found
                if not found:
                    break
        chosen: dict[str, None] = {}
        for level in reversed(levels[1:]):
            left = level & self._standing
            while left and len(chosen) < SCORED_MAX:
                at = left.bit_length() - 1
                left ^= 1 << at
                chosen[self._rows[at].id] = None
        return [*chosen]


def _tokens(row: DecisionWords) -> set[str]:
    lists = (text for listed in (row.tags, row.details) for text in from_json(listed))
    return set() if row.archived else {*tokens_of("\n".join((row.title, row.text, row.summary, *lists)))}


@dataclass(frozen=True, slots=True)
class DecisionQuestion:
    """What is asked: `tokens`, repeats count; at `now_ms`, in a workspace, from the folder `cwd`, if any. `index` is
    that of the decisions that are ranked. `is_for_prompt`: without being asked.
    """

    tokens: Sequence[str]
    now_ms: int
    workspace: str = ""
    cwd: str | None = None
    is_for_prompt: bool = False
    index: DecisionIndex = field(default_factory=lambda: DecisionIndex(()))


class RankedDecisions:
    """Finds decisions for prompts. The words of some workspaces are kept, with the version that they are of."""

    def __init__(self) -> None:
        self._indexes: dict[str, tuple[str | None, DecisionIndex]] = {}

    def fitting(
        self, connection: Connection, workspace: str, words: str, *, cwd: str | None, now_ms: int
    ) -> list[tuple[int, DecisionRow]]:
        """Return the decisions of a workspace to show with a message, which is asked from the folder `cwd`, if any."""
        tokens, version = prompt_tokens(words), meta.get(connection, meta.DECISIONS)
        if len(words.strip()) < WORDS_CHARS_MIN:
            return []
        known, index = self._indexes.get(workspace) or ("", DecisionIndex(()))  # None: nothing has changed yet
        if known != version:
            index.update(decisions.words(connection, workspace))
            if len(self._indexes) >= INDEXES_MAX:
                self._indexes.clear()
            self._indexes[workspace] = (version, index)
        question = DecisionQuestion(tokens, now_ms, workspace=workspace, cwd=cwd, is_for_prompt=True, index=index)
        return ranked(decisions.some(connection, index.likely(tokens)), question)


def score(row: DecisionRow, question: DecisionQuestion) -> int:
    """Return how well a decision fits; 0: not at all, or it may not be shown."""
    lexical, hits = _lexical(row, question)
    if not lexical or row.archived or (question.is_for_prompt and not _may_be_shown(row, question, hits)):
        return 0
    shown, length = question.is_for_prompt, len(question.tokens)
    if shown and length > SHOWN_SCORE_MIN:
        lexical = max(1, _rounded(lexical * math.sqrt(SHOWN_SCORE_MIN / length)))
    if row.workspace == question.workspace:
        lexical += 6 if row.cwd == question.cwd else 4
    lexical += (4 if shown else 8) * row.important + (3 if row.kb_path else 0)
    lexical += (2 if shown else 4) * (row.source is DecisionSource.MANUAL)
    lexical += {"high": (2, 4), "medium": (1, 2)}.get(row.confidence or "", (0, 0))[not shown]
    fresh = {"current": (1, 1), "may_be_stale": (-1, 0), "stale": (-6, -3)}
    lexical += fresh.get(row.freshness or "", (0, 0))[not shown]
    lexical -= (4 if shown else 2) * bool(row.conflicts_with)
    if not shown:
        lexical += min(row.retrieval_count, 6) + min(row.injection_count, 4) - 4 * (row.superseded_by is not None)
    return max(0, _rounded(lexical + _of_age(row, question.now_ms)))


def ranked(rows: Sequence[DecisionRow], question: DecisionQuestion) -> list[tuple[int, DecisionRow]]:
    """Return the decisions that fit with their scores, the best first, then the newest. A prompt gets at most
    `SHOWN_MAX`, of the question's workspace alone.
    """
    scored = [(score(row, question), row) for row in rows]
    found = sorted((one for one in scored if one[0]), key=lambda one: one[1].created_at or "", reverse=True)
    found.sort(key=lambda one: -one[0])
    if not question.is_for_prompt:
        return found
    return [
        (points, row) for points, row in found if points >= SHOWN_SCORE_MIN and row.workspace == question.workspace
    ][:SHOWN_MAX]


def similar(title: str, text: str, rows: Sequence[DecisionRow]) -> DecisionRow | None:
    """Return the decision that says nearly the same, by its title or the begin of its text; None if none does."""

    def shares(row: DecisionRow) -> float:
        whole = _overlap(f"{title} {text[:LEADING_CHARS]}", f"{row.title} {row.text[:LEADING_CHARS]}")
        return max(_overlap(title, row.title), whole)

    found = max((row for row in rows if not row.archived), key=shares, default=None)
    return found if found is not None and shares(found) > SIMILAR_ABOVE else None


def _overlap(one: str, other: str) -> float:
    words, others = (set(_WORD.findall(text.lower())) - STOP for text in (one, other))
    return len(words & others) / min(len(words), len(others)) if words and others else 0.0


def _fields(row: DecisionRow) -> tuple[set[str], set[str], set[str]]:
    """Return the tokens of title, tags and body."""
    body = " ".join((row.text, row.summary or "", *row.details))
    return set(tokens_of(row.title)), set(tokens_of(" ".join(row.tags))), set(tokens_of(body))


def _lexical(row: DecisionRow, question: DecisionQuestion) -> tuple[float, list[str]]:
    """Return the points for words, and the tokens of the question that are words of the decision."""
    title, tags, body = _fields(row)
    points, hits, every = 0.0, [], " ".join([*title, *tags, *body])
    for token in question.tokens:
        weight = IN_TITLE if token in title else IN_TAGS if token in tags else IN_BODY if token in body else 0
        if weight:
            hits.append(token)
        elif token in every or any(word in token for words in (title, tags, body) for word in words):
            weight = WITHIN
        points += weight * question.index.weight(token)
    return points, hits


def _may_be_shown(row: DecisionRow, question: DecisionQuestion, hits: Sequence[str]) -> bool:
    """Return whether a decision may be shown to those who did not ask for it."""
    topics = [token for token in hits if token not in GENERIC]
    is_said = row.source is DecisionSource.MANUAL or (
        row.source is DecisionSource.EXTRACTED
        and not DURABLE.isdisjoint(row.tags)
        and _TOOL_VERB.match(row.title) is None
    )
    enough = 3 if len(question.tokens) >= 5 else 1
    return is_said and row.superseded_by is None and len(hits) >= 2 and len(topics) >= enough


def _of_age(row: DecisionRow, now_ms: int) -> int:
    if row.created_at is None:
        return 0
    days = (now_ms - unix_ms(row.created_at)) / DAY_MS
    return 2 if days < 1 else 1 if days < 14 else -2 if days > 180 else 0


def _rounded(points: float) -> int:
    return math.floor(points + 0.5)
