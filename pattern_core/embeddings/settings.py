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

    provider: str = "local"
    model: str = ""
    dimensions: Annotated[int, Field(ge=1, le=8192)] | None = None
    base_url: str | None = None
    api_key: Secret | None = None
    timeout_s: Annotated[float, Field(gt=0)] = 30.0  # of one question to a service

    runtime: RuntimeName = "auto"
    allow_download: bool = False
    idle_unload_s: Annotated[float, Field(gt=0)] = 600.0
    threads: Annotated[int, Field(ge=1, le=64)] = 1

    query_prefix: str | None = None
    passage_prefix: str | None = None


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
