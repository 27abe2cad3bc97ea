"""Sending messages in all three ways, retrying them, importing them, and reading the conversation."""

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


async def test_waiting_gives_the_whole_turn(place: Place) -> None:
    await place.constellation()
    answer = await place.say("Hello")
    assert answer.status_code == 200
    turn = answer.json()
    assert turn["status"] == "completed"
    assert [(said["role"], said["content"]) for said in turn["messages"]] == [
        ("user", "Hello"),
        ("assistant", "All right."),
    ]
    assert turn["usage"]["input_tokens"] == 10


async def test_a_stream_ends_with_the_terminal_event(place: Place) -> None:
    await place.constellation()
    headers = {"Accept": "text/event-stream"}
    async with place.admin.stream("POST", HERE, json={"content": "Hello"}, headers=headers) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = await read_events(answer)
    names = [event["event"] for event in events]
    assert names[0] == "turn.queued"
    assert names[-1] == "turn.completed"
    assert [event["id"] for event in events] == sorted(event["id"] for event in events)
    assert len({event["data"]["turn_id"] for event in events}) == 1


async def test_async_is_accepted_at_once(place: Place, scripted: ScriptedProvider) -> None:
    gate = trio.Event()
    scripted._script = iter([Paced(answer=says("Late."), gate=gate)])
    await place.constellation()
    answer = await place.say("Hello", Prefer="respond-async")
    assert answer.status_code == 202
    turn_id = answer.json()["turn_id"]
    assert answer.headers["location"].endswith(f"/turns/{turn_id}")
    patient = await place.say("Hello again", Prefer="wait=0")
    assert patient.status_code == 202
    gate.set()
    events = await place.events(f"/constellations/home/turns/{turn_id}/events")
    assert events[-1]["event"] == "turn.completed"


async def test_the_same_key_is_the_same_turn(place: Place) -> None:
    await place.constellation()
    first = (await place.say("Hello", **{"Idempotency-Key": "k1"})).json()
    again = (await place.say("Hello", **{"Idempotency-Key": "k1"})).json()
    assert again == first
    headers = {"Idempotency-Key": "k1", "Accept": "text/event-stream"}
    async with place.admin.stream("POST", HERE, json={"content": "Hello"}, headers=headers) as answer:
        events = await read_events(answer)
    assert events[0]["event"] == "turn.queued"
    assert events[0]["data"]["turn_id"] == first["turn_id"]
    other = await place.say("Something else", **{"Idempotency-Key": "k1"})
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_mismatch")


async def test_a_client_that_leaves_does_not_stop_its_turn(place: Place, scripted: ScriptedProvider) -> None:
    gate = trio.Event()
    scripted._script = iter([Paced(answer=says("Still here."), gate=gate)])
    await place.constellation()
    async with trio.open_nursery() as client:
        client.start_soon(place.say, "Hello")
        while not scripted.running:
            await trio.sleep(0.005)
        client.cancel_scope.cancel()
    gate.set()
    with trio.fail_after(60):
        while len((await place.admin.get(HERE)).json()["items"]) < 2:
            await trio.sleep(0.01)
    assert scripted.cancelled == 0


async def test_history_pages_newest_first(place: Place) -> None:
    await place.constellation()
    for number in range(3):
        await place.say(f"Message {number}")
    seen: list[str] = []
    cursor: str | None = None
    for _ in range(4):
        page = (await place.admin.get(HERE, params={"limit": 2, **({"cursor": cursor} if cursor else {})})).json()
        seen += [said["content"] for said in page["items"] if said["role"] == "user"]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == ["Message 2", "Message 1", "Message 0"]
    assert cursor is None
    bad = await place.admin.get(HERE, params={"cursor": "nonsense"})
    assert (bad.status_code, bad.json()["code"]) == (422, "invalid_input")


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


async def test_a_message_waits_in_line_by_default(place: Place, scripted: ScriptedProvider) -> None:
    gate, first = await busy(place, scripted)
    second = (await send(place)).json()["turn_id"]
    gate.set()
    assert [(await over(place, turn))["event"] for turn in (first, second)] == ["turn.completed"] * 2


