"""The embedder of a service over HTTP: attempts, rests, and no number believed before it was looked at.

What differs between services is a `Service`: values and pure functions.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import trio

from pattern_core.embeddings.embedder import EmbedderInfo, EmbedderUnavailable, TextsRefused
from pattern_core.embeddings.settings import EmbedderSettings, Purpose
from pattern_core.ids import Clock, SystemClock
from pattern_core.models.errors import (
    ModelError,
    ModelGarbage,
    ModelRejected,
    ModelServerError,
    ModelTimeout,
    ModelUnreachable,
    WindowExceeded,
)
from pattern_core.models.providers.failures import failure, retry_after_s, shortened, vendor_words
from pattern_core.models.providers.settings import Secret
from pattern_core.models.throttle import RetryPolicy
from pattern_db.vectors import packed

if TYPE_CHECKING:
    import httpx2

TEXT_CHARS_MAX = 24_000
TEXT_CHARS_MIN = 500  # a service that refuses so few characters as too many is asked no further
ANSWER_BYTES_MAX = 64 * 1024 * 1024
WAITING_MAX = 1_000
CONNECT_TIMEOUT_S = 10.0
# A person waits for a query, so it is tried less and waits less.
CALLS_MAX: Mapping[Purpose, int] = {"query": 4, "passage": 2}
ATTEMPTS_MAX: Mapping[Purpose, int] = {"query": 2, "passage": 4}
WAIT_MAX_S: Mapping[Purpose, float] = {"query": 2.0, "passage": 30.0}
REST_MAX_S = 60.0  # after the last attempt, all callers are refused at once for as long as it would have waited
_PROBE = "dimension"
# Some servers answer 500 for a text that makes their model give no numbers.
_MAYBE_OF_A_TEXT = (ModelGarbage, ModelRejected, ModelServerError)
_OF_THE_WAY = (409, 502, 504)  # something between us and the model speaks


class UnusableAnswer(Exception):
    """The answer is not in the service's own format, or holds numbers that are no vector."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What one service differs in from the others.

    `provider` is its name for people. `key` is sent as the bearer, and answers that repeat it are redacted: some
    servers do when they refuse it. `body` makes the JSON to POST to `path`; `vectors` names the list in the answer, and
    in each of its items the vector (None: the item is one). `advice` says what to do about a refusal,
    `advice_if_absent` about a model that is not there. `identity` is what decides about the vectors, beside the model's
    name: the address, prefixes. `known_dimension` is how long the vectors are, where that is known without asking.
    `about` is where to ask about the model before its first use, and how the digest of its weights is read from that;
    the digest is empty if the service does not give one.
    """

    provider: str
    model: str
    address: str
    headers: Mapping[str, str] = field(default_factory=dict)
    key: Secret | None = None
    follows_redirects: bool = False
    path: str
    body: Callable[[Sequence[str], Purpose], dict[str, object]]
    vectors: tuple[str, str | None]
    advice: str
    advice_if_absent: str | None = None
    identity: Mapping[str, object]
    known_dimension: int | None = None
    about: tuple[str, Callable[[Mapping[str, object]], str]] | None = None


class RemoteEmbedder:
    """An `Embedder` that asks a service. Texts leave this machine. Proxies are the environment's."""

    def __init__(
        self,
        service: Service,
        settings: EmbedderSettings,
        *,
        retry: RetryPolicy | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._service = service
        self._dimensions = settings.dimensions
        self._timeout_s = settings.timeout_s
        self._retry = retry or RetryPolicy()
        self._clock = clock or SystemClock()
        self._slots = {purpose: trio.Semaphore(count) for purpose, count in CALLS_MAX.items()}
        self._client: httpx2.AsyncClient | None = None
        self._opening = trio.Lock()
        self._asking_about = trio.Lock()
        self._info: EmbedderInfo | None = None
        self._rests_until = -math.inf  # on trio's clock
        self._failure: ModelError | None = None

    async def info(self) -> EmbedderInfo:
        """Return what the model is; asks the service where its name does not tell.

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
        """Return one unit vector per text, in order. A text that is longer than the model reads is cut.

        Raises:
            TextsRefused: the service is there, and refuses or garbles the answer to these texts.
            EmbedderUnavailable: the service does not answer or is busy, or does not accept the key or the model.
        """
        self._refuse_while_resting()
        return await self._embed([text[:TEXT_CHARS_MAX] for text in texts], purpose)

    async def aclose(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _find_out(self) -> EmbedderInfo:
        service = self._service
        digest = ""
        try:
            if service.about is not None:
                path, read = service.about
                digest = read(await self._answer(path, None, "query"))
            dimension = self._dimensions or service.known_dimension
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
        """Return the texts' vectors, asked for as often as that may help."""
        body = self._service.body([text if text.strip() else "." for text in texts], purpose)
        attempt = 1
        while True:
            try:
                return self._checked(await self._answer(self._service.path, body, purpose), len(texts))
            except ModelError as error:
                # The policy's number is for conversations; queries and passages have their own.
                is_over = attempt >= ATTEMPTS_MAX[purpose] or not self._retry.again(attempt, error)
                wait_s = self._retry.delay_s(attempt, error)
                if is_over or wait_s > WAIT_MAX_S[purpose]:
                    if error.retryable:
                        self._failure = error
                        self._rests_until = trio.current_time() + min(wait_s, REST_MAX_S)
                    raise
            await trio.sleep(wait_s)
            attempt += 1

    async def _answer(self, path: str, body: Mapping[str, object] | None, purpose: Purpose) -> Mapping[str, object]:
        """Return the service's answer as a JSON object; one question, with its time limit."""
        name, slots = self._service.provider, self._slots[purpose]
        if slots.statistics().tasks_waiting >= WAITING_MAX:
            message = f"{name} is busy: {WAITING_MAX} callers wait for it. Ask again later."
            raise EmbedderUnavailable(message, retry_after_s=5.0)
        async with slots:
            with trio.move_on_after(self._timeout_s) as scope:
                status, headers, answer = await self._exchange(path, body)
            if scope.cancelled_caught:
                raise ModelTimeout(f"{name} did not answer within {self._timeout_s:g} s.", provider=name)
        if status != 200:
            words, code = vendor_words(answer)
            wait_s = retry_after_s(headers, words, self._clock.now_ms())
            refused = failure(name, status, words, code=code, retry_after_s=wait_s)
            # Its kind is right, its advice is about agents.
            refused.message = f"{name} answered {status}: {shortened(words) or 'nothing more'}"
            raise refused
        if not isinstance(answer, dict):
            raise ModelGarbage(f"{name} answered what is no JSON object.", provider=name)
        self._failure = None
        return answer

    async def _exchange(self, path: str, body: Mapping[str, object] | None) -> tuple[int, Mapping[str, str], object]:
        """POST the body as JSON, or GET without one. Return status, headers in lower case, and JSON, or else text."""
        import httpx2

        service = self._service
        async with self._opening:
            if self._client is None:
                self._client = await trio.to_thread.run_sync(self._load)
            client = self._client
        whole = bytearray()
        try:
            url = service.address.rstrip("/") + path
            async with client.stream("GET" if body is None else "POST", url, json=body) as response:
                async for piece in response.aiter_bytes():
                    whole += piece
                    if len(whole) > ANSWER_BYTES_MAX:
                        message = f"{service.provider} answered more than {ANSWER_BYTES_MAX} bytes."
                        raise ModelUnreachable(message, provider=service.provider)
        except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL) as error:
            message = f"There is no connection to {service.provider}: {why(error, service.address)}"
            raise ModelUnreachable(message, provider=service.provider) from error
        if service.key:
            whole = whole.replace(service.key.get_secret_value().encode(), b"***")
        headers = {name.lower(): value for name, value in response.headers.items()}
        try:
            return response.status_code, headers, json.loads(whole)
        except (ValueError, RecursionError):
            return response.status_code, headers, whole[:2_000].decode("utf-8", "replace")

    def _load(self) -> httpx2.AsyncClient:
        import httpx2

        service = self._service
        bearer = {"authorization": f"Bearer {service.key.get_secret_value()}"} if service.key else {}
        return httpx2.AsyncClient(
            # The time of the whole question is bounded elsewhere; a port that swallows packets is noticed sooner.
            timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT_S),
            headers={**service.headers, **bearer},
            follow_redirects=service.follows_redirects,
        )

    def _checked(self, answer: Mapping[str, object], count: int) -> list[bytes]:
        """Return the vectors of an answer, if all of them can be used."""
        name = self._service.provider
        try:
            vectors = [unit_vector(values) for values in listed(answer, *self._service.vectors)]
        except UnusableAnswer as error:
            raise ModelGarbage(f"{name} answered with a vector that cannot be used: {error}.", provider=name) from error
        if len(vectors) != count:
            raise ModelGarbage(f"{name} answered {len(vectors)} vectors for {count} texts.", provider=name)
        return vectors

    def _refuse_while_resting(self) -> None:
        """Refuse a question while a service that is down rests: no query waits for its time limit."""
        if self._failure is not None and trio.current_time() < self._rests_until:
            raise self._unavailable(self._failure)

    def _unavailable(self, error: ModelError) -> EmbedderUnavailable:
        """Return our error for theirs; only what may pass by itself has a time to ask again."""
        if error.retryable:
            wait_s = max(1.0, self._rests_until - trio.current_time())
            return EmbedderUnavailable(f"Embeddings: {error.message} It is tried again later.", retry_after_s=wait_s)
        advice = self._service.advice_if_absent if error.status == 404 else None
        advice = "" if "[embeddings]" in error.message else f" {advice or self._service.advice}"
        return EmbedderUnavailable(f"Embeddings: {error.message}{advice}")

    def _refused(self, error: ModelError) -> EmbedderUnavailable:
        """Return our error for one about certain texts, as far as it may be about them."""
        failure = self._unavailable(error)
        if not isinstance(error, _MAYBE_OF_A_TEXT) or error.status in _OF_THE_WAY:
            return failure
        return TextsRefused(failure.message, retry_after_s=failure.retry_after_s)


