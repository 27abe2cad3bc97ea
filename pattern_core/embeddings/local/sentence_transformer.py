"""Any model of sentence-transformers, on the processor, in single precision. Runs in the child."""

from __future__ import annotations

from collections.abc import Sequence

from pattern_core.embeddings.embedder import Purpose
from pattern_core.embeddings.local.batches import BATCH_TEXTS_MAX, WIDTH, batches
from pattern_core.embeddings.local.weights import Source

TOKENS_PER_RUN_MAX = 2_048  # some 0.6 s of work on one slow core
_TOKENS_MAX = 8_192  # for models that name no limit of their own


class SentenceTransformerModel:
    """The loaded model.

    Raises:
        ImportError, OSError, ValueError, RuntimeError: a library or the folder is broken, or the vectors are not as
            long as the folder says.
    """

    def __init__(self, source: Source) -> None:
        import torch
        from sentence_transformers import SentenceTransformer

        torch.set_num_threads(source.threads)
        self._prefixes = source.prefixes
        # Code that comes with a model is never run.
        self._model = SentenceTransformer(
            str(source.path), device="cpu", local_files_only=True, trust_remote_code=False
        )
        found = self._model.get_embedding_dimension()
        if found != source.dimension:
            raise ValueError(f"its vectors have {found} numbers, its description says {source.dimension}")

    def embed(self, texts: Sequence[str], purpose: Purpose) -> list[bytes]:
        """One unit vector per text, in order: float32, little endian."""
        prefix = self._prefixes.of(purpose)
        prefixed = [prefix + text for text in texts]
        vectors = [b""] * len(texts)
        for indexes in batches(self._lengths(prefixed), tokens_max=TOKENS_PER_RUN_MAX):
            rows = self._model.encode(
                [prefixed[index] for index in indexes],
                prompt="",  # ours is part of the text already
                batch_size=BATCH_TEXTS_MAX,
                normalize_embeddings=True,
                convert_to_numpy=True,
                show_progress_bar=False,
                processing_kwargs={"text": {"pad_to_multiple_of": WIDTH}},
            )
            for index, row in zip(indexes, rows, strict=True):
                vectors[index] = row.astype("<f4").tobytes()
        return vectors

    def _lengths(self, texts: list[str]) -> list[int]:
        """How many tokens each text has, after the cut that the model makes."""
        limit = self._model.max_seq_length or _TOKENS_MAX
        return [len(ids) for ids in self._model.tokenizer(texts, truncation=True, max_length=limit)["input_ids"]]
