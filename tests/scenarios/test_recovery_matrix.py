"""What a start finds in the rows of a turn that was cut off, and what follows: the recovery matrix, row by row.

Each row is led to its state by killing the process at a commit, and then taken up by another constellation. Who else
may hold the file is tested with the lock (`tests/pattern_db/test_database.py`), what foreign history leaves unanswered
with its import (`tests/pattern_core/agents/test_imported.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal, get_args

import pytest
import trio

from pattern_core.approvals import Answer, Approval
from pattern_core.errors import Conflict
from pattern_core.limits import Limits
from pattern_core.testing.clock import StoppedClock
from pattern_core.testing.model import calls, together
from pattern_core.tools.tool import Probe, Tool, ToolContext, tool
from pattern_core.views import TurnView
from pattern_db import template
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.enums import EffectClass
from pattern_db.migrate import migrations_of
from tests.crash.rows import at_rest, complete, state_of
from tests.scenarios.cancelled import Scene, model_of, person, rest
from tests.scenarios.test_rules_matrix import CutDatabase
from tests.support import PATIENCE_S, START, USER, Running, note, rows, running

SENT, ASKED, DECIDED, STARTED, STORED = 1, 2, 3, 4, 5  # the commits of a turn with one call that reaches outside
INNER_STORED = 4  # of one within the file, which needs no intent
EXPIRED_MS = 1_000 * int(Limits().approval_expiry_s) + 1
LATE_MS = 1_000 * int(Limits().turn.turn_timeout_s) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A row: what is found (`found`, in words), how it comes about, and what follows.

    The process dies at the commit `cut`; then `sql` runs, time passes, and the next life begins. `runs` is how often
    the call really happened, `call` what it came to.
    """

    found: str
    cut: tuple[int, str]
    follows: str
    runs: int
    call: str | None
    effect: EffectClass = EffectClass.UNSAFE
    probe: Probe = "unknown"
    asks: bool = False
    with_sibling: bool = False
    sql: str | None = None
    later_ms: int = 0
    tells: str | None = None


MATRIX = [
    Found(found="a message waits in line", cut=(SENT, "after"), follows="completed", runs=1, call="done"),
    Found(found="a turn runs and asked nobody yet", cut=(ASKED, "after"), sql="DELETE FROM step", follows="completed",
          runs=1, call="done"),
    Found(found="a model call is open", cut=(ASKED, "after"), follows="completed", runs=1, call="done",
          tells="step.superseded"),
    Found(found="the decision is stored, its calls are planned", cut=(DECIDED, "after"), follows="completed", runs=1,
          call="done"),
    Found(found="a pure call was under way", effect=EffectClass.PURE, cut=(INNER_STORED, "before"),
          follows="completed", runs=2, call="done"),
    Found(found="a local call was under way", effect=EffectClass.LOCAL, cut=(INNER_STORED, "before"),
          follows="completed", runs=2, call="done", tells="acted"),
    Found(found="an idempotent call was started", effect=EffectClass.IDEMPOTENT, cut=(STORED, "before"),
          follows="completed", runs=2, call="done"),
    Found(found="a verifiable call was started, and happened", effect=EffectClass.VERIFIABLE, probe="done",
          cut=(STORED, "before"), follows="completed", runs=1, call="done"),
    Found(found="a verifiable call was started, and did not happen", effect=EffectClass.VERIFIABLE, probe="absent",
          cut=(STARTED, "after"), follows="completed", runs=1, call="done"),
    Found(found="a verifiable call was started, and nobody knows", effect=EffectClass.VERIFIABLE,
          cut=(STORED, "before"), follows="completed", runs=1, call="in_doubt"),
    Found(found="an unsafe call was started, and happened", cut=(STORED, "before"), follows="completed", runs=1,
          call="in_doubt"),
    Found(found="an unsafe call was started, and did not happen", cut=(STARTED, "after"), follows="completed", runs=0,
          call="in_doubt"),
    Found(found="a call is done, its sibling is not", with_sibling=True, cut=(STORED, "after"), follows="completed",
          runs=1, call="done", tells="noted"),
    Found(found="a call waits for a person", asks=True, cut=(STARTED, "after"), follows="completed", runs=1,
          call="done", tells="turn.resumed"),
    Found(found="a call waited for a person for too long", asks=True, cut=(STORED, "after"), later_ms=EXPIRED_MS,
          follows="completed", runs=0, call="denied"),
    Found(found="somebody asked to stop the turn", cut=(STARTED, "after"),
          sql="UPDATE turn SET cancel_reason = 'user'", follows="cancelled", runs=0, call="in_doubt"),
    Found(found="the turn's time is over", cut=(DECIDED, "after"), later_ms=LATE_MS, follows="interrupted", runs=0,
          call="cancelled"),
]  # fmt: skip

# The tool of a call is no more: it waits for a person, as long as a person takes, whatever the call's class.
Way = Literal["denied", "expired", "cancelled", "back"]
GONE = [
    (cut, effect, runs, way)
    for cut, effect, runs in [
        ((DECIDED, "after"), EffectClass.PURE, 0),
        ((DECIDED, "after"), EffectClass.UNSAFE, 0),
        ((STORED, "before"), EffectClass.IDEMPOTENT, 1),
        ((STORED, "before"), EffectClass.VERIFIABLE, 1),
    ]
    for way in get_args(Way)
]


