"""Services that make embeddings, spoken by a server on loopback: the right formats, vectors of hashed words.

Sources: OpenAI API reference, "Create embeddings"; Ollama API reference, "Generate embeddings" and "List local models";
Gemini API reference, "models.batchEmbedContents". Errors are scripted before them, see `wire.WireServer`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from pattern_core.embeddings.providers.deterministic import hashed_words
from pattern_core.testing.wire import Play, WireRequest, document
from pattern_core.testing.wire_openai import refuses

DIMENSION = 8
DIGEST = "sha256:0a109f422b47e3a30ba2b10eca18548e944e8a23073ee3f3e947efcf3c45e59f"


def numbers(text: str, dimension: int = DIMENSION) -> list[float]:
    """Return the vector that these services give to a text, three times as long as a unit vector."""
    values: tuple[float, ...] = struct.unpack(f"<{dimension}f", hashed_words(text, dimension))
    return [3.0 * value for value in values]


def openai_vectors(*, chars_max: int = 1_000_000, backwards: bool = False) -> Callable[[WireRequest], Play]:
    """OpenAI's format; refuses texts of more than `chars_max` characters, and may answer in another order."""

    def answer(request: WireRequest) -> Play:
        body = request.json()
        texts = body["input"]
        assert isinstance(texts, list)
        if any(not text for text in texts):
            return refuses(400, "input cannot be an empty string")
        if any(len(text) > chars_max for text in texts):
            return refuses(400, "This model's maximum context length is 8192 tokens, however you requested 9999 tokens")
        dimension = int(str(body.get("dimensions", DIMENSION)))
        data = [
            {"object": "embedding", "index": index, "embedding": numbers(text, dimension)}
            for index, text in enumerate(texts)
        ]
        if backwards:
            data.reverse()
        return document({"object": "list", "data": data, "model": body["model"], "usage": {"prompt_tokens": 1}})

    return answer


def ollama(request: WireRequest) -> Play:
    """Ollama's format, with one model: `nomic-embed-text`."""
    if request.path == "/api/tags":
        return document({"models": [{"name": "nomic-embed-text:latest", "digest": DIGEST}]})
    body = request.json()
    if body["model"] != "nomic-embed-text":
        return document({"error": f'model "{body["model"]}" not found, try pulling it first'}, status=404)
    texts = body["input"]
    assert isinstance(texts, list)
    return document({"model": body["model"], "embeddings": [numbers(text) for text in texts]})


def google(request: WireRequest) -> Play:
    """Google's format."""
    requests = request.json()["requests"]
    assert isinstance(requests, list)
    texts = [one["content"]["parts"][0]["text"] for one in requests]
    dimension = int(requests[0].get("outputDimensionality", DIMENSION))
    return document({"embeddings": [{"values": numbers(text, dimension)} for text in texts]})