@pytest.mark.parametrize("policy", ["shout", 3, ["steer"]])
async def test_an_unknown_policy_is_refused(place: Place, policy: Any) -> None:
    await place.constellation()
    refused = await send(place, policy=policy)
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_input")
    assert "policy" in refused.json()["detail"]


async def test_what_no_message_may_have_is_named_as_it_was_sent(place: Place) -> None:
    await place.constellation()
    sent = {"content": [{"type": "text", "text": "Look:"}, {"type": "video"}]}
    told = (await place.admin.post("/constellations/home/agents/ada/messages", json=sent)).json()
    assert (told["code"], [misfit["field"] for misfit in told["errors"]]) == (
        "invalid_input",
        ["body.content", "body.content.1"],
    )
    assert "'text', 'image'" in told["detail"]


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


async def test_messages_come_into_the_conversation_where_they_belong(place: Place, scripted: ScriptedProvider) -> None:
    await place.constellation()
    sent = [past(3), past(1), past(0, name="Ruth", session_id="s", metadata={"tags": ["a"]}, workspace="w"), past(2)]
    made = await place.admin.post(PAST, json={"messages": sent})
    assert made.status_code == 201, made.text
    ids = made.json()["ids"]
    rows = (await place.admin.get("/constellations/home/agents/ada/messages")).json()["items"]
    assert [row["content"] for row in rows] == ["word 3", "word 2", "word 1", "word 0"]  # newest first
    assert ids == [rows[0]["id"], rows[2]["id"], rows[3]["id"], rows[1]["id"]]
    assert rows[3]["source_metadata"] == {"tags": ["a"], "name": "Ruth"}
    assert (rows[3]["source"], rows[3]["session_id"], rows[3]["workspace"]) == ("import", "s", "w")
    assert (await place.say("go on")).status_code == 200
    theirs = [f'<data from="an imported conversation">\nword {number}\n</data>' for number in (0, 2)]
    shown = [one.text for one in scripted.requests[-1].messages]
    assert shown == [theirs[0], "word 1", theirs[1], "word 3", "go on"]
    found = await place.admin.post("/constellations/home/search", json={"query": "word 2"})
    assert found.json()["hits"][0]["id"] == ids[3]


