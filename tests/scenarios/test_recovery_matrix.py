"""What a start finds in the rows of a turn that was cut off, and what follows: the recovery matrix, row by row.

Each row is led to its state by killing the process at a commit, and then taken up by another constellation. Who else
may hold the file is tested with the lock (`tests/pattern_db/test_database.py`), what foreign history leaves unanswered
with its import (`tests/pattern_core/agents/test_imported.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import pytest
import trio

from pattern_core.limits import Limits
from pattern_core.testing.clock import StoppedClock
from pattern_core.testing.model import calls, together
from pattern_core.tools.tool import Probe, Tool, ToolContext, tool
from pattern_db import template
from pattern_db.connection import Connection
from pattern_db.enums import EffectClass
from pattern_db.migrate import migrations_of
from tests.crash.rows import at_rest, complete, state_of
from tests.scenarios.cancelled import Scene, model_of, person, rest
from tests.scenarios.test_rules_matrix import CutDatabase
from tests.support import PATIENCE_S, START, Running, note, rows, running

SENT, ASKED, DECIDED, STARTED, STORED = 1, 2, 3, 4, 5  # the commits of a turn with one call that reaches outside
INNER_STORED = 4  # of one within the file, which needs no intent
EXPIRED_MS = 1_000 * int(Limits().approval_expiry_s) + 1
LATE_MS = 1_000 * int(Limits().turn.turn_timeout_s) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A row: what is found (`found`, in words), how it comes about, and what follows.

    The process dies at the commit `cut`; then `sql` runs, time passes, and the next life begins, without the tool if
    it is `gone`. `runs` is how often the call really happened, `effect` what it came to.
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
    gone: bool = False
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
    Found(found="the tool is no more", cut=(DECIDED, "after"), gone=True, follows="completed", runs=0, call="error"),
]  # fmt: skip


@pytest.mark.parametrize("row", MATRIX, ids=[row.found for row in MATRIX])
async def test_what_is_found_after_a_kill(row: Found, autojump_clock: trio.testing.MockClock) -> None:
    runs: list[str] = []
    clock, acting = StoppedClock(), _tool(row, runs)
    decision = calls("act") if not row.with_sibling else together(calls("act"), calls("note", {"text": "n"}))
    scene = Scene(name="row", expects="", decisions=[decision])
    opened = partial(running, clock=clock)
    async with CutDatabase.in_memory(template.in_memory(migrations_of("constellation"), now=START)) as database:
        assert isinstance(database, CutDatabase)
        async with opened(provider=model_of(scene), tools=[acting, note], database=database) as first:
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
        if row.sql is not None:
            await database.write(_run, row.sql)
        clock.advance(row.later_ms)
        tools = [note] if row.gone else [acting, note]
        async with opened(provider=model_of(scene), tools=tools, database=database) as second:
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
