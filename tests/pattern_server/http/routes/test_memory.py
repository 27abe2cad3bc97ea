"""Memory blocks over HTTP: what a request comes to, one of many writers, what is refused, and damage."""

from __future__ import annotations

from contextlib import closing

import pytest
import trio

from pattern_core.errors import InvalidInput
from pattern_core.memory.block import BlockRow
from pattern_core.memory.edits import SetText, SetValue
from pattern_db.connection import open_connection
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
from tests.pattern_server.place import Place

HERE = "/constellations/home/agents/ada/memory"


async def test_of_many_conditional_writers_one_wins(home: Place) -> None:
    etag = (await home.admin.get(f"{HERE}/human")).headers["etag"]
    statuses: list[int] = []

    async def write(number: int) -> None:
        body = {"content": f"Number {number}."}
        statuses.append((await home.admin.put(f"{HERE}/human", json=body, headers={"If-Match": etag})).status_code)

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(write, number)
    assert sorted(statuses) == [200, *[412] * 7]


HUMAN = "/constellations/home/agents/ada/memory/human"


async def written(place: Place, *texts: str) -> None:
    """An agent whose block `human` went through these texts."""
    await place.constellation()
    for text in texts:
        answer = await place.admin.put(HUMAN, json={"content": text})
        assert answer.status_code == 200, answer.text


async def test_a_damaged_block_is_told_left_alone_and_brought_back(place: Place) -> None:
    await written(place, "one", "one two")
    other = HUMAN.replace("human", "notes")
    assert (await place.admin.put(other, json={"content": "sound"})).status_code == 201
    sound = await place.admin.post(f"{HUMAN}/repair")
    assert (sound.status_code, sound.json()["code"]) == (409, "conflict")
    await damaged(place, "human")
    listed = {row["label"]: row for row in (await place.admin.get(HUMAN.removesuffix("/human"))).json()["items"]}
    assert listed["notes"]["damaged"] is None
    assert "pattern memory repair human" in listed["human"]["damaged"]
    assert (listed["human"]["content"], listed["human"]["value"]) == ("one two", None)
    refused = await place.admin.put(HUMAN, json={"content": "three"})
    assert (refused.status_code, refused.json()["code"]) == (500, "document_damaged")
    assert "pattern memory repair human" in refused.json()["detail"]
    assert (await place.admin.put(other, json={"content": "changed"})).json()["content"] == "changed"
    assert (await place.say("Hello")).json()["status"] == "completed"
    repaired = (await place.admin.post(f"{HUMAN}/repair")).json()
    assert (repaired["block"]["content"], repaired["block"]["version"]) == ("one two", 3)
    assert (repaired["block"]["damaged"], repaired["is_exact"]) == (None, True)
    assert (await place.admin.put(HUMAN, json={"content": "three"})).json()["version"] == 4
    assert (await place.admin.get(f"{HUMAN}/history")).json()["items"][1]["kind"] == "repair"


async def damaged(place: Place, label: str) -> None:
    """Let a byte of the block's newest stored update flip while the constellation is parked."""
    constellation_id = (await place.admin.get("/constellations/home")).json()["id"]
    path = place.parts.files.folder(constellation_id) / "pattern.db"
    async with place.parts.state.supervisor.aside(constellation_id):
        with closing(open_connection(path)) as connection:
            ((data,),) = connection.execute(
                "SELECT update_blob FROM memory_block_updates WHERE block_id ="
                " (SELECT id FROM memory_blocks WHERE label = ?) ORDER BY seq DESC LIMIT 1",
                (label,),
            ).fetchall()
            assert isinstance(data, bytes)
            flipped = data[:-1] + bytes([data[-1] ^ 0xFF])
            connection.execute(
                "UPDATE memory_block_updates SET update_blob = ? WHERE update_blob = ?", (flipped, data)
            ).fetchall()


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
