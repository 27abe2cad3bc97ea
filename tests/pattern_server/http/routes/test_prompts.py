"""What a turn's model was shown, over HTTP."""

from __future__ import annotations

from pattern_core.testing.model import ScriptedProvider, calls, says
from tests.pattern_server.place import Place


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
