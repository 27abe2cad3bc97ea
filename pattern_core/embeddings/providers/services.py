"""The embedders of services over HTTP: retries, pauses, and checks of all numbers. What differs between services is a
`Service`: values and pure functions.

Sources: OpenAI API reference, "Create embeddings" (many servers speak this format: vLLM, llama.cpp, LM Studio, TEI,
LiteLLM …); Gemini API reference, "models.batchEmbedContents"; Ollama API reference, "Generate embeddings" and "List
local models".
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

from pattern_core.embeddings.embedder import AbsentEmbedder, Embedder, EmbedderInfo, EmbedderUnavailable, TextsRefused
from pattern_core.embeddings.settings import EmbedderSettings, Purpose, prefixes_of
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

OPENAI_URL = "https://api.openai.com/v1"
OPENAI_MODEL = "text-embedding-3-small"
GOOGLE_URL = "https://generativelanguage.googleapis.com"
GOOGLE_MODEL = "gemini-embedding-001"
_GOOGLE_TASKS: Mapping[Purpose, str] = {"query": "RETRIEVAL_QUERY", "passage": "RETRIEVAL_DOCUMENT"}
OLLAMA_URL = "http://127.0.0.1:11434"
OLLAMA_MODEL = "nomic-embed-text"
_DIMENSIONS = {
    "text-embedding-3-small": 1536,
    "text-embedding-3-large": 3072,
    "text-embedding-ada-002": 1536,
    "gemini-embedding-001": 3072,
}


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


def make_openai(settings: EmbedderSettings) -> Embedder:
    """Return the embedder of OpenAI, or of the server at `base_url` that speaks its format."""
    if settings.base_url is None and settings.provider == "compatible":
        return AbsentEmbedder("Set base_url under [embeddings] in pattern.toml to the address of the server.")
    if settings.base_url is None and not settings.api_key:
        return AbsentEmbedder(
            "OpenAI's embeddings need a key: set OPENAI_API_KEY, or api_key_env under [embeddings] in pattern.toml, "
            "and start the server again."
        )
    if settings.base_url is not None and not settings.model:
        return AbsentEmbedder(
            f"Name the model that {settings.base_url} should use: model under [embeddings] in pattern.toml."
        )
    return RemoteEmbedder(openai(settings), settings)


def openai(settings: EmbedderSettings) -> Service:
    """Return OpenAI's format. Its own models want no prefixes; those behind other addresses may."""
    is_own = settings.base_url is None
    model = settings.model or OPENAI_MODEL
    address = settings.base_url or OPENAI_URL
    return Service(
        provider="openai" if is_own else settings.provider,
        model=model,
        address=address,
        headers={**_bearer(settings), **(settings.account if is_own else {})},
        key=settings.api_key,
        path="/embeddings",
        # Numbers as text: not every compatible server knows base64.
        body=partial(_body, settings, model, {"encoding_format": "float"}),
        vectors=("data", "embedding"),
        advice="Check model, base_url and the key under [embeddings] in pattern.toml.",
        identity={"format": "openai", "address": address, "prefixes": _prefixes(settings, model)},
        known_dimension=_DIMENSIONS.get(model) if is_own else None,
    )


def make_google(settings: EmbedderSettings) -> Embedder:
    """Return the embedder of Google; `base_url` None is Google's own."""
    if not settings.api_key:
        return AbsentEmbedder(
            "Google's embeddings need a key: set GEMINI_API_KEY, or api_key_env under [embeddings] in pattern.toml, "
            "and start the server again."
        )
    model = (settings.model or GOOGLE_MODEL).removeprefix("models/")
    address = settings.base_url or GOOGLE_URL

    def body(texts: Sequence[str], purpose: Purpose) -> dict[str, object]:
        """Return one request per text within one call. Shortened vectors come without unit length."""
        shared: dict[str, object] = {"model": f"models/{model}", "taskType": _GOOGLE_TASKS[purpose]}
        if settings.dimensions is not None:
            shared["outputDimensionality"] = settings.dimensions
        return {"requests": [{**shared, "content": {"parts": [{"text": text}]}} for text in texts]}

    service = Service(
        provider="google",
        model=model,
        address=address,
        headers={"x-goog-api-key": settings.api_key.get_secret_value()},
        key=settings.api_key,
        path=f"/v1beta/models/{model}:batchEmbedContents",
        body=body,
        vectors=("embeddings", "values"),
        advice="Check model and the key under [embeddings] in pattern.toml.",
        identity={"format": "google", "address": address},
        known_dimension=_DIMENSIONS.get(model),
    )
    return RemoteEmbedder(service, settings)


def make_ollama(settings: EmbedderSettings) -> Embedder:
    """Return the embedder of Ollama; `base_url` None is Ollama on this machine."""
    model = settings.model or OLLAMA_MODEL

    def digest(answer: Mapping[str, object]) -> str:
        """Return the digest of the weights counts: a name such as `nomic-embed-text` may mean others tomorrow."""
        models = answer.get("models")
        for one in models if isinstance(models, list) else ():
            if isinstance(one, dict) and {model, f"{model}:latest"} & {one.get("name"), one.get("model")}:
                return str(one.get("digest", ""))
        return ""

    service = Service(
        provider="ollama",
        model=model,
        # People configure the address with the path of the OpenAI format, too.
        address=(settings.base_url or OLLAMA_URL).rstrip("/").removesuffix("/v1"),
        headers=_bearer(settings),
        key=settings.api_key,
        path="/api/embed",
        body=partial(_body, settings, model, {"truncate": True}),
        vectors=("embeddings", None),
        advice="Check model and base_url under [embeddings] in pattern.toml.",
        advice_if_absent=(
            f"Fetch the model with `ollama pull {model}`, or set [embeddings] model to one that is there."
        ),
        identity={"format": "ollama", "prefixes": _prefixes(settings, model)},
        about=("/api/tags", digest),
    )
    return RemoteEmbedder(service, settings)


def _bearer(settings: EmbedderSettings) -> dict[str, str]:
    return {"authorization": f"Bearer {settings.api_key.get_secret_value()}"} if settings.api_key else {}


def _body(
    settings: EmbedderSettings, model: str, fixed: Mapping[str, object], texts: Sequence[str], purpose: Purpose
) -> dict[str, object]:
    """Return the body of a question in the format of OpenAI and Ollama."""
    prefix = prefixes_of(model).configured(settings).of(purpose)
    length = {} if settings.dimensions is None else {"dimensions": settings.dimensions}
    return {"model": model, **fixed, **length, "input": [prefix + text for text in texts]}


def _prefixes(settings: EmbedderSettings, model: str) -> list[str]:
    prefixes = prefixes_of(model).configured(settings)
    return [prefixes.query, prefixes.passage]
