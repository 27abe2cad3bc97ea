"""Making, finding, renaming, restoring, copying and deleting constellations over HTTP; one that halts."""

from __future__ import annotations

import hashlib
from pathlib import Path

import trio

from pattern_db.backup import verify
from tests.pattern_server.place import Place


async def test_a_constellation_has_a_folder_until_it_is_deleted(place: Place) -> None:
    row = (await place.admin.post("/constellations", json={"name": "home"})).json()
    folder = place.parts.files.folder(row["id"])
    assert (folder / "pattern.db").is_file()
    assert (await place.admin.get("/constellations/home")).json()["state"] == "parked"
    assert (await place.admin.get("/constellations/home/agents")).json()["items"] == []
    assert (await place.admin.get("/constellations/home")).json()["state"] == "awake"
    assert (await place.admin.delete("/constellations/home")).status_code == 204
    assert not folder.exists()


async def test_a_taken_name_is_a_conflict_for_its_owner_only(place: Place) -> None:
    await place.constellation("home", agent=None)
    answer = await place.admin.post("/constellations", json={"name": "home"})
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    ann = await place.client("ann")
    assert (await ann.post("/constellations", json={"name": "home"})).status_code == 201
    assert len((await ann.get("/constellations")).json()["items"]) == 1
    assert len((await place.admin.get("/constellations")).json()["items"]) == 2
    assert len(list((place.parts.state.config.data_dir / "constellations").iterdir())) == 2


async def test_restoring_makes_a_new_constellation_with_everything(home: Place) -> None:
    await home.say("Hello")
    copy = (await home.admin.post("/constellations/home/backup")).json()
    answer = await home.admin.post("/constellations/restore", json={"file": copy["path"], "name": "copy"})
    assert answer.status_code == 201, answer.text
    before = (await home.admin.get("/constellations/home/agents/ada/messages")).json()["items"]
    after = (await home.admin.get("/constellations/copy/agents/ada/messages")).json()["items"]
    assert after == before
    await home.say("Only here", where="copy/agents/ada")
    assert (await home.admin.get("/constellations/home/agents/ada/messages")).json()["items"] == before


async def test_what_is_no_copy_is_refused_and_leaves_nothing(place: Place, tmp_path: Path) -> None:
    garbage = tmp_path / "garbage.db"
    garbage.write_bytes(b"not a database" * 100)
    folder = place.parts.state.config.data_dir
    for file, status, code in (
        (garbage, 422, "backup_invalid"),
        (folder / "global.db", 422, "backup_invalid"),
        (tmp_path / "missing.db", 404, "not_found"),
        (Path("relative.db"), 422, "invalid_input"),
    ):
        answer = await place.admin.post("/constellations/restore", json={"file": str(file), "name": "copy"})
        assert (answer.status_code, answer.json()["code"]) == (status, code), file
    assert (await place.admin.get("/constellations")).json()["items"] == []
    assert not list((folder / "constellations").glob("*"))


async def test_a_copy_is_made_while_work_goes_on(place: Place) -> None:
    c = await place.constellation()
    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(place.say, f"Message {number}")
        answer = await place.admin.post("/constellations/home/backup")
    assert answer.status_code == 201, answer.text
    made = answer.json()
    path = Path(made["path"])
    assert path.parent == place.parts.state.config.data_dir / "backups"
    assert path.stat().st_size == made["size"]
    assert hashlib.sha256(path.read_bytes()).hexdigest() == made["sha256"]
    assert verify(path).constellation_id == c
    again = (await place.admin.post("/constellations/home/backup")).json()
    assert again["path"] != made["path"]
