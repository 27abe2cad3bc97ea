"""all-MiniLM-L6-v2 on ONNX Runtime: ready in a third of a second, a third of PyTorch's memory. Runs in the child.

The file gives a vector per token; their mean, brought to unit length, is the text's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pattern_core.embeddings.embedder import Purpose
from pattern_core.embeddings.local.batches import batches, padded
from pattern_core.embeddings.local.weights import VOCABULARY, Source

TOKENS_PER_RUN_MAX = 256  # larger batches gain nothing here, and the runtime would keep their memory
_CHARS_PER_WORD_MAX = 100  # as BERT's own tokenizer; longer words are unknown ones


class OnnxModel:
    """The loaded model.

    Raises:
        ImportError, OSError, ValueError, RuntimeError: a library or the file is broken.
    """

    def __init__(self, source: Source) -> None:
        import numpy
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = source.threads
        options.inter_op_num_threads = 1
        # Threads that spin while they wait take the processor from the server; the arena never gives memory back.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.enable_cpu_mem_arena = False
        self._numpy = numpy
        self._prefixes = source.prefixes
        self._tokenizer = bert_tokenizer(source.tokens_max)
        told = onnxruntime.capi.onnxruntime_pybind11_state
        try:
            self._session = onnxruntime.InferenceSession(
                str(source.path), sess_options=options, providers=["CPUExecutionProvider"]
            )
        except (told.Fail, told.InvalidGraph, told.InvalidProtobuf, told.NoSuchFile, told.RuntimeException) as error:
            raise RuntimeError(str(error)) from error  # they share no base but Exception

    def embed(self, texts: Sequence[str], purpose: Purpose) -> list[bytes]:
        """One unit vector per text, in order: float32, little endian."""
        prefix = self._prefixes.of(purpose)
        tokens = [encoding.ids for encoding in self._tokenizer.encode_batch([prefix + text for text in texts])]
        vectors = [b""] * len(texts)
        for indexes in batches([len(ids) for ids in tokens], tokens_max=TOKENS_PER_RUN_MAX):
            for index, vector in zip(indexes, self._run([tokens[index] for index in indexes]), strict=True):
                vectors[index] = vector
        return vectors

    def _run(self, tokens: list[list[int]]) -> list[bytes]:
        numpy = self._numpy
        shape = (len(tokens), padded(max(len(ids) for ids in tokens)))
        ids, mask = numpy.zeros(shape, numpy.int64), numpy.zeros(shape, numpy.int64)
        for row, own in enumerate(tokens):
            ids[row, : len(own)] = own
            mask[row, : len(own)] = 1
        feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": numpy.zeros(shape, numpy.int64)}
        (states,) = self._session.run(["last_hidden_state"], feed)
        vectors = []
        for row, own in enumerate(tokens):
            mean = states[row, : len(own)].mean(axis=0, dtype=numpy.float64)
            vectors.append((mean / numpy.linalg.norm(mean)).astype("<f4").tobytes())
        return vectors


def bert_tokenizer(tokens_max: int | None) -> Any:
    """The tokenizer of BERT (uncased), made from its vocabulary. It never pads; text beyond `tokens_max` is cut off.

    The `tokenizer.json` that comes with the model pads every text to 128 tokens and cuts there, at the cost of time
    and of another vector; this one does as the model was trained.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    words = VOCABULARY.read_text(encoding="utf-8").splitlines()
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=_CHARS_PER_WORD_MAX))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])],
    )
    if tokens_max is not None:
        tokenizer.enable_truncation(tokens_max)
    return tokenizer
