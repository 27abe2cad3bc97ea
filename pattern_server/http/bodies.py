"""Requests and answers as JSON: parsed once, typed after. Strict: no key more, no number in quotes."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Generic, Literal, TypeVar

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field, computed_field

from pattern_core.agent_settings import MessagePolicy
from pattern_core.errors import InvalidInput
from pattern_core.rules.ruleset import warnings_of
from pattern_db.enums import AgentStatus, BlockType, Permission

PAGE_MAX = 500

T = TypeVar("T")

# Enums come as their values, which strict mode takes only where it is told to.
_AgentStatus = Annotated[AgentStatus, Field(strict=False)]
_BlockType = Annotated[BlockType, Field(strict=False)]
_Permission = Annotated[Permission, Field(strict=False)]

PageLimit = Annotated[int, Query(ge=1, le=PAGE_MAX, description="how many at most")]
Cursor = Annotated[str | None, Query(description="`next_cursor` of the page before")]


class Asked(BaseModel):
    """Base of what clients send."""

    model_config = ConfigDict(strict=True, extra="forbid")


class Told(BaseModel):
    """Base of what clients are sent; made from our own objects by the names of their attributes."""

    model_config = ConfigDict(from_attributes=True, extra="ignore")


class Page(Told, Generic[T]):
    """Some rows of a list; `next_cursor` asks for those after them and is null at the end."""

    items: list[T]
    next_cursor: str | None


def encode_cursor(*place: str) -> str:
    """An opaque mark of a place in a list."""
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")


def decode_cursor(cursor: str | None, length: int) -> tuple[str, ...] | None:
    """The place that `encode_cursor` marked; None for none.

    Raises:
        InvalidInput: it is not one of ours.
    """
    if cursor is None:
        return None
    try:
        place = json.loads(base64.urlsafe_b64decode(cursor.encode() + b"=" * (-len(cursor) % 4)))
    except (ValueError, binascii.Error):
        place = None
    if not isinstance(place, list) or len(place) != length or not all(isinstance(part, str) for part in place):
        raise InvalidInput("the cursor is not valid; take `next_cursor` of the page before, or none")
    return tuple(place)


def page_of(rows: Sequence[T], key: Callable[[T], tuple[str, str]], limit: int, cursor: str | None) -> dict[str, Any]:
    """One page of rows that are all at hand, ordered by `key`.

    Raises:
        InvalidInput: the cursor is not one of ours.
    """
    place = decode_cursor(cursor, 2)
    ordered = sorted((row for row in rows if place is None or key(row) > place), key=key)
    shown = ordered[:limit]
    return {"items": shown, "next_cursor": encode_cursor(*key(shown[-1])) if len(ordered) > limit else None}


class MeTold(Told):
    """Who the token belongs to and what it may."""

    user_id: str
    username: str
    is_admin: bool
    scopes: list[str]
    constellation_id: str | None


class ConstellationAsked(Asked):
    """A constellation to make or rename."""

    name: str


class RestoreAsked(Asked):
    """A copy, by its path on the server's machine, and the name of the constellation to make from it."""

    file: str
    name: str


class ConstellationTold(Told):
    """A constellation. `state` is parked, starting, awake, restarting, parking or quarantined; `reason` says why."""

    id: str
    name: str
    owner_id: str
    state: str
    reason: str | None
    created_at: str
    last_accessed_at: str


class BlockAsked(Asked):
    """A memory block to make together with its agent; `char_limit` 0 is the default.

    `template` names a ready-made one; what is given besides it goes before. `schema` is `"Text"`, `{"Map": {…}}` …, and
    `value` the starting content as JSON where that is more than text.
    """

    label: str
    content: str = ""
    value: Any = None
    shape: Any = Field(default=None, alias="schema")
    template: str | None = None
    description: str | None = None
    block_type: _BlockType | None = None
    permission: _Permission | None = None
    char_limit: int | None = None
    pinned: bool | None = None


class BlockPut(Asked):
    """The whole content of a block, and settings to set with it; those that are left out stay (or are the defaults).

    `content` is text (for other shapes the JSON that an editor shows), `value` JSON. `base_version`: the content was
    made from that version, and what others changed since is merged with it.
    """

    content: str | None = None
    value: Any = None
    shape: Any = Field(default=None, alias="schema")
    template: str | None = None
    description: str | None = None
    block_type: _BlockType | None = None
    permission: _Permission | None = None
    char_limit: int | None = None
    pinned: bool | None = None
    base_version: int | None = None


