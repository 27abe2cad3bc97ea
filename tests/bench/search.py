"""What a search costs at 10,000 and 100,000 messages, beside FTS5 alone and an exact scan with numpy in the same run.

The text is made up: words by Zipf's law, as in real text, where the frequent ones decide what a search costs. Vectors
are random around centres. The query has its vector beforehand; `embeddings` measures what the model adds.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path

import numpy as np

from pattern_core.agent_settings import ContextSettings
from pattern_core.prompts.collect import CANDIDATES
from pattern_core.search.find import find
from pattern_core.search.request import Mode, SearchRequest
from pattern_db import search as storage
from pattern_db import template, vectors
from pattern_db.connection import Connection, open_connection
from pattern_db.enums import IndexState, Role, SearchKind
from pattern_db.migrate import migrations_of
from pattern_db.search_terms import parse
from pattern_db.tables import agents, embedding_indexes, messages
from pattern_db.tables.agents import AgentRow
from pattern_db.tables.embedding_indexes import EmbedderInfo
from pattern_db.tables.messages import MessageRow
from tests.bench.report import Figure, quantile, timed_ms
from tests.pattern_db import vector_rows
from tests.pattern_db.vector_rows import VectorRow

NOW = "2026-11-21T22:24:40.123Z"
SIZES = {10_000: 10.0, 100_000: 30.0}  # messages → milliseconds that 95 of 100 searches may take
DIMENSION = 384
WORDS_CODED, WORDS_ASKED = 14, 10  # of a message and of a question, as real ones have
WORDS = 20_000
QUERIES = 60
RECALL_MS = 2.0  # whatever there is
IN_VIEW = 100  # newest messages that a prompt shows anyway
NEAREST = 40  # vectors that a search of messages compares
BATCH = 1_000
INGESTED_PER_S_MIN = 500.0


def run() -> list[Figure]:
    """The figures of both sizes."""
    return [figure for size, most in SIZES.items() for figure in measure(size, most)]


def measure(size: int, p95_ms_most: float) -> list[Figure]:
    """The figures of a constellation of `size` messages."""
    chance = random.Random(3)
    text = _Text(chance)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pattern.db"
        template.create(path, migrations_of("constellation"), now=NOW)
        connection = open_connection(path)
        try:
            rate = _fill(connection, text, size)
            bytes_per_message = _index_bytes(connection) / size
            stored = _embed(connection, size)
            return [
                Figure(name=f"messages/s stored, {size} in all", unit="/s", values=[rate], least=INGESTED_PER_S_MIN),
                Figure(name=f"bytes of word index per message, {size}", unit="B", values=[bytes_per_message]),
                *_compared(connection, text, size, p95_ms_most, stored),
            ]
        finally:
            connection.close()


class _Text:
    """Made-up messages and questions about them."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        letters = "bcdfghjklmnprstvz"
        self._words = ["".join(chance.choices(letters, k=2 + number % 6)) + str(number % 97) for number in range(WORDS)]
        self._weights = list(accumulate(1 / rank for rank in range(10, WORDS + 10)))

    def message(self) -> str:
        """Some 25 words."""
        return " ".join(self._chance.choices(self._words, cum_weights=self._weights, k=self._chance.randint(5, 45)))

    def question(self) -> str:
        """Words as frequent as those of messages, and some fillers."""
        words = self._chance.choices(self._words, cum_weights=self._weights, k=self._chance.randint(3, 7))
        return f"what did they say about {' '.join(words)}?"


def _fill(connection: Connection, text: _Text, size: int) -> float:
    """Store the messages; return how many per second."""
    agent = AgentRow(
        id="agt", name="a", model_provider="p", model_name="m", system_prompt="", created_at=NOW, updated_at=NOW
    )
    agents.create(connection, agent)
    spent = 0.0
    for start in range(0, size, BATCH):
        rows = [
            MessageRow(
                id=f"msg_{number}",
                agent_id="agt",
                position=f"{number:019}",
                role=Role.USER if number % 2 else Role.ASSISTANT,
                created_at=NOW,
                content=text.message(),
                session_id=f"s{number // 30}",
            )
            for number in range(start, start + BATCH)
        ]
        began = time.perf_counter()
        with connection:
            messages.append(connection, rows)
        spent += time.perf_counter() - began
    return size / spent


