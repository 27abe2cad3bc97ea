"""What a model is shown, decided without waiting: the same input gives the same request.

| place | in this order | changes |
|---|---|---|
| system | instructions, guide, rules of tools, core blocks, pinned blocks | when somebody edits them |
| messages | the conversation | grows at its end |
| tail | named blocks, logs, recalled passages, tasks, activity, the time, reminders | with every call; never stored |

Vendors cache the longest beginning that they have seen before, so nothing that changes by itself stands before the
conversation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from pattern_core.again import Again
from pattern_core.messages import Message
from pattern_core.models.model import ModelRequest, ToolSpec
from pattern_core.models.tokens import estimate_text, estimate_tools
from pattern_core.prompts.budget import Fitted
from pattern_core.prompts.calibration import scaled
from pattern_core.prompts.conversation import Shown
from pattern_core.prompts.log import log_of
from pattern_core.prompts.parts import PLACES, Kind, LeftOut, Part, Place
from pattern_core.prompts.settings import Sampling
from pattern_db.tables.prompts import LoggedParts, ShownRow

HASH_BYTES = 16
TOOLS_KNOWN_MAX = 1_000  # whose tokens are remembered
# What stands for archived messages has no position; it changes only when room is made.
BEGINS_WITH_KEPT = "the conversation begins with what is kept of archived messages"

_TOOL_TOKENS: dict[bytes, int] = {}

# The sections of the tail: between these tags, one after another, with a line that says what they are.
_SECTIONS: Mapping[Kind, tuple[str, str]] = {
    Kind.LOGS: ("logs", ""),
    Kind.RECALLED: ("recalled", "Found for this message, beyond the conversation above. It may be out of date."),
    Kind.TASKS: ("open_tasks", ""),
    Kind.ACTIVITY: ("agent_activity", "Lately in this constellation, newest first; times are UTC."),
    Kind.TIME: ("now", ""),
    Kind.REMINDER: ("reminders", ""),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptInput:
    """All that a prompt is made of: its parts on both sides of the conversation, this, the tools offered.

    `cursor` is the position of the newest message, `history_digest` names all of them. `window` is in tokens, as is
    `output_max`, for where `sampling` says nothing. `ratio` is that of the vendor's count to our estimate.
    """

    model: str
    halves: Halves
    conversation: Shown
    cursor: str
    history_digest: bytes
    tools: Sequence[ToolSpec]
    sampling: Sampling
    output_max: int
    seed: int
    window: int
    force_tool: str | None = None
    ratio: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A request with the marks by which the journal can prove what was sent.

    `cursor` is the position of the newest message shown; the hashes are 16-byte BLAKE2b digests, `request_hash` over
    all but the tail. `tokens` is what the vendor will count, as far as can be told before: an estimate times the ratio
    of this agent's last calls; `estimate` is without it. `history_room` is how many tokens, by estimate, a
    conversation may have beside the rest of this prompt and the longest answer; it may be negative. `log` is what is
    stored with the step.
    """

    request: ModelRequest
    cursor: str
    prefix_hash: bytes
    request_hash: bytes
    tokens: int
    estimate: int
    history_room: int
    has_images: bool
    log: ShownRow


@dataclass(frozen=True, slots=True, kw_only=True)
class _Half:
    """What stands on one side of the conversation: its texts, an estimate of them, and what is stored of it.

    `digest` names the texts and the tools on the side that vendors' caches keep; empty on the other.
    """

    texts: Sequence[str]
    tokens: int
    log: LoggedParts
    digest: bytes = b""


@dataclass(frozen=True, slots=True)
class Halves:
    """What stands before the conversation, which vendors cache, and what stands behind it."""

    stable: _Half
    volatile: _Half


def halves_of(
    fitted: Fitted, tools: Sequence[ToolSpec], window: int, *, is_opened: bool = False, again: Again | None = None
) -> Halves:
    """Put the parts into order. `is_opened`: the conversation begins with what is kept of archived messages."""
    (shown, out), (shown_late, out_late) = (_of_place(fitted, place) for place in (Place.SYSTEM, Place.TAIL))
    notes = [*fitted.notes, *([BEGINS_WITH_KEPT] if is_opened else [])]
    stable = (again or Again())(_stable, shown, out, notes, tools, window)
    return Halves(stable, _volatile(shown_late, out_late))


