"""The archive over HTTP: an entry's life, pages, and what is refused."""

from __future__ import annotations

from tests.pattern_server.place import Place

HERE = "/constellations/home/agents/ada/archival"
ALL = "/constellations/home/agents/_constellation_/archival"


async def test_an_entry_from_birth_to_death(place: Place) -> None:
    await place.constellation()
    body = {"content": "Anna is 30.", "tags": ["anna"], "source": {"url": "https://a.example"}, "metadata": {"a": 1}}
    made = await place.admin.post(HERE, json=body)
    assert made.status_code == 201, made.text
    entry = made.json()
    assert made.headers["location"].endswith(f"/archival/{entry['id']}")
    assert (entry["content"], entry["tags"], entry["metadata"], entry["chunks"]) == (
        "Anna is 30.",
        ["anna"],
        {"a": 1},
        1,
    )
    assert entry["source"]["url"] == "https://a.example"
    assert entry["source"]["author"].startswith("user:")
    again = await place.admin.post(HERE, json={"content": "anna is 30"})
    assert (again.status_code, again.json()) == (200, {**entry, "is_new": False})
    assert entry["is_new"]
    newer = await place.admin.post(f"{HERE}/{entry['id']}/supersede", json={"content": "Anna is 31."})
    assert newer.status_code == 201, newer.text
    assert newer.json()["tags"] == ["anna"]
    repeated = await place.admin.post(f"{HERE}/{entry['id']}/supersede", json={"content": "Anna is 31."})
    assert (repeated.status_code, repeated.json()["id"]) == (200, newer.json()["id"])
    old = (await place.admin.get(f"{HERE}/{entry['id']}")).json()
    assert (old["content"], old["superseded_by"]) == ("Anna is 30.", newer.json()["id"])
    versions = (await place.admin.get(f"{HERE}/{newer.json()['id']}/history")).json()["items"]
    assert [one["content"] for one in versions] == ["Anna is 30.", "Anna is 31."]
    assert [one["content"] for one in (await place.admin.get(HERE)).json()["items"]] == ["Anna is 31."]
    everything = (await place.admin.get(HERE, params={"include_superseded": True})).json()["items"]
    assert [one["content"] for one in everything] == ["Anna is 31.", "Anna is 30."]
    assert (await place.admin.delete(f"{HERE}/{newer.json()['id']}")).status_code == 204
    gone = await place.admin.get(f"{HERE}/{newer.json()['id']}")
    assert (gone.status_code, gone.json()["code"]) == (404, "not_found")


async def test_what_is_known_about_an_entry_may_change_and_its_text_may_not(place: Place) -> None:
    await place.constellation()
    entry = (
        await place.admin.post(HERE, json={"content": "Tom plays chess.", "tags": ["tom"], "workspace": "w"})
    ).json()
    changes = {
        "tags": ["chess"],
        "metadata": {"seen": True},
        "workspace": None,
        "valid_to": "2020-01-01T00:00:00+01:00",
    }
    changed = await place.admin.patch(f"{HERE}/{entry['id']}", json=changes)
    assert changed.status_code == 200, changed.text
    del entry["is_new"]
    expected = {**entry, **changes, "valid_to": "2019-12-31T23:00:00.000Z"}
    assert changed.json() == expected
    assert (await place.admin.get(HERE)).json()["items"] == []
    refused = await place.admin.patch(f"{HERE}/{entry['id']}", json={"content": "Tom plays go."})
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_input")
    assert (await place.admin.patch(f"{HERE}/{entry['id']}", json={})).json() == expected


async def test_pages_tags_and_owners(place: Place) -> None:
    await place.constellation()
    for number in range(5):
        tags = ["odd"] if number % 2 else []
        assert (await place.admin.post(HERE, json={"content": f"fact {number}", "tags": tags})).status_code == 201
    assert (await place.admin.post(ALL, json={"content": "fact 0"})).status_code == 201
    seen: list[str] = []
    cursor = None
    while True:
        page = (await place.admin.get(HERE, params={"limit": 2, **({"cursor": cursor} if cursor else {})})).json()
        seen += [one["content"] for one in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == [f"fact {number}" for number in (4, 3, 2, 1, 0)]
    tagged = (await place.admin.get(HERE, params={"tag": "odd"})).json()["items"]
    assert [one["content"] for one in tagged] == ["fact 3", "fact 1"]
    [everybodys] = (await place.admin.get(ALL)).json()["items"]
    assert everybodys["agent_id"] == "_constellation_"
    assert (await place.admin.get(f"{HERE}/{everybodys['id']}")).status_code == 404
    assert (await place.admin.get(HERE, params={"cursor": "x"})).status_code == 422


async def test_a_long_entry_is_stored_in_parts_and_shown_whole(place: Place) -> None:
    await place.constellation()
    text = "".join(f"Paragraph {number} about the garden.\n\n" for number in range(200))
    made = (await place.admin.post(HERE, json={"content": text})).json()
    assert made["chunks"] > 3
    assert (await place.admin.get(f"{HERE}/{made['id']}")).json()["content"] == text
    assert (await place.admin.get(f"{HERE}/{made['id']}.2")).json()["id"] == made["id"]
    assert [one["content"] for one in (await place.admin.get(HERE)).json()["items"]] == [text]


async def test_nearly_the_same_is_refused_by_name(place: Place) -> None:
    await place.constellation()
    first = (await place.admin.post(HERE, json={"content": "The user likes green tea."})).json()
    near = await place.admin.post(HERE, json={"content": "User likes green tea"})
    assert (near.status_code, near.json()["code"], near.json()["entry_id"]) == (409, "similar_entry", first["id"])
    assert (await place.admin.post(HERE, json={"content": "User likes green tea", "force": True})).status_code == 201
    other = await place.admin.post(HERE, json={"content": "User likes black tea", "supersedes": first["id"]})
    assert other.status_code == 201
    closed = await place.admin.post(f"{HERE}/{first['id']}/supersede", json={"content": "User likes no tea"})
    assert (closed.status_code, closed.json()["superseded_by"]) == (409, other.json()["id"])


async def test_what_does_not_fit_is_named(place: Place) -> None:
    await place.constellation()
    for body, named in (
        ({}, "content"),
        ({"content": " "}, "content"),
        ({"content": "x", "tags": "a"}, "tags"),
        ({"content": "x", "tags": [""]}, "tags"),
        ({"content": "x", "valid_from": "soon"}, "valid_from"),
        ({"content": "x", "metadata": []}, "metadata"),
        ({"content": "x", "extra": 1}, "extra"),
        ({"content": "x" * 200_001}, "200000"),
    ):
        answer = await place.admin.post(HERE, json=body)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_input"), answer.text
        assert named in answer.json()["detail"]
    for where in (f"{HERE}/arch_x", "/constellations/home/agents/nobody/archival"):
        assert (await place.admin.get(where)).status_code == 404
    assert (await place.admin.post(f"{HERE}/arch_x/supersede", json={"content": "x"})).status_code == 404
