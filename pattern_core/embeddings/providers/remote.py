"""The embedder of a service over HTTP: portions, attempts, and no number believed before it was looked at.

What differs between services is a `Dialect`, which is pure.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import trio

from pattern_core.embeddings.embedder import EmbedderInfo, EmbedderUnavailable, TextsRefused, portions, unavailable
from pattern_core.embeddings.settings import Purpose
from pattern_core.ids import Clock, SystemClock
from pattern_core.models.errors import (
    ModelError,
    ModelGarbage,
    ModelRefused,
    ModelRejected,
    ModelServerError,
    ModelTimeout,
    ModelUnreachable,
    WindowExceeded,
)
from pattern_core.models.providers.failures import failure, retry_after_s, shortened, vendor_words
from pattern_core.models.providers.settings import Secret
from pattern_core.models.throttle import RetryPolicy

if TYPE_CHECKING:
    import httpx2

BATCH_TEXTS_MAX = 32  # the least that the known services take
BATCH_CHARS_MAX = 100_000
TEXT_CHARS_MAX = 24_000
TEXT_CHARS_MIN = 500  # a service that refuses so few characters as too many is asked no further
ANSWER_BYTES_MAX = 64 * 1024 * 1024
WAITING_MAX = 1_000
CONNECT_TIMEOUT_S = 10.0
_PROBE = "dimension"
# Some servers answer 500 for a text that makes their model give no numbers.
_MAYBE_OF_A_TEXT = (ModelGarbage, ModelRejected, ModelServerError)
_OF_THE_WAY = (409, 502, 504)  # somebody between us and the model speaks


class Unreached(Exception):
    """There is no connection, or it broke; the message says how."""


class UnusableAnswer(Exception):
    """The answer is not in the service's own format, or holds numbers that are no vector."""


class WireAnswer(NamedTuple):
    """What a service answered; header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpWire:
    """Requests to `base_url` with these headers; the client is made by the first one. Proxies are the environment's.

    With `key`, it is sent as the bearer, and answers that repeat it are redacted: some servers do when they refuse it.
    """

    def __init__(
        self,
        base_url: str,
        headers: Mapping[str, str] | None = None,
        *,
        key: Secret | None = None,
        follows_redirects: bool = False,
    ) -> None:
        self._base_url = base_url.rstrip("/")
        self._headers = dict(headers or {}) | ({"authorization": f"Bearer {key.reveal()}"} if key else {})
        self._key = key
        self._follows_redirects = follows_redirects
        self._client: httpx2.AsyncClient | None = None
        self._opening = trio.Lock()

    async def ask(self, path: str, body: Mapping[str, object] | None) -> WireAnswer:
        """POST the body as JSON, or GET without one.

        Raises:
            Unreached: no answer came, or one of more than `ANSWER_BYTES_MAX` bytes.
        """
        import httpx2

        async with self._opening:
            if self._client is None:
                self._client = await trio.to_thread.run_sync(self._load)
            client = self._client
        try:
            async with client.stream("GET" if body is None else "POST", self._base_url + path, json=body) as response:
                whole = bytearray()
                async for piece in response.aiter_bytes():
                    whole += piece
                    if len(whole) > ANSWER_BYTES_MAX:
                        raise Unreached(f"it answered more than {ANSWER_BYTES_MAX} bytes")
        except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL) as error:
            raise Unreached(why(error, self._base_url)) from error
        headers = {name.lower(): value for name, value in response.headers.items()}
        answer = whole.replace(self._key.reveal().encode(), b"***") if self._key else whole
        return WireAnswer(response.status_code, headers, bytes(answer))

    async def aclose(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _load(self) -> httpx2.AsyncClient:
        import httpx2

        return httpx2.AsyncClient(
            # The time of the whole question is the caller's; a port that swallows packets is noticed sooner.
            timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT_S),
            headers=self._headers,
            follow_redirects=self._follows_redirects,
        )


def why(error: Exception, base_url: str) -> str:
    """Return a failed request in words, with the host but without anything secret."""
    cause = error.__cause__ or error
    return f"{str(cause) or type(cause).__name__} ({urlsplit(base_url).netloc.rpartition('@')[2]})"


class Dialect(ABC):
    """One service's format; pure.

    `provider` is its name for people. `identity` is what decides about the vectors, beside the model's name: the
    address, prefixes. `known_dimension` is how long the vectors are, where that is known without asking. `about_path`
    is where to ask about the model before its first use; None for nowhere.
    """

    provider: str
    model: str
    identity: Mapping[str, object]
    known_dimension: int | None = None
    about_path: str | None = None

    @abstractmethod
    def question(self, texts: Sequence[str], purpose: Purpose) -> tuple[str, dict[str, object]]:
        """Return path and body that ask for vectors."""

    @abstractmethod
    def vectors(self, answer: Mapping[str, object]) -> list[object]:
        """Return the vectors of an answer, in the order of the texts.

        Raises:
            UnusableAnswer: there are none in it.
        """

    @abstractmethod
    def advice(self, status: int | None) -> str:
        """Return what to do about a refusal."""

    def digest(self, answer: Mapping[str, object]) -> str:
        """Return the digest of the model's weights, from the answer to `about_path`; empty if it is not told."""
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLimits:
    """Bounds of one service. For a query somebody waits, so it is tried less and waits less; seconds."""

    timeout_s: float = 30.0  # of one question
    calls_max: Mapping[Purpose, int] = field(default_factory=lambda: {"query": 4, "passage": 2})
    attempts_max: Mapping[Purpose, int] = field(default_factory=lambda: {"query": 2, "passage": 4})
    wait_max_s: Mapping[Purpose, float] = field(default_factory=lambda: {"query": 2.0, "passage": 30.0})
    rest_max_s: float = 60.0  # after the last attempt, everybody is refused at once for as long as it would have waited


