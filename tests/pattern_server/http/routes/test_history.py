"""Past messages over HTTP: many at once, once for each key, listed in the order of their times."""

from __future__ import annotations

from typing import Any

from pattern_core.testing.model import ScriptedProvider
from pattern_server.http.border import HISTORY_BYTES_MAX
from tests.pattern_server.place import Place

HERE = "/constellations/home/agents/ada/history"


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
    made = await place.admin.post(HERE, json={"messages": sent})
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
    first = await place.admin.post(HERE, json=body, headers={"Idempotency-Key": "k"})
    again = await place.admin.post(HERE, json=body, headers={"Idempotency-Key": "k"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == first.json()
    other = await place.admin.post(HERE, json={"messages": [past(0)]}, headers={"Idempotency-Key": "k"})
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_mismatch")
    rows = (await place.admin.get("/constellations/home/agents/ada/messages")).json()["items"]
    assert len(rows) == 2


async def test_an_import_may_be_longer_than_other_bodies(place: Place) -> None:
    await place.constellation()
    body = {"messages": [past(number, metadata={"text": "x" * 2_000}) for number in range(2_000)]}
    made = await place.admin.post(HERE, json=body)
    assert made.status_code == 201, made.text
    assert len(set(made.json()["ids"])) == 2_000
    too_long = await place.admin.post(HERE, content=b"x" * (HISTORY_BYTES_MAX + 1))
    assert (too_long.status_code, too_long.json()["code"]) == (413, "too_large")
    elsewhere = await place.admin.post(f"{HERE}/more", json=body)
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
        answer = await place.admin.post(HERE, json=wrong)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_input"), answer.text
        assert named in answer.json()["detail"]
    assert (await place.admin.get("/constellations/home/agents/ada/messages")).json()["items"] == []
