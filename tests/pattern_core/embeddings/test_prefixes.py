from __future__ import annotations

import pytest

from pattern_core.embeddings.prefixes import Prefixes, prefixes_of


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
