"""Turns, what their model was shown, cancelling, and events that resume without loss or repetition."""

from __future__ import annotations

from typing import Any

import trio

from pattern_core.testing.model import Paced, ScriptedProvider, calls, says
from tests.pattern_server.place import Place, read_events

EVENTS = "/constellations/home/events"


async def started(place: Place) -> str:
    """The id of a turn that was accepted and runs."""
    turn_id = (await place.say("Hello", Prefer="respond-async")).json()["turn_id"]
    with trio.fail_after(60):
        while (await place.admin.get(f"/constellations/home/turns/{turn_id}")).json()["status"] != "running":
            await trio.sleep(0.01)
    return str(turn_id)


async def test_a_turn_is_shown_with_its_messages(place: Place) -> None:
    await place.constellation()
    turn = (await place.say("Hello")).json()
    assert (await place.admin.get(f"/constellations/home/turns/{turn['turn_id']}")).json() == turn
    missing = await place.admin.get("/constellations/home/turns/turn_none")
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")


async def test_cancelling_stops_a_turn_and_its_question_to_the_model(place: Place, scripted: ScriptedProvider) -> None:
    scripted._script = iter([Paced(answer=says("Never."), gate=trio.Event())])
    await place.constellation()
    turn_id = await started(place)
    answer = await place.admin.post(f"/constellations/home/turns/{turn_id}/cancel")
    assert answer.json()["cancelled"] is True
    events = await place.events(f"/constellations/home/turns/{turn_id}/events")
    assert events[-1]["event"] == "turn.cancelled"
    assert scripted.cancelled == 1
    again = (await place.admin.post(f"/constellations/home/turns/{turn_id}/cancel")).json()
    assert again == {"turn_id": turn_id, "cancelled": False, "status": "cancelled"}


async def test_events_of_a_turn_resume_anywhere(place: Place, scripted: ScriptedProvider) -> None:
    scripted._script = iter([calls("search", {"query": "tea"}), says("Nothing yet.")])
    await place.constellation()
    turn = (await place.say("Hello")).json()["turn_id"]
    where = f"/constellations/home/turns/{turn}/events"
    events = await place.events(where)
    assert [event["event"] for event in events][-1] == "turn.completed"
    for number, event in enumerate(events):
        assert await place.events(where, after=event["id"]) == events[number + 1 :]
    assert await place.events(f"{where}?after={events[2]['id']}") == events[3:]
    both = await place.events(f"{where}?after=0", after=events[2]["id"])
    assert both == events[3:]  # the header wins


async def test_events_of_the_constellation_go_on_where_a_reader_left(place: Place) -> None:
    await place.constellation()
    await place.say("One")
    await place.say("Two")
    latest = (await place.events(EVENTS, most=10))[-1]["id"]
    everything = await place.events(EVENTS, most=latest)
    seen: list[dict[str, Any]] = []
    while len(seen) < len(everything):
        after = seen[-1]["id"] if seen else None
        seen += await place.events(EVENTS, after=after, most=min(3, len(everything) - len(seen)))
    assert seen == everything
    assert [event["id"] for event in seen] == list(range(1, latest + 1))


async def test_a_waiting_reader_is_told_at_once(place: Place) -> None:
    await place.constellation()
    async with trio.open_nursery() as nursery:
        heard: list[dict[str, Any]] = []

        async def listen() -> None:
            async with place.admin.stream("GET", f"{EVENTS}?after=0") as answer:
                heard.extend(await read_events(answer, most=8))

        nursery.start_soon(listen)
        await trio.sleep(0.05)
        await place.say("Hello")
    assert len(heard) == 8


async def test_bad_places_are_refused(place: Place) -> None:
    await place.constellation()
    await place.say("Hello")
    for header in ("-1", "x", "999999", "1.5"):
        answer = await place.admin.get(EVENTS, headers={"Last-Event-ID": header})
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_input"), header
    assert (await place.admin.get(f"{EVENTS}?after=-1")).status_code == 422
    assert (await place.admin.get("/constellations/home/turns/turn_none/events")).status_code == 404


async def test_each_step_of_a_turn_tells_what_was_shown(place: Place, scripted: ScriptedProvider) -> None:
    scripted._script = iter([calls("search", {"query": "tea"}), says("Nothing yet.")])
    await place.constellation()
    turn = (await place.say("Hello")).json()["turn_id"]
    answer = await place.admin.get(f"/constellations/home/turns/{turn}/prompt")
    assert answer.status_code == 200
    told = answer.json()
    assert told["turn_id"] == turn
    first, second = told["steps"]
    assert (first["step"], first["attempt"], first["status"], second["step"]) == (1, 1, "done", 2)
    kinds = [part["kind"] for part in first["parts"]]
    assert kinds[:2] == ["instructions", "guide"]
    assert kinds.count("core") == 2
    assert kinds[-1] == "time"
    assert first["parts"] == second["parts"]
    assert first["history"]["count"] == 1
    assert second["history"]["count"] == 3
    assert first["tools"]["count"] > 0
    missing = await place.admin.get("/constellations/home/turns/turn_none/prompt")
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")
