"""Standing consent over HTTP: given with an answer, listed, revoked."""

from __future__ import annotations

from typing import Any

from pattern_core.testing.model import ScriptedProvider, calls, says
from tests.pattern_server.place import Place

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
