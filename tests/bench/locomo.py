"""How well search finds what was said, and where its weights come from: `python -m tests.bench.locomo [fit]`.

Five long conversations of a public benchmark (LoCoMo) with questions and the turns that answer them. Each is imported
through the API (`POST …/history`: text with the caption of a shared picture, the speaker's name, session and date)
into a constellation of its own, its texts are embedded, and every question that has evidence is asked by
`POST …/search`. No language model takes part.

recall@10 of turns: the part of a question's evidence turns that is among the first 10 hits, averaged over questions;
only the very turn counts. Of sessions: the same for `group_by: "session"` and the sessions that hold the evidence.
Intervals are percentiles of 2,000 bootstrap samples of conversations, since the questions of one are alike.

The suite `recall` asks how much of what answers a message its prompt shows by itself, and how much without need. Each
question is the first message after the import. *Evidence shown* is the part of a question's evidence turns that stands
in the recalled passages, averaged over questions. The messages of `unrelated.txt`, 20 of each of 10 kinds, have nothing
to do with any of the conversations: what is recalled for them is for nothing.

With `python -m tests.bench.locomo fit` the weights of `pattern_core.search.messages.Weights` are fitted again: for each
question the messages that were compared, with what speaks for each (before weighting), go into a logistic regression
that tells the evidence from the rest. It has one best answer, so that the committed constants come out again,
within 0.01 (which messages are compared depends on them a little). Then the same with one conversation left
out at a time, which was not looked at and is measured: that mean is what to expect elsewhere. It takes as long as
embedding 2,800 messages and asking 1,000 questions, some three minutes.
"""

from __future__ import annotations

import json
import math
import os
import random
import re
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import trio
from numpy.typing import NDArray

from pattern_core.agent_settings import ContextSettings
from pattern_core.constellation import Constellation
from pattern_core.prompts import collect
from pattern_core.prompts.parts import Findings
from pattern_core.search import messages
from pattern_core.search.find import query_vector
from pattern_core.search.plan import Ranked, plan
from pattern_core.search.request import QueryVector, SearchRequest
from pattern_db.connection import Connection
from pattern_db.enums import SearchKind
from pattern_db.tables import embedding_indexes
from tests.bench.report import Figure, machine, table
from tests.pattern_server.place import Place, config_for, serving
from tests.sources import ROOT

DATA = Path(os.environ.get("PATTERN_TEST_DATA", ROOT.parent / "shared" / "data")) / "locomo" / "dev.json"
LIMIT = 10
SAMPLES = 2_000
EMBEDDED_WITHIN_S = 900.0
MODES = ("hybrid", "words", "meaning")
TURNS_MIN, SESSIONS_MIN = 0.80, 0.97
NO_MODEL = "hybrid without a model"
# What speaks for a message, by the name that a hit tells it by, and its weight's name.
PARTS = {
    "words": None,
    "meaning": "meaning",
    "answer": "answer_meaning",
    "question": "question",
    "alike": "alike",
    "session": "session",
    "speaker": "speaker",
    "date": "date",
}
UNRELATED = Path(__file__).with_name("unrelated.txt")
NOW = "2026-01-01T00:00:00.000Z"
SHOWN_MIN, TOKENS_MAX, UNRELATED_MAX = 0.70, 280.0, 0.5
SETTINGS = ContextSettings(recall_timeout_ms=10_000)  # the machine may be slow
TOWARDS_ZERO = 0.01  # how much large weights cost: a little, so that few examples (of dates) do not decide alone
STEPS_MAX, GAIN_LEAST = 50, 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question, the ids of the turns that answer it, their sessions, and its category (1 to 5)."""

    text: str
    turns: frozenset[str]
    sessions: frozenset[str]
    category: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Messages as `POST …/history` takes them, the turn that each is, and the questions about them."""

    name: str
    messages: Sequence[dict[str, Any]]
    turn_ids: Sequence[str]
    questions: Sequence[Question]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What was found of one question's evidence, 0.0 to 1.0."""

    talk: str
    category: int
    turns: float
    sessions: float


def conversations(path: Path = DATA) -> list[Conversation]:
    """The conversations with those questions that have evidence; a few malformed ids are read as they were meant."""
    return [_conversation(sample) for sample in json.loads(path.read_text())]


