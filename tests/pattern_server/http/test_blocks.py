"""What a request for a block comes to, before anything is stored."""

from __future__ import annotations

import pytest

from pattern_core.errors import InvalidInput
from pattern_core.memory.block import BlockRow
from pattern_core.memory.edits import SetText, SetValue
from pattern_db.enums import BlockType, Permission
from pattern_db.tables.memory_blocks import Via
from pattern_server.http.blocks import (
    BlockPatchRequest,
    BlockPutRequest,
    BlockRequest,
    content_edit,
    new_block,
    settings_of,
)

FOUND = BlockRow(
    id="mem_1",
    agent_id="agt_1",
    label="notes",
    description="",
    block_type=BlockType.CORE,
    permission=Permission.READ_WRITE,
    pinned=False,
    char_limit=5000,
    content_preview="x",
    last_seq=3,
    via=Via.OWN,
    metadata={},
    created_at="",
    updated_at="",
)


def test_settings_are_only_what_is_to_change() -> None:
    assert settings_of(BlockPatchRequest(label="notes", pinned=False), FOUND) is None
    changes = settings_of(BlockPatchRequest(label="plans", pinned=True), FOUND)
    assert changes is not None
    assert (changes.label, changes.pinned, changes.char_limit, changes.metadata) == ("plans", True, None, None)
    assert settings_of(BlockPutRequest.model_validate({"content": "y", "schema": "Text"}), FOUND) is None
    shaped = settings_of(BlockPutRequest.model_validate({"schema": {"List": {}}}), FOUND)
    assert shaped is not None
    assert shaped.metadata is not None


def test_content_comes_as_text_or_as_json() -> None:
    assert content_edit(BlockPutRequest(content="y")) == SetText(text="y")
    assert content_edit(BlockPutRequest(value=["y"])) == SetValue(value=["y"])
    assert content_edit(BlockPutRequest(template="human")) is None
    with pytest.raises(InvalidInput, match="not both"):
        content_edit(BlockPutRequest(content="y", value="y"))
    with pytest.raises(InvalidInput, match="PATCH"):
        content_edit(BlockPutRequest(pinned=True))


def test_a_template_gives_way_to_what_is_asked() -> None:
    new = new_block(BlockRequest(label="me", template="persona", content="Brief.", char_limit=80), "me")
    assert (new.label, new.content, new.char_limit) == ("me", "Brief.", 80)
    assert new.description
    plain = new_block(BlockPutRequest(content="x"), "notes")
    assert (plain.block_type, plain.permission, plain.value) == (BlockType.CORE, Permission.READ_WRITE, None)
    with pytest.raises(InvalidInput, match="template"):
        new_block(BlockRequest(label="x", template="nothing"), "x")