class RemoteEmbedder:
    """An `Embedder` that asks a service. Texts leave this machine."""

    def __init__(
        self,
        dialect: Dialect,
        wire: HttpWire,
        *,
        dimensions: int | None = None,
        limits: RemoteLimits | None = None,
        retry: RetryPolicy | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._dialect = dialect
        self._wire = wire
        self._dimensions = dimensions
        self._limits = limits or RemoteLimits()
        self._retry = retry or RetryPolicy()
        self._clock = clock or SystemClock()
        self._slots = {purpose: trio.Semaphore(count) for purpose, count in self._limits.calls_max.items()}
        self._asking_about = trio.Lock()
        self._info: EmbedderInfo | None = None
        self._rests_until = -math.inf  # on trio's clock
        self._failure: ModelError | None = None

    async def info(self) -> EmbedderInfo:
        """What the model is; asks the service where its name does not tell.

        Raises:
            EmbedderUnavailable: the service does not answer, or refuses.
        """
        if self._info is None:
            async with self._asking_about:
                if self._info is None:
                    self._refuse_while_resting()
                    self._info = await self._find_out()
        return self._info

    async def embed(self, texts: Sequence[str], *, purpose: Purpose) -> list[bytes]:
        """One unit vector per text, in order. A text that is longer than the model reads is cut.

        Raises:
            TextsRefused: the service is there, and refuses or garbles the answer to these texts.
            EmbedderUnavailable: the service does not answer or is busy, or does not accept the key or the model.
        """
        info = await self.info()
        self._refuse_while_resting()
        cut = [text[:TEXT_CHARS_MAX] for text in texts]
        vectors = []
        for indexes in portions(cut, range(len(cut)), texts_max=BATCH_TEXTS_MAX, chars_max=BATCH_CHARS_MAX):
            vectors += await self._embed([cut[index] for index in indexes], purpose, info.dimension)
        return vectors

    async def aclose(self) -> None:
        """Close the connections."""
        await self._wire.aclose()

    async def _find_out(self) -> EmbedderInfo:
        dialect = self._dialect
        digest = ""
        try:
            if dialect.about_path is not None:
                digest = dialect.digest(await self._answer(dialect.about_path, None, "query"))
            dimension = self._dimensions or dialect.known_dimension
            if dimension is None:
                dimension = len((await self._vectors([_PROBE], "query", None))[0]) // 4
        except ModelError as error:
            raise self._unavailable(error) from error
        told = {**dialect.identity, "model": dialect.model, "dimension": dimension, "digest": digest}
        return EmbedderInfo(
            provider=dialect.provider,
            model=dialect.model,
            dimension=dimension,
            fingerprint=hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest(),
        )

    async def _embed(self, texts: list[str], purpose: Purpose, dimension: int) -> list[bytes]:
        try:
            return await self._vectors(texts, purpose, dimension)
        except WindowExceeded as error:
            if len(texts) == 1 and len(texts[0]) <= TEXT_CHARS_MIN:
                raise self._refused(error) from error
        except ModelError as error:
            raise self._refused(error) from error
        # One of them is too long. Each alone, so that a text's vector does not depend on its neighbours.
        if len(texts) > 1:
            return [vector for text in texts for vector in await self._embed([text], purpose, dimension)]
        return await self._embed([texts[0][: len(texts[0]) // 2]], purpose, dimension)

    async def _vectors(self, texts: list[str], purpose: Purpose, dimension: int | None) -> list[bytes]:
        """Vectors of at most `BATCH_TEXTS_MAX` texts, asked for as often as that may help."""
        path, body = self._dialect.question([text if text.strip() else "." for text in texts], purpose)
        attempt = 1
        while True:
            try:
                return self._checked(await self._answer(path, body, purpose), len(texts), dimension)
            except ModelError as error:
                # The policy's number is for conversations; queries and passages have their own.
                is_over = attempt >= self._limits.attempts_max[purpose] or not self._retry.again(attempt, error)
                wait_s = self._retry.delay_s(attempt, error)
                if is_over or wait_s > self._limits.wait_max_s[purpose]:
                    if error.retryable:
                        self._failure = error
                        self._rests_until = trio.current_time() + min(wait_s, self._limits.rest_max_s)
                    raise
            await trio.sleep(wait_s)
            attempt += 1

    async def _answer(self, path: str, body: Mapping[str, object] | None, purpose: Purpose) -> Mapping[str, object]:
        """The service's answer as a JSON object; one question, with its time limit."""
        name, slots = self._dialect.provider, self._slots[purpose]
        if slots.statistics().tasks_waiting >= WAITING_MAX:
            raise unavailable(f"{name} is busy: {WAITING_MAX} callers wait for it. Ask again later.", retry_after_s=5.0)
        async with slots:
            with trio.move_on_after(self._limits.timeout_s) as scope:
                try:
                    answer = await self._wire.ask(path, body)
                except Unreached as error:
                    raise ModelUnreachable(f"There is no connection to {name}: {error}", provider=name) from error
            if scope.cancelled_caught:
                raise ModelTimeout(f"{name} did not answer within {self._limits.timeout_s:g} s.", provider=name)
        told = _json(answer.body)
        if answer.status != 200:
            words, code = vendor_words(told)
            wait_s = retry_after_s(answer.headers, words, self._clock.now_ms())
            refused = failure(name, answer.status, words, code=code, retry_after_s=wait_s)
            # Its kind is right, its advice is about agents.
            refused.message = f"{name} answered {answer.status}: {shortened(words) or 'nothing more'}"
            raise refused
        if not isinstance(told, dict):
            raise ModelGarbage(f"{name} answered what is no JSON object.", provider=name)
        self._failure = None
        return told

    def _checked(self, answer: Mapping[str, object], count: int, dimension: int | None) -> list[bytes]:
        """The vectors of an answer, if all of them can be used."""
        name = self._dialect.provider
        try:
            vectors = [unit_vector(values) for values in self._dialect.vectors(answer)]
        except UnusableAnswer as error:
            raise ModelGarbage(f"{name} answered with a vector that cannot be used: {error}.", provider=name) from error
        if len(vectors) != count:
            raise ModelGarbage(f"{name} answered {len(vectors)} vectors for {count} texts.", provider=name)
        lengths = sorted({len(vector) // 4 for vector in vectors})
        if dimension is not None and lengths != [dimension]:
            found = " and ".join(str(length) for length in lengths)
            raise ModelRefused(
                f"{name} answered vectors of {found} numbers where {dimension} were expected. None was stored. Set "
                f"[embeddings] dimensions = {lengths[-1]}, or correct the model, and start the server again.",
                provider=name,
            )
        return vectors

    def _refuse_while_resting(self) -> None:
        """A service that is down is not asked again for every query; nobody should wait for its time limit."""
        if self._failure is not None and trio.current_time() < self._rests_until:
            raise self._unavailable(self._failure)

    def _unavailable(self, error: ModelError) -> EmbedderUnavailable:
        """Our error for theirs; only what may pass by itself has a time to ask again."""
        if not error.retryable:
            advice = "" if "[embeddings]" in error.message else f" {self._dialect.advice(error.status)}"
            return unavailable(f"Embeddings: {error.message}{advice}")
        wait_s = max(1.0, self._rests_until - trio.current_time())
        return unavailable(f"Embeddings: {error.message} It is tried again later.", retry_after_s=wait_s)

    def _refused(self, error: ModelError) -> EmbedderUnavailable:
        """Our error for one about certain texts, as far as it may be about them."""
        failure = self._unavailable(error)
        if not isinstance(error, _MAYBE_OF_A_TEXT) or error.status in _OF_THE_WAY:
            return failure
        return TextsRefused(failure.message, **failure.details)


def _json(body: bytes) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return body[:2_000].decode("utf-8", "replace")


def unit_vector(values: object) -> bytes:
    """Return the numbers brought to unit length, as float32, little endian: 4 bytes each.

    Raises:
        UnusableAnswer: they cannot be compared with others: it is no list of finite numbers, or they are all zero.
    """
    if not isinstance(values, Sequence) or isinstance(values, str) or not values:
        raise UnusableAnswer("it is no list of numbers")
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        raise UnusableAnswer("it holds something that is no number")
    try:
        length = math.hypot(*values)
    except OverflowError as error:
        raise UnusableAnswer("it holds a number that is too large") from error
    if not math.isfinite(length):
        raise UnusableAnswer("it holds a number that is not finite")
    if not length:
        raise UnusableAnswer("all its numbers are zero")
    return struct.pack(f"<{len(values)}f", *(value / length for value in values))