class BlockPatched(Asked):
    """Settings of a block to change."""

    label: str | None = None
    shape: Any = Field(default=None, alias="schema")
    description: str | None = None
    block_type: _BlockType | None = None
    permission: _Permission | None = None
    char_limit: int | None = None
    pinned: bool | None = None


class BlockTold(Told):
    """A block as an agent sees it. `version` is also its ETag; `agent_id` is the owner, `via` own, attached or
    constellation.

    `content` is text for people, `value` the same as JSON. `damaged` says why the stored document cannot be opened.
    """

    id: str
    agent_id: str
    label: str
    description: str
    block_type: str
    permission: str
    via: str
    pinned: bool
    char_limit: int
    content: str
    value: Any
    shape: Any = Field(alias="schema")
    version: int
    damaged: str | None
    created_at: str
    updated_at: str


class AgentAsked(Asked):
    """An agent to make. Without provider and model it gets the server's defaults; without `memory` the usual blocks."""

    name: str
    description: str | None = None
    model_provider: str | None = None
    model_name: str | None = None
    system_prompt: str = ""
    config: dict[str, Any] = Field(default_factory=dict)
    enabled_tools: list[str] | None = None
    tool_rules: Any = None
    status: _AgentStatus = AgentStatus.ACTIVE
    memory: list[BlockAsked] | None = None


class AgentPatched(Asked):
    """Fields of an agent to change."""

    name: str | None = None
    description: str | None = None
    model_provider: str | None = None
    model_name: str | None = None
    system_prompt: str | None = None
    config: dict[str, Any] | None = None
    enabled_tools: list[str] | None = None
    tool_rules: Any = None
    status: _AgentStatus | None = None


class AgentTold(Told):
    """An agent. `rule_warnings` are what in its tool rules contradicts or can never be met, a sentence each."""

    id: str
    name: str
    description: str | None
    model_provider: str
    model_name: str
    system_prompt: str
    config: dict[str, Any]
    enabled_tools: list[str]
    tool_rules: Any
    status: str
    created_at: str
    updated_at: str

    @computed_field  # type: ignore[prop-decorator]  # pydantic's way: the property is read by name all the same
    @property
    def rule_warnings(self) -> list[str]:
        """What is wrong with the tool rules, though they can be stored."""
        return list(warnings_of(self.tool_rules, self.enabled_tools))


class TextAsked(Asked):
    """Words of a message."""

    type: Literal["text"]
    text: str


class ImageAsked(Asked):
    """An image of a message: either `data` (base64) or a `url`. `media_type` may be left out."""

    type: Literal["image"]
    data: str | None = None
    url: str | None = None
    media_type: str | None = None


class MessageAsked(Asked):
    """A message for an agent: words, or a list of words and images in order.

    `priority` is 0 (low) to 3 (urgent); `policy` says what to do if the agent is busy.
    """

    content: str | list[Annotated[TextAsked | ImageAsked, Field(discriminator="type")]]
    priority: int = 1
    policy: MessagePolicy | None = None
    source: str | None = None
    source_metadata: dict[str, Any] | None = None


class MessageTold(Told):
    """A message of a conversation.

    `parts` is a list where the message is more than words, else null. An image there has a `digest`, by which
    `GET /constellations/{c}/images/{digest}` gives its bytes, or a `url`.
    """

    id: str
    agent_id: str
    position: str
    role: str
    content: str | None
    parts: Any
    tool_call_id: str | None
    tool_name: str | None
    tool_args: Any
    tool_result: Any
    source: str | None
    source_metadata: Any
    batch_id: str | None
    sequence_in_batch: int | None
    session_id: str | None
    workspace: str | None
    is_archived: bool
    created_at: str


class UsageTold(Told):
    """Tokens and cost (millionths of a dollar; null where a price is not known)."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost_microdollars: int | None
    is_estimate: bool


class TurnTold(Told):
    """A turn. `error` is `{code, message}` of one that did not complete; a turn that is `waiting` names the `approvals`
    that a person must answer first.
    """

    turn_id: str
    agent_id: str
    status: str
    error: dict[str, Any] | None
    approvals: list[str]
    messages: list[MessageTold]
    usage: UsageTold
    steps: int
    sender: str
    created_at: str
    started_at: str | None
    ended_at: str | None


class AcceptedTold(Told):
    """A message that was accepted; its turn runs."""

    turn_id: str
    status: str


class CancelTold(Told):
    """Whether the turn was still open when it was asked to stop, and its status now."""

    turn_id: str
    cancelled: bool
    status: str


class BackupTold(Told):
    """A verified copy in the server's `backups` folder; `size` in bytes, `sha256` in hex."""

    path: str
    size: int
    sha256: str
