from __future__ import annotations

import pytest

from pattern_core.embeddings.settings import EmbedderSettings, Prefixes, prefixes_of
from pattern_core.models.providers.settings import Secret


def test_the_default_is_the_local_model_and_keys_are_not_shown() -> None:
    assert EmbedderSettings() == EmbedderSettings(provider="local", model="", dimensions=None, allow_download=False)
    assert "sk-1" not in repr(EmbedderSettings(api_key=Secret("sk-1")))


def test_a_child_process_is_told_neither_address_nor_key() -> None:
    settings = EmbedderSettings(model="m", base_url="http://here", api_key=Secret("sk-1"), query_prefix="q: ")
    assert "sk-1" not in settings.to_json()
    assert EmbedderSettings.from_json(settings.to_json()) == EmbedderSettings(model="m", query_prefix="q: ")


@pytest.mark.parametrize(
    ("model", "query", "passage"),
    [
        ("intfloat/multilingual-e5-small", "query: ", "passage: "),
        ("e5-base-v2", "query: ", "passage: "),
        ("BAAI/bge-small-en-v1.5", "Represent this sentence for searching relevant passages: ", ""),
        ("BAAI/bge-m3", "", ""),
        ("nomic-embed-text:v1.5", "search_query: ", "search_document: "),
        ("nomic-ai/nomic-embed-text-v1.5", "search_query: ", "search_document: "),
        ("snowflake-arctic-embed2", "query: ", ""),
        ("Snowflake/snowflake-arctic-embed-l-v2.0", "query: ", ""),
        ("mxbai-embed-large", "Represent this sentence for searching relevant passages: ", ""),
        ("all-MiniLM-L6-v2", "", ""),
        ("text-embedding-3-small", "", ""),
        ("", "", ""),
    ],
)
def test_families(model: str, query: str, passage: str) -> None:
    assert prefixes_of(model) == Prefixes(query=query, passage=passage)


def test_instructions_end_where_the_question_begins() -> None:
    prefixes = prefixes_of("intfloat/multilingual-e5-large-instruct")
    assert prefixes.of("query").endswith("Query: ") and prefixes.of("passage") == ""
