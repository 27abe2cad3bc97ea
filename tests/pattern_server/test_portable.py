"""Archives through the API: exported from a running server, imported into another, all or nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pattern_core.car import ArchiveInvalid
from pattern_core.testing import ScriptedProvider, says
from pattern_db.tables import timers
from pattern_server.portable import export, import_archive
from tests.pattern_server.place import Place, config_for, serving


async def exported(place: Place, constellation: str = "home", **body: str) -> dict[str, Any]:
    answer = await place.admin.post(f"/constellations/{constellation}/export", json=body)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


async def test_a_constellation_moves_to_another_server_and_back(tmp_path: Path) -> None:
    async with serving(config_for(tmp_path / "one"), {"scripted": ScriptedProvider([says("Noted.")])}) as one:
        await one.constellation()
        assert (await one.say("Ruth lives in Lisbon.")).status_code == 200
        block = {"content": "Likes tea."}
        assert (await one.admin.put("/constellations/home/agents/ada/memory/human", json=block)).status_code == 200
        schedule = {"name": "daily", "agent": "ada", "message": "Good morning.", "every": 86400}
        assert (await one.admin.post("/constellations/home/schedules", json=schedule)).status_code == 201
        made = await exported(one)
        downloaded = await one.admin.get(f"/constellations/home/exports/{Path(str(made['path'])).name}")
        assert downloaded.headers["content-type"] == "application/vnd.ipld.car"
        assert downloaded.content == Path(str(made["path"])).read_bytes()
    async with serving(config_for(tmp_path / "two"), {"scripted": ScriptedProvider([says("In Lisbon.")])}) as two:
        new = await two.admin.post("/constellations/import", json={"file": made["path"]})
        assert new.status_code == 201, new.text
        assert new.json()["name"] == "home"
        again = await exported(two)
        assert again["sha256"] == made["sha256"]
        found = (await two.admin.get("/constellations/home/agents/ada/memory/human")).json()
        assert found["content"] == "Likes tea."
        paused = (await two.admin.get("/constellations/home/schedules")).json()["items"]
        assert [row["status"] for row in paused] == ["paused"]
        assert (await two.say("Where does she live?")).json()["messages"][-1]["content"] == "In Lisbon."
        past = (await two.admin.get("/constellations/home/agents/ada/memory/human/history")).json()["items"]
        assert [row["kind"] for row in past] == ["edit", "create"]
        taken = await two.admin.post("/constellations/import", json={"file": made["path"]})
        assert (taken.status_code, taken.json()["code"]) == (409, "conflict")


async def test_an_agent_and_a_group_alone(tmp_path: Path) -> None:
    async with serving(config_for(tmp_path), {"scripted": ScriptedProvider([])}) as place:
        await place.constellation()
        for name in ("ben", "cleo"):
            await place.admin.post(
                "/constellations/home/agents", json={"name": name, "config": {"hibernate_after_s": 3600}}
            )
        group = {"name": "team", "pattern_type": "round_robin", "members": [{"agent_id": "ben"}, {"agent_id": "ada"}]}
        assert (await place.admin.post("/constellations/home/groups", json=group)).status_code == 201
        assert (await exported(place, kind="agent", name="cleo"))["manifest"]["rows"]["agents"] == 1
        made = await exported(place, kind="group", name="team")
        assert (await place.admin.post("/constellations/import", json={"file": made["path"]})).status_code == 201
        agents = (await place.admin.get("/constellations/team/agents")).json()["items"]
        assert [agent["name"] for agent in agents] == ["ada", "ben"]
        shown = (await place.admin.get("/constellations/team/groups/team")).json()
        assert len(shown["members"]) == 2
        principal = await place.parts.state.accounts.authenticate(place.parts.local_token)
        async with place.parts.state.constellations.use(principal, "team") as team:
            [timer] = await team.database.read(timers.due, "~", 9)
            assert (timer.kind, timer.ref) == ("hibernation", (await team.roster.get("ben")).id)


async def test_what_is_damaged_leaves_nothing_behind(tmp_path: Path) -> None:
    async with serving(config_for(tmp_path), {"scripted": ScriptedProvider([])}) as place:
        await place.constellation()
        path = Path(str((await exported(place))["path"]))
        content = bytearray(path.read_bytes())
        content[-10] ^= 1
        path.write_bytes(content)
        before = sorted((tmp_path / "data" / "constellations").iterdir())
        for route in ("/constellations/import", "/constellations/import/check"):
            answer = await place.admin.post(route, json={"file": str(path), "name": "other"})
            assert (answer.status_code, answer.json()["code"]) == (422, "archive_invalid")
        assert sorted((tmp_path / "data" / "constellations").iterdir()) == before
        assert len((await place.admin.get("/constellations")).json()["items"]) == 1


async def test_documents_that_do_not_open_are_refused(tmp_path: Path) -> None:
    async with serving(config_for(tmp_path), {"scripted": ScriptedProvider([])}) as place:
        await place.constellation()
        await place.admin.put("/constellations/home/agents/ada/memory/human", json={"content": "Likes tea."})
        server = place.parts.state
        principal = await server.accounts.authenticate(place.parts.local_token)
        async with server.constellations.use(principal, "home") as home:
            await home.database.write(
                lambda connection: connection.execute(
                    "UPDATE memory_block_updates SET update_blob = x'00ff'"
                ).fetchall()
            )
        made, manifest = await export(server.constellations, principal, "home", "constellation", None)
        assert manifest.rows["memory_block_updates"] == 1
        with pytest.raises(ArchiveInvalid, match="human"):
            await import_archive(server.constellations, principal, made.path, "other")
        assert [path.suffix for path in (tmp_path / "data").glob(".import-*")] == []


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"kind": "agent"}, 422),
        ({"name": "ada"}, 422),
        ({"kind": "agent", "name": "nobody"}, 404),
        ({"kind": "car"}, 422),
    ],
)
async def test_requests_that_name_nothing(tmp_path: Path, body: dict[str, str], status: int) -> None:
    async with serving(config_for(tmp_path), {"scripted": ScriptedProvider([])}) as place:
        await place.constellation()
        assert (await place.admin.post("/constellations/home/export", json=body)).status_code == status
        for file in ("none.car", "..%2Fpattern.db", "pattern.db"):
            assert (await place.admin.get(f"/constellations/home/exports/{file}")).status_code == 404
        relative = await place.admin.post("/constellations/import", json={"file": "a.car"})
        absent = await place.admin.post("/constellations/import", json={"file": str(tmp_path / "none.car")})
        assert (relative.status_code, absent.status_code) == (422, 404)
