"""The embedder of a service over HTTP: retries, pauses, and checks of all numbers.

What differs between services is a `Service`: values and pure functions.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import trio

from pattern_core.embeddings.embedder import EmbedderInfo, EmbedderUnavailable, TextsRefused
from pattern_core.embeddings.settings import EmbedderSettings, Purpose
from pattern_core.ids import Clock
from pattern_core.models.errors import (
    ModelError,
    ModelGarbage,
    ModelRejected,
    ModelServerError,
    ModelTimeout,
    WindowExceeded,
)
from pattern_core.models.providers.draft import Malformed, loads
from pattern_core.models.providers.exchange import HttpClient
from pattern_core.models.providers.settings import Secret
from pattern_core.models.throttle import RetryPolicy
from pattern_db.vectors import packed

T = TypeVar("T")

TEXT_CHARS_MAX = 24_000
TEXT_CHARS_MIN = 500  # if a service refuses even this few characters as too many, there is no retry
ANSWER_BYTES_MAX = 64 * 1024 * 1024
WAITING_MAX = 1_000
CALLS_MAX: Mapping[Purpose, int] = {"query": 4, "passage": 2}
# A person waits for a query; passages are asked for again by their queue.
ATTEMPTS_MAX: Mapping[Purpose, int] = {"query": 2, "passage": 1}
QUERY_WAIT_MAX_S = 2.0
REST_MAX_S = 60.0  # after the last attempt, all callers are refused at once for as long as it would have waited
_PROBE = "dimension"
# Some servers answer 500 for a text that makes their model give no numbers.
_MAYBE_OF_A_TEXT = (ModelGarbage, ModelRejected, ModelServerError)
_OF_THE_WAY = (409, 502, 504)  # something between us and the model speaks


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """The differences between services.

    `provider` is its name for people. `key` is part of the `headers`, and is removed from repeated answers. `body`
    makes the JSON to POST to `path`; `vectors` names the list in the answer, and in each of its items the vector (None:
    the item is one). `advice` says what to do about a refusal, `advice_if_absent` about a model that is not there.
    `identity` is what determines the vectors besides the model's name: the URL, prefixes. `known_dimension` is
    how long the vectors are, where that is known without asking. `about` is where to ask about the model before its
    first use, and how the digest of its weights is read from that: empty if the service does not give one.
    """

    provider: str
    model: str
    address: str
    headers: Mapping[str, str] = field(default_factory=dict)
    key: Secret | None = None
    path: str
    body: Callable[[Sequence[str], Purpose], dict[str, object]]
    vectors: tuple[str, str | None]
    advice: str
    advice_if_absent: str | None = None
    identity: Mapping[str, object]
    known_dimension: int | None = None
    about: tuple[str, Callable[[Mapping[str, object]], str]] | None = None


class RemoteEmbedder(HttpClient):
    """An `Embedder` that asks a service. Texts leave this machine."""

    def __init__(
        self,
        service: Service,
        settings: EmbedderSettings,
        *,
        retry: RetryPolicy | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(service.provider, service.address, service.key, clock=clock)
        self._service = service
        self._settings = settings
        self._retry = retry or RetryPolicy()
        self._slots = {purpose: trio.Semaphore(count) for purpose, count in CALLS_MAX.items()}
        self._asking_about = trio.Lock()
        self._info: EmbedderInfo | None = None
        self._rests_until = -math.inf  # on trio's clock
        self._failure: ModelError | None = None

    async def info(self) -> EmbedderInfo:
        """See `Embedder.info`; asks the service where the model's name does not tell."""
        async with self._asking_about:
            if self._info is None:
                self._refuse_while_resting()
                self._info = await self._find_out()
        return self._info

    async def embed(self, texts: Sequence[str], *, purpose: Purpose) -> list[bytes]:
        """See `Embedder.embed`. A text that is longer than the model reads is cut."""
        self._refuse_while_resting()
        return await self._embed([text[:TEXT_CHARS_MAX] for text in texts], purpose)

    def headers(self, key: str) -> Mapping[str, str]:
        """Return the service's headers, with its key, if there is one."""
        return self._service.headers

    async def _find_out(self) -> EmbedderInfo:
        service = self._service
        digest = ""
        try:
            if service.about is not None:
                path, read = service.about
                digest = await self._ask(path, None, "query", read)
            dimension = self._settings.dimensions or service.known_dimension
            if dimension is None:
                dimension = len((await self._vectors([_PROBE], "query"))[0]) // 4
        except ModelError as error:
            raise self._unavailable(error) from error
        identity = {**service.identity, "model": service.model, "dimension": dimension, "digest": digest}
        return EmbedderInfo(
            provider=service.provider,
            model=service.model,
            dimension=dimension,
            fingerprint=hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest(),
        )

    async def _embed(self, texts: list[str], purpose: Purpose) -> list[bytes]:
        try:
            return await self._vectors(texts, purpose)
        except WindowExceeded as error:
            if len(texts) == 1 and len(texts[0]) <= TEXT_CHARS_MIN:
                raise self._refused(error) from error
        except ModelError as error:
            raise self._refused(error) from error
        # One of them is too long. Each alone, so that a text's vector does not depend on its neighbours.
        if len(texts) > 1:
            return [vector for text in texts for vector in await self._embed([text], purpose)]
        return await self._embed([texts[0][: len(texts[0]) // 2]], purpose)

    async def _vectors(self, texts: list[str], purpose: Purpose) -> list[bytes]:
        """Return the texts' vectors, with retries."""
        body = self._service.body([text if text.strip() else "." for text in texts], purpose)
        attempt = 1
        while True:
            try:
                return await self._ask(self._service.path, body, purpose, partial(self._read, count=len(texts)))
            except ModelError as error:
                wait_s = self._retry.delay_s(attempt, error)
                if not error.retryable:
                    raise
                if attempt >= ATTEMPTS_MAX[purpose] or wait_s > QUERY_WAIT_MAX_S:
                    self._failure = error
                    self._rests_until = trio.current_time() + min(wait_s, REST_MAX_S)
                    raise
            await trio.sleep(wait_s)
            attempt += 1

    async def _ask(
        self, path: str, body: Mapping[str, object] | None, purpose: Purpose, read: Callable[[Mapping[str, object]], T]
    ) -> T:
        """Return what `read` makes of the service's answer; one question, with its time limit."""
        slots = self._slots[purpose]
        if slots.statistics().tasks_waiting >= WAITING_MAX:
            message = f"{self.name} is busy: {WAITING_MAX} callers wait for it. Try again later."
            raise EmbedderUnavailable(message, retry_after_s=5.0)
        async with slots:
            with trio.move_on_after(self._settings.timeout_s):
                async with self.exchange("GET" if body is None else "POST", path, body) as answer:
                    found = read(loads(await answer.rest(ANSWER_BYTES_MAX)))
                self._failure = None
                return found
        raise ModelTimeout(f"{self.name} did not respond within {self._settings.timeout_s:g} s.", provider=self.name)

    def _read(self, answer: Mapping[str, object], count: int) -> list[bytes]:
        """Return the vectors of an answer, if all of them can be used."""
        vectors = [unit_vector(values) for values in listed(answer, *self._service.vectors)]
        if len(vectors) != count:
            raise Malformed(f"{len(vectors)} vectors for {count} texts")
        return vectors

    def _refuse_while_resting(self) -> None:
        """Refuse a request during the pause of a service that is down: no query waits for its time limit."""
        if self._failure is not None and trio.current_time() < self._rests_until:
            raise self._unavailable(self._failure)

    def _unavailable(self, error: ModelError) -> EmbedderUnavailable:
        """Return our error for theirs; only temporary ones have a retry time."""
        if error.retryable:
            wait_s = max(1.0, self._rests_until - trio.current_time())
            return EmbedderUnavailable(f"Embeddings: {error.message} It is tried again later.", retry_after_s=wait_s)
        advice = self._service.advice_if_absent if error.status == 404 else None
        return EmbedderUnavailable(f"Embeddings: {error.message} {advice or self._service.advice}")

    def _refused(self, error: ModelError) -> EmbedderUnavailable:
        """Return our error for one about certain texts, as far as it may be about them."""
        failure = self._unavailable(error)
        if not isinstance(error, _MAYBE_OF_A_TEXT) or error.status in _OF_THE_WAY:
            return failure
        return TextsRefused(failure.message, retry_after_s=failure.retry_after_s)


def listed(answer: Mapping[str, object], name: str, part: str | None) -> list[object]:
    """Return the list `name` of an answer, of each item the `part`, sorted by `index` where the items have one.

    Raises:
        Malformed: there is no such list.
    """
    found = answer.get(name)
    if not isinstance(found, list) or (part is not None and not all(isinstance(item, dict) for item in found)):
        raise Malformed("there is no list of embeddings in the answer")
    if part is None:
        return found
    indexes = [item.get("index") for item in found]
    if all(isinstance(index, int) for index in indexes):
        if sorted(indexes) != list(range(len(found))):
            raise Malformed("the embeddings are not numbered from 0 without gaps")
        found = sorted(found, key=lambda item: int(item["index"]))
    return [item.get(part) for item in found]


def unit_vector(values: object) -> bytes:
    """Return the numbers brought to unit length, as float32, little endian: 4 bytes each.

    Raises:
        Malformed: they cannot be compared with others: it is not a list of finite numbers, or they are all zero.
    """
    if not isinstance(values, list):
        raise Malformed("it is not a list of numbers")
    try:
        length = math.hypot(*values)
    except (TypeError, OverflowError) as error:
        raise Malformed(f"it holds what cannot be compared: {error}") from error
    if not math.isfinite(length):
        raise Malformed("it holds a number that is not finite")
    if not length:
        raise Malformed("all its numbers are zero")
    return packed([value / length for value in values])