def why(error: Exception, address: str) -> str:
    """Return a failed request in words, with the host but without anything secret."""
    cause = error.__cause__ or error
    return f"{str(cause) or type(cause).__name__} ({urlsplit(address).netloc.rpartition('@')[2]})"


def listed(answer: Mapping[str, object], name: str, part: str | None) -> list[object]:
    """Return the list `name` of an answer, of each item the `part`, sorted by `index` where the items have one.

    Raises:
        UnusableAnswer: there is no such list.
    """
    found = answer.get(name)
    if not isinstance(found, list) or (part is not None and not all(isinstance(item, dict) for item in found)):
        raise UnusableAnswer("there is no list of embeddings in the answer")
    if part is None:
        return found
    indexes = [item.get("index") for item in found]
    if all(isinstance(index, int) for index in indexes):
        if sorted(indexes) != list(range(len(found))):
            raise UnusableAnswer("the embeddings are not numbered from 0 without gaps")
        found = sorted(found, key=lambda item: int(item["index"]))
    return [item.get(part) for item in found]


def unit_vector(values: object) -> bytes:
    """Return the numbers brought to unit length, as float32, little endian: 4 bytes each.

    Raises:
        UnusableAnswer: they cannot be compared with others: it is no list of finite numbers, or they are all zero.
    """
    if not isinstance(values, list):
        raise UnusableAnswer("it is no list of numbers")
    try:
        length = math.hypot(*values)
    except (TypeError, OverflowError) as error:
        raise UnusableAnswer(f"it holds what cannot be compared: {error}") from error
    if not math.isfinite(length):
        raise UnusableAnswer("it holds a number that is not finite")
    if not length:
        raise UnusableAnswer("all its numbers are zero")
    return packed([value / length for value in values])
