"""A disk that fails under one constellation: it is quarantined and says why, others go on, and it comes back whole."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from pattern_core.testing.model import ScriptedProvider, says
from pattern_db.connection import open_connection
from pattern_db.maintenance import check
from pattern_db.testing.faults import FaultyDisk, Trouble
from pattern_db.testing.watched import Op
from tests.pattern_server.place import Place, config_for, serving

SICK, CALM = "sick/agents/ada", "calm/agents/ada"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FaultyDisk]:
    """The disk of everything that this process opens."""
    made = FaultyDisk(is_default=True)
    yield made
    made.unregister()


async def accepted(place: Place, where: str, content: str, key: str) -> str:
    """Send a message; its turn's id once it has completed."""
    answer = await place.say(content, where=where, **{"Idempotency-Key": key})
    assert (answer.status_code, answer.json()["status"]) == (200, "completed"), answer.text
    return str(answer.json()["turn_id"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trouble", "status", "words"), [(Trouble.IO, 503, "check the disk"), (Trouble.FULL, 507, "Free some space")]
)
async def test_a_disk_in_trouble_quarantines_one_and_it_comes_back(
    tmp_path: Path, disk: FaultyDisk, trouble: Trouble, status: int, words: str
) -> None:
    provider = ScriptedProvider(otherwise=says("All right."))
    async with serving(config_for(tmp_path), {"scripted": provider}) as place:
        for name in ("sick", "calm"):
            await place.constellation(name, model_provider="scripted", model_name="m")
        before = await accepted(place, SICK, "before", "k1")
        folder = folder_of(tmp_path, (await place.admin.get("/constellations/sick")).json()["id"])
        disk.within(folder)
        disk.fail(Op.WRITE, count=math.inf, trouble=trouble)

        first = await place.say("during", where=SICK, **{"Idempotency-Key": "k2"})
        assert first.status_code == status, first.text
        assert words in first.json()["detail"]
        later = await place.say("during", where=SICK, **{"Idempotency-Key": "k2"})
        assert (later.status_code, later.json()["code"]) == (503, "unavailable"), later.text
        assert "quarantined" in later.json()["detail"] and words in later.json()["detail"]
        assert int(later.headers["retry-after"]) >= 1
        assert [one.constellation_id for one in place.parts.state.supervisor.quarantined()] == [folder.name]
        await accepted(place, CALM, "and you?", "k3")

        disk.heal()
        with trio.fail_after(120):
            while (answer := await place.say("during", where=SICK, **{"Idempotency-Key": "k2"})).status_code != 200:
                assert answer.status_code == 503, answer.text
                await trio.sleep(0.2)
        assert answer.json()["status"] == "completed"
        listed = (await place.admin.get(f"/constellations/{SICK}/messages")).json()["items"]
        assert [message["content"] for message in reversed(listed) if message["role"] == "user"] == ["before", "during"]
        view = await place.admin.get(f"/constellations/sick/turns/{before}")
        assert view.json()["status"] == "completed"
        assert place.parts.state.supervisor.quarantined() == []
    connection = open_connection(folder / "pattern.db")
    assert check(connection) == []
    connection.close()


def folder_of(tmp_path: Path, constellation_id: str) -> Path:
    """Where a constellation's files are."""
    return tmp_path / "data" / "constellations" / constellation_id
