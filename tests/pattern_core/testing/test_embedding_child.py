from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pattern_core.embeddings.local.models import ModelUnusable
from pattern_core.embeddings.providers.deterministic import hashed_words
from pattern_core.embeddings.settings import EmbedderSettings
from pattern_core.testing.embedding_child import DIMENSION, played, stand_in_command

ROOT = Path(__file__).resolve().parents[3]


def test_words_and_what_the_texts_ask_for() -> None:
    reading, writing = os.pipe()
    model = played(EmbedderSettings(), writing)
    assert model.load().embed(["a", "slow"], "query") == [hashed_words(text, DIMENSION) for text in ("a", "slow")]
    assert len(model.embed(["short", "b"], "query")) == 1
    model.embed(["babble"], "query")
    assert b"Loading" in os.read(reading, 100)
    os.close(reading)
    os.close(writing)


def test_what_the_settings_ask_for() -> None:
    with pytest.raises(ModelUnusable, match="not installed"):
        played(EmbedderSettings(model="unusable"), 2)
    with pytest.raises(ModelUnusable, match="does not load"):
        played(EmbedderSettings(model="broken"), 2).load()
    assert played(EmbedderSettings(model="changes"), 2).fingerprint == f"{os.getpid():x}"


def test_it_is_a_process_that_answers() -> None:
    command = stand_in_command(EmbedderSettings(model="mine"))
    assert command[0] == sys.executable
    done = subprocess.run(command, input=b'{"id": 1, "do": "info"}\n', capture_output=True, cwd=ROOT, check=True)
    assert json.loads(done.stdout)["model"] == "mine"
    killed = subprocess.run(
        command, input=b'{"id": 1, "do": "embed", "texts": ["crash"]}\n', capture_output=True, cwd=ROOT, check=False
    )
    assert killed.returncode == -9
