"""A block's past over HTTP: versions, differences, blame, and the ways back."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from pattern_db.connection import open_connection
from tests.pattern_server.place import Place

HERE = "/constellations/home/agents/ada/memory/human"


async def written(place: Place, *texts: str) -> None:
    """An agent whose block `human` went through these texts."""
    await place.constellation()
    for text in texts:
        answer = await place.admin.put(HERE, json={"content": text})
        assert answer.status_code == 200, answer.text


async def got(place: Place, what: str, **params: Any) -> Any:
    answer = await place.admin.get(f"{HERE}/{what}", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_versions_are_listed_newest_first_and_by_pages(place: Place) -> None:
    await written(place, "one", "one\ntwo")
    first = await got(place, "history", limit=2)
    assert [(row["version"], row["kind"]) for row in first["items"]] == [(2, "edit"), (1, "edit")]
    assert first["items"][0]["author"].startswith("user:")
    rest = await got(place, "history", limit=2, cursor=first["next_cursor"])
    assert ([row["kind"] for row in rest["items"]], rest["next_cursor"]) == (["create"], None)


async def test_differences_and_blame(place: Place) -> None:
    await written(place, "one\n", "one\ntwo\n")
    diff = await got(place, "diff")
    assert (diff["from"], diff["to"]) == (1, 2)
    assert "+two" in diff["diff"].splitlines()
    assert (await got(place, "diff", **{"from": 2, "to": 2}))["diff"] == ""
    lines = (await got(place, "blame"))["lines"]
    assert [(row["line"], row["text"], row["version"]) for row in lines] == [(1, "one", 1), (2, "two", 2)]
    missing = await place.admin.get(f"{HERE}/diff", params={"from": 0, "to": 9})
    assert missing.status_code == 404


async def test_undo_redo_and_rollback(place: Place) -> None:
    await written(place, "one", "one two")
    undone = (await place.admin.post(f"{HERE}/undo")).json()
    assert (undone["block"]["content"], undone["undo_remaining"], undone["redo_remaining"]) == ("one", 1, 1)
    redone = (await place.admin.post(f"{HERE}/redo", json={})).json()
    assert redone["block"]["content"] == "one two"
    back = await place.admin.post(f"{HERE}/rollback", json={"version": 1})
    assert (back.json()["content"], back.json()["version"]) == ("one", 5)
    kinds = [row["kind"] for row in (await got(place, "history"))["items"]]
    assert kinds == ["rollback", "redo", "undo", "edit", "edit", "create"]
    nothing = await place.admin.post(f"{HERE}/undo", json={"author": "ada"})
    assert (nothing.status_code, "nothing to undo" in nothing.json()["detail"]) == (422, True)
    nobody = await place.admin.post(f"{HERE}/undo", json={"author": "eve"})
    assert nobody.status_code == 404


async def test_a_cursor_of_another_list_is_refused(place: Place) -> None:
    await written(place)
    assert (await place.admin.get(f"{HERE}/history", params={"cursor": "x"})).status_code == 422


async def test_a_damaged_block_is_told_left_alone_and_brought_back(place: Place) -> None:
    await written(place, "one", "one two")
    other = HERE.replace("human", "notes")
    assert (await place.admin.put(other, json={"content": "sound"})).status_code == 201
    sound = await place.admin.post(f"{HERE}/repair")
    assert (sound.status_code, sound.json()["code"]) == (409, "conflict")
    await damaged(place, "human")
    listed = {row["label"]: row for row in (await place.admin.get(HERE.removesuffix("/human"))).json()["items"]}
    assert listed["notes"]["damaged"] is None
    assert "pattern memory repair human" in listed["human"]["damaged"]
    assert (listed["human"]["content"], listed["human"]["value"]) == ("one two", None)
    refused = await place.admin.put(HERE, json={"content": "three"})
    assert (refused.status_code, refused.json()["code"]) == (500, "document_damaged")
    assert "pattern memory repair human" in refused.json()["detail"]
    assert (await place.admin.put(other, json={"content": "changed"})).json()["content"] == "changed"
    assert (await place.say("Hello")).json()["status"] == "completed"
    repaired = (await place.admin.post(f"{HERE}/repair")).json()
    assert (repaired["block"]["content"], repaired["block"]["version"]) == ("one two", 3)
    assert (repaired["block"]["damaged"], repaired["is_exact"]) == (None, True)
    assert (await place.admin.put(HERE, json={"content": "three"})).json()["version"] == 4
    assert (await got(place, "history"))["items"][1]["kind"] == "repair"


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