def build_prompt(source: PromptInput) -> Prompt:
    """Put the conversation between its halves, mark what is shown, and count it."""
    sampling, conversation = source.sampling, source.conversation
    stable, volatile = source.halves.stable, source.halves.volatile
    fixed = stable.tokens + volatile.tokens
    estimate = fixed + conversation.tokens
    output_max = sampling.max_output_tokens or source.output_max
    request = ModelRequest(
        model=source.model,
        system=stable.texts,
        messages=conversation.messages,
        tools=source.tools,
        max_output_tokens=output_max,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        stop=sampling.stop,
        reasoning_effort=sampling.reasoning_effort,
        response_schema=sampling.response_schema,
        force_tool=source.force_tool,
        seed=source.seed,
        tail=volatile.texts,
        estimate=estimate,
    )
    tokens = scaled(estimate, source.ratio)
    room = int((source.window - output_max) / source.ratio) - fixed - conversation.mark_tokens
    return Prompt(
        request=request,
        cursor=source.cursor,
        prefix_hash=stable.digest,
        request_hash=blake2b(stable.digest + source.history_digest, digest_size=HASH_BYTES).digest(),
        tokens=tokens,
        estimate=estimate,
        history_room=room,
        has_images=conversation.has_images,
        log=ShownRow(
            tokens=tokens,
            stable=stable.log,
            volatile=volatile.log,
            history_from=conversation.first,
            history_count=len(conversation.messages),
            history_tokens=conversation.tokens,
        ),
    )


def _stable(
    parts: Sequence[Part], left_out: Sequence[LeftOut], notes: Sequence[str], tools: Sequence[ToolSpec], window: int
) -> _Half:
    """What vendors cache: instructions, memory and tools."""
    texts = [part.text for part in parts]
    tool_tokens = sum(map(_tool_tokens, tools))
    extra: dict[str, object] = {"notes": notes, "window": window}
    if tools:
        extra["tools"] = {"count": len(tools), "tokens": tool_tokens}
    return _Half(
        texts=texts,
        tokens=sum(part.tokens for part in parts) + tool_tokens,
        log=log_of(parts, left_out, extra),
        digest=hash_prefix(texts, tools),
    )


def _volatile(parts: Sequence[Part], left_out: Sequence[LeftOut]) -> _Half:
    """What was found for the moment."""
    texts = _tail(parts)
    return _Half(texts=texts, tokens=sum(map(estimate_text, texts)), log=log_of(parts, left_out, {}))


def _of_place(fitted: Fitted, place: Place) -> tuple[list[Part], list[LeftOut]]:
    return (
        [part for part in fitted.shown if part.place is place],
        [one for one in fitted.left_out if PLACES[one.kind] is place],
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


def _tail(parts: Sequence[Part]) -> list[str]:
    """The tail's texts: blocks as they are, then each other kind as one section."""
    texts = [part.text for part in parts if part.kind not in _SECTIONS]
    for kind, (tag, about) in _SECTIONS.items():
        lines = [part.text for part in parts if part.kind is kind]
        if lines:
            inner = "\n".join([about, *lines] if about else lines)
            texts.append(f"<{tag}>\n{inner}\n</{tag}>")
    return texts


def _tool_tokens(spec: ToolSpec) -> int:
    """A tool's specification is the same in every prompt and long to count."""
    known = _TOOL_TOKENS.get(spec.digest)
    if known is None:
        if len(_TOOL_TOKENS) >= TOOLS_KNOWN_MAX:
            _TOOL_TOKENS.clear()
        known = _TOOL_TOKENS[spec.digest] = estimate_tools([spec])
    return known


def has_opening(messages: Sequence[Message]) -> bool:
    """Whether a conversation begins with what is kept of archived messages."""
    return bool(messages) and not messages[0].position
