"""Whole constellations: their files and their registry entries stay together."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import trio
import trio.testing

from pattern_core.errors import Conflict, InvalidInput, NotFound, Unavailable
from pattern_core.models.model import ModelRequest
from pattern_core.testing.model import Paced, ScriptedProvider, says
from pattern_db.backup import verify
from pattern_db.tables import webhooks
from pattern_server.accounts import Constellation as Registered
from pattern_server.accounts import Principal
from tests.pattern_server.place import Place, config_for, serving


async def principal(place: Place) -> Principal:
    return await place.parts.state.accounts.authenticate(place.parts.local_token)


async def test_of_two_who_make_the_same_name_one_wins(place: Place) -> None:
    constellations, owner = place.parts.state.constellations, await principal(place)
    outcomes: list[str] = []

    async def make() -> None:
        try:
            await constellations.create(owner, "home")
            outcomes.append("made")
        except Conflict:
            outcomes.append("conflict")

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(make)
    assert sorted(outcomes) == ["conflict"] * 3 + ["made"]
    assert len(list((place.parts.state.config.data_dir / "constellations").iterdir())) == 1


async def test_a_start_deletes_what_a_killed_process_was_creating_and_nothing_else(tmp_path: Path) -> None:
    async with serving(config_for(tmp_path), {"scripted": ScriptedProvider([])}) as place:
        constellations = place.parts.state.constellations
        made = await constellations.create(await principal(place), "home")
        await constellations.files.create("con_killed")
        mark = tmp_path / "data" / "constellations" / f".creating-{made.id}"
        assert not mark.exists()
        mark.touch()  # as if it had been killed after it was registered
        (tmp_path / "data" / "constellations" / "con_of_somebody").mkdir()
    async with serving(config_for(tmp_path), {"scripted": ScriptedProvider([])}) as place:
        there = sorted(path.name for path in (tmp_path / "data" / "constellations").iterdir())
        assert there == sorted([made.id, "con_of_somebody"])
        assert (await place.admin.get("/constellations/home")).status_code == 200


async def test_vacuum_while_it_rests(home: Place, scripted: ScriptedProvider) -> None:
    asked, gate = trio.Event(), trio.Event()

    def answer(_request: ModelRequest) -> Paced:
        asked.set()
        return Paced(answer=says("Done."), gate=gate)

    scripted._script = iter([answer])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(home.say, "hello")
        await asked.wait()
        refused = await home.admin.post("/constellations/home/vacuum")
        assert (refused.status_code, "busy" in refused.json()["detail"]) == (503, True)
        assert int(refused.headers["retry-after"]) > 0
        gate.set()
    for where in ("/constellations/home/vacuum", "/vacuum"):
        made = await home.admin.post(where)
        assert (made.status_code, isinstance(made.json()["freed_bytes"], int)) == (200, True), made.text
    assert (await home.say("again")).status_code == 200
    ben = await home.client("ben", "write")
    assert [(await ben.post(where)).status_code for where in ("/constellations/home/vacuum", "/vacuum")] == [404, 403]


async def test_a_new_name_is_checked(place: Place) -> None:
    constellations, owner = place.parts.state.constellations, await principal(place)
    await constellations.create(owner, "home")
    other = await constellations.create(owner, "other")
    for name in ("home", "", " x", "x" * 101, "a/b", "a\nb", ".."):
        with pytest.raises(Conflict if name == "home" else InvalidInput):
            await constellations.rename(owner, other.id, name)


async def test_what_a_name_means_is_looked_up_once_until_the_registry_changes(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    constellations, owner = place.parts.state.constellations, await principal(place)
    find, asked = place.parts.state.accounts.constellation_for, []

    async def counted(caller: Principal, name: str) -> Registered:
        asked.append(name)
        return await find(caller, name)

    monkeypatch.setattr(place.parts.state.accounts, "constellation_for", counted)

    async def means(name: str) -> str:
        async with constellations.use(owner, name) as constellation:
            return constellation.id

    first = await place.constellation("home")
    assert [await means("home"), await means("home")] == [first] * 2
    assert asked == ["home", "home"]  # the first time to see that the name is free
    await constellations.rename(owner, "home", "house")
    with pytest.raises(NotFound):
        await means("home")
    assert await means("house") == first
    second = await place.constellation("home")
    assert await means("home") == second
    await constellations.delete(owner, "house")
    for name in ("house", first):
        with pytest.raises(NotFound):
            await means(name)
    monkeypatch.setattr("pattern_server.constellations.REACHED_MAX", 1)
    assert [await means("home"), await means(second), await means("home")] == [second] * 3


async def test_a_lookup_that_began_before_a_change_is_not_remembered(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    constellations, owner = place.parts.state.constellations, await principal(place)
    c = await place.constellation("home")
    find, found = place.parts.state.accounts.constellation_for, trio.Event()

    async def late(caller: Principal, name: str) -> Registered:
        row = await find(caller, name)
        if name == "home":
            await found.wait()
        return row

    async def use() -> None:
        async with constellations.use(owner, "home"):
            pass

    monkeypatch.setattr(place.parts.state.accounts, "constellation_for", late)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(use)
        await trio.testing.wait_all_tasks_blocked(0.05)
        await constellations.rename(owner, c, "house")
        found.set()
    with pytest.raises(NotFound):
        await use()


async def test_deleting_stops_those_who_use_it(place: Place) -> None:
    constellations, owner = place.parts.state.constellations, await principal(place)
    folder = place.parts.files.folder(await place.constellation())
    assert (folder / "pattern.db").is_file()
    told: list[str] = []
    inside = trio.Event()

    async def wait() -> None:
        try:
            async with constellations.use(owner, "home"):
                inside.set()
                await trio.sleep_forever()
        except Unavailable as error:
            told.append(error.code)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await inside.wait()
        await constellations.delete(owner, "home")
    assert told == ["unavailable"]
    assert not folder.exists()
    with pytest.raises(NotFound):
        await constellations.delete(owner, "home")


async def test_a_lost_file_is_an_error_of_its_constellation_alone(place: Place) -> None:
    c = await place.constellation()
    await place.constellation("other")
    async with place.parts.state.supervisor.aside(c):
        (place.parts.files.folder(c) / "pattern.db").unlink()
    answer = await place.admin.get("/constellations/home/agents")
    assert answer.status_code == 503
    assert "missing" in answer.json()["detail"]
    assert (await place.admin.get("/constellations/other/agents")).status_code == 200
    assert (await place.admin.get("/constellations/home")).status_code == 200


async def test_a_copy_in_a_relative_data_directory_is_restored_by_the_path_of_the_answer(alone: Path) -> None:
    config = config_for(alone).model_copy(update={"data_dir": Path("data")})
    async with serving(config) as place:
        await place.constellation(agent=None)
        for where in ("/constellations/home/backup", "/backup"):
            made = (await place.admin.post(where)).json()
            assert Path(made["path"]).is_absolute()
        made = (await place.admin.post("/constellations/home/backup")).json()
        body = {"file": made["path"], "name": "again"}
        assert (await place.admin.post("/constellations/restore", json=body)).status_code == 201


async def test_a_copy_is_made_while_agents_work(place: Place) -> None:
    c = await place.constellation()
    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(place.say, f"Message {number}")
        made = (await place.admin.post("/constellations/home/backup")).json()
    path = Path(made["path"])
    assert path.parent == place.parts.state.config.data_dir / "backups"
    assert path.stat().st_size == made["size"]
    assert hashlib.sha256(path.read_bytes()).hexdigest() == made["sha256"]
    assert verify(path).constellation_id == c
    again = (await place.admin.post("/constellations/home/backup")).json()
    assert again["path"] != made["path"]


async def test_a_fork_begins_as_the_original_and_repeats_nothing(home: Place, scripted: ScriptedProvider) -> None:
    asked, gate = trio.Event(), trio.Event()

    def answer(_request: ModelRequest) -> Paced:
        asked.set()
        return Paced(answer=says("At the original."), gate=gate)

    scripted._script = iter([answer, says("At the fork.")])
    schedule = {"name": "daily", "agent": "ada", "message": "Good morning.", "every": 86400}
    await home.admin.post("/constellations/home/schedules", json=schedule)
    original = (await home.admin.get("/constellations/home")).json()["id"]
    async with home.parts.state.constellations.use(await principal(home), "home") as constellation:
        await constellation.database.write(
            webhooks.create,
            webhooks.WebhookRow("hook_1", "pager", "https://x.org", ("*",), "s", 0, "2026-01-01T00:00:00.000Z"),
        )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(home.say, "hello")
        await asked.wait()
        made = await home.admin.post("/constellations/home/fork", json={"name": "what-if"})
        assert (made.status_code, made.json()["name"]) == (201, "what-if"), made.text
        assert made.json()["id"] != original
        where = "/constellations/what-if"
        found = (await home.admin.get(f"{where}/schedules")).json()["items"]
        assert [(row["name"], row["status"]) for row in found] == [("daily", "paused")]
        assert (await home.admin.get(f"{where}/webhooks")).json()["items"] == []
        assert (await home.say("and you?", where="what-if/agents/ada")).json()["messages"][-1][
            "content"
        ] == "At the fork."
        gate.set()
    [turn] = (await home.admin.get("/constellations/home/turns")).json()["items"]
    assert turn["status"] == "completed"
    turns = (await home.admin.get(f"{where}/turns")).json()["items"]
    assert sorted(row["status"] for row in turns) == ["cancelled", "completed"]
    said = (await home.admin.get("/constellations/home/agents/ada/messages")).json()["items"]
    assert [row["content"] for row in said] == ["At the original.", "hello"]
    assert [row["status"] for row in (await home.admin.get("/constellations/home/schedules")).json()["items"]] == [
        "active"
    ]
    assert len((await home.admin.get("/constellations/home/webhooks")).json()["items"]) == 1
    taken = await home.admin.post("/constellations/home/fork", json={"name": "what-if"})
    assert (taken.status_code, taken.json()["code"]) == (409, "conflict")
    assert list((home.parts.state.config.data_dir / "backups").iterdir()) == []
