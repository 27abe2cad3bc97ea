"""Templates of blocks by name: persona, person, tasks, observations and group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pattern_core.errors import InvalidInput
from pattern_core.memory.block import NewBlock
from pattern_db.columns import Json
from pattern_db.enums import BlockType


def _map(*fields: Json) -> Json:
    return {"Map": {"fields": list(fields)}}


_TASK = _map(
    {"name": "text", "description": "What is to be done", "required": True},
    {"name": "done", "description": "Whether it is done", "field_type": "Boolean", "default": False},
    {"name": "due", "description": "When it should be done", "field_type": "Timestamp"},
    {"name": "owner", "description": "Who does it"},
)
_PERSON = _map(
    {"name": "name", "description": "What to call them"},
    {"name": "pronouns", "description": "How to speak of them"},
    {"name": "language", "description": "The language they like to be answered in"},
    {"name": "timezone", "description": "Where their clock is, such as Europe/Vienna"},
    {"name": "likes", "description": "What they like", "field_type": "List"},
    {"name": "dislikes", "description": "What they do not like", "field_type": "List"},
    {"name": "notes", "description": "Everything else worth knowing"},
)
_OBSERVATION = [
    {"name": "text", "description": "What was seen", "required": True},
    {"name": "topic", "description": "What it is about"},
]
_PROFILE = _map(
    {"name": "name", "description": "What it is called"},
    {"name": "purpose", "description": "What it is there for"},
    {"name": "members", "description": "Who belongs to it", "field_type": "List"},
)
_ORGANISATION = [
    {"name": "profile", "description": "Who it is", "schema": _PROFILE},
    {"name": "rules", "description": "What everybody there keeps to; people write it", "read_only": True},
    {"name": "decisions", "description": "What was decided, newest last", "schema": "List"},
    {"name": "notes", "description": "Everything else worth knowing"},
]

TEMPLATES: Mapping[str, NewBlock] = {
    "persona": NewBlock(
        label="persona",
        description="Who you are: your character, your voice, what you hold to. Keep it true to yourself.",
        content="I am attentive and plain-spoken. I remember what I am told and say so when I do not know something.",
    ),
    "human": NewBlock(
        label="human",
        description="The person you talk with. Fill in what they tell you about themselves.",
        schema=_PERSON,
    ),
    "scratchpad": NewBlock(
        label="scratchpad",
        description="Room for passing thoughts. Clear out what is settled.",
        block_type=BlockType.WORKING,
        pinned=True,
        char_limit=10_000,
    ),
    "task_list": NewBlock(
        label="tasks",
        description="What is to be done. Check off what is done, and remove it when it no longer needs to be seen.",
        block_type=BlockType.WORKING,
        pinned=True,
        schema={"List": {"item_schema": _TASK, "max_items": 200}},
        char_limit=10_000,
    ),
    "observation_log": NewBlock(
        label="observations",
        description="What you noticed, in order of time. The newest are shown; older ones are found with search.",
        block_type=BlockType.LOG,
        schema={"Log": {"entry_schema": {"fields": _OBSERVATION}}},
        char_limit=20_000,
    ),
    "organisation": NewBlock(
        label="organisation",
        description="The group of people that you work for, and what holds there.",
        schema={"Composite": {"sections": _ORGANISATION}},
        char_limit=10_000,
    ),
}


def from_template(name: str, *, label: str | None = None) -> NewBlock:
    """Return the block of the template `name`, with `label` or its default label; change it with `replace`.

    Raises:
        InvalidInput: there is no such template; the message lists them.
    """
    block = TEMPLATES.get(name)
    if block is None:
        raise InvalidInput(f"there is no block template {name!r}; there are: {', '.join(TEMPLATES)}")
    return block if label is None else replace(block, label=label)
