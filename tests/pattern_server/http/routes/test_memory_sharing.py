"""Loans over HTTP."""

from __future__ import annotations

from tests.pattern_server.place import Place

HERE = "/constellations/home/agents/ada/memory/human"


async def test_a_block_is_lent_and_given_back(place: Place) -> None:
    await place.constellation()
    await place.admin.post("/constellations/home/agents", json={"name": "bob", "memory": []})
    await place.admin.put(HERE, json={"content": "Likes tea."})
    lent = await place.admin.post(f"{HERE}/share", json={"agent": "bob", "permission": "append"})
    assert lent.status_code == 200, lent.text
    assert (lent.json()["agent"], lent.json()["permission"]) == ("bob", "append")
    [loan] = (await place.admin.get(f"{HERE}/share")).json()["items"]
    assert loan == lent.json()
    seen = (await place.admin.get("/constellations/home/agents/bob/memory/human")).json()
    assert (seen["content"], seen["via"], seen["permission"]) == ("Likes tea.", "attached", "append")
    assert (await place.admin.delete(f"{HERE}/share/bob")).status_code == 204
    assert (await place.admin.get("/constellations/home/agents/bob/memory/human")).status_code == 404
    assert (await place.admin.delete(f"{HERE}/share/bob")).status_code == 404


async def test_what_cannot_be_lent_is_refused(place: Place) -> None:
    await place.constellation()
    for body, status in (
        ({"agent": "ada"}, 422),
        ({"agent": "eve"}, 404),
        ({"agent": "ada", "permission": "everything"}, 422),
        ({"agent": "ada", "permission": "admin"}, 422),
    ):
        assert (await place.admin.post(f"{HERE}/share", json=body)).status_code == status
