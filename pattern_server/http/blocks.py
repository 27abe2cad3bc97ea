"""Blocks between the API's JSON and the core: the requests, the block that a path names, the responses."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from pattern_core.constellation import Constellation
from pattern_core.errors import InvalidInput, NotFound
from pattern_core.memory.block import BlockRow, BlockSettings, NewBlock, from_template, shown_schema, with_schema
from pattern_core.memory.document import DocumentDamaged
from pattern_core.memory.edits import SetText, SetValue
from pattern_core.memory.schema import parse_schema, to_metadata
from pattern_db.enums import BlockType, Permission
from pattern_server.http.bodies import BY_VALUE, RequestModel, answer_of, fields_with

_SETTINGS = ("label", "description", "block_type", "char_limit", "permission", "pinned")

BLOCK = answer_of(
    BlockRow,
    "id agent_id label description block_type permission via pinned char_limit content value shape version damaged"
    " created_at updated_at",
    content=str,
    version=int,
    value=Any,
    shape=Annotated[Any, Field(alias="schema")],
    damaged=str | None,
)


class _SettingsRequest(RequestModel):
    shape: Any = Field(default=None, alias="schema")
    description: str | None = None
    block_type: Annotated[BlockType, BY_VALUE] | None = None
    permission: Annotated[Permission, BY_VALUE] | None = None
    char_limit: int | None = None
    pinned: bool | None = None


class BlockUpdateRequest(_SettingsRequest):
    """The settings of a block to change."""

    label: str | None = None


class BlockPutRequest(_SettingsRequest):
    """The whole content of a block, and settings to change at the same time.

    Send `content`, which is text, or `value`, which is JSON. Settings that are left out stay as they are. `template` is
    for a new block; other fields of the request have priority over it.
    """

    content: str | None = None
    value: Any = None
    template: str | None = None
    base_version: int | None = None


class BlockCreateRequest(_SettingsRequest):
    """A memory block to create together with its agent; `char_limit` 0 is the default."""

    label: str
    content: str = ""
    value: Any = None
    template: str | None = None


async def find(constellation: Constellation, owner: str, label: str) -> BlockRow | None:
    """Return the block that `label` names for `owner`, or None."""
    try:
        return await constellation.memory.view(owner, label)
    except NotFound:
        return None


async def block_answer(constellation: Constellation, view: BlockRow) -> dict[str, Any]:
    """Return the block as `BLOCK` shows it. A block that cannot be opened shows its stored text and the reason."""
    value, damaged = None, None
    try:
        await constellation.memory.blocks.check(view)
        value = await constellation.memory.value_of(view)
    except DocumentDamaged as error:
        damaged = error.message
    shown = {"content": view.content, "version": view.version, "schema": to_metadata(shown_schema(view.metadata))}
    return fields_with(view, **shown, value=value, damaged=damaged)


def new_block(asked: BlockCreateRequest | BlockPutRequest, label: str) -> NewBlock:
    """Return the block to create: the template, if one is named, with the other fields of the request.

    Raises:
        InvalidInput: there is no such template.
    """
    start = NewBlock(label=label) if asked.template is None else from_template(asked.template, label=label)
    given: dict[str, Any] = {name: value for name in _SETTINGS[1:] if (value := getattr(asked, name)) is not None}
    if asked.shape is not None:
        given["schema"] = asked.shape
    if asked.value is not None:
        given |= {"value": asked.value, "content": ""}
    elif asked.content:
        given |= {"value": None, "content": asked.content}
    return replace(start, **given)


def settings_of(asked: BlockPutRequest | BlockUpdateRequest, found: BlockRow) -> BlockSettings | None:
    """Return the settings that the request changes; None if it changes none.

    Raises:
        InvalidInput: the schema cannot be read.
    """
    given: dict[str, Any] = {
        name: value
        for name in _SETTINGS
        if (value := getattr(asked, name, None)) is not None and value != getattr(found, name)
    }
    if asked.shape is not None and (schema := parse_schema(asked.shape)) != shown_schema(found.metadata):
        given["metadata"] = with_schema(found.metadata, schema)
    return BlockSettings(**given) if given else None


def content_edit(asked: BlockPutRequest) -> SetText | SetValue | None:
    """Return the requested content of the block; None if a template or a new schema decides it.

    Raises: InvalidInput: both text and value are given, or neither.
    """
    if asked.content is not None and asked.value is not None:
        raise InvalidInput("`content` and `value` are two forms of the same content; send one of them")
    if asked.value is not None:
        return SetValue(value=asked.value)
    if asked.content is None and asked.template is None and asked.shape is None:
        raise InvalidInput("`content` or `value` is missing; send one of them, or use PATCH to change only settings")
    return None if asked.content is None else SetText(text=asked.content)
