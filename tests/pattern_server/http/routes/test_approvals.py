"""Questions to people over HTTP: listed, answered once, and then done."""

from __future__ import annotations

from typing import Any

import pytest

from pattern_core.memory.edits import AppendText
from pattern_core.messages import ToolResult
from pattern_core.testing.model import ScriptedProvider, calls, says
from tests.pattern_server.place import Place

HERE = "/constellations/home/approvals"


async def asked(place: Place, *texts: str) -> list[str]:
    """An agent that wants to add each text to a block of its partner's; the ids of the questions, newest first."""
    c = await place.constellation()
    await place.admin.patch("/constellations/home/agents/ada/memory/human", json={"permission": "partner"})
    async with place.parts.state.supervisor.use(c) as constellation:
        ada = await constellation.roster.get("ada")
        for text in texts:
            edit = AppendText(text=text)
            await constellation.memory.edit(ada.id, "human", edit, author=f"agent:{ada.id}")
    return [row["id"] for row in (await place.admin.get(HERE)).json()["items"]]


async def test_a_yes_changes_the_block_once(place: Place) -> None:
    [question] = await asked(place, "Likes tea.")
    shown = (await place.admin.get(f"{HERE}/{question}")).json()
    assert (shown["kind"], shown["status"], shown["audience"]) == ("memory", "pending", "partner")
    assert shown["request"]["edit"]["text"] == "Likes tea."
    answer = await place.admin.post(f"{HERE}/{question}", json={"decision": "approve", "scope": "once"})
    assert (answer.status_code, answer.json()["status"]) == (200, "approved")
    assert answer.json()["decided_by"].startswith("user:")
    block = (await place.admin.get("/constellations/home/agents/ada/memory/human")).json()
    assert block["content"] == "Likes tea."
    again = await place.admin.post(f"{HERE}/{question}", json={"decision": "deny"})
    assert (again.status_code, again.json()["code"]) == (409, "conflict")
    assert (await place.admin.get(HERE)).json()["items"] == []


async def test_lists_by_status_and_pages(place: Place) -> None:
    newest, _middle, oldest = await asked(place, "a", "b", "c")
    await place.admin.post(f"{HERE}/{newest}", json={"decision": "deny"})
    page = (await place.admin.get(HERE, params={"limit": 1, "status": "all"})).json()
    assert [row["status"] for row in page["items"]] == ["denied"]
    rest = (await place.admin.get(HERE, params={"status": "all", "cursor": page["next_cursor"]})).json()
    assert [row["id"] for row in rest["items"]][-1] == oldest
    assert [row["status"] for row in (await place.admin.get(HERE, params={"status": "denied"})).json()["items"]] == [
        "denied"
    ]


async def test_what_is_no_answer_is_refused(place: Place) -> None:
    [question] = await asked(place, "a")
    for body in ({}, {"decision": "maybe"}, {"decision": "approve", "scope": "forever"}):
        assert (await place.admin.post(f"{HERE}/{question}", json=body)).status_code == 422
    assert (await place.admin.post(f"{HERE}/apr_nowhere", json={"decision": "deny"})).status_code == 404


async def waiting(place: Place, scripted: ScriptedProvider) -> tuple[str, str]:
    """A turn that waits for consent to add 1 and 1; its id and the question's."""
    scripted._script = iter([calls("calculator", {"expression": "1 + 1"}), says("Done.")])
    await place.constellation(tool_rules=[{"tool": "calculator", "type": "requires_consent"}])
    answer = await place.say("Add it up.")
    assert answer.status_code == 200
    turn = answer.json()
    assert turn["status"] == "waiting"
    [question] = turn["approvals"]
    return turn["turn_id"], question


async def result(place: Place, scripted: ScriptedProvider, turn_id: str) -> str:
    """What the model was told at last of the call, after the turn completed."""
    events = await place.events(f"/constellations/home/turns/{turn_id}/events")
    assert events[-1]["event"] == "turn.completed"
    parts = [part for message in scripted.requests[-1].messages for part in message.parts]
    return next(part.content for part in parts if isinstance(part, ToolResult))


async def test_a_call_waits_and_runs_with_the_answer(place: Place, scripted: ScriptedProvider) -> None:
    turn_id, question = await waiting(place, scripted)
    shown = (await place.admin.get(f"{HERE}/{question}")).json()
    assert (shown["kind"], shown["audience"], shown["request"]["turn_id"]) == ("tool", "human", turn_id)
    assert (shown["request"]["tool"], shown["request"]["arguments"]) == ("calculator", {"expression": "1 + 1"})
    assert (await place.admin.get(f"/constellations/home/turns/{turn_id}")).json()["status"] == "waiting"
    assert (await place.admin.post(f"{HERE}/{question}", json={"decision": "approve"})).json()["status"] == "approved"
    assert "2" in await result(place, scripted, turn_id)
    assert (await place.admin.get(f"/constellations/home/turns/{turn_id}")).json()["approvals"] == []


async def test_changed_arguments_are_checked_and_told(place: Place, scripted: ScriptedProvider) -> None:
    turn_id, question = await waiting(place, scripted)
    refused = await place.admin.post(f"{HERE}/{question}", json={"decision": "approve", "arguments": {"sum": 3}})
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_input")
    assert "expression" in refused.json()["detail"]
    body = {"decision": "approve", "arguments": {"expression": "20 + 22"}}
    assert (await place.admin.post(f"{HERE}/{question}", json=body)).json()["status"] == "edited"
    told = await result(place, scripted, turn_id)
    assert "42" in told
    assert "changed arguments" in told


async def test_a_no_is_told_with_its_reason(place: Place, scripted: ScriptedProvider) -> None:
    turn_id, question = await waiting(place, scripted)
    body = {"decision": "deny", "reason": "not on a Sunday"}
    answer = (await place.admin.post(f"{HERE}/{question}", json=body)).json()
    assert (answer["status"], answer["decision"]["reason"]) == ("denied", "not on a Sunday")
    assert "not on a Sunday" in await result(place, scripted, turn_id)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"decision": "approve", "scope": "time"}, "needs `seconds`"),
        ({"decision": "approve", "seconds": 60}, "has no `seconds`"),
        ({"decision": "approve", "scope": "always", "seconds": 0}, "more than 0"),
        ({"decision": "deny", "reason": "x" * 2_001}, "reason"),
        ({"decision": "approve", "arguments": [1]}, "arguments"),
    ],
)
async def test_a_misfit_leaves_the_question_open(
    place: Place, scripted: ScriptedProvider, body: dict[str, Any], words: str
) -> None:
    _turn, question = await waiting(place, scripted)
    answer = await place.admin.post(f"{HERE}/{question}", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_input")
    assert words in answer.json()["detail"]
    assert (await place.admin.get(f"{HERE}/{question}")).json()["status"] == "pending"


async def test_a_cancelled_turn_takes_its_question_back(place: Place, scripted: ScriptedProvider) -> None:
    turn_id, question = await waiting(place, scripted)
    cancelled = (await place.admin.post(f"/constellations/home/turns/{turn_id}/cancel")).json()
    assert (cancelled["cancelled"], cancelled["status"]) == (True, "cancelled")
    answer = await place.admin.post(f"{HERE}/{question}", json={"decision": "approve"})
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    assert "its turn was stopped" in answer.json()["detail"]
