"""What some models want to read before a question or a passage; without it they find noticeably less; pure.

Source: the model cards of the families on the Hugging Face hub.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pattern_core.embeddings.embedder import Purpose

_SEARCH = "Represent this sentence for searching relevant passages: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefixes:
    """What stands before a text; empty for nothing."""

    query: str = ""
    passage: str = ""

    def of(self, purpose: Purpose) -> str:
        """The prefix for a purpose."""
        return self.query if purpose == "query" else self.passage


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
    """The prefixes of a model's family, by its name; none for a model that is not known to want any."""
    name = model.lower()
    return next((prefixes for pattern, prefixes in _FAMILIES if re.search(pattern, name)), Prefixes())
