"""The embedding queue of one constellation: embeds every text, and questions.

There is no list of jobs. The missing vectors follow from the texts and the progress of the index (see `work.gather`),
so nothing can be lost, and after a crash the queue continues after the last stored batch. It reads on a second
connection and writes one short transaction per batch; the model runs elsewhere. So no turn ever waits for it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, TypeAlias

import trio

from pattern_core.embeddings import work
from pattern_core.embeddings.embedder import (
    TEXTS_MAX,
    Embedder,
    EmbedderInfo,
    EmbedderUnavailable,
    TextsRefused,
    checked_vectors,
)
from pattern_core.embeddings.questions import DEADLINE_S, EmbedderShelf, FormerModelGone, QuestionEmbedder
from pattern_core.errors import Conflict
from pattern_core.ids import Clock, now_text
from pattern_core.search.request import QueryVector
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.enums import IndexState
from pattern_db.tables import embedding_indexes as indexes
from pattern_db.tables import embeddings
from pattern_db.tables.embedding_indexes import Coverage, IndexRow
from pattern_db.tables.embeddings import Refusal

_log = logging.getLogger(__name__)

START_AFTER_S = 1.0  # a command that uses the constellation briefly loads no model
GATHER_S = 0.5  # a turn commits several times: one check is enough
RECHECK_S = 600.0  # if no commit wakes it; each check opens an idle connection
BACKOFF_FIRST_S = 1.0
BACKOFF_MAX_S = 300.0
INFO_DEADLINE_S = 2.0
HOPELESS_S = 900.0  # between two attempts when nothing but a new configuration would help
PURGED_AT_ONCE = 500  # vectors of a retired index, some 10 ms
REFUSALS_SHOWN = 20
_HARMLESS = "a few words"

State: TypeAlias = Literal["idle", "working", "waiting", "unavailable"]
_Found: TypeAlias = tuple[list[IndexRow], Coverage, Sequence[Refusal]]
_WORDS_ALONE = "searched by words alone: "

VectorIndex = IndexRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of embedding. `done` and `total` count texts (rows) of the current index.

    `state`: idle (all done), working, waiting (the model does not respond; it is retried), unavailable (something must
    be installed, configured or decided first); `reason` says what. `model` is the active index's. `configured` is as
    the embedder reports it; None while unknown. With `switch_needed` the two differ, and nothing is embedded until a
    person switches. `skipped` counts texts among those done that the model refuses to embed, at least in part;
    `refusals` are the first of them with the reasons.
    """

    state: State
    reason: str | None
    done: int
    total: int
    skipped: int
    refusals: Sequence[Refusal]
    model: str | None
    switch_needed: bool
    configured: EmbedderInfo | None
    active: IndexRow | None
    building: IndexRow | None