def interval(values: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The 95 % interval of the mean of values that come in groups, by the bootstrap of the groups."""
    chance = random.Random(7)
    sums = [(sum(group), len(group)) for group in values]
    samples = [chance.choices(sums, k=len(sums)) for _ in range(SAMPLES)]
    means = sorted(sum(total for total, _ in sample) / sum(count for _, count in sample) for sample in samples)
    return means[int(SAMPLES * 0.025)], means[int(SAMPLES * 0.975)]


def _conversation(sample: dict[str, Any]) -> Conversation:
    talk = sample["conversation"]
    said: list[dict[str, Any]] = []
    turn_ids: list[str] = []
    for number in range(1, 100):
        start = datetime.strptime(
            talk.get(f"session_{number}_date_time", "1:00 am on 1 May, 2023"), "%I:%M %p on %d %B, %Y"
        )
        for offset, turn in enumerate(talk.get(f"session_{number}") or []):
            caption = f" [{turn['blip_caption']}]" if turn.get("blip_caption") else ""
            moment = start.replace(tzinfo=UTC) + timedelta(seconds=30 * offset)
            said.append(
                {
                    "role": "user" if turn["speaker"] == talk["speaker_a"] else "assistant",
                    "content": turn["text"] + caption,
                    "name": turn["speaker"],
                    "session_id": f"session_{number}",
                    "created_at": moment.isoformat(),
                }
            )
            turn_ids.append(turn["dia_id"])
    session_of = dict(zip(turn_ids, (one["session_id"] for one in said), strict=True))
    questions: list[Question] = []
    for asked in sample["qa"]:
        found = re.findall(r"D:?(\d+):(\d+)", " ".join(asked.get("evidence") or []))
        evidence = frozenset(f"D{session}:{int(turn)}" for session, turn in found) & session_of.keys()
        if evidence:
            sessions = frozenset(session_of[turn] for turn in evidence)
            questions.append(
                Question(text=asked["question"], turns=evidence, sessions=sessions, category=asked["category"])
            )
    return Conversation(name=sample["sample_id"], messages=said, turn_ids=turn_ids, questions=questions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The messages that were compared for a question: (message, part) before weighting, and whether each is evidence.

    `evidence` is how much there is, found or not.
    """

    parts: NDArray[np.float64]
    is_evidence: NDArray[np.float64]
    evidence: int


class Asked:
    """A running server that holds the conversations."""

    def __init__(self, place: Place, talks: Sequence[Conversation]) -> None:
        self._place = place
        self._talks = talks
        self._turns: dict[tuple[str, str], str] = {}  # conversation, id of a message (by its time) → turn

    async def fill(self, *, is_embedding: bool) -> None:
        """Import all conversations and wait for their vectors, if there will be any."""
        for talk in self._talks:
            await self._place.constellation(talk.name)
            answer = await self._place.admin.post(
                f"/constellations/{talk.name}/agents/ada/history", json={"messages": talk.messages}, timeout=120
            )
            answer.raise_for_status()
            ids = [(talk.name, message_id) for message_id in answer.json()["ids"]]
            self._turns |= dict(zip(ids, talk.turn_ids, strict=True))
            with trio.fail_after(EMBEDDED_WITHIN_S):
                while is_embedding and not await self._is_embedded(talk.name):
                    await trio.sleep(1)

    async def ask(self, mode: str) -> list[Answered]:
        """All questions in one mode."""
        return [await self._answer(talk, question, mode) for talk in self._talks for question in talk.questions]

    async def _answer(self, talk: Conversation, question: Question, mode: str) -> Answered:
        body = {"query": question.text, "kinds": ["message"], "mode": mode, "limit": LIMIT}
        hits = await self._search(talk, body)
        turns = {self.turn_of(talk, hit["id"]) for hit in hits}
        sessions = {hit["session_id"] for hit in await self._search(talk, body | {"group_by": "session"})}
        return Answered(
            talk=talk.name,
            category=question.category,
            turns=len(turns & question.turns) / len(question.turns),
            sessions=len(sessions & question.sessions) / len(question.sessions),
        )

    async def compared(self, talk: Conversation) -> list[Compared]:
        """What a hybrid search compares for each question."""
        found: list[Compared] = []
        async with self.constellation(talk) as constellation:
            for question in talk.questions:
                request = SearchRequest(query=question.text, kinds=[SearchKind.MESSAGE], limit=LIMIT)
                live = await constellation.database.read(embedding_indexes.live)
                vector = await query_vector(constellation.database, request, constellation.embeddings, live)
                ranked = await constellation.database.read(_rank, request, vector)
                found.append(
                    Compared(
                        parts=np.array([[_unweighted(one, name) for name in PARTS] for one in ranked]),
                        is_evidence=np.array(
                            [float(self.turn_of(talk, one.row.id) in question.turns) for one in ranked]
                        ),
                        evidence=len(question.turns),
                    )
                )
        return found

    @asynccontextmanager
    async def constellation(self, talk: Conversation) -> AsyncIterator[Constellation]:
        """The constellation that holds a conversation."""
        state = self._place.parts.state
        owner = await state.accounts.authenticate(self._place.parts.local_token)
        async with state.constellations.use(owner, talk.name) as constellation:
            yield constellation

    def turn_of(self, talk: Conversation, message_id: str) -> str:
        """The turn that a message is."""
        return self._turns[talk.name, message_id]

    async def _search(self, talk: Conversation, body: dict[str, Any]) -> list[dict[str, Any]]:
        answer = await self._place.admin.post(f"/constellations/{talk.name}/search", json=body, timeout=120)
        answer.raise_for_status()
        hits: list[dict[str, Any]] = answer.json()["hits"]
        return hits

    async def _is_embedded(self, name: str) -> bool:
        answer = (await self._place.admin.get(f"/constellations/{name}/embeddings", timeout=120)).json()
        return bool(answer["done"] >= answer["total"] > 0)


@asynccontextmanager
async def asking(talks: Sequence[Conversation], *, provider: str = "local") -> AsyncIterator[Asked]:
    """A new server that holds the conversations, with their vectors if the provider makes any."""
    with tempfile.TemporaryDirectory() as folder:
        async with serving(config_for(Path(folder), embeddings={"provider": provider})) as place:
            asked = Asked(place, talks)
            await asked.fill(is_embedding=provider != "none")
            yield asked


async def measure(talks: Sequence[Conversation]) -> list[Figure]:
    """Recall of each mode, all together and by category."""
    async with asking(talks) as asked:
        figures = [figure for mode in MODES for figure in _figures(mode, await asked.ask(mode))]
    async with asking(talks, provider="none") as asked:
        return figures + _figures(NO_MODEL, await asked.ask("hybrid"))


def _rank(connection: Connection, request: SearchRequest, query: QueryVector) -> list[Ranked]:
    ranked, _ = messages.rank(connection, plan(connection, request, query.vector, query.codes))
    return ranked


def _unweighted(one: Ranked, part: str) -> float:
    weight = PARTS[part]
    return one.parts.get(part, 0.0) / (1.0 if weight is None else getattr(messages.WEIGHTS, weight))


def _figures(mode: str, found: Sequence[Answered]) -> list[Figure]:
    is_default = mode == "hybrid"
    turns, sessions = [(one.talk, one.turns) for one in found], [(one.talk, one.sessions) for one in found]
    figures = [
        _figure(f"recall@10 of turns, {mode}", turns, TURNS_MIN if is_default else None),
        _figure(f"recall@10 of sessions, {mode}", sessions, SESSIONS_MIN if is_default else None),
    ]
    for category in sorted({one.category for one in found}):
        values = [(one.talk, one.turns) for one in found if one.category == category]
        figures.append(_figure(f"recall@10 of turns, {mode}, category {category}", values))
    return figures


def _figure(name: str, values: Sequence[tuple[str, float]], least: float | None = None) -> Figure:
    low, high = interval([[value for of, value in values if of == talk] for talk in dict(values)])
    note = f"95 %: {low:.3f} … {high:.3f}, {len(values)} questions"
    mean = statistics.fmean(value for _talk, value in values)
    return Figure(name=name, unit="", values=[round(mean, 4)], least=least, note=note)


async def fit() -> None:
    """Print the weights that fit all conversations best, and what those that fit four of them find in the fifth."""
    talks = conversations()
    async with asking(talks) as asked:
        compared = [await asked.compared(talk) for talk in talks]
    left_out: list[list[float]] = []
    for number, talk in enumerate(talks):
        weights = fitted([one for other, ones in enumerate(compared) if other != number for one in ones])
        left_out.append([_found(weights, one) for one in compared[number]])
        print(f"without {talk.name}: {_in_words(weights)}", file=sys.stderr)
    mean = statistics.fmean(value for values in left_out for value in values)
    low, high = interval(left_out)
    print(f"left out: {mean:.4f} (95 %: {low:.3f} … {high:.3f})", file=sys.stderr)
    print(f"all: {_in_words(fitted([one for ones in compared for one in ones]))}", file=sys.stderr)


def fitted(compared: Sequence[Compared]) -> NDArray[np.float64]:
    """The weights that make the evidence likeliest if each message were drawn by `exp` of what speaks for it.

    There is one best answer, whatever one starts from; Newton's method with halved steps finds it.
    """
    weights = np.zeros(len(PARTS))
    questions = [(one.parts, one.is_evidence / one.is_evidence.sum()) for one in compared if one.is_evidence.any()]
    likelihood = -math.inf
    for _ in range(STEPS_MAX):
        gradient, curvature = -TOWARDS_ZERO * weights, -TOWARDS_ZERO * np.eye(len(PARTS))
        for parts, share in questions:
            values = parts @ weights
            chance = np.exp(values - values.max())
            chance /= chance.sum()
            mean = chance @ parts
            gradient += (share @ parts - mean) / len(questions)
            curvature -= ((parts * chance[:, None]).T @ parts - np.outer(mean, mean)) / len(questions)
        step = np.linalg.solve(curvature, -gradient)
        before, likelihood = likelihood, _likelihood(questions, weights)
        if likelihood - before < GAIN_LEAST:
            break
        while _likelihood(questions, weights + step) < likelihood and np.abs(step).max() > GAIN_LEAST:
            step /= 2
        weights = weights + step
    return weights


def _likelihood(
    questions: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]], weights: NDArray[np.float64]
) -> float:
    """The mean logarithm of the evidence's chance, less what large weights cost."""
    total = 0.0
    for parts, share in questions:
        values = parts @ weights
        total += float(share @ values - values.max() - np.log(np.exp(values - values.max()).sum()))
    return total / len(questions) - TOWARDS_ZERO / 2 * float(weights @ weights)


