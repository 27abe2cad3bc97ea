"""Memory blocks over HTTP: versions as ETags, conditions, what is refused; their past, and loans."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import trio

from pattern_db.connection import open_connection
from tests.pattern_server.place import Place

HERE = "/constellations/home/agents/ada/memory"


async def test_a_block_from_birth_to_death(place: Place) -> None:
    await place.constellation()
    made = await place.admin.put(f"{HERE}/plans", json={"content": "Sow peas.", "description": "What is to do"})
    assert made.status_code == 201, made.text
    assert made.json()["content"] == "Sow peas."
    assert made.headers["etag"] == f'"{made.json()["version"]}"'
    shown = await place.admin.get(f"{HERE}/plans")
    assert shown.json() == made.json()
    assert shown.headers["etag"] == made.headers["etag"]
    changed = await place.admin.put(
        f"{HERE}/plans", json={"content": "Sow beans."}, headers={"If-Match": shown.headers["etag"]}
    )
    assert changed.status_code == 200
    assert changed.json()["version"] > made.json()["version"]
    assert changed.json()["description"] == "What is to do"
    assert [block["label"] for block in (await place.admin.get(HERE)).json()["items"]] == ["human", "persona", "plans"]
    assert (await place.admin.delete(f"{HERE}/plans")).status_code == 204
    gone = await place.admin.get(f"{HERE}/plans")
    assert (gone.status_code, gone.json()["code"]) == (404, "not_found")


async def test_a_stale_version_is_refused_and_changes_nothing(place: Place) -> None:
    await place.constellation()
    etag = (await place.admin.get(f"{HERE}/human")).headers["etag"]
    await place.admin.put(f"{HERE}/human", json={"content": "First."})
    for call in (
        place.admin.put(f"{HERE}/human", json={"content": "Second."}, headers={"If-Match": etag}),
        place.admin.delete(f"{HERE}/human", headers={"If-Match": etag}),
        place.admin.put(f"{HERE}/human", json={"content": "Second."}, headers={"If-None-Match": "*"}),
        place.admin.put(f"{HERE}/nothing", json={"content": "Second."}, headers={"If-Match": etag}),
        place.admin.put(f"{HERE}/nothing", json={"content": "Second."}, headers={"If-Match": "*"}),
    ):
        answer = await call
        assert (answer.status_code, answer.json()["code"]) == (412, "version_mismatch")
    assert (await place.admin.get(f"{HERE}/human")).json()["content"] == "First."
    assert (await place.admin.get(f"{HERE}/nothing")).status_code == 404


async def test_of_many_conditional_writers_one_wins(place: Place) -> None:
    await place.constellation()
    etag = (await place.admin.get(f"{HERE}/human")).headers["etag"]
    statuses: list[int] = []

    async def write(number: int) -> None:
        body = {"content": f"Number {number}."}
        statuses.append((await place.admin.put(f"{HERE}/human", json=body, headers={"If-Match": etag})).status_code)

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(write, number)
    assert sorted(statuses) == [200, *[412] * 7]


async def test_settings_change_without_the_text(place: Place) -> None:
    await place.constellation()
    await place.admin.put(f"{HERE}/human", json={"content": "Likes tea."})
    changed = await place.admin.patch(f"{HERE}/human", json={"pinned": True, "description": "You", "label": "you"})
    assert changed.status_code == 200, changed.text
    assert (changed.json()["label"], changed.json()["content"], changed.json()["pinned"]) == ("you", "Likes tea.", True)
    limits = await place.admin.put(f"{HERE}/you", json={"content": "x" * 6_000, "char_limit": 7_000})
    assert limits.status_code == 200, limits.text


async def test_what_does_not_fit_is_named(place: Place) -> None:
    await place.constellation()
    for label, body, headers, named in (
        ("human", {"content": 3}, {}, "content"),
        ("human", {}, {}, "content"),
        ("human", {"content": "x", "permission": "all"}, {}, "permission"),
        ("human", {"content": "x" * 5_001}, {}, "5000"),
        ("human", {"content": "x"}, {"If-Match": "new"}, "If-Match"),
        ("human", {"content": "x"}, {"If-None-Match": '"3"'}, "If-None-Match"),
        ("<b>", {"content": "x"}, {}, "label"),
    ):
        answer = await place.admin.put(f"{HERE}/{label}", json=body, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_input"), answer.text
        assert named in answer.json()["detail"]
    assert (await place.admin.get(f"{HERE}/human")).json()["content"] == ""


FIELDS = {"Map": {"fields": [{"name": "name", "field_type": "Text"}, {"name": "visits", "field_type": "Counter"}]}}


async def test_blocks_of_other_shapes_are_json(place: Place) -> None:
    await place.constellation()
    made = await place.admin.put(f"{HERE}/guest", json={"schema": FIELDS, "value": {"name": "Ada"}})
    assert made.status_code == 201, made.text
    assert made.json()["schema"]["Map"]["fields"][1]["field_type"] == "Counter"
    assert made.json()["value"] == {"name": "Ada", "visits": 0}
    changed = await place.admin.put(f"{HERE}/guest", json={"value": {"name": "Ada", "visits": 2}})
    assert (changed.json()["value"], "visits: 2" in changed.json()["content"]) == ({"name": "Ada", "visits": 2}, True)
    listed = (await place.admin.get(HERE)).json()["items"]
    assert [block["value"] for block in listed] == [changed.json()["value"], "", ""]
    for body, named in (
        ({"value": {"name": 3}}, "name"),
        ({"value": {"nickname": "A"}}, "nickname"),
        ({"value": {}, "content": "{}"}, "not both"),
        ({"schema": "Log"}, "schema"),
        ({"schema": {"Tree": {}}, "value": 1}, "Tree"),
    ):
        answer = await place.admin.put(f"{HERE}/guest", json=body)
        assert answer.status_code == 422, answer.text
        assert named in answer.json()["detail"]
    tasks = await place.admin.put(f"{HERE}/todo", json={"template": "task_list", "value": [{"text": "Sow"}]})
    assert tasks.status_code == 201, tasks.text
    assert "[ ] Sow" in tasks.json()["content"]
    assert (await place.admin.put(f"{HERE}/todo", json={"template": "task_list"})).status_code == 422


async def test_content_from_an_older_version_is_merged(place: Place) -> None:
    await place.constellation()
    await place.admin.put(f"{HERE}/human", json={"content": "tea\nbread\n"})
    await place.admin.put(f"{HERE}/human", json={"content": "tea\nrye bread\n"})
    merged = await place.admin.put(f"{HERE}/human", json={"content": "green tea\nbread\n", "base_version": 1})
    assert merged.json()["content"] == "green tea\nrye bread\n", merged.text
    was = await place.admin.get(f"{HERE}/human", params={"version": 1})
    assert (was.json()["content"], was.json()["version"]) == ("tea\nbread\n", 1)
    assert (await place.admin.get(f"{HERE}/human", params={"version": 9})).status_code == 404
    ahead = await place.admin.put(f"{HERE}/human", json={"content": "x", "base_version": 9})
    assert (ahead.status_code, ahead.json()["code"]) == (409, "conflict")


async def test_settings_and_content_are_one_change(place: Place) -> None:
    await place.constellation()
    refused = await place.admin.put(f"{HERE}/human", json={"content": "x" * 20, "char_limit": 10})
    assert refused.status_code == 422
    assert (await place.admin.get(f"{HERE}/human")).json()["char_limit"] == 5_000


async def test_what_belongs_to_everybody(place: Place) -> None:
    await place.constellation()
    house = "/constellations/home/agents/_constellation_/memory"
    assert (await place.admin.put(f"{house}/house", json={"content": "Quiet from ten."})).status_code == 201
    seen = (await place.admin.get(f"{HERE}/house")).json()
    assert (seen["content"], seen["via"]) == ("Quiet from ten.", "constellation")
    assert [block["label"] for block in (await place.admin.get(house)).json()["items"]] == ["house"]


HUMAN = "/constellations/home/agents/ada/memory/human"


async def written(place: Place, *texts: str) -> None:
    """An agent whose block `human` went through these texts."""
    await place.constellation()
    for text in texts:
        answer = await place.admin.put(HUMAN, json={"content": text})
        assert answer.status_code == 200, answer.text


async def got(place: Place, what: str, **params: Any) -> Any:
    answer = await place.admin.get(f"{HUMAN}/{what}", params=params)
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
    missing = await place.admin.get(f"{HUMAN}/diff", params={"from": 0, "to": 9})
    assert missing.status_code == 404


async def test_undo_redo_and_rollback(place: Place) -> None:
    await written(place, "one", "one two")
    undone = (await place.admin.post(f"{HUMAN}/undo")).json()
    assert (undone["block"]["content"], undone["undo_remaining"], undone["redo_remaining"]) == ("one", 1, 1)
    redone = (await place.admin.post(f"{HUMAN}/redo", json={})).json()
    assert redone["block"]["content"] == "one two"
    back = await place.admin.post(f"{HUMAN}/rollback", json={"version": 1})
    assert (back.json()["content"], back.json()["version"]) == ("one", 5)
    kinds = [row["kind"] for row in (await got(place, "history"))["items"]]
    assert kinds == ["rollback", "redo", "undo", "edit", "edit", "create"]
    nothing = await place.admin.post(f"{HUMAN}/undo", json={"author": "ada"})
    assert (nothing.status_code, "nothing to undo" in nothing.json()["detail"]) == (422, True)
    nobody = await place.admin.post(f"{HUMAN}/undo", json={"author": "eve"})
    assert nobody.status_code == 404


async def test_a_cursor_of_another_list_is_refused(place: Place) -> None:
    await written(place)
    assert (await place.admin.get(f"{HUMAN}/history", params={"cursor": "x"})).status_code == 422


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


async def test_a_block_is_lent_and_given_back(place: Place) -> None:
    await place.constellation()
    await place.admin.post("/constellations/home/agents", json={"name": "bob", "memory": []})
    await place.admin.put(HUMAN, json={"content": "Likes tea."})
    lent = await place.admin.post(f"{HUMAN}/share", json={"agent": "bob", "permission": "append"})
    assert lent.status_code == 200, lent.text
    assert (lent.json()["agent"], lent.json()["permission"]) == ("bob", "append")
    [loan] = (await place.admin.get(f"{HUMAN}/share")).json()["items"]
    assert loan == lent.json()
    seen = (await place.admin.get("/constellations/home/agents/bob/memory/human")).json()
    assert (seen["content"], seen["via"], seen["permission"]) == ("Likes tea.", "attached", "append")
    assert (await place.admin.delete(f"{HUMAN}/share/bob")).status_code == 204
    assert (await place.admin.get("/constellations/home/agents/bob/memory/human")).status_code == 404
    assert (await place.admin.delete(f"{HUMAN}/share/bob")).status_code == 404


async def test_what_cannot_be_lent_is_refused(place: Place) -> None:
    await place.constellation()
    for body, status in (
        ({"agent": "ada"}, 422),
        ({"agent": "eve"}, 404),
        ({"agent": "ada", "permission": "everything"}, 422),
        ({"agent": "ada", "permission": "admin"}, 422),
    ):
        assert (await place.admin.post(f"{HUMAN}/share", json=body)).status_code == status