class EmbeddingQueue:
    """One per constellation. `nursery.start_soon(queue.run)`; the other methods may be called from any task while it
    runs.

    A question's vector is waited for `patience_s` seconds. New texts are embedded only by the configured model;
    questions by the model of the active index, which during a switch is the previous one, if it is still available.
    """

    def __init__(
        self, *, database: Database, embedders: EmbedderShelf, clock: Clock, patience_s: float = DEADLINE_S
    ) -> None:
        self._database = database
        self._embedder = embedders.configured
        self._clock = clock
        self._questions = QuestionEmbedder(embedders, deadline_s=patience_s)
        self._portions = Portions(self._embedder)
        self._info: EmbedderInfo | None = None
        self._state: State = "idle"
        self._reason: str | None = None
        self._failures = 0  # in a row
        self._woken = trio.Event()  # there may be something to do
        self._decided = trio.Event()  # a person decided something: stop waiting

    async def run(self) -> None:
        """Embed texts without vectors, and questions, until cancelled.

        Raises:
            StorageFailed: the disk failed; reopen the file.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._questions.run)
            with trio.move_on_after(START_AFTER_S):
                await self._decided.wait()
            while True:
                self._woken, self._decided = trio.Event(), trio.Event()
                try:
                    worked = await self._work()
                except EmbedderUnavailable as error:
                    await self._back_off(error)
                    continue
                if not worked:
                    with trio.move_on_after(RECHECK_S):
                        await self._woken.wait()
                    with trio.move_on_after(GATHER_S):
                        await self._decided.wait()

    def wake(self) -> None:
        """Note that something was committed: there may be texts to embed. Never waits, and is very cheap."""
        self._woken.set()

    async def query_vector(self, text: str, live: Sequence[IndexRow]) -> QueryVector:
        """Return the vector of a question for `vectors.nearest`, by the model of the active one of the `live` indexes.
        Never raises for a model that is absent, slow or wrong.
        """
        active = next((index for index in live if index.state is IndexState.ACTIVE), None)
        if active is None:
            return QueryVector(notice=_WORDS_ALONE + (self._reason or "no text is embedded yet"))
        try:
            vector = await self._questions.get(text, active)
        except FormerModelGone as error:
            return QueryVector(notice=f"{_WORDS_ALONE}{error.message}; {self._way_out(live)}")
        except EmbedderUnavailable as error:
            return QueryVector(notice=_WORDS_ALONE + error.message)
        size, notice = 4 * active.dimension, await self._notice(active)
        return QueryVector(vector=vector[:size], codes=vector[size:], notice=notice, fingerprint=active.fingerprint)

    async def progress(self) -> Progress:
        """Return its progress, and what it waits for. If the model is still unknown, it is asked for its name, within
        bounds.
        """
        await self._ask_for_info()
        return self._seen(*await self._database.read_aside(_progress, self._info))

    async def _ask_for_info(self) -> None:
        if self._info is None:
            with trio.move_on_after(INFO_DEADLINE_S), suppress(EmbedderUnavailable):
                self._info = await self._embedder.info()

    def _seen(self, live: list[IndexRow], coverage: Coverage, refused: Sequence[Refusal]) -> Progress:
        found = {index.state: index for index in live}
        active = found.get(IndexState.ACTIVE)
        target = self._target(live)
        is_about_to = self._state == "idle" and coverage.done < coverage.total and (target or self._info is None)
        return Progress(
            state="working" if is_about_to else self._state,
            reason=self._reason,
            done=coverage.done,
            total=coverage.total,
            skipped=coverage.refused,
            refusals=refused,
            model=None if active is None else active.model,
            switch_needed=self._info is not None and active is not None and target is None,
            configured=self._info,
            active=active,
            building=found.get(IndexState.BUILDING),
        )

    async def start_switch(self) -> IndexRow:
        """Start to embed every text with the configured model; search continues with the old vectors until it is done.

        Survives restarts. A running switch continues. If the old model is configured again, a switch to another is
        cancelled.

        Raises:
            Conflict: there is nothing to switch.
            EmbedderUnavailable: the configured model does not respond, so it is unknown what to switch to.
        """
        info = await self._embedder.info()
        self._info = info
        index = await self._database.write(work.start_switch, info, now_text(self._clock))
        self._start_over()
        return index

    async def cancel_switch(self) -> None:
        """Cancel the running switch; the old vectors stay active.

        Raises:
            Conflict: there is none.
        """
        if not await self._database.write(work.cancel_switch):
            raise Conflict("no switch to another embedding model is running; there is nothing to cancel")
        self._start_over()

    async def rebuild(self) -> Progress:
        """Check every text again; embed outdated ones again. Return the progress from which that starts.

        Raises:
            Conflict: nothing was embedded yet.
        """

        def rebuild(connection: Connection) -> _Found | None:
            # One transaction: the work may be done before a second look.
            return _progress(connection, self._info) if work.rebuild(connection) else None

        await self._ask_for_info()
        found = await self._database.write(rebuild)
        if found is None:
            raise Conflict("no text was embedded yet; there is nothing to rebuild")
        self._start_over()
        return self._seen(*found)

    def _start_over(self) -> None:
        self._failures = 0
        self._woken.set()
        self._decided.set()

    async def _work(self) -> bool:
        """Do one piece of work; False if there is none."""
        live, retired, is_behind = await self._database.read(_situation)
        for index in retired:
            after: tuple[str, str] | None = ("", "")
            while after is not None:
                after = await self._database.write(embeddings.purge, index, after, PURGED_AT_ONCE)
        if not is_behind:
            self._rests("idle")
            return False
        info = self._info = await self._embedder.info()  # only now, because the call may load the model
        target = self._target(live)
        if target is None and live:
            before = live[0]
            # A model on this machine that is only run in another way can be switched to for nothing.
            if before.model != info.model or not before.provider == info.provider == "local":
                self._rests("unavailable", self._switch_reason(before, info))
                return False
            target = await self._database.write(work.start_switch, info, now_text(self._clock))
        if target is None:
            target = await self._database.write(indexes.begin, info, IndexState.ACTIVE, now_text(self._clock))
        # Few rows: not worth a second connection, which every constellation that says something would open.
        batch = await self._database.read(work.gather, target)
        if batch is None and target.completed_at is not None:
            self._rests("idle", self._left_behind(live))
            return False
        if batch is None:
            is_complete = await self._database.write(work.complete, target, now_text(self._clock))
            self._rests("idle")  # not before: waiting callers need the swap, too
            return is_complete
        self._rests("working", self._reason if self._failures else None)
        vectors, refused = await self._portions.embed(batch.missing, info)
        await self._database.write(work.store, batch, vectors, now_text(self._clock), refused)
        for reason in refused.values():
            _log.warning("a text is left out of search by meaning, because the model refuses it: %s", reason)
        self._failures = 0
        return True

    async def _back_off(self, error: EmbedderUnavailable) -> None:
        self._failures += 1
        level, wait_s = logging.INFO, HOPELESS_S
        if error.retry_after_s is None:
            self._rests("unavailable", error.message)
        else:
            self._rests("waiting", error.message)
            level = logging.WARNING
            wait_s = BACKOFF_FIRST_S * 2 ** min(self._failures - 1, 16)
            wait_s = min(max(error.retry_after_s, wait_s), BACKOFF_MAX_S)
        if self._failures == 1:  # a missing model is known; a model that does not respond is news
            _log.log(level, "texts cannot be embedded now: %s", error.message)
        with trio.move_on_after(wait_s):
            await self._decided.wait()

    def _rests(self, state: State, reason: str | None = None) -> None:
        self._state, self._reason = state, reason

    def _target(self, live: Sequence[IndexRow]) -> IndexRow | None:
        """Return the current index; None if none is of the configured model."""
        info = self._info
        return None if info is None else next((one for one in reversed(live) if one.matches(info)), None)

    def _switch_reason(self, active: IndexRow, info: EmbedderInfo) -> str:
        return (
            f"the texts were embedded by {active.model}, and {_name(active, info)} is configured now; switch to it "
            f"with `pattern embeddings switch`"
        )

    def _left_behind(self, live: Sequence[IndexRow]) -> str | None:
        """Return a note about a switch that is not continued."""
        if self._info is None or live[-1].matches(self._info):
            return None
        return (
            f"a switch to {live[-1].model} was begun, and {live[0].model} is configured again; cancel the switch "
            f"with `pattern embeddings switch --cancel`"
        )

    def _way_out(self, live: Sequence[IndexRow]) -> str:
        target = self._target(live)
        if target is not None and target.state is IndexState.BUILDING:
            return f"meaning counts again when the switch to {target.model} is complete"
        return "switch to the configured model with `pattern embeddings switch`"

    async def _notice(self, active: IndexRow) -> str | None:
        """Return a note about a vector that is compared with only some of the texts."""
        is_left = self._info is not None and not active.matches(self._info)  # new texts are not for it
        if active.completed_at is not None and not is_left:
            return None
        coverage = await self._database.read_aside(indexes.coverage, active)
        if coverage.done >= coverage.total:
            return None
        return f"meaning was compared for {coverage.done} of {coverage.total} texts so far; words were for all"


class Portions:
    """Requests the vectors of a batch in portions, and finds the texts that an embedder refuses.

    A service that is down fails for every text, and only waiting helps. A text that crashes the model's process, or
    that a service refuses, fails every time and would block all later ones. So after a failure a harmless text is
    tried: if that fails, too, our texts are not the reason. A portion that fails twice is halved, down to a single
    text, which is recorded as refused.

    Results for a batch are kept for the next attempt.
    """

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._vectors: dict[str, bytes] = {}
        self._refused: dict[str, str] = {}

    async def embed(
        self, texts: Mapping[str, str], info: EmbedderInfo
    ) -> tuple[Mapping[str, bytes], Mapping[str, str]]:
        """Return vectors of `texts` by hash, and the reasons for refused ones. Call again after a failure.

        Raises:
            EmbedderUnavailable: it fails for every text now.
        """
        self._vectors = {key: vector for key, vector in self._vectors.items() if key in texts}
        self._refused = {key: reason for key, reason in self._refused.items() if key in texts}
        left = [key for key in texts if key not in self._vectors and key not in self._refused]
        for begin in range(0, len(left), TEXTS_MAX):
            await self._embed(texts, left[begin : begin + TEXTS_MAX], info)
        vectors, refused = self._vectors, self._refused
        self._vectors, self._refused = {}, {}
        return vectors, refused

    async def _embed(
        self, texts: Mapping[str, str], keys: Sequence[str], info: EmbedderInfo, *, is_again: bool = False
    ) -> None:
        try:
            made = await checked_vectors(self._embedder, [texts[key] for key in keys], info, purpose="passage")
        except TextsRefused as error:
            failure = error
        else:
            self._vectors.update(zip(keys, made, strict=True))
            return
        await trio.sleep(max(failure.retry_after_s or 0.0, BACKOFF_FIRST_S))
        await self._check_that_it_works(info)
        if not is_again:  # the first failure may have been chance
            await self._embed(texts, keys, info, is_again=True)
        elif len(keys) == 1:
            self._refused[keys[0]] = failure.message
        else:
            half = len(keys) // 2
            await self._embed(texts, keys[:half], info, is_again=True)
            await self._embed(texts, keys[half:], info, is_again=True)

    async def _check_that_it_works(self, info: EmbedderInfo) -> None:
        try:
            await checked_vectors(self._embedder, [_HARMLESS], info, purpose="passage")
        except TextsRefused as error:
            raise EmbedderUnavailable(error.message, retry_after_s=error.retry_after_s) from error


def _name(before: EmbedderInfo, now: EmbedderInfo) -> str:
    """Return the configured model, in words that differ from the one before even if their names are the same."""
    if before.model != now.model:
        return now.model
    if before.dimension != now.dimension:
        return f"{now.model} with {now.dimension} numbers instead of {before.dimension}"
    return f"another version of {now.model}"


def _situation(connection: Connection) -> tuple[list[IndexRow], list[IndexRow], bool]:
    """Return the indexes in use, the retired ones, and whether the one begun last is not complete."""
    kept = indexes.kept(connection)
    live = [index for index in kept if index.state is not IndexState.RETIRED]
    newest = live[-1] if live else None
    is_new = newest is not None and newest.completed_at is None
    return live, kept[len(live) :], is_new or indexes.coverage(connection, newest).left > 0


def _progress(connection: Connection, info: EmbedderInfo | None) -> _Found:
    """Return the indexes, and the progress of the current one: the configured model's, or else the last started."""
    live = indexes.live(connection)
    index = next((one for one in reversed(live) if info is None or one.matches(info)), live[-1] if live else None)
    refused = [] if index is None else embeddings.refusals(connection, index, REFUSALS_SHOWN)
    return live, indexes.coverage(connection, index), refused
