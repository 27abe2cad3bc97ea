"""The emergency halt: stored with the call, acted on once, and ended by a person only."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from pattern_core.errors import Conflict, InvalidInput
from pattern_core.halt import HALTED, RESUMED, Halt, Halted, HaltRow, note, stored
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.database import Database
from pattern_db.tables import archival
from tests.pattern_core.memory.rig import ADA, Rig, constellation
from tests.support import until

ASKER = {"agent_id": ADA, "agent_name": "ada", "turn_id": "turn_1"}


@asynccontextmanager
async def rigged(log: Path | None = None) -> AsyncIterator[tuple[Rig, Halt]]:
    async with Database.in_memory(constellation()) as database:
        rig = Rig(database)
        yield rig, await opened(rig, log)


async def opened(rig: Rig, log: Path | None = None) -> Halt:
    return Halt(rig.storage, current=await rig.database.read(stored), log=log)


async def asked(rig: Rig, halt: Halt, reason: str = "It deletes everything.") -> HaltRow:
    work = UnitOfWork()
    found = halt.request(work, **ASKER, reason=reason, severity="critical")
    await rig.commit(work)
    return found


async def test_a_halt_is_stored_with_an_entry_and_an_event() -> None:
    async with rigged() as (rig, halt):
        assert (await opened(rig)).current is None
        row = await asked(rig, halt)
        assert halt.current == row
        refusal = Halted(row)
        assert re.match(r"ada halted this constellation at .*: It deletes everything\. Once", refusal.message)
        assert refusal.details == {"halt_id": row.id, "reason": "It deletes everything."}
        assert [draft.name for draft in rig.events] == [HALTED, "archive.changed"]
        [entry] = await rig.database.read(archival.list_for_agent, ADA, 10)
        assert "Emergency halt (critical)" in entry.content
        assert (await opened(rig)).current == row  # as after a restart
        for number in range(2):  # an archive may refuse an entry that says nearly the same as another one
            await asked(rig, halt, f"{'It deletes everything. ' * 15}{number}")
        assert len(await rig.database.read(archival.list_for_agent, ADA, 10)) == 3


async def test_a_person_ends_it() -> None:
    async with rigged() as (rig, halt):
        with pytest.raises(Conflict, match="not halted"):
            await halt.resume(by="user:usr_1")
        row = await asked(rig, halt)
        assert await halt.resume(by="user:usr_1") == row
        assert halt.current is None
        assert (rig.events[-1].name, rig.events[-1].data) == (RESUMED, {"id": row.id, "by": "user:usr_1"})
        assert (await opened(rig)).current is None


async def test_it_is_acted_on_when_it_comes_and_after_a_restart(tmp_path: Path) -> None:
    log = tmp_path / "halts.log"
    acted: list[HaltRow | None] = []

    async with rigged(log) as (rig, halt), trio.open_nursery() as nursery:
        nursery.start_soon(halt.run, lambda: acted.append(halt.current))
        await trio.testing.wait_all_tasks_blocked()
        row = await asked(rig, halt)
        assert acted == [row]  # before anything else runs
        await until(lambda: log.exists())
        again = await opened(rig, log)
        nursery.start_soon(again.run, lambda: acted.append(again.current))
        await until(lambda: len(acted) == 2)
        nursery.cancel_scope.cancel()
    assert acted == [row, row]
    lines = log.read_text().splitlines()
    assert [json.loads(line)["reason"] for line in lines] == ["It deletes everything."]


def test_a_log_that_cannot_be_written_holds_nothing_up(tmp_path: Path) -> None:
    row = HaltRow(id="halt_1", agent_id=ADA, agent_name="ada", turn_id="t", at="now", severity="warning", reason="r\n")
    note(tmp_path, row)
    note(tmp_path / "log", row)
    note(tmp_path / "log", row)
    assert len((tmp_path / "log").read_text().splitlines()) == 1


async def test_a_halt_needs_a_reason() -> None:
    async with rigged() as (_rig, halt):
        for reason in (" ", "x" * 2_001):
            with pytest.raises(InvalidInput):
                halt.request(UnitOfWork(), **ASKER, reason=reason, severity="warning")
