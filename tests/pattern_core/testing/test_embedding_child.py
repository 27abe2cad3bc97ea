from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pattern_core.embeddings.local.frames import FrameReader, encode
from pattern_core.embeddings.local.weights import ModelUnusable, Plan
from pattern_core.embeddings.providers.deterministic import hashed_words
from pattern_core.testing.embedding_child import DIMENSION, PlayedModel, stand_in_command

ROOT = Path(__file__).resolve().parents[3]


def test_words_and_what_the_texts_ask_for() -> None:
    reading, writing = os.pipe()
    model = PlayedModel(Plan(), writing)
    assert model.load().embed(["a", "slow"], "query") == [hashed_words(text, DIMENSION) for text in ("a", "slow")]
    assert len(model.embed(["short", "b"], "query")) == 1
    model.embed(["babble"], "query")
    assert b"Loading" in os.read(reading, 100)
    os.close(reading)
    os.close(writing)


def test_what_the_plan_asks_for() -> None:
    with pytest.raises(ModelUnusable, match="not installed"):
        PlayedModel(Plan(model="unusable"), 2)
    with pytest.raises(ModelUnusable, match="does not load"):
        PlayedModel(Plan(model="broken"), 2).load()
    assert PlayedModel(Plan(model="changes"), 2).source.fingerprint == f"{os.getpid():x}"


def test_it_is_a_process_that_speaks_frames() -> None:
    command = stand_in_command(Plan(model="mine"))
    assert command[0] == sys.executable
    done = subprocess.run(command, input=encode({"id": 1, "do": "info"}), capture_output=True, cwd=ROOT, check=True)
    ((head, _),) = FrameReader().feed(done.stdout)
    assert head["model"] == "mine"
    killed = subprocess.run(
        command, input=encode({"id": 1, "do": "embed", "texts": ["crash"]}), capture_output=True, cwd=ROOT, check=False
    )
    assert killed.returncode == -9
