"""What a model is shown, decided without waiting: the same input gives the same request.

Stable parts come first (instructions, then memory, then how things work here), so that vendors' prompt caches hit;
what changes with every call goes to the tail and is never stored into history.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from pattern_core.agents.history import History
from pattern_core.models.model import ModelRequest, ToolSpec

HASH_BYTES = 16
DEFAULT_INSTRUCTIONS = (
    "You are a helpful agent with a memory of your own. You talk with the same people over months, so keep what"
    " matters in your memory blocks and look things up before you say that you do not know."
)
GUIDE = (
    "How your memory works: the blocks above are always in view, and you change them with the tool block_edit. What"
    " does not fit there you store with recall and find again with search, which also finds everything said before."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptInput:
    """All that a prompt is made of. `blocks` are rendered for the prompt, in the order in which they are shown."""

    model: str
    instructions: str
    blocks: Sequence[str]
    history: History
    tools: Sequence[ToolSpec]
    config: Mapping[str, object]
    seed: int
    output_tokens_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A request with the marks by which the journal can prove what was sent.

    `cursor` is the position of the newest message shown; the hashes are 16-byte BLAKE2b digests.
    """

    request: ModelRequest
    cursor: str
    prefix_hash: bytes
    request_hash: bytes


def build_prompt(source: PromptInput) -> Prompt:
    """Put the parts into order, and mark what is shown."""
    system = [source.instructions or DEFAULT_INSTRUCTIONS, *source.blocks]
    if source.blocks and source.tools:
        system.append(GUIDE)
    request = ModelRequest(
        model=source.model,
        system=system,
        messages=source.history.messages,
        tools=source.tools,
        max_output_tokens=_int(source.config.get("max_output_tokens"), source.output_tokens_max),
        temperature=_float(source.config.get("temperature")),
        top_p=_float(source.config.get("top_p")),
        seed=source.seed,
    )
    prefix = hash_prefix(system, source.tools)
    return Prompt(
        request=request,
        cursor=source.history.cursor,
        prefix_hash=prefix,
        request_hash=blake2b(prefix + source.history.digest, digest_size=HASH_BYTES).digest(),
    )


def hash_prefix(system: Sequence[str], tools: Sequence[ToolSpec]) -> bytes:
    """Digest of the instructions, memory and tools: the part that vendors' caches keep."""
    digest = blake2b(digest_size=HASH_BYTES)
    for part in system:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "big") + data)
    for spec in tools:
        digest.update(spec.digest)
    return digest.digest()


def _int(value: object, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else default


def _float(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
