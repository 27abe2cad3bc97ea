from __future__ import annotations

import json
import math

import pytest

from pattern_core.testing.wire import Play, WireRequest
from pattern_core.testing.wire_embeddings import DIGEST, google, numbers, ollama, openai_vectors, refusal


def asked(path: str, body: object) -> WireRequest:
    return WireRequest(method="POST", path=path, headers={}, body=json.dumps(body).encode())


def told(play: Play) -> dict[str, object]:
    value = json.loads(play.body)
    assert isinstance(value, dict)
    return value


def test_vectors_are_not_of_unit_length() -> None:
    assert math.hypot(*numbers("a")) == pytest.approx(3)


def test_openai() -> None:
    body = {"model": "m", "input": ["a", "b"], "dimensions": 4}
    plain, backwards = (told(openai_vectors(backwards=way)(asked("/embeddings", body))) for way in (False, True))
    assert plain["data"] == [
        {"object": "embedding", "index": n, "embedding": numbers(text, 4)} for n, text in enumerate("ab")
    ]
    assert isinstance(backwards["data"], list) and backwards["data"][::-1] == plain["data"]
    assert openai_vectors()(asked("/", {**body, "input": [""]})).status == 400
    assert b"maximum context length" in openai_vectors(chars_max=1)(asked("/", {**body, "input": ["ab"]})).body


def test_ollama_and_google() -> None:
    assert DIGEST in json.dumps(told(ollama(asked("/api/tags", {}))))
    assert told(ollama(asked("/api/embed", {"model": "nomic-embed-text", "input": ["a"]})))["embeddings"] == [
        numbers("a")
    ]
    assert ollama(asked("/api/embed", {"model": "other", "input": ["a"]})).status == 404
    body = {"requests": [{"content": {"parts": [{"text": "a"}]}, "outputDimensionality": 4}]}
    assert told(google(asked("/", body))) == {"embeddings": [{"values": numbers("a", 4)}]}


def test_refusals() -> None:
    play = refusal(429, "slow down", headers={"retry-after": "2"})
    assert (play.status, play.headers["retry-after"]) == (429, "2") and b"slow down" in play.body
