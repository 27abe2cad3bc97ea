"""The archive and search over HTTP: what is stored in parts, what is refused, and filters."""

from __future__ import annotations

from typing import Any

from tests.pattern_server.place import Place

HERE = "/constellations/home/agents/ada/archival"
ALL = "/constellations/home/agents/_constellation_/archival"


async def test_what_is_known_about_an_entry_may_change_and_its_text_may_not(home: Place) -> None:
    entry = (
        await home.admin.post(HERE, json={"content": "Tom plays chess.", "tags": ["tom"], "workspace": "w"})
    ).json()
    changes = {
        "tags": ["chess"],
        "metadata": {"seen": True},
        "workspace": None,
        "valid_to": "2020-01-01T00:00:00+01:00",
    }
    changed = await home.admin.patch(f"{HERE}/{entry['id']}", json=changes)
    assert changed.status_code == 200, changed.text
    del entry["is_new"]
    expected = {**entry, **changes, "valid_to": "2019-12-31T23:00:00.000Z"}
    assert changed.json() == expected
    assert (await home.admin.get(HERE)).json()["items"] == []
    refused = await home.admin.patch(f"{HERE}/{entry['id']}", json={"content": "Tom plays go."})
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_input")
    assert (await home.admin.patch(f"{HERE}/{entry['id']}", json={})).json() == expected


async def test_an_entry_of_all_agents_is_not_one_of_each(home: Place) -> None:
    assert (await home.admin.post(ALL, json={"content": "fact 0"})).status_code == 201
    [everybodys] = (await home.admin.get(ALL)).json()["items"]
    assert everybodys["agent_id"] == "_constellation_"
    assert (await home.admin.get(f"{HERE}/{everybodys['id']}")).status_code == 404
    assert (await home.admin.get(HERE, params={"cursor": "x"})).status_code == 422


async def test_a_long_entry_is_stored_in_parts_and_shown_whole(home: Place) -> None:
    text = "".join(f"Paragraph {number} about the garden.\n\n" for number in range(200))
    made = (await home.admin.post(HERE, json={"content": text})).json()
    assert made["chunks"] > 3
    assert (await home.admin.get(f"{HERE}/{made['id']}")).json()["content"] == text
    assert (await home.admin.get(f"{HERE}/{made['id']}.2")).json()["id"] == made["id"]
    assert [one["content"] for one in (await home.admin.get(HERE)).json()["items"]] == [text]


SEARCH = "/constellations/home/search"


async def find(place: Place, **body: Any) -> list[dict[str, Any]]:
    answer = await place.admin.post(SEARCH, json=body)
    assert answer.status_code == 200, answer.text
    hits: list[dict[str, Any]] = answer.json()["hits"]
    return hits


async def test_only_what_some_agents_said_or_knew_then(home: Place) -> None:
    await home.admin.post("/constellations/home/agents", json={"name": "bea"})
    await home.say("Ruth lives in Lisbon.")
    await home.say("Lisbon is far away.", where="home/agents/bea")
    assert {hit["agent"] for hit in await find(home, query="lisbon", agents=["bea"])} == {"bea"}
    said = {"roles": ["assistant"], "kinds": ["message"]}
    assert await find(home, query="lisbon", mode="words", **said) == []  # by meaning their answers are near
    assert await find(home, query="lisbon", until="2001-01-01T00:00:00Z") == []


async def test_imported_conversations_are_found_by_session_tag_and_workspace(home: Place) -> None:
    past = [
        {"role": "user", "content": "We walked in the hills.", "session_id": "s1", "name": "Ruth", "workspace": "w"},
        {"role": "user", "content": "The hills were green.", "session_id": "s1", "metadata": {"tags": ["green"]}},
        {"role": "user", "content": "No hills here.", "session_id": "s2"},
    ]
    answer = await home.admin.post("/constellations/home/agents/ada/history", json={"messages": past})
    assert answer.status_code in (200, 201), answer.text
    first, second, third = answer.json()["ids"]
    assert {hit["id"] for hit in await find(home, query="hills")} == {first, second, third}
    assert {hit["id"] for hit in await find(home, query="hills", sessions=["s1"])} == {first, second}
    assert [hit["id"] for hit in await find(home, query="hills", tags=["green"])] == [second]
    assert [hit["id"] for hit in await find(home, query="hills", workspace="w")] == [first]
    by_session = await find(home, query="green hills", group_by="session")
    assert [(hit["session_id"], hit["count"]) for hit in by_session] == [("s1", 2), ("s2", 1)]
    assert "names" in (await find(home, query="Did Ruth walk in the hills?"))[0]["reason"]
