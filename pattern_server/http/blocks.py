"""Blocks between the API's JSON and the core: what clients send about them, which one a path means, what they get."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from fastapi import Response
from pydantic import Field

from pattern_core.constellation import Constellation
from pattern_core.errors import InvalidInput, NotFound
from pattern_core.memory.block import BlockRow, BlockSettings, NewBlock, shown_schema, with_schema
from pattern_core.memory.document import DocumentDamaged
from pattern_core.memory.edits import SetText, SetValue
from pattern_core.memory.schema import parse_schema, to_metadata
from pattern_core.memory.templates import from_template
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
    """The whole content of a block, and settings to change with it.

    Send `content`, which is text, or `value`, which is JSON. Settings that are left out stay as they are. `template` is
    for a block that does not exist yet; what is sent besides it has priority.
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
    """Return the block that `owner` means by `label`, or None."""
    try:
        return await constellation.memory.view(owner, label)
    except NotFound:
        return None


async def block_answer(constellation: Constellation, view: BlockRow) -> dict[str, Any]:
    """Return the block as `BLOCK` has it. One that cannot be opened still shows its stored text, and why."""
    value, damaged = None, None
    try:
        await constellation.memory.blocks.check(view)
        value = await constellation.memory.value_of(view)
    except DocumentDamaged as error:
        damaged = error.message
    shown = {"content": view.content, "version": view.version, "schema": to_metadata(shown_schema(view.metadata))}
    return fields_with(view, **shown, value=value, damaged=damaged)


def tagged(response: Response, block: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `block`; its version becomes the answer's ETag."""
    response.headers["etag"] = f'"{block["version"]}"'
    return block


def new_block(asked: BlockCreateRequest | BlockPutRequest, label: str) -> NewBlock:
    """Return the block to make: the template's, if one is named, with what else is asked for in its place.

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
    """Return what of the settings is asked to be other than it is; None if nothing is.

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
    """Return what is asked to stand in the block; None if that is left to a template or a new schema.

    Raises:
        InvalidInput: both text and value are given, or nothing at all.
    """
    if asked.content is not None and asked.value is not None:
        raise InvalidInput("give `content` or `value`, not both: they are the same thing in two forms")
    if asked.value is not None:
        return SetValue(value=asked.value)
    if asked.content is None and asked.template is None and asked.shape is None:
        raise InvalidInput("give the block's `content`, or its `value` as JSON; settings alone are changed by PATCH")
    return None if asked.content is None else SetText(text=asked.content)