@pytest.mark.parametrize("row", MATRIX, ids=[row.found for row in MATRIX])
async def test_what_is_found_after_a_kill(row: Found, autojump_clock: trio.testing.MockClock) -> None:
    runs: list[str] = []
    clock, acting = StoppedClock(), _tool(row, runs)
    async with _cut_off(row, clock, acting) as (database, scene):
        if row.sql is not None:
            await database.write(_run, row.sql)
        clock.advance(row.later_ms)
        life = running(provider=model_of(scene), tools=[acting, note], database=database, clock=clock)
        async with life as second:
            await _taken_up(second, row)
            assert (await second.say("and now?")).status == "completed"
        assert await database.read(_problems) == []
        told = {str(name) for (name,) in await database.read(rows, "SELECT name FROM event")}
        found = await database.read(rows, "SELECT status FROM effect WHERE tool = 'act'")
        [(status, *_), *_others] = await database.read(rows, "SELECT status FROM turn ORDER BY key")
    assert (status, found) == (row.follows, [(row.call,)])
    assert len(runs) == row.runs
    assert len(set(runs)) <= 1, "the same key each time"
    assert row.tells is None or row.tells in told


@pytest.mark.parametrize(("cut", "effect", "runs", "way"), GONE)
async def test_a_tool_that_is_no_more_needs_attention(
    cut: tuple[int, str], effect: EffectClass, runs: int, way: Way, autojump_clock: trio.testing.MockClock
) -> None:
    ran: list[str] = []
    row = Found(found="the tool is no more", cut=cut, follows="", runs=runs, call="", effect=effect, probe="done")
    clock, acting = StoppedClock(), _tool(row, ran)
    async with _cut_off(row, clock, acting) as (database, scene):
        async with running(provider=model_of(scene), tools=[note], database=database, clock=clock) as second:
            view = await _ended(second)
            assert view.status == "waiting"
            # It is nobody's turn to wait for it, and a restart leaves it as it is.
            assert (await second.say("and now?")).status == "completed"
        tools = [note] if way != "back" else [note, acting]
        async with running(provider=model_of(scene), tools=tools, database=database, clock=clock) as third:
            [question] = await third.constellation.approvals.list(9)
            assert (question.kind, question.request["needs_attention"]) == ("recovery", "tool_gone")
            await _answered(third, question, way, clock)
            view = await _ended(third)
        assert await database.read(_problems) == []
        [(status,)] = await database.read(rows, "SELECT status FROM effect")
    undone = "denied" if way != "cancelled" else "cancelled"
    assert view.status == ("cancelled" if way == "cancelled" else "completed")
    assert status == ("done" if way == "back" else "in_doubt" if runs else undone)
    twice = way == "back" and effect is EffectClass.IDEMPOTENT
    assert (len(ran), len(set(ran))) == (2 if twice else int(runs or way == "back"), int(runs or way == "back"))


async def _answered(one: Running, question: Approval, way: Way, clock: StoppedClock) -> None:
    approvals = one.constellation.approvals
    match way:
        case "back":
            await approvals.decide(question.id, Answer(approve=True, by=USER))
        case "denied":
            with pytest.raises(Conflict, match="no tool act any more"):
                await approvals.decide(question.id, Answer(approve=True, by=USER))
            await approvals.decide(question.id, Answer(approve=False, by=USER))
        case "expired":
            clock.advance(EXPIRED_MS)
            assert await approvals.list(9) == []
        case "cancelled":
            assert await one.constellation.cancel(str(question.request["turn_id"]))


async def _ended(one: Running) -> TurnView:
    """The first turn once it has ended or waits."""
    [(turn_id,)] = await one.database.read(rows, "SELECT id FROM turn ORDER BY key LIMIT 1")
    with trio.fail_after(PATIENCE_S):
        return await one.constellation.wait(str(turn_id))


@asynccontextmanager
async def _cut_off(row: Found, clock: StoppedClock, acting: Tool) -> AsyncIterator[tuple[Database, Scene]]:
    """The file that a process left which died as the row says, and its scene."""
    decision = calls("act") if not row.with_sibling else together(calls("act"), calls("note", {"text": "n"}))
    scene = Scene(name="row", expects="", decisions=[decision])
    async with CutDatabase.in_memory(template.in_memory(migrations_of("constellation"), now=START)) as database:
        assert isinstance(database, CutDatabase)
        life = running(provider=model_of(scene), tools=[acting, note], database=database, clock=clock)
        async with life as first:
            await first.agent()
            if row.asks:
                rules = [{"tool": "act", "type": "requires_consent"}]
                await first.constellation.roster.update("ada", {"tool_rules": rules})
            database.commits, database.cut, database.die = 0, row.cut, first.nursery.cancel_scope.cancel
            with trio.move_on_after(PATIENCE_S):
                await first.submit("go")
                await rest(first)
        assert database.commits == row.cut[0], "it died where it should"
        database.cut = None
        yield database, scene


async def _taken_up(second: Running, row: Found) -> None:
    if row.asks and not row.later_ms:
        assert len(await second.constellation.approvals.list(9)) == 1, "the question is still there"
        second.nursery.start_soon(person, second)
    with trio.fail_after(PATIENCE_S):
        await rest(second)


def _tool(row: Found, runs: list[str]) -> Tool:
    async def probe(_key: str) -> Probe:
        return row.probe

    @tool(effect=row.effect, probe=probe if row.effect is EffectClass.VERIFIABLE else None)
    async def act(context: ToolContext) -> str:
        """Act."""
        runs.append(context.idempotency_key)
        if row.effect is EffectClass.LOCAL:
            context.work.event("acted", {})
        return "acted"

    return act


def _run(connection: Connection, sql: str) -> None:
    connection.execute(sql).fetchall()


def _problems(connection: Connection) -> list[str]:
    state = state_of(connection, "PRAGMA quick_check", complete(connection))
    return [*state.problems, *at_rest(connection, state)]
