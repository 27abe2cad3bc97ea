"""What is kept of archived messages, and compaction by hand."""

from __future__ import annotations

from typing import Any

import trio

from pattern_core.testing.model import Paced, ScriptedProvider, says
from tests.pattern_server.place import Place

HERE = "/constellations/home/agents/ada"


async def imported(place: Place, count: int) -> list[str]:
    past = [
        {"role": "user", "content": f"Word {number} of many, and some more of them.", "created_at": "2026-01-01T00:00Z"}
        for number in range(count)
    ]
    answer = await place.admin.post(f"{HERE}/history", json={"messages": past})
    assert answer.status_code == 201, answer.text
    ids: list[str] = answer.json()["ids"]
    return ids


async def summaries(place: Place, **params: Any) -> dict[str, Any]:
    answer = await place.admin.get(f"{HERE}/summaries", params=params)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_what_a_person_archives_stays_in_the_history_and_is_found(place: Place) -> None:
    await place.constellation()
    ids = await imported(place, 60)
    assert (await summaries(place))["items"] == []
    answer = await place.admin.post(f"{HERE}/compact")
    assert answer.status_code == 200, answer.text
    made = answer.json()
    assert 0 < made["messages"] < 60
    assert made["tokens_after"] < made["tokens_before"]
    again = (await place.admin.post(f"{HERE}/compact")).json()
    (second, first) = (await summaries(place))["items"]
    assert made["summary_ids"] == [first["id"]]
    assert again["summary_ids"] == [second["id"]]
    assert first["message_count"] == made["messages"]
    assert second["previous_summary_id"] == first["id"]
    page = await summaries(place, limit=1)
    assert page["items"] == [second]
    assert (await summaries(place, limit=1, cursor=page["next_cursor"]))["items"] == [first]
    history = await place.admin.get(f"{HERE}/messages", params={"limit": 100})
    assert {item["id"] for item in history.json()["items"]} == set(ids)
    found = await place.admin.post("/constellations/home/search", json={"query": '"word 0"', "mode": "words"})
    assert ids[0] in [hit["id"] for hit in found.json()["hits"]]
    kept = {"query": first["summary"], "kinds": ["summary"]}
    hits = (await place.admin.post("/constellations/home/search", json=kept)).json()["hits"]
    assert first["id"] in [hit["id"] for hit in hits]


async def test_an_agent_at_work_is_left_alone(place: Place, scripted: ScriptedProvider) -> None:
    gate = trio.Event()
    scripted._script = iter([Paced(answer=says("Late."), gate=gate)])
    await place.constellation()
    await imported(place, 60)
    turn = (await place.say("Hello", Prefer="respond-async")).json()["turn_id"]
    while not scripted.running:
        await trio.sleep(0.01)
    scripted._otherwise = says("All right.")
    answer = await place.admin.post(f"{HERE}/compact")
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    gate.set()
    await place.events(f"/constellations/home/turns/{turn}/events")
    assert (await summaries(place))["items"] == []


async def test_no_such_agent(place: Place) -> None:
    await place.constellation()
    for method, what in (("GET", "summaries"), ("POST", "compact")):
        answer = await place.admin.request(method, f"/constellations/home/agents/nobody/{what}")
        assert answer.status_code == 404
