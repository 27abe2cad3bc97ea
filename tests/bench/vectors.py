"""Nearest neighbours: how long a query takes, how many of the exact ones it finds, what a vector costs on disk.

The topics are turns of LoCoMo embedded by the local model, where both are at hand, else chance. The rows are mixtures
of three of them with noise, which is harder than real texts: everything has many near neighbours.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import TypeAlias

import numpy as np
import trio
from numpy.typing import NDArray

from pattern_core.embeddings.embedder import EmbedderUnavailable
from pattern_core.embeddings.providers import make_embedder
from pattern_core.embeddings.settings import EmbedderSettings
from pattern_db import template, vectors
from pattern_db.connection import Connection, open_connection
from pattern_db.enums import IndexState, SearchKind
from pattern_db.migrate import migrations_of
from pattern_db.tables import embedding_indexes
from pattern_db.tables.embedding_indexes import IndexRow, NewIndex
from pattern_db.vector_tables import ensure
from pattern_db.vectors import Embedding
from tests.bench.report import Figure
from tests.sources import ROOT

NOW = "2026-01-01T00:00:00.000Z"
DIMENSION = 384
QUERIES = 50
TOPICS = 800
KEPT = (50, 200)  # neighbours that a search asks for
Matrix: TypeAlias = NDArray[np.float32]


def measure() -> list[Figure]:
    """All figures, at ten and a hundred thousand vectors."""
    topics, questions, origin = _real() or _made_up()
    return [figure for count in (10_000, 100_000) for figure in _at(count, topics, questions, origin)]


def _at(count: int, topics: Matrix, questions: Matrix, origin: str) -> list[Figure]:
    matrix = _mixtures(count, topics)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pattern.db"
        template.create(path, migrations_of("constellation"), now=NOW)
        writer = open_connection(path)
        empty = path.stat().st_size
        began = time.perf_counter()
        _fill(writer, matrix)
        rate = count / (time.perf_counter() - began)
        writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        size = (path.stat().st_size - empty) / count
        reader = open_connection(path, readonly=True)
        figures = [_times(reader, matrix, questions, kept, origin) for kept in KEPT]
        reader.close()
        writer.close()
    name = f"{count:,} vectors"
    return [
        *(figure for some in figures for figure in some),
        Figure(name=f"{name}: bytes of one on disk", unit="B", values=[size], note=f"{4 * DIMENSION} are its numbers"),
        Figure(name=f"{name}: stored per second", unit="/s", values=[rate], note="32 a transaction"),
    ]


def _times(connection: Connection, matrix: Matrix, questions: Matrix, kept: int, origin: str) -> list[Figure]:
    taken, worked, plain, recalls = [], [], [], []
    vectors.nearest(connection, SearchKind.MESSAGE, questions[0].tobytes(), ["agt"], kept)  # reads the codes
    for question in questions:
        began, cpu = time.perf_counter(), time.thread_time()
        found = vectors.nearest(connection, SearchKind.MESSAGE, question.tobytes(), ["agt"], kept)
        taken.append((time.perf_counter() - began) * 1_000)
        worked.append((time.thread_time() - cpu) * 1_000)
        began = time.perf_counter()
        best = np.argsort(-(matrix @ question))[:kept]
        plain.append((time.perf_counter() - began) * 1_000)
        recalls.append(len({neighbour.ref for neighbour in found} & {f"msg_{row}" for row in best}) / kept)
    name, most = f"{len(matrix):,} vectors, nearest {kept}", 5 if len(matrix) <= 10_000 else 20
    exact = float(np.median(plain))
    return [
        Figure(name=f"{name}: time", unit="ms", values=taken, most=most, baseline=exact, note="numpy in memory beside"),
        Figure(name=f"{name}: time, p95", unit="ms", values=[float(np.percentile(taken, 95))]),
        Figure(name=f"{name}: CPU", unit="ms", values=worked),
        Figure(name=f"{name}: of the exact", unit="", values=[float(np.mean(recalls))], least=0.99, note=origin),
    ]


def _fill(connection: Connection, matrix: Matrix) -> None:
    new = NewIndex(fingerprint="f", provider="bench", model="m", dimension=DIMENSION, created_at=NOW)
    index = embedding_indexes.begin(connection, new, IndexState.ACTIVE)
    ensure(connection)
    for begin in range(0, len(matrix), 32):
        with connection:
            for row in range(begin, min(begin + 32, len(matrix))):
                _store(connection, index, row, matrix[row].tobytes())


def _store(connection: Connection, index: IndexRow, row: int, vector: bytes) -> None:
    embedding = Embedding(
        kind=SearchKind.MESSAGE,
        ref=f"msg_{row}",
        scope="agt",
        vector=vector,
        content_hash=f"{row:032x}",
        created_at=NOW,
    )
    vectors.replace(connection, index, SearchKind.MESSAGE, embedding.ref, [embedding])


def _mixtures(count: int, topics: Matrix) -> Matrix:
    chance = np.random.default_rng(7)
    shares = chance.dirichlet([0.5] * 3, size=count).astype("f4")
    chosen = chance.integers(0, len(topics), (count, 3))
    mixed = sum(topics[chosen[:, n]] * shares[:, n, None] for n in range(3))
    return _unit(mixed + chance.normal(size=(count, DIMENSION)).astype("f4") * 0.01)


def _made_up() -> tuple[Matrix, Matrix, str]:
    chance = np.random.default_rng(3)
    # A few strong directions and many weak ones, as models' vectors have.
    strength = (1 / np.sqrt(np.arange(1, DIMENSION + 1))).astype("f4")
    turned = np.linalg.qr(chance.normal(size=(DIMENSION, DIMENSION)))[0].astype("f4")
    made = _unit((chance.normal(size=(TOPICS + QUERIES, DIMENSION)).astype("f4") * strength) @ turned)
    return made[:TOPICS], made[TOPICS:], "made-up topics"


def _real() -> tuple[Matrix, Matrix, str] | None:
    folder = Path(os.environ.get("PATTERN_TEST_DATA", ROOT.parent / "shared" / "data"))
    file = folder / "locomo" / "dev.json"
    if not file.is_file():
        return None
    turns, questions = _texts(json.loads(file.read_text(encoding="utf-8")))
    try:
        embedded = trio.run(_embedded, [*turns[:TOPICS], *questions[:QUERIES]])
    except EmbedderUnavailable:
        return None
    return embedded[:TOPICS], embedded[TOPICS:], "real topics and questions"


def _texts(found: object) -> tuple[list[str], list[str]]:
    """What was said, and what is asked, in the order of the file."""
    if isinstance(found, dict):
        if "dia_id" in found and "text" in found:
            return [f"{found.get('speaker', '')}: {found['text']}"], []
        if "question" in found:
            return [], [str(found["question"])]
        found = list(found.values())
    if not isinstance(found, list):
        return [], []
    parts = [_texts(part) for part in found]
    return [text for turns, _ in parts for text in turns], [text for _, asked in parts for text in asked]


async def _embedded(texts: list[str]) -> Matrix:
    embedder = make_embedder(EmbedderSettings())
    try:
        if (await embedder.info()).dimension != DIMENSION:
            raise EmbedderUnavailable("another model")
        made: list[bytes] = []
        for begin in range(0, len(texts), 16):
            made += await embedder.embed(texts[begin : begin + 16], purpose="passage")
    finally:
        await embedder.aclose()
    return np.frombuffer(b"".join(made), "f4").reshape(len(texts), DIMENSION)


def _unit(rows: Matrix) -> Matrix:
    unit: Matrix = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype("f4")
    return unit
