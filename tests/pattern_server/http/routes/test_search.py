"""Search over HTTP."""

from __future__ import annotations

from typing import Any

from tests.pattern_server.place import Place

HERE = "/constellations/home/search"


async def find(place: Place, **body: Any) -> list[dict[str, Any]]:
    answer = await place.admin.post(HERE, json=body)
    assert answer.status_code == 200, answer.text
    hits: list[dict[str, Any]] = answer.json()["hits"]
    return hits


async def test_words_are_found_in_messages_and_blocks(place: Place) -> None:
    await place.constellation()
    await place.admin.post("/constellations/home/agents", json={"name": "bea"})
    await place.say("Ruth lives in Lisbon.")
    await place.say("Lisbon is far away.", where="home/agents/bea")
    await place.admin.put("/constellations/home/agents/ada/memory/human", json={"content": "Has been to Lisbon."})
    hits = await find(place, query="lisbon")
    assert {(hit["kind"], hit["agent"]) for hit in hits} == {("message", "ada"), ("message", "bea"), ("block", "ada")}
    assert all(hit["reason"] and hit["score"] <= 1 and hit["created_at"] for hit in hits)
    assert {hit["kind"] for hit in await find(place, query="lisbon", kinds=["block"])} == {"block"}
    assert {hit["agent"] for hit in await find(place, query="lisbon", agents=["bea"])} == {"bea"}
    assert len(await find(place, query="lisbon", limit=1)) == 1
    said = {"roles": ["assistant"], "kinds": ["message"]}
    assert await find(place, query="lisbon", mode="words", **said) == []  # by meaning their answers are near
    assert await find(place, query="lisbon", until="2001-01-01T00:00:00Z") == []
    answer = (await place.admin.post(HERE, json={"query": "lisbon", "mode": "meaning"})).json()
    assert answer["notice"].startswith("searched by words")
    assert (await place.admin.post(HERE, json={"query": "lisbon", "mode": "words"})).json()["notice"] is None


async def test_imported_conversations_are_found_by_session_tag_and_workspace(place: Place) -> None:
    await place.constellation()
    past = [
        {"role": "user", "content": "We walked in the hills.", "session_id": "s1", "name": "Ruth", "workspace": "w"},
        {"role": "user", "content": "The hills were green.", "session_id": "s1", "metadata": {"tags": ["green"]}},
        {"role": "user", "content": "No hills here.", "session_id": "s2"},
    ]
    answer = await place.admin.post("/constellations/home/agents/ada/history", json={"messages": past})
    assert answer.status_code in (200, 201), answer.text
    first, second, third = answer.json()["ids"]
    assert {hit["id"] for hit in await find(place, query="hills")} == {first, second, third}
    assert {hit["id"] for hit in await find(place, query="hills", sessions=["s1"])} == {first, second}
    assert [hit["id"] for hit in await find(place, query="hills", tags=["green"])] == [second]
    assert [hit["id"] for hit in await find(place, query="hills", workspace="w")] == [first]
    by_session = await find(place, query="green hills", group_by="session")
    assert [(hit["session_id"], hit["count"]) for hit in by_session] == [("s1", 2), ("s2", 1)]
    assert "names" in (await find(place, query="Did Ruth walk in the hills?"))[0]["reason"]


async def test_no_words_break_it(place: Place) -> None:
    await place.constellation()
    for query in ('"', "a AND", "NEAR(", "* ( ) : ^", "-", "x" * 10_000, "日本", "\u0000"):
        assert await find(place, query=query) == []


MISFITS: tuple[tuple[dict[str, Any], int, str], ...] = (
    ({}, 422, "query"),
    ({"query": " "}, 422, "query"),
    ({"query": "x", "kinds": ["dream"]}, 422, "kinds"),
    ({"query": "x", "limit": 0}, 422, "limit"),
    ({"query": "x", "limit": "3"}, 422, "limit"),
    ({"query": "x", "since": "yesterday"}, 422, "since"),
    ({"query": "x", "group_by": "agent"}, 422, "group_by"),
    ({"query": "x", "tags": "green"}, 422, "tags"),
    ({"query": "x", "agents": ["nobody"]}, 404, "nobody"),
)


async def test_what_does_not_fit_is_named(place: Place) -> None:
    await place.constellation()
    for body, status, named in MISFITS:
        answer = await place.admin.post(HERE, json=body)
        assert answer.status_code == status
        assert named in answer.json()["detail"]