def _embed(connection: Connection, size: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Store a vector for each message; return them all."""
    info = EmbedderInfo(fingerprint="f", provider="p", model="m", dimension=DIMENSION)
    embedding_indexes.begin(connection, info, IndexState.ACTIVE, NOW)
    chance = np.random.default_rng(5)
    centres = chance.normal(size=(200, DIMENSION))
    stored = (centres[chance.integers(0, 200, size)] + chance.normal(size=(size, DIMENSION))).astype(np.float32)
    stored /= np.linalg.norm(stored, axis=1, keepdims=True)
    for start in range(0, size, BATCH):
        with connection:
            for number in range(start, start + BATCH):
                vector_rows.insert(
                    connection,
                    VectorRow(
                        kind=SearchKind.MESSAGE,
                        ref=f"msg_{number}",
                        scope="agt",
                        vector=stored[number].tobytes() + chance.bytes(WORDS_CODED * DIMENSION // 8),
                        content_hash=str(number),
                        created_at=NOW,
                    ),
                )
    exact: np.ndarray[tuple[int, int], np.dtype[np.float32]] = stored
    return exact


def _compared(
    connection: Connection,
    text: _Text,
    size: int,
    p95_ms_most: float,
    stored: np.ndarray[tuple[int, int], np.dtype[np.float32]],
) -> list[Figure]:
    questions = [text.question() for _ in range(QUERIES)]
    chance = np.random.default_rng(9)
    near = [stored[row] + chance.normal(scale=0.02, size=DIMENSION) for row in chance.integers(0, size, QUERIES)]
    asked = [(vector / np.linalg.norm(vector)).astype(np.float32) for vector in near]

    def hybrid(number: int, agents: Sequence[str] | None = None) -> None:
        request = SearchRequest(query=questions[number], kinds=[SearchKind.MESSAGE], limit=10, agents=agents)
        find(connection, request, asked[number].tobytes(), chance.bytes(WORDS_ASKED * DIMENSION // 8))

    def recalled(number: int) -> None:
        request = _of_a_turn(questions[number] + " " + questions[number - 1], size)
        find(connection, request, None)

    def words(number: int) -> None:
        request = SearchRequest(query=questions[number], kinds=[SearchKind.MESSAGE], limit=10, mode=Mode.WORDS)
        find(connection, request, None)

    def meaning(number: int) -> list[str]:
        found = vectors.nearest(connection, SearchKind.MESSAGE, asked[number].tobytes(), None, NEAREST)
        return [neighbour.ref for neighbour in found]

    def fts_alone(number: int) -> None:
        terms = parse(questions[number]).terms
        storage.best(connection, SearchKind.MESSAGE, terms, 10, storage.Filters())

    def exact(number: int) -> None:
        np.argpartition(stored @ asked[number], -10)[-10:]

    recalls = []
    for number in range(QUERIES):
        best = np.argsort(-(stored @ asked[number]))[:NEAREST]
        recalls.append(len({f"msg_{row}" for row in best} & set(meaning(number))) / NEAREST)
    recall = float(np.mean(recalls))
    fts, scan = _times(fts_alone), _times(exact)
    plain = quantile(fts, 0.95) + quantile(scan, 0.95)
    figure = partial(Figure, unit="ms", share=0.95)
    return [
        figure(name=f"hybrid search, {size} messages", values=_times(hybrid), most=p95_ms_most, baseline=plain),
        figure(
            name=f"hybrid search of one agent's, {size} messages",
            values=_times(partial(hybrid, agents=["agt"])),
            baseline=plain,
        ),
        figure(
            name=f"what a turn recalls by words, {size} messages", values=_times(recalled), share=0.5, most=RECALL_MS
        ),
        figure(name=f"search by words, {size} messages", values=_times(words), baseline=quantile(fts, 0.95)),
        figure(name=f"nearest vectors, {size} messages", values=_times(meaning), baseline=quantile(scan, 0.95)),
        Figure(name=f"of the exact nearest {NEAREST}, {size} messages", unit="", values=[recall], least=0.99),
        figure(name=f"FTS5 alone, {size} messages", values=fts),
        figure(name=f"exact scan with numpy, {size} messages", values=scan),
    ]


def _of_a_turn(message: str, size: int) -> SearchRequest:
    """What a turn that answers the message looks for, with `size` messages before it."""
    return SearchRequest(
        query=message,
        kinds=[SearchKind.MESSAGE],
        agents=["agt"],
        before=f"{size - IN_VIEW:019}",
        limit=CANDIDATES * ContextSettings().recall_max,
        is_quick=True,
    )


def _times(ask: Callable[[int], object]) -> list[float]:
    """Milliseconds of each query."""
    for number in range(5):
        ask(number)
    return [timed_ms(partial(ask, number)) for number in range(QUERIES)]


def _index_bytes(connection: Connection) -> float:
    rows = connection.execute("SELECT sum(pgsize) FROM dbstat WHERE name LIKE 'message_fts%' OR name LIKE 'cjk_fts%'")
    found = rows.fetchone()
    return float(found[0]) if found is not None else 0.0
