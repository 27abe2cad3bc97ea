"""The one way to store: all or nothing, told afterwards, in the order of the commits."""

from __future__ import annotations

from functools import partial
from typing import NoReturn

import pytest

from pattern_core import journal as module
from pattern_core.events import Draft, Event, append
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.connection import Connection
from pattern_db.errors import Conflict
from pattern_db.tables import meta
from tests.pattern_core.turns.rig import accepted
from tests.support import START


def refuse(_connection: Connection) -> NoReturn:
    raise Conflict("somebody was first")


async def test_work_is_stored_told_and_settled() -> None:
    async with accepted() as rig:
        before = rig.log.latest
        work, settled = UnitOfWork(), list[bool]()
        work.event("a", {"x": 1})
        work.store(meta.put, "key", "value")
        work.when_settled(settled.append)
        await rig.journal.commit_work(work)
        assert (rig.log.latest, settled) == (before + 1, [True])
        assert await rig.database.read(meta.get, "key") == "value"


async def test_refused_work_leaves_nothing() -> None:
    async with accepted() as rig:
        before, latest = await rig.stored(), rig.log.latest
        work, settled = UnitOfWork(), list[bool]()
        work.event("a", {})
        work.store(meta.put, "key", "value")
        work.store(refuse)
        work.when_settled(settled.append)
        with pytest.raises(Conflict, match="somebody was first"):
            await rig.journal.commit_work(work)
        assert (await rig.stored(), rig.log.latest, settled) == (before, latest, [False])


def _tell(connection: Connection, name: str) -> tuple[str, list[Event]]:
    return name, append(connection, None, [Draft(name, {})], created_at=START)


async def test_each_commit_is_told_once_and_then_others_look_for_work() -> None:
    async with accepted() as rig:
        told: list[int] = []
        rig.journal.when_committed(lambda: told.append(rig.log.latest))
        latest = rig.log.latest
        assert [await rig.journal.commit(partial(_tell, name=name)) for name in ("a", "b")] == ["a", "b"]
        assert told == [latest + 1, latest + 2]
        assert (await rig.names())[-2:] == ["a", "b"]


async def test_logs_that_are_known_to_be_stored_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOGGED_MAX", 4)
    async with accepted() as rig:
        shown = rig.prompt().log
        rig.journal.note_logged("agent_ada", shown)
        assert rig.journal.logged("agent_ada") == {shown.stable.digest, shown.volatile.digest}
        assert rig.journal.logged("agent_bob") == set()
        for number in range(3):
            rig.journal.note_logged(f"agent_{number}", shown)
        assert rig.journal.logged("agent_ada") == set()
