"""The one way to store: all or nothing, told afterwards, in the order of the commits."""

from __future__ import annotations

import logging
from functools import partial
from typing import NoReturn

import pytest
import trio
import trio.testing

from pattern_core.events import Draft, Event, append, ended
from pattern_core.journal import DAY_MS, PRUNE_AFTER_S
from pattern_core.limits import Limits
from pattern_core.testing import StoppedClock, says
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.connection import Connection, open_in_memory
from pattern_db.errors import RowConflict
from pattern_db.tables import meta
from tests.pattern_core.turns.rig import accepted
from tests.support import START, acting, rows


def refuse(_connection: Connection) -> NoReturn:
    raise RowConflict("another was first")


async def test_refused_work_leaves_nothing() -> None:
    async with accepted() as rig:
        before, latest = await rig.stored(), rig.log.latest
        work, settled = UnitOfWork(), list[bool]()
        work.event("a", {})
        work.store(meta.put, "key", "value")
        work.store(refuse)
        work.when_settled(settled.append)
        with pytest.raises(RowConflict, match="another was first"):
            await rig.journal.commit_work(work)
        assert (await rig.stored(), rig.log.latest, settled) == (before, latest, [False])


def _tell(connection: Connection, name: str) -> tuple[str, list[Event]]:
    return name, append(connection, None, [Draft(name, {})], created_at=START)


async def test_each_commit_is_announced_once_and_then_others_look_for_work() -> None:
    async with accepted() as rig:
        told: list[int] = []
        rig.journal.after_commit = lambda: told.append(rig.log.latest)
        latest = rig.log.latest
        assert [await rig.journal.commit(partial(_tell, name=name)) for name in ("a", "b")] == ["a", "b"]
        assert told == [latest + 1, latest + 2]
        assert (await rig.names())[-2:] == ["a", "b"]


TOLD = Event(seq=1, name="a", turn_id=None, data={}, created_at="")


def test_functions_run_in_order_within_one_transaction() -> None:
    connection, work, seen = open_in_memory(), UnitOfWork(), []

    def note(given: Connection, word: str, *, times: int = 1) -> str:
        assert given is connection
        seen.append(word * times)
        return "ignored"

    def tell(given: Connection) -> list[Event]:
        note(given, "told")
        return [TOLD]

    work.store(note, "a")
    work.store_and_tell(tell)
    work.store(note, "b", times=2)
    assert seen == []  # nothing happens before the transaction
    assert work.run(connection) == [TOLD]
    assert seen == ["a", "told", "bb"]
    connection.close()


@pytest.mark.parametrize("committed", [True, False])
def test_each_callback_is_called_once_the_last_first(committed: bool) -> None:
    work = UnitOfWork()
    told: list[tuple[str, bool]] = []
    work.when_settled(lambda committed: told.append(("first", committed)))
    work.when_settled(lambda committed: told.append(("second", committed)))
    work.settle(committed=committed)
    work.settle(committed=not committed)
    assert told == [("second", committed), ("first", committed)]


async def test_the_line_of_a_turn_s_end_is_logged_where_it_is_wanted(caplog: pytest.LogCaptureFixture) -> None:
    end = ended("limit", {"code": "deadline", "message": "too long"})
    async with accepted() as rig:
        rig.journal.log_end("turn_1", "agent_ada", end)
        assert caplog.records == []  # the level of tests is higher
        caplog.set_level(logging.INFO, "pattern.turns")
        rig.journal.log_end("turn_1", "agent_ada", end, steps=3, model="scripted/script-1", seconds=1.2344)
    [line] = caplog.records
    assert isinstance(line.args, dict)
    assert (line.args["status"], line.args["code"], line.args["ms"]) == ("limit", "deadline", 1234)


async def test_what_is_older_than_the_days_that_are_kept_goes_every_day(autojump_clock: trio.testing.MockClock) -> None:
    clock = StoppedClock()
    async with acting(otherwise=says("ok"), clock=clock, limits=Limits(retention_days=2)) as world:
        await world.say("one")
        await trio.sleep(PRUNE_AFTER_S + 1)
        assert await world.database.read(rows, "SELECT count(*) FROM step") == [(1,)]
        clock.advance(3 * DAY_MS)
        await trio.sleep(DAY_MS / 1000 + 1)
        assert await world.database.read(rows, "SELECT count(*) FROM step") == [(0,)]
        assert len(await world.constellation.messages("ada", limit=9)) == 2
        await world.constellation._journal.prune_daily(0)  # nothing is to go, ever
