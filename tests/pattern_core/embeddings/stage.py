"""A constellation's database in memory with texts of every kind, and embedders that misbehave."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio
import trio.testing

from pattern_core.embeddings.embedder import Embedder, EmbedderInfo, EmbedderUnavailable, TextsRefused
from pattern_core.embeddings.embedding_queue import EmbeddingQueue
from pattern_core.embeddings.providers.deterministic import hashed_words
from pattern_core.embeddings.questions import EmbedderShelf
from pattern_core.embeddings.settings import CODED, Purpose
from pattern_core.embeddings.work import pieces_of
from pattern_core.search.request import QueryVector
from pattern_core.testing import StoppedClock
from pattern_db import vectors
from pattern_db.connection import fetch_all
from pattern_db.enums import Role, SearchKind
from pattern_db.tables import embedding_indexes, embedding_sources
from tests.pattern_core.texts import Texts

NOW = "2026-11-21T22:24:40.123Z"


class World(Texts):
    """A constellation with the agents ada and bob and nothing else, and a queue that embeds what is put into it."""

    def say(self, number: int, content: str, role: Role = Role.USER) -> str:
        """Store a message at this position."""
        return self.message(f"msg_{number}", number, content, role=role)

    def keep(self, number: int, content: str) -> str:
        """Store an archival entry."""
        return self.entry(f"arc_{number}", content)

    def say_many(self, count: int) -> None:
        """Store `message 0` and so on."""
        for number in range(count):
            self.say(number, f"message {number}")

    def keep_many(self, count: int) -> None:
        """Store `entry 0` and so on."""
        for number in range(count):
            self.keep(number, f"entry {number}")

    def stored(self) -> set[tuple[str, str, int, str]]:
        """What the newest index in use holds: kind, ref, chunk and hash."""
        sql = "SELECT kind, ref, chunk_index, content_hash FROM embeddings WHERE index_id = ?"
        rows = fetch_all(self.db, sql, (embedding_indexes.live(self.db)[-1].id,))
        return {(row[0], row[1], row[2], row[3]) for row in rows}

    def wanted(self) -> set[tuple[str, str, int, str]]:
        """What it should hold, read from the texts themselves."""
        found = set()
        for kind, table in embedding_indexes.SOURCES.items():
            for (ref,) in fetch_all(self.db, f"SELECT id FROM {table}"):
                source = embedding_sources.get(self.db, kind, ref)
                pieces = [] if source is None else pieces_of(source)
                found |= {(kind.value, ref, number, piece.content_hash) for number, piece in enumerate(pieces)}
        return found

    @asynccontextmanager
    async def running(self, embedder: Embedder, *former: Embedder) -> AsyncIterator[EmbeddingQueue]:
        """A queue at work; leaving stops it in the middle of whatever it does. `former` can be made again."""
        shelf = EmbedderShelf(embedder, lambda _wanted: former)
        queue = EmbeddingQueue(database=self.database, embedders=shelf, clock=StoppedClock())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(queue.run)
            yield queue
            nursery.cancel_scope.cancel()

    async def embed_all(self, embedder: Embedder) -> None:
        """Have every text embedded."""
        async with self.running(embedder) as queue:
            await settle(queue)

    async def asked(self, queue: EmbeddingQueue, text: str) -> QueryVector:
        """The vector of a question."""
        return await queue.query_vector(text, embedding_indexes.live(self.db))

    async def near(self, queue: EmbeddingQueue, text: str, kind: SearchKind = SearchKind.MESSAGE) -> list[str]:
        """The id of the text whose meaning is nearest."""
        found = await self.asked(queue, text)
        assert found.vector is not None, found.notice
        return [neighbour.ref for neighbour in vectors.nearest(self.db, kind, found.vector, None, 1)]


async def settle(queue: EmbeddingQueue) -> None:
    """Wait until the queue has nothing more to do by itself."""
    queue.wake()
    await trio.sleep(5)
    await trio.testing.wait_all_tasks_blocked()


def texts_of(embedder: ScriptedEmbedder, purpose: Purpose = "passage") -> list[str]:
    """All that the embedder was asked for."""
    return list(itertools.chain.from_iterable(texts for asked, texts in embedder.asked if asked == purpose))


class ScriptedEmbedder:
    """Makes vectors of hashed words; `failure`, while set, is raised instead of every answer.

    `delay_s` is how long it takes over texts; `asked` remembers what was asked, a list per call.
    """

    def __init__(
        self,
        *,
        dimension: int = 64,
        fingerprint: str = "0" * 64,
        provider: str = "deterministic",
        failure: EmbedderUnavailable | None = None,
        delay_s: float = 0.0,
    ) -> None:
        self.failure = failure
        self.delay_s = delay_s
        self.asked: list[tuple[Purpose, list[str]]] = []
        self._info = EmbedderInfo(provider=provider, model="hashed-words", dimension=dimension, fingerprint=fingerprint)

    async def info(self) -> EmbedderInfo:
        if self.failure is not None:
            raise self.failure
        return self._info

    async def embed(self, texts: Sequence[str], *, purpose: Purpose) -> list[bytes]:
        if self.failure is not None:
            raise self.failure
        await trio.sleep(self.delay_s)
        self.asked.append((purpose, list(texts)))
        return [hashed_words(text, self._info.dimension) for text in texts]

    async def aclose(self) -> None:
        pass


class WrongEmbedder(ScriptedEmbedder):
    """Gives vectors of another length than it says."""

    async def embed(self, texts: Sequence[str], *, purpose: Purpose) -> list[bytes]:
        return [vector[:8] for vector in await super().embed(texts, purpose=purpose)]


class CodingEmbedder(ScriptedEmbedder):
    """Gives the same code to words with the same four letters."""

    async def embed(self, texts: Sequence[str], *, purpose: Purpose) -> list[bytes]:
        made = await super().embed(texts, purpose=purpose)
        words = [CODED[purpose].findall(text.lower()) for text in texts]
        codes = [b"".join(word[:4].encode().ljust(8) for word in each) for each in words]
        return [vector + code for vector, code in zip(made, codes, strict=True)]


class ForgetfulEmbedder(ScriptedEmbedder):
    """Leaves out the last vector."""

    async def embed(self, texts: Sequence[str], *, purpose: Purpose) -> list[bytes]:
        return (await super().embed(texts, purpose=purpose))[:-1]


class PickyEmbedder(ScriptedEmbedder):
    """Fails for every call that holds a text with the word; like a process that such a text kills."""

    def __init__(self, word: str, *, retry_after_s: float | None = None, fingerprint: str = "0" * 64) -> None:
        super().__init__(fingerprint=fingerprint)
        self.word = word
        self._retry_after_s = retry_after_s

    async def embed(self, texts: Sequence[str], *, purpose: Purpose) -> list[bytes]:
        made = await super().embed(texts, purpose=purpose)
        if any(self.word in text for text in texts):
            raise TextsRefused(f"it cannot stand {self.word}", retry_after_s=self._retry_after_s)
        return made
