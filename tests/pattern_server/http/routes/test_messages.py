"""Messages, retried, imported and cancelled, and events that resume without loss or repetition."""

from __future__ import annotations

import base64
from typing import Any

import pytest
import trio

from pattern_core.errors import InvalidInput
from pattern_core.images import image_of_bytes, image_of_url
from pattern_core.limits import IMAGE_BYTES_MAX
from pattern_core.messages import Text
from pattern_core.testing.model import Paced, ScriptedProvider, says
from pattern_server.http.border import HISTORY_BYTES_MAX
from pattern_server.http.routes.messages import ImageRequest, TextRequest, parts_of
from tests.pattern_server.place import Place, read_events

HERE = "/constellations/home/agents/ada/messages"
PNG = b"\x89PNG\r\n\x1a\n"
DATA = base64.b64encode(PNG).decode()


async def test_the_same_key_is_the_same_turn_as_a_stream_too(home: Place) -> None:
    first = (await home.say("Hello", **{"Idempotency-Key": "k1"})).json()
    headers = {"Idempotency-Key": "k1", "Accept": "text/event-stream"}
    async with home.admin.stream("POST", HERE, json={"content": "Hello"}, headers=headers) as answer:
        events = await read_events(answer)
    assert (events[0]["event"], events[-1]["event"]) == ("turn.queued", "turn.completed")
    assert {event["data"]["turn_id"] for event in events} == {first["turn_id"]}
    patient = await home.say("Hello again", Prefer="wait=0")
    assert patient.status_code == 202


async def busy(place: Place, scripted: ScriptedProvider) -> tuple[trio.Event, str]:
    """An agent whose model answers "First." when the event is set; the id of its turn."""
    gate = trio.Event()
    scripted._script = iter([Paced(answer=says("First."), gate=gate), says("Second.")])
    await place.constellation()
    first = (await place.say("Hello", Prefer="respond-async")).json()["turn_id"]
    with trio.fail_after(60):
        while not scripted.running:
            await trio.sleep(0.005)
    return gate, first


async def send(place: Place, **body: Any) -> Any:
    return await place.admin.post(HERE, json={"content": "And this", **body}, headers={"Prefer": "respond-async"})


async def over(place: Place, turn_id: str) -> dict[str, Any]:
    events = await place.events(f"/constellations/home/turns/{turn_id}/events")
    return {"event": events[-1]["event"], **events[-1]["data"]}


async def test_a_busy_agent_can_refuse_by_the_message_or_by_its_config(
    place: Place, scripted: ScriptedProvider
) -> None:
    gate, first = await busy(place, scripted)
    refused = await send(place, policy="reject")
    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
    assert "send the message with another policy" in refused.json()["detail"]
    config = {"config": {"message_policy": "reject"}}
    assert (await place.admin.patch("/constellations/home/agents/ada", json=config)).status_code == 200
    assert (await send(place)).status_code == 409
    gate.set()
    assert (await over(place, first))["event"] == "turn.completed"
    assert (await send(place)).status_code == 202


async def test_a_message_joins_the_turn_under_way(place: Place, scripted: ScriptedProvider) -> None:
    gate, first = await busy(place, scripted)
    second = (await send(place, policy="steer")).json()["turn_id"]
    gate.set()
    assert (await over(place, second))["joined"] == first
    assert (await over(place, first))["event"] == "turn.completed"
    said = (await place.admin.get(f"/constellations/home/turns/{first}")).json()["messages"]
    assert [message["content"] for message in said] == ["Hello", "First.", "And this", "Second."]


def image(**fields: str) -> ImageRequest:
    return ImageRequest.model_validate({"type": "image", **fields})


def words(text: str) -> TextRequest:
    return TextRequest(type="text", text=text)


