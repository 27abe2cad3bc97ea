"""Questions to people over HTTP, listed, answered once, and then done; and standing consent."""

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


HOME = "/constellations/home"
GRANTS = f"{HOME}/grants"
RULE = {"tool": "calculator", "type": "requires_consent"}
SUM = calls("calculator", {"expression": "1 + 1"})


async def agreed(place: Place, scripted: ScriptedProvider, *scopes: str) -> list[dict[str, Any]]:
    """Answer a question of ada's for each scope; the consents that hold then, newest first."""
    await place.constellation(tool_rules=[RULE])
    for number, scope in enumerate(scopes):
        call = calls("calculator", {"expression": f"1 + {number}"})
        scripted._script = iter([call, says("Done.")])
        turn = (await place.say("Add it up.")).json()
        assert turn["status"] == "waiting", turn
        [question] = turn["approvals"]
        answer = await place.admin.post(f"{HOME}/approvals/{question}", json={"decision": "approve", "scope": scope})
        assert answer.status_code == 200, answer.text
        assert (await place.events(f"{HOME}/turns/{turn['turn_id']}/events"))[-1]["event"] == "turn.completed"
    items: list[dict[str, Any]] = (await place.admin.get(GRANTS)).json()["items"]
    return items


async def test_an_answer_for_longer_is_listed(place: Place, scripted: ScriptedProvider) -> None:
    [same] = await agreed(place, scripted, "same")
    ada = (await place.admin.get(f"{HOME}/agents/ada")).json()
    assert (same["agent_id"], same["subject"]) == (ada["id"], "tool:calculator")
    assert (same["same_arguments"], same["expires_at"]) == (True, None)
    assert same["granted_by"].startswith("user:")
    question = (await place.admin.get(f"{HOME}/approvals/{same['approval_id']}")).json()
    assert question["decision"]["scope"] == "same"


async def test_an_answer_for_once_is_not(place: Place, scripted: ScriptedProvider) -> None:
    assert await agreed(place, scripted, "once") == []


async def test_pages(place: Place, scripted: ScriptedProvider) -> None:
    newest, oldest = await agreed(place, scripted, "same", "same")
    page = (await place.admin.get(GRANTS, params={"limit": 1})).json()
    assert page["items"] == [newest]
    rest = (await place.admin.get(GRANTS, params={"limit": 1, "cursor": page["next_cursor"]})).json()
    assert (rest["items"], rest["next_cursor"]) == ([oldest], None)


async def test_what_is_revoked_is_asked_again(place: Place, scripted: ScriptedProvider) -> None:
    [grant] = await agreed(place, scripted, "always")
    scripted._script = iter([SUM, says("Done."), SUM, says("Done.")])
    assert (await place.say("Again.")).json()["status"] == "completed"
    assert (await place.admin.delete(f"{GRANTS}/{grant['id']}")).status_code == 204
    assert (await place.admin.get(GRANTS)).json()["items"] == []
    assert (await place.admin.delete(f"{GRANTS}/{grant['id']}")).status_code == 404
    assert (await place.say("And again.")).json()["status"] == "waiting"