async def test_a_key_makes_a_repeated_import_harmless(place: Place) -> None:
    await place.constellation()
    body = {"messages": [past(0), past(1)]}
    first = await place.admin.post(PAST, json=body, headers={"Idempotency-Key": "k"})
    again = await place.admin.post(PAST, json=body, headers={"Idempotency-Key": "k"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == first.json()
    other = await place.admin.post(PAST, json={"messages": [past(0)]}, headers={"Idempotency-Key": "k"})
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_mismatch")
    rows = (await place.admin.get("/constellations/home/agents/ada/messages")).json()["items"]
    assert len(rows) == 2


async def test_an_import_may_be_longer_than_other_bodies(place: Place) -> None:
    await place.constellation()
    body = {"messages": [past(number, metadata={"text": "x" * 2_000}) for number in range(2_000)]}
    made = await place.admin.post(PAST, json=body)
    assert made.status_code == 201, made.text
    assert len(set(made.json()["ids"])) == 2_000
    too_long = await place.admin.post(PAST, content=b"x" * (HISTORY_BYTES_MAX + 1))
    assert (too_long.status_code, too_long.json()["code"]) == (413, "too_large")
    elsewhere = await place.admin.post(f"{PAST}/more", json=body)
    assert elsewhere.status_code == 413  # for this path only


async def test_what_does_not_fit_is_named_and_nothing_is_stored(place: Place) -> None:
    await place.constellation()
    for wrong, named in (
        ({"messages": []}, "messages"),
        ({"messages": [past(0), past(1, role="robot")]}, "role"),
        ({"messages": [past(0), past(1, content="")]}, "messages[1]"),
        ({"messages": [past(0), past(1, created_at="2023-05-08")]}, "messages[1]"),
        ({"messages": [past(0), past(1, colour="red")]}, "colour"),
        ({"messages": [past(0)] * 10_001}, "messages"),
    ):
        answer = await place.admin.post(PAST, json=wrong)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_input"), answer.text
        assert named in answer.json()["detail"]
    assert (await place.admin.get("/constellations/home/agents/ada/messages")).json()["items"] == []


PICTURE = b"\x89PNG\r\n\x1a\n" + b"pixels"
CONTENT = [
    {"type": "text", "text": "What is this?"},
    {"type": "image", "media_type": "image/png", "data": base64.b64encode(PICTURE).decode()},
]


async def test_an_image_is_told_by_its_digest_and_shown(place: Place) -> None:
    await place.constellation()
    answer = await place.admin.post(HERE, json={"content": CONTENT})
    assert answer.status_code == 200, answer.text
    said = (await place.admin.get(HERE)).json()["items"][-1]
    assert said["content"] == "What is this?"
    words, image = said["parts"]
    assert words == {"type": "text", "text": "What is this?"}
    assert (image["type"], image["media_type"]) == ("image", "image/png")
    shown = await place.admin.get(f"/constellations/home/images/{image['digest']}")
    assert (shown.status_code, shown.content) == (200, PICTURE)
    assert shown.headers["content-type"] == "image/png"
    assert shown.headers["x-content-type-options"] == "nosniff"


async def test_there_is_no_such_image(place: Place) -> None:
    await place.constellation()
    assert (await place.admin.get(f"/constellations/home/images/{'0' * 64}")).status_code == 404
    assert (await place.admin.get("/constellations/home/images/nonsense")).status_code == 404


async def test_what_is_no_content_is_refused(place: Place) -> None:
    await place.constellation()
    for content in ([], [{"type": "text", "text": " "}], [{"type": "film"}], [{"type": "image"}], 3):
        answer = await place.admin.post(HERE, json={"content": content})
        assert answer.status_code == 422, (content, answer.text)
    assert (await place.admin.get(HERE)).json()["items"] == []


ADA = "/constellations/home/agents/ada"


async def imported(place: Place, count: int) -> list[str]:
    past = [
        {"role": "user", "content": f"Word {number} of many, and some more of them.", "created_at": "2026-01-01T00:00Z"}
        for number in range(count)
    ]
    answer = await place.admin.post(f"{ADA}/history", json={"messages": past})
    assert answer.status_code == 201, answer.text
    ids: list[str] = answer.json()["ids"]
    return ids


async def summaries(place: Place, **params: Any) -> dict[str, Any]:
    answer = await place.admin.get(f"{ADA}/summaries", params=params)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_what_a_person_archives_stays_in_the_history_and_is_found(place: Place) -> None:
    await place.constellation()
    ids = await imported(place, 60)
    assert (await summaries(place))["items"] == []
    answer = await place.admin.post(f"{ADA}/compact")
    assert answer.status_code == 200, answer.text
    made = answer.json()
    assert 0 < made["messages"] < 60
    assert made["tokens_after"] < made["tokens_before"]
    again = (await place.admin.post(f"{ADA}/compact")).json()
    (second, first) = (await summaries(place))["items"]
    assert made["summary_ids"] == [first["id"]]
    assert again["summary_ids"] == [second["id"]]
    assert first["message_count"] == made["messages"]
    assert second["previous_summary_id"] == first["id"]
    page = await summaries(place, limit=1)
    assert page["items"] == [second]
    assert (await summaries(place, limit=1, cursor=page["next_cursor"]))["items"] == [first]
    history = await place.admin.get(f"{ADA}/messages", params={"limit": 100})
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
    answer = await place.admin.post(f"{ADA}/compact")
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    gate.set()
    await place.events(f"/constellations/home/turns/{turn}/events")
    assert (await summaries(place))["items"] == []


async def test_no_such_agent(place: Place) -> None:
    await place.constellation()
    for method, what in (("GET", "summaries"), ("POST", "compact")):
        answer = await place.admin.request(method, f"/constellations/home/agents/nobody/{what}")
        assert answer.status_code == 404
