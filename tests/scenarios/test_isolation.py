"""One constellation's bug is nobody else's: the others go on, and it comes back by itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from pattern_core.models.model import ModelReply, ModelRequest
from pattern_core.testing.model import ScriptedProvider, says
from tests.pattern_server.place import config_for, serving


def poisoned(request: ModelRequest) -> ModelReply:
    """Answer, unless the last words hold a bug of ours."""
    if "poison" in request.messages[-1].text:
        raise ZeroDivisionError("a bug that nobody expected")
    return says("All right.")


@pytest.mark.slow
async def test_a_bug_in_one_constellation_leaves_the_others_alone(tmp_path: Path) -> None:
    provider = ScriptedProvider(otherwise=poisoned)
    async with serving(config_for(tmp_path), {"scripted": provider}) as place:
        for name in ("sick", "calm"):
            await place.constellation(name, model_provider="scripted", model_name="m")
        sent = await place.say("poison", where="sick/agents/ada", Prefer="respond-async")
        turn = sent.json()["turn_id"]
        refused = 0
        with trio.fail_after(120):
            while True:
                # The other constellation answers every time, whatever state the sick one is in.
                answer = await place.say("how are you?", where="calm/agents/ada")
                assert (answer.status_code, answer.json()["status"]) == (200, "completed")
                looked = await place.admin.get(f"/constellations/sick/turns/{turn}")
                if looked.status_code == 200 and looked.json()["ended_at"]:
                    break
                refused += looked.status_code == 503
                assert looked.status_code in (200, 503)
                await trio.sleep(0.05)
        # Restarts could not get past the poisonous step, so that turn was given up and the constellation is well.
        assert looked.json()["status"] == "interrupted"
        assert refused > 0
        healthy = await place.say("and you?", where="sick/agents/ada")
        assert healthy.json()["status"] == "completed"
