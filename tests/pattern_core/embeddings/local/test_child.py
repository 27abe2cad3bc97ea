from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pattern_core.embeddings.local.child import serve
from pattern_core.embeddings.local.models import FoundModel, ModelUnusable
from pattern_core.embeddings.providers.deterministic import hashed_words
from pattern_core.embeddings.settings import EmbedderSettings, Prefixes
from tests.pattern_core.embeddings.played_child import DIMENSION, played

ROOT = Path(__file__).resolve().parents[4]


def playing(name: str = "played") -> Callable[[], FoundModel]:
    return lambda: played(EmbedderSettings(model=name), answers=2)


def asking(**question: object) -> bytes:
    return json.dumps(question).encode() + b"\n"


def read(descriptor: int) -> dict[str, object]:
    line = b""
    while not line.endswith(b"\n"):
        line += os.read(descriptor, 1)
    answer: dict[str, object] = json.loads(line)
    return answer


@contextmanager
def serving(find: Callable[[], FoundModel], idle_s: float = 10.0) -> Iterator[tuple[int, int, threading.Event]]:
    """A child in a thread: where to write, where to read, and whether it noticed the end of its parent."""
    (source, questions), (answers, target) = os.pipe(), os.pipe()
    orphaned = threading.Event()
    thread = threading.Thread(
        target=serve, args=(find, source, target), kwargs={"idle_s": idle_s, "on_orphaned": orphaned.set}
    )
    thread.start()
    try:
        yield questions, answers, orphaned
    finally:
        os.close(questions)
        thread.join(10)
        assert not thread.is_alive() and orphaned.wait(60)
        for descriptor in (source, answers, target):
            os.close(descriptor)


def test_questions_are_answered_in_order() -> None:
    with serving(playing()) as (questions, answers, orphaned):
        os.write(questions, asking(id=1, do="info") + asking(id=2, do="embed", texts=["a", "b"]))
        first, second = read(answers), read(answers)
        assert first == {"id": 1, "fingerprint": "ab" * 32, "model": "played", "dimension": DIMENSION}
        vectors = [base64.b64encode(hashed_words(text, DIMENSION)).decode() for text in ("a", "b")]
        assert second == {"id": 2, "fingerprint": "ab" * 32, "vectors": vectors}
        assert not orphaned.is_set()


@pytest.mark.parametrize("name", ["unusable", "broken"])
def test_what_cannot_be_done_is_an_answer(name: str) -> None:
    with serving(playing(name)) as (questions, answers, _):
        os.write(questions, asking(id=1, do="embed", texts=["a"]))
        answer = read(answers)
        assert name in str(answer["error"]) and answer["id"] == 1


@pytest.mark.parametrize("garbage", [b"\xff" * 20 + b"\n", b"[]\n"])
def test_garbage_ends_it(garbage: bytes) -> None:
    with serving(playing()) as (questions, _, orphaned):
        os.write(questions, garbage)
        assert orphaned.wait(60)


def test_it_ends_without_questions() -> None:
    with serving(playing(), idle_s=0.05) as (_, answers, orphaned):
        assert not select.select([answers], [], [], 0.2)[0] and not orphaned.is_set()


def test_it_ends_when_no_process_reads_the_answer() -> None:
    (source, questions), (answers, target) = os.pipe(), os.pipe()
    os.close(answers)
    os.write(questions, asking(id=1, do="info"))
    began, orphaned = time.monotonic(), threading.Event()
    assert serve(playing(), source, target, idle_s=60, on_orphaned=orphaned.set) == 0
    assert time.monotonic() - began < 30
    os.close(questions)
    assert orphaned.wait(60)  # else its thread would read from the next test's pipe, which gets the same number
    for descriptor in (source, target):
        os.close(descriptor)


def test_a_model_is_found_and_loaded_once() -> None:
    calls = []

    def find() -> FoundModel:
        calls.append(1)
        return played(EmbedderSettings(), answers=2)

    with serving(find) as (questions, answers, _):
        for _number in range(3):
            os.write(questions, asking(id=1, do="embed", texts=["a"], purpose="query"))
            assert "vectors" in read(answers)
    assert len(calls) == 1


def test_a_model_that_does_not_load_is_named_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"no model")
    found = FoundModel(
        runtime="onnx",
        model="m",
        path=tmp_path / "model.onnx",
        dimension=4,
        prefixes=Prefixes(),
        fingerprint="f",
    )
    with pytest.raises(ModelUnusable, match=rf"m was found at {tmp_path}.*does not load"):
        found.load()


def test_as_a_process_it_writes_answers_only_and_ends_with_its_input() -> None:
    question = asking(id=7, do="info")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pattern_core.embeddings.local.child",
            EmbedderSettings(model="/no/such/folder").to_json(),
        ],
        input=question,
        capture_output=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    answer = json.loads(done.stdout)
    assert done.returncode == 0 and answer["id"] == 7 and "/no/such/folder" in answer["error"]
