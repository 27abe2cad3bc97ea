"""Blocks as the core handles them: requests, views, permissions, names, and templates by name.

The author of a change is stored as `agent:<id>`, `user:<id>` or `system`. Permissions apply to agents; people and the
system own the constellation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from pattern_core.errors import InvalidInput, PermissionDenied
from pattern_core.limits import Limits
from pattern_core.memory.schema import LogSchema, Schema, TextSchema, parse_schema, to_metadata
from pattern_core.messages import check_text
from pattern_core.untrusted import check_plain
from pattern_db.columns import Json, to_json
from pattern_db.enums import BlockType, Permission
from pattern_db.tables import memory_blocks

BlockRow = memory_blocks.BlockRow  # a block, also as one agent sees it
Attribution = memory_blocks.Attribution  # the author and the cause of a change
BlockSettings = memory_blocks.BlockChanges  # settings to change; None leaves one as it is

SYSTEM = Attribution(author="system")
AGENT = "agent:"  # prefix of an agent as author
LABEL_CHARS_MAX = 128
DESCRIPTION_CHARS_MAX = 2_000
METADATA_CHARS_MAX = 10_000
# A label is part of tags, paths and messages: no slash, no angle brackets or quotes, nothing that cannot be seen.
_LABEL = re.compile(r"[\w.:@#+-](?:[\w .:@#+-]*[\w.:@#+-])?")


class Operation(StrEnum):
    """An operation on a block's content, weakest first."""

    READ = "read"
    APPEND = "append"
    OVERWRITE = "overwrite"
    DELETE = "delete"


_ALLOWED = {
    Permission.READ_ONLY: (Operation.READ,),
    Permission.PARTNER: (Operation.READ,),
    Permission.HUMAN: (Operation.READ,),
    Permission.APPEND: (Operation.READ, Operation.APPEND),
    Permission.READ_WRITE: (Operation.READ, Operation.APPEND, Operation.OVERWRITE),
    Permission.ADMIN: tuple(Operation),
}
# Who can approve what is not allowed, except deleting.
_ASKED = {Permission.PARTNER: "your partner", Permission.HUMAN: "a person"}


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBlock:
    """A block to create. `char_limit` is in code points, 0 for the default.

    `schema` is tagged as in metadata (`"Text"`, `{"Map": {…}}`); None is the one in `metadata`, else a log for the type
    log and text for others. `value` is the initial content as JSON; None means `content`, which for other schemas than
    text is JSON as in an editor, or the text of a list's or log's first item.
    """

    label: str
    description: str = ""
    content: str = ""
    block_type: BlockType = BlockType.CORE
    permission: Permission = Permission.READ_WRITE
    char_limit: int = 0
    pinned: bool = False
    metadata: Mapping[str, object] | None = None
    schema: Json = None
    value: Json = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Edited:
    """The result of an edit: the block after it, and a text about it.

    After an undo or redo it has how many edits of that author can still be undone and redone.
    """

    block: BlockRow
    note: str
    undo_remaining: int = 0
    redo_remaining: int = 0


def agent_author(agent_id: str) -> str:
    """Return the agent as author."""
    return AGENT + agent_id


def is_agent(author: str) -> bool:
    """Return whether the author is an agent, so that permissions apply; people and the system own the constellation."""
    return author.startswith(AGENT)


def short_name(author: str) -> str:
    """Return the author as the entries of a log name it: an agent by its bare id."""
    return author.removeprefix(AGENT)


def require(permission: Permission, operation: Operation, label: str) -> None:
    """Check an agent's permission for an operation on the block `label`.

    Raises:
        PermissionDenied: the permission forbids it, or a person must approve it; the message names who
        (`details["consent"]`), or what is allowed instead.
    """
    allowed = _ALLOWED[permission]
    if operation in allowed:
        return
    if permission in _ASKED and operation is not Operation.DELETE:
        raise PermissionDenied(
            f"to {operation} in the block {label} needs the consent of {_ASKED[permission]}; ask for it in your answer",
            consent=permission.value,
            operation=operation.value,
        )
    raise PermissionDenied(
        f"the block {label} is {permission.value}: you may {' and '.join(allowed)}, not {operation}",
        permission=permission.value,
        operation=operation.value,
    )


