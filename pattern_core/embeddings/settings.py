"""The configuration of embeddings, and the prefixes of some models for questions and passages.

Without their prefixes those models find noticeably less. Source: the model cards of the families on the Hugging Face
hub.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from pattern_core.models.providers.settings import Secret

Purpose: TypeAlias = Literal["query", "passage"]
"""What a text is for: some models need to know, and a question that a person waits for goes first."""

CODED: Mapping[Purpose, re.Pattern[str]] = {"query": re.compile(r"\w+"), "passage": re.compile(r"\w{4,}|\d+")}
"""The words of a text that have codes (see `Embedder`)."""

RuntimeName: TypeAlias = Literal["auto", "sentence-transformers", "onnx"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedderSection:
    """One configured embedder; missing values are the provider's defaults.

    `provider` is one of `pattern_core.embeddings.providers`, or in the configuration the name of a section
    `[providers.<name>]` of kind openai or google, with the address and key to use. `dimensions` None means the model's;
    `base_url` and `api_key` are for services, the second group for models on this machine: `idle_unload_s` are seconds
    without a question after which the model's memory is released. `query_prefix` and `passage_prefix` None take what
    the model's family wants.
    """

    # `local`, `openai`, `compatible`, `google`, `ollama`, `none`, or the name of a `[providers.<name>]`
    provider: str = "local"
    model: str = ""  # name of the model, or a folder; default: the provider's own
    dimensions: Annotated[int, Field(ge=1, le=8192)] | None = None  # length of the vectors; default: the model's
    base_url: str | None = None  # address of a service; default: the vendor's
    api_key: Secret | None = None  # key of a service; `api_key_env` names a variable with it
    timeout_s: Annotated[float, Field(gt=0)] = 30.0  # for one request to a service

    runtime: RuntimeName = "auto"  # what runs a local model
    allow_download: bool = False  # whether a missing local model may be downloaded
    idle_unload_s: Annotated[float, Field(gt=0)] = 600.0  # a local model is unloaded this long after the last query
    threads: Annotated[int, Field(ge=1, le=64)] = 1  # processor threads of a local model

    query_prefix: str | None = None  # put before queries; default: that of the model's family
    passage_prefix: str | None = None  # put before stored texts; default: that of the model's family


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedderSettings(EmbedderSection):
    """What an embedder is made from. `account` are headers that tell OpenAI, and no other server, which account
    pays.
    """

    account: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return what a child process may know of it, for its command line: neither address nor key."""
        return json.dumps(asdict(replace(self, base_url=None, api_key=None, account={})))

    @classmethod
    def from_json(cls, text: str) -> EmbedderSettings:
        """Return what `to_json` wrote."""
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefixes:
    """The prefix of a text; may be empty."""

    query: str = ""
    passage: str = ""

    def of(self, purpose: Purpose) -> str:
        """Return the prefix for a purpose."""
        return self.query if purpose == "query" else self.passage

    def configured(self, settings: EmbedderSettings) -> Prefixes:
        """Return these, or what is configured in their place."""
        return Prefixes(
            query=self.query if settings.query_prefix is None else settings.query_prefix,
            passage=self.passage if settings.passage_prefix is None else settings.passage_prefix,
        )


_SEARCH = "Represent this sentence for searching relevant passages: "
# First match wins. Names come as `BAAI/bge-small-en-v1.5`, as a folder's name, or with a tag, `nomic-embed-text:v1.5`.
_FAMILIES: tuple[tuple[str, Prefixes], ...] = (
    (
        r"e5-.*instruct",
        Prefixes(query="Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery: "),
    ),
    (r"\be5-", Prefixes(query="query: ", passage="passage: ")),
    (r"\bbge-.*-en\b", Prefixes(query=_SEARCH)),
    (r"\bbge-.*-zh\b", Prefixes(query="为这个句子生成表示以用于检索相关文章：")),
    (r"nomic-embed-text", Prefixes(query="search_query: ", passage="search_document: ")),
    (r"mxbai-embed", Prefixes(query=_SEARCH)),
    (r"arctic-embed.*(v2|2\.0)|arctic-embed2", Prefixes(query="query: ")),
    (r"arctic-embed", Prefixes(query=_SEARCH)),
    (r"embeddinggemma", Prefixes(query="task: search result | query: ", passage="title: none | text: ")),
)


def prefixes_of(model: str) -> Prefixes:
    """Return the prefixes of a model's family, by its name; none for a model that is not known to want any."""
    name = model.lower()
    return next((prefixes for pattern, prefixes in _FAMILIES if re.search(pattern, name)), Prefixes())
