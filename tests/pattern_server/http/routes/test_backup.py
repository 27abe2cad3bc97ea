"""Backups over HTTP."""

from __future__ import annotations

import hashlib
from pathlib import Path

import trio

from pattern_db.backup import verify
from tests.pattern_server.place import Place


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
