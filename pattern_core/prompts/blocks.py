"""Memory blocks as parts of a prompt: core ones, working ones that are pinned, lent or named, newest log lines."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pattern_core.again import Again
from pattern_core.memory.block import shown_schema, view_of
from pattern_core.memory.shapes.render import PromptBlock, prompt
from pattern_core.memory.store import MemoryStore
from pattern_core.memory.stored import distinct
from pattern_core.prompts.parts import Kind, Part
from pattern_db.enums import BlockType
from pattern_db.tables.memory_blocks import Via, VisibleBlock

LABEL_CHARS_MIN = 3  # of a block that a message can name: shorter ones would be named by chance

_ORDER = (Kind.CORE, Kind.PINNED, Kind.REFERRED, Kind.LOGS)
_OWNERS = {Via.OWN: 0, Via.ATTACHED: 1, Via.CONSTELLATION: 2}
_WHOSE = {Via.OWN: "the agent's own", Via.ATTACHED: "lent to the agent", Via.CONSTELLATION: "everybody's"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockParts:
    """The blocks' parts: core, pinned, named ones, logs. `has_any` is whether the agent has any block at all."""

    parts: Sequence[Part]
    has_any: bool


async def block_parts(memory: MemoryStore, agent_id: str, words: str, again: Again) -> BlockParts:
    """What a prompt of the agent may show of its blocks; `words` is the message that it answers.

    What the agent's own call under way has changed is shown as changed: that prompt is stored in one transaction with
    it.
    """
    visible, names = await memory.blocks.seen.by(agent_id)
    changed = [memory.blocks.as_changed(one, agent_id) for one in visible]
    there = distinct([one for one in changed if one.block.is_active])
    return again(parts_of, there, [kind_of(one, words) for one in there], names)


def parts_of(there: Sequence[VisibleBlock], kinds: Sequence[Kind | None], owners: Mapping[str, str]) -> BlockParts:
    """The parts of these blocks, each as what its kind says; None is not shown. `owners` as in `rendered`."""
    parts = [
        Part(
            kind=kind,
            text=rendered(one, owners),
            reason=_reason(kind, one),
            ref=one.block.id,
            version=one.block.last_seq,
            name=one.block.label,
        )
        for kind in _ORDER
        for one in sorted((one for one, its in zip(there, kinds, strict=True) if its is kind), key=_whose)
    ]
    return BlockParts(parts=parts, has_any=bool(there))


def _whose(one: VisibleBlock) -> int:
    return _OWNERS[one.via]


def kind_of(visible: VisibleBlock, words: str) -> Kind | None:
    """As what a prompt shows the block; None if it does not."""
    match visible.block.block_type:
        case BlockType.CORE:
            return Kind.CORE
        case BlockType.LOG:
            return Kind.LOGS
        case BlockType.WORKING if visible.block.pinned or visible.via is Via.ATTACHED:
            return Kind.PINNED
        case BlockType.WORKING if is_named(visible.block.label, words):
            return Kind.REFERRED
        case _:
            return None


def is_named(label: str, words: str) -> bool:
    """Whether the words name a block of this label."""
    if len(label) < LABEL_CHARS_MIN:
        return False
    return re.search(rf"(?<!\w){re.escape(label)}(?!\w)", words, re.IGNORECASE) is not None


def rendered(visible: VisibleBlock, owners: Mapping[str, str]) -> str:
    """The block between its tags; `owners` are the names of those who lend blocks, by id."""
    view = view_of(visible)
    return prompt(
        PromptBlock(
            label=view.label,
            permission=view.permission.value,
            content=view.content,
            char_limit=view.char_limit,
            description=view.description,
            owner=owners.get(view.agent_id),
            schema=shown_schema(view.metadata),
        )
    )


def _reason(kind: Kind, visible: VisibleBlock) -> str:
    whose = _WHOSE[visible.via]
    match kind:
        case Kind.CORE:
            return f"a core block, {whose}"
        case Kind.LOGS:
            return f"the newest entries of a log, {whose}"
        case Kind.REFERRED:
            return f"a working block that the message names, {whose}"
        case _:
            return f"a working block, {'pinned' if visible.block.pinned else whose}"