def _found(weights: NDArray[np.float64], one: Compared) -> float:
    first = np.argsort(-(one.parts @ weights), kind="stable")[:LIMIT]
    return float(one.is_evidence[first].sum()) / one.evidence


def _in_words(weights: NDArray[np.float64]) -> str:
    """The weights as `Weights` has them, where words weigh 1."""
    return ", ".join(f"{name} {weight:.2f}" for name, weight in zip(PARTS, weights / weights[0], strict=True))


def run() -> list[Figure]:
    """The figures, for the table of all benchmarks; empty where the data is not there."""
    return trio.run(measure, conversations()) if DATA.is_file() else []


async def recall() -> list[Figure]:
    """The figures with and without a model; empty where the data is not there."""
    if not DATA.is_file():
        return []
    return [*await _recall_figures("hybrid", "local"), *await _recall_figures(NO_MODEL, "none")]


async def _recall_figures(name: str, provider: str) -> list[Figure]:
    talks = conversations()
    about_other_things = [line for line in UNRELATED.read_text().splitlines() if not line.startswith("#")]
    shown: list[float] = []
    tokens: list[float] = []
    needless: list[int] = []
    async with asking(talks, provider=provider) as asked:
        for talk in talks:
            async with asked.constellation(talk) as constellation:
                for question in talk.questions:
                    found = await _recalled(constellation, question.text)
                    evidence = {asked.turn_of(talk, part.ref) for part in found.parts} & question.turns
                    shown.append(len(evidence) / len(question.turns))
                    tokens.append(sum(part.tokens for part in found.parts))
                needless += [len((await _recalled(constellation, text)).parts) for text in about_other_things]
    is_default = provider == "local"
    return [
        Figure(
            name=f"evidence shown, {name}",
            unit="",
            values=[round(statistics.fmean(shown), 4)],
            least=SHOWN_MIN if is_default else None,
        ),
        Figure(name=f"tokens of what is recalled, {name}", unit="", values=[statistics.fmean(tokens)], most=TOKENS_MAX),
        Figure(
            name=f"passages for an unrelated message, {name}",
            unit="",
            values=[statistics.fmean(needless)],
            most=UNRELATED_MAX,
        ),
    ]


async def _recalled(constellation: Constellation, words: str) -> Findings:
    """What the prompt of a turn that begins with these words would show, if nothing was in view."""
    ada = await constellation.roster.get("ada")
    return await collect.recall(
        constellation.search,
        SETTINGS,
        words,
        agent_id=ada.id,
        kinds=[SearchKind.MESSAGE],
        before="",
        in_view=(),
        now=NOW,
    )


if __name__ == "__main__":
    if "fit" in sys.argv:
        trio.run(fit)
    else:
        print(f"{machine()}\n\n{table(run())}", file=sys.stdout)