def test_words_and_images_in_order() -> None:
    assert parts_of("hello") == (Text(text="hello"),)
    parts = parts_of(
        [words("a"), image(data=DATA, media_type="image/png"), words(""), words("b"), image(url="https://x/")]
    )
    assert parts == (Text(text="a"), image_of_bytes(PNG), Text(text="\nb"), image_of_url("https://x/"))
    assert parts_of([]) == ()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "send one of the two"),
        ({"data": DATA, "url": "https://x/"}, "send one of the two"),
        ({"data": "%%%"}, "not base64"),
        ({"data": f"{DATA}\n"}, "not base64"),
        ({"data": "ż"}, "not base64"),
        ({"data": "A" * (2 * IMAGE_BYTES_MAX + 1)}, "make it smaller"),
        ({"data": base64.b64encode(b"%PDF").decode()}, "neither PNG"),
        ({"url": "ftp://x"}, "no address"),
    ],
)
def test_what_is_no_image_is_refused(fields: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        parts_of([image(**fields)])


PAST = "/constellations/home/agents/ada/history"


def past(number: int, **fields: Any) -> dict[str, Any]:
    """The n-th message of a long conversation, a minute after the one before."""
    when = f"2023-05-{1 + number // 1440:02d}T{number // 60 % 24:02d}:{number % 60:02d}:00Z"
    return {
        "role": "user" if number % 2 == 0 else "assistant",
        "content": f"word {number}",
        "created_at": when,
        **fields,
    }


async def test_messages_come_into_the_conversation_where_they_belong(home: Place, scripted: ScriptedProvider) -> None:
    sent = [past(3), past(1), past(0, name="Ruth", session_id="s", metadata={"tags": ["a"]}, workspace="w"), past(2)]
    made = await home.admin.post(PAST, json={"messages": sent})
    assert made.status_code == 201, made.text
    ids = made.json()["ids"]
    rows = (await home.admin.get("/constellations/home/agents/ada/messages")).json()["items"]
    assert [row["content"] for row in rows] == ["word 3", "word 2", "word 1", "word 0"]  # newest first
    assert ids == [rows[0]["id"], rows[2]["id"], rows[3]["id"], rows[1]["id"]]
    assert rows[3]["source_metadata"] == {"tags": ["a"], "name": "Ruth"}
    assert (rows[3]["source"], rows[3]["session_id"], rows[3]["workspace"]) == ("import", "s", "w")
    assert (await home.say("go on")).status_code == 200
    theirs = [f'<data from="an imported conversation">\nword {number}\n</data>' for number in (0, 2)]
    shown = [one.text for one in scripted.requests[-1].messages]
    assert shown == [theirs[0], "word 1", theirs[1], "word 3", "go on"]
    found = await home.admin.post("/constellations/home/search", json={"query": "word 2"})
    assert found.json()["hits"][0]["id"] == ids[3]


async def test_an_import_may_be_longer_than_other_bodies(home: Place) -> None:
    body = {"messages": [past(number, metadata={"text": "x" * 2_000}) for number in range(2_000)]}
    made = await home.admin.post(PAST, json=body)
    assert made.status_code == 201, made.text
    assert len(set(made.json()["ids"])) == 2_000
    too_many = await home.admin.post(PAST, json={"messages": [past(0)] * 10_001})
    assert (too_many.status_code, "messages" in too_many.json()["detail"]) == (422, True)
    too_long = await home.admin.post(PAST, content=b"x" * (HISTORY_BYTES_MAX + 1))
    assert (too_long.status_code, too_long.json()["code"]) == (413, "too_large")
    elsewhere = await home.admin.post(f"{PAST}/more", json=body)
    assert elsewhere.status_code == 413  # for this path only


ADA = "/constellations/home/agents/ada"


async def imported(place: Place, count: int) -> None:
    """Messages of ada's past, more than her window holds."""
    messages = [past(number, content=f"Word {number} of many, and some more of them.") for number in range(count)]
    assert (await place.admin.post(PAST, json={"messages": messages})).status_code == 201


async def test_an_agent_at_work_is_left_alone(place: Place, scripted: ScriptedProvider) -> None:
    gate = trio.Event()
    scripted._script = iter([Paced(answer=says("Late."), gate=gate)])
    await place.constellation()
    await imported(place, 60)
    turn = (await place.say("Hello", Prefer="respond-async")).json()["turn_id"]
    while not scripted.running:
        await trio.sleep(0.01)
    scripted._otherwise = says("All right.")
    answer = await place.admin.post(f"{ADA}/compact")
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    gate.set()
    await place.events(f"/constellations/home/turns/{turn}/events")
    assert (await place.admin.get(f"{ADA}/summaries")).json()["items"] == []


EVENTS = "/constellations/home/events"


async def started(place: Place) -> str:
    """The id of a turn that was accepted and runs."""
    turn_id = (await place.say("Hello", Prefer="respond-async")).json()["turn_id"]
    with trio.fail_after(60):
        while (await place.admin.get(f"/constellations/home/turns/{turn_id}")).json()["status"] != "running":
            await trio.sleep(0.01)
    return str(turn_id)


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


async def test_events_of_the_constellation_go_on_where_a_reader_left(home: Place) -> None:
    await home.say("One")
    await home.say("Two")
    latest = (await home.events(EVENTS, most=10))[-1]["id"]
    everything = await home.events(EVENTS, most=latest)
    seen: list[dict[str, Any]] = []
    while len(seen) < len(everything):
        after = seen[-1]["id"] if seen else None
        seen += await home.events(EVENTS, after=after, most=min(3, len(everything) - len(seen)))
    assert seen == everything
    assert [event["id"] for event in seen] == list(range(1, latest + 1))


async def test_a_waiting_reader_is_told_at_once(home: Place) -> None:
    async with trio.open_nursery() as nursery:
        heard: list[dict[str, Any]] = []

        async def listen() -> None:
            async with home.admin.stream("GET", f"{EVENTS}?after=0") as answer:
                heard.extend(await read_events(answer, most=8))

        nursery.start_soon(listen)
        await trio.sleep(0.05)
        await home.say("Hello")
    assert len(heard) == 8
