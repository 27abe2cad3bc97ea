"""Blocks as the core handles them: what is asked for, what is shown, who may do what to them, and what they may be
called.

Who makes a change is stored as `agent:<id>`, `user:<id>` or `system`. Permissions bind agents; people and the system
own the constellation.
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
Attribution = memory_blocks.Attribution  # who made a change, and what led to it
BlockSettings = memory_blocks.BlockChanges  # settings to change; None leaves one as it is

SYSTEM = Attribution(author="system")
AGENT = "agent:"  # how the author of what an agent does begins
LABEL_CHARS_MAX = 128
DESCRIPTION_CHARS_MAX = 2_000
METADATA_CHARS_MAX = 10_000
# A label is part of tags, paths and messages: no slash, no angle brackets or quotes, nothing that cannot be seen.
_LABEL = re.compile(r"[\w.:@#+-](?:[\w .:@#+-]*[\w.:@#+-])?")


class Operation(StrEnum):
    """What can be done to a block's content, weakest first."""

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
# Who can consent to what is not allowed, except deleting.
_ASKED = {Permission.PARTNER: "your partner", Permission.HUMAN: "a person"}


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBlock:
    """A block to be made. `char_limit` is in code points, 0 for the default.

    `schema` is tagged as in metadata (`"Text"`, `{"Map": {…}}`); None is what `metadata` names, else a log for the type
    log and text for others. `value` is the starting content as JSON; None means `content`, which for other shapes than
    text is JSON as an editor shows it, or the words of a list's or log's first item.
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
    """What an edit came to: the block after it, and words about it.

    After an undo or redo it has how many edits of that author can still be undone and redone.
    """

    block: BlockRow
    note: str
    undo_remaining: int = 0
    redo_remaining: int = 0


def agent_author(agent_id: str) -> str:
    """Return the author of what an agent does."""
    return AGENT + agent_id


def is_agent(author: str) -> bool:
    """Return whether an agent acts, whom the blocks' permissions bind; people and the system own the constellation."""
    return author.startswith(AGENT)


def short_name(author: str) -> str:
    """Return the author as the entries of a log name it: an agent by its bare id."""
    return author.removeprefix(AGENT)


def require(permission: Permission, operation: Operation, label: str) -> None:
    """Let an agent's operation on the block `label` pass, or refuse it.

    Raises:
        PermissionDenied: the permission forbids it, or a person would have to consent; the message names who
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
    """`label`, if a block may be called so.

    Raises:
        InvalidInput: it is empty, too long, or holds characters that would not stand in a tag or a path.
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
        InvalidInput: it is too long, or holds half a character or a control character.
    """
    if len(description) > DESCRIPTION_CHARS_MAX:
        raise InvalidInput(
            f"the description has {len(description)} characters; at most {DESCRIPTION_CHARS_MAX} are taken"
        )
    return check_plain(check_text(description), "the description")


def check_metadata(metadata: Mapping[str, object] | None) -> Schema:
    """Return the schema that `metadata`, a JSON object, holds; text if it holds none.

    Raises:
        InvalidInput: it is no JSON, too long, or its schema will not do.
    """
    try:
        text = check_text(to_json(metadata))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"the metadata is not JSON: {error}") from None
    if len(text) > METADATA_CHARS_MAX:
        raise InvalidInput(f"the metadata has {len(text)} characters as JSON; at most {METADATA_CHARS_MAX} are taken")
    return schema_of(metadata)


def schema_of(metadata: Mapping[str, object] | None) -> Schema:
    """Return the schema that a block's metadata holds; text where it holds none.

    Raises:
        InvalidInput: there is no such schema; the message names those that there are.
    """
    stored = (metadata or {}).get("schema")
    return TextSchema() if stored is None else parse_schema(stored)


def shown_schema(metadata: Mapping[str, object] | None) -> Schema:
    """Return the schema to show a block by: text where what is stored is none, so that the block can still be seen."""
    try:
        return schema_of(metadata)
    except InvalidInput:
        return TextSchema()


def shaped(new: NewBlock) -> NewBlock:
    """Return the block with its schema in its metadata, unless it is text without more.

    Raises:
        InvalidInput: the schema or the metadata will not do.
    """
    schema = check_metadata(new.metadata)
    if new.schema is not None:
        schema = parse_schema(new.schema)
    elif new.block_type is BlockType.LOG and "schema" not in (new.metadata or {}):
        schema = LogSchema()
    return replace(new, metadata=with_schema(new.metadata, schema))


def with_schema(metadata: Mapping[str, object] | None, schema: Schema) -> Mapping[str, object] | None:
    """Return `metadata` with this schema in it; as it is if the schema is text without more and it has none.

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