def check_label(label: str) -> str:
    """Return `label` if it is valid for a block.

    Raises:
        InvalidInput: it is empty, too long, or has characters that are invalid in a tag or a path.
    """
    if len(label) > LABEL_CHARS_MAX or _LABEL.fullmatch(label) is None:
        raise InvalidInput(
            f"{label[:LABEL_CHARS_MAX]!r} cannot be a label: 1 to {LABEL_CHARS_MAX} letters, digits and . : @ # + - _,"
            " with spaces only inside"
        )
    return label


def check_description(description: str) -> str:
    """Return `description`, if it can be stored.

    Raises:
        InvalidInput: it is too long, or has a lone surrogate or a control character.
    """
    if len(description) > DESCRIPTION_CHARS_MAX:
        raise InvalidInput(
            f"the description has {len(description)} characters, more than the limit of {DESCRIPTION_CHARS_MAX}; "
            f"shorten it"
        )
    return check_plain(check_text(description), "the description")


def check_metadata(metadata: Mapping[str, object] | None) -> Schema:
    """Return the schema in `metadata`, a JSON object; text without one.

    Raises:
        InvalidInput: it is not JSON, too long, or its schema is invalid.
    """
    try:
        text = check_text(to_json(metadata))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"the metadata is not JSON: {error}") from None
    if len(text) > METADATA_CHARS_MAX:
        raise InvalidInput(
            f"the metadata has {len(text)} characters as JSON, more than the limit of {METADATA_CHARS_MAX}; shorten it"
        )
    return schema_of(metadata)


def schema_of(metadata: Mapping[str, object] | None) -> Schema:
    """Return the schema in a block's metadata; text without one.

    Raises:
        InvalidInput: there is no such schema; the message lists the existing ones.
    """
    stored = (metadata or {}).get("schema")
    return TextSchema() if stored is None else parse_schema(stored)


def shown_schema(metadata: Mapping[str, object] | None) -> Schema:
    """Return the schema for showing a block: text if the stored one is invalid, so that it can still be shown."""
    try:
        return schema_of(metadata)
    except InvalidInput:
        return TextSchema()


def shaped(new: NewBlock) -> NewBlock:
    """Return the block with its schema in its metadata, unless it is plain text.

    Raises:
        InvalidInput: the schema or the metadata is invalid.
    """
    schema = check_metadata(new.metadata)
    if new.schema is not None:
        schema = parse_schema(new.schema)
    elif new.block_type is BlockType.LOG and "schema" not in (new.metadata or {}):
        schema = LogSchema()
    return replace(new, metadata=with_schema(new.metadata, schema))


def with_schema(metadata: Mapping[str, object] | None, schema: Schema) -> Mapping[str, object] | None:
    """Return `metadata` with this schema; unchanged if it has none and the schema is plain text.

    Raises:
        InvalidInput: it is too long with the schema.
    """
    if schema == TextSchema() and "schema" not in (metadata or {}):
        return metadata
    metadata = {**(metadata or {}), "schema": to_metadata(schema)}
    check_metadata(metadata)
    return metadata


def check_limit(char_limit: int, limits: Limits) -> int:
    """Return the block's limit in code points; 0 means the default.

    Raises:
        InvalidInput: it is negative or above what any block may hold.
    """
    if not 0 <= char_limit <= limits.block_chars_max:
        raise InvalidInput(f"a block's limit is between 1 and {limits.block_chars_max} characters, not {char_limit}")
    return char_limit or limits.block_chars_default


# Templates: persona, person, tasks, observations and group.


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
