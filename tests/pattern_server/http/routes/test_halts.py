"""An agent halts everything; a person lets it go on."""

from __future__ import annotations

from pattern_core.testing.model import ScriptedProvider, calls, says
from tests.pattern_server.place import Place

HOME = "/constellations/home"


async def test_halted_and_resumed(place: Place, scripted: ScriptedProvider) -> None:
    scripted._script = iter([calls("emergency_halt", {"reason": "Out of control."}), says("Never."), says("Again.")])
    await place.constellation()
    assert (await place.admin.get(f"{HOME}/halt")).json()["halted"] is False
    refused = await place.admin.post(f"{HOME}/resume")
    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
    enabled = {"enabled_tools": ["emergency_halt"]}
    assert (await place.admin.patch(f"{HOME}/agents/ada", json=enabled)).status_code == 200
    assert (await place.say("Hello")).json()["status"] == "cancelled"
    shown = (await place.admin.get(f"{HOME}/halt")).json()
    assert (shown["halted"], shown["agent_name"], shown["reason"]) == (True, "ada", "Out of control.")
    refused = await place.say("Hello?")
    assert (refused.status_code, refused.json()["code"]) == (409, "halted")
    resumed = (await place.admin.post(f"{HOME}/resume")).json()
    assert (resumed["halted"], resumed["id"]) == (False, shown["id"])
    assert (await place.say("Hello again")).json()["status"] == "completed"
