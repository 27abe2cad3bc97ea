"""What a start finds in the rows of a turn that was cut off, and what follows: the recovery matrix, row by row.

Each row is led to its state by killing the process at a commit, and then taken up by another constellation. Who else
may hold the file is tested with the lock (`tests/pattern_db/test_database.py`), what foreign history leaves unanswered
with its import (`tests/pattern_core/conversation/test_imports.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Literal, get_args

import pytest
import trio

from pattern_core.approvals import Approval, ApprovalAnswer
from pattern_core.errors import Conflict, Unavailable
from pattern_core.limits import Limits
from pattern_core.models.model import ModelReply
from pattern_core.testing import StoppedClock
from pattern_core.testing.model import calls, together
from pattern_core.tools.tool import Probe, Tool, ToolContext, tool
from pattern_core.views import TurnView
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.enums import EffectClass
from tests.scenarios.cancelled import CutDatabase, Scene, model_of, person, problems_of, rest
from tests.support import PATIENCE_S, USER, Running, acting, empty_constellation, note, rows, running

# The commits of an agent's first turn with one call. The decision is stored with the intent to call what reaches
# outside, or with the result of a call within the file.
SENT, ASKED, STARTED, STORED = 1, 2, 3, 4
INNER_STORED = 3
PLANNED = "UPDATE effect SET status = 'planned', attempts = 0, started_at = NULL, deadline_at = NULL"
EXPIRED_MS = 1_000 * int(Limits().approval_expiry_s) + 1
LATE_MS = 1_000 * int(Limits().turn.turn_timeout_s) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A row: what is found (`found`, in words), how it comes about, and what follows.

    The process dies at the commit `cut`; then `sql` runs, time passes, and the next life begins. `runs` is how often
    the call really happened, after `takes_s` seconds each, and `call` its status in the end.
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
    takes_s: float = 0.0


MATRIX = [
    Found(found="a message waits in line", cut=(SENT, "after"), follows="completed", runs=1, call="done"),
    Found(found="a turn runs without a step", cut=(ASKED, "after"), sql="DELETE FROM step", follows="completed",
          runs=1, call="done"),
    Found(found="a model call is open", cut=(ASKED, "after"), follows="completed", runs=1, call="done",
          tells="step.superseded"),
    Found(found="the decision is stored, its calls are planned", cut=(STARTED, "after"), sql=PLANNED,
          follows="completed", runs=1, call="done"),
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
    Found(found="a verifiable call was started, and its outcome is unknown", effect=EffectClass.VERIFIABLE,
          cut=(STORED, "before"), follows="completed", runs=1, call="in_doubt"),
    Found(found="an unsafe call was started, and happened", cut=(STORED, "before"), follows="completed", runs=1,
          call="in_doubt"),
    Found(found="an unsafe call was started, and did not happen", cut=(STARTED, "after"), follows="completed", runs=0,
          call="in_doubt"),
    Found(found="a call is done, its sibling is not", with_sibling=True, cut=(STORED, "after"), follows="completed",
          runs=0, call="in_doubt", tells="noted"),
    Found(found="a call waits for a person", asks=True, cut=(STARTED, "after"), follows="completed", runs=1,
          call="done", tells="turn.resumed"),
    Found(found="a call waited for a person for too long", asks=True, cut=(STARTED, "after"), later_ms=EXPIRED_MS,
          follows="completed", runs=0, call="denied"),
    Found(found="the turn was cancelled", cut=(STARTED, "after"),
          sql="UPDATE turn SET cancel_reason = 'user'", follows="cancelled", runs=0, call="in_doubt"),
    Found(found="the turn's time is over", cut=(STARTED, "after"), sql=PLANNED, later_ms=LATE_MS,
          follows="interrupted", runs=0, call="cancelled"),
]  # fmt: skip

# A call whose tool no longer exists waits for a person, without a deadline, whatever its class.
Way = Literal["denied", "expired", "cancelled", "back"]
LOST = Found(found="the tool is gone", cut=(STORED, "before"), follows="", runs=1, call="", probe="done")
GONE = [
    (row, way)
    for row in (
        # A slow call does not delay the commit of the decision.
        replace(LOST, cut=(INNER_STORED, "after"), effect=EffectClass.PURE, runs=0, takes_s=0.2),
        replace(LOST, cut=(STARTED, "after"), effect=EffectClass.UNSAFE, runs=0, sql=PLANNED),
        replace(LOST, effect=EffectClass.IDEMPOTENT),
        replace(LOST, effect=EffectClass.VERIFIABLE),
    )
    for way in get_args(Way)
]


@pytest.mark.parametrize("row", MATRIX, ids=[row.found for row in MATRIX])
async def test_what_is_found_after_a_kill(row: Found, autojump_clock: trio.testing.MockClock) -> None:
    runs: list[str] = []
    clock, acting = StoppedClock(), _tool(row, runs)
    async with _cut_off(row, clock, acting) as (database, scene):
        if row.sql is not None:
            await database.write(rows, row.sql)
        clock.advance(row.later_ms)
        life = running(provider=model_of(scene), tools=[acting, note], database=database, clock=clock)
        async with life as second:
            await _taken_up(second, row)
            assert (await second.say("and now?")).status == "completed"
        assert await database.read(problems_of) == []
        names = {str(name) for (name,) in await database.read(rows, "SELECT name FROM event")}
        found = await database.read(rows, "SELECT status FROM effect WHERE tool = 'act'")
        [(status, *_), *_others] = await database.read(rows, "SELECT status FROM turn ORDER BY key")
    assert (status, found) == (row.follows, [(row.call,)])
    assert len(runs) == row.runs
    assert len(set(runs)) <= 1, "the same key each time"
    assert row.tells is None or row.tells in names


@pytest.mark.parametrize(("row", "way"), GONE, ids=[f"{row.effect}-{row.runs}-{way}" for row, way in GONE])
async def test_a_tool_that_is_gone_needs_attention(
    row: Found, way: Way, autojump_clock: trio.testing.MockClock
) -> None:
    ran: list[str] = []
    runs, effect = row.runs, row.effect
    clock, acting = StoppedClock(), _tool(row, ran)
    async with _cut_off(row, clock, acting) as (database, scene):
        if row.sql is not None:
            await database.write(rows, row.sql)
        async with running(provider=model_of(scene), tools=[note], database=database, clock=clock) as second:
            view = await _ended(second)
            assert view.status == "waiting"
            # Other turns do not wait for it, and a restart leaves it as it is.
            assert (await second.say("and now?")).status == "completed"
        tools = [note] if way != "back" else [note, acting]
        async with running(provider=model_of(scene), tools=tools, database=database, clock=clock) as third:
            [question] = await third.constellation.approvals.list(9)
            assert (question.kind, question.request["needs_attention"]) == ("recovery", "tool_gone")
            await _answered(third, question, way, clock)
            view = await _ended(third)
        assert await database.read(problems_of) == []
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
            await approvals.decide(question.id, ApprovalAnswer(approve=True, by=USER))
        case "denied":
            with pytest.raises(Conflict, match="no tool act any more"):
                await approvals.decide(question.id, ApprovalAnswer(approve=True, by=USER))
            await approvals.decide(question.id, ApprovalAnswer(approve=False, by=USER))
        case "expired":
            clock.advance(EXPIRED_MS)
            assert await approvals.list(9) == []
        case "cancelled":
            assert await one.constellation.cancel(str(question.request["turn_id"]))


async def _ended(one: Running) -> TurnView:
    """The first turn once it has ended or waits."""
    [(turn_id,)] = await one.database.read(rows, "SELECT id FROM turn ORDER BY key LIMIT 1")
    return await one.wait(str(turn_id))


@asynccontextmanager
async def _cut_off(row: Found, clock: StoppedClock, acting: Tool) -> AsyncIterator[tuple[Database, Scene]]:
    """The file that a process left which died as the row says, and its scene."""
    decision = calls("act") if not row.with_sibling else together(calls("act"), calls("note", {"text": "n"}))
    scene = Scene(name="row", expects="", decisions=[decision])
    async with CutDatabase.in_memory(empty_constellation()) as database:
        life = running(provider=model_of(scene), tools=[acting, note], database=database, clock=clock)
        async with life as first:
            await first.agent()
            if row.asks:
                rules = [{"tool": "act", "type": "requires_consent"}]
                await first.constellation.roster.update("ada", {"tool_rules": rules})
            database.cut_at(*row.cut, first)
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
        await trio.sleep(row.takes_s)
        runs.append(context.idempotency_key)
        if row.effect is EffectClass.LOCAL:
            context.work.event("acted", {})
        return "acted"

    return act


# An agent that is at rest starts its turn with the commit that accepts the message. Its next commits store what it
# decided and did with its next step, and at its end.


def _refused(connection: Connection) -> None:
    connection.execute("INSERT INTO meta (key, value) VALUES ('epoch', '1')").fetchall()


@tool(effect=EffectClass.LOCAL)
async def jot(context: ToolContext) -> str:
    """Jot something down."""
    context.work.event("jotted", {})
    return "jotted"


@tool(effect=EffectClass.LOCAL)
async def clash(context: ToolContext) -> str:
    """Store what the database refuses."""
    context.work.event("clashed", {})
    context.work.store(_refused)
    return "clashed"


@pytest.mark.parametrize("phase", ["before", "after"])
@pytest.mark.parametrize(
    ("at", "decision", "found"),
    [
        *[(at, calls("jot"), ["done"]) for at in (1, 2, 3)],
        # What is flushed between the two calls is the second, and the third is refused.
        *[(at, together(calls("jot"), calls("clash")), ["done", "error"]) for at in (1, 2, 4, 5)],
    ],
    ids=lambda value: str(value) if isinstance(value, int) else "",
)
async def test_a_turn_that_starts_at_once_survives_each_of_its_commits(
    at: int, decision: ModelReply, found: list[str], phase: str, autojump_clock: trio.testing.MockClock
) -> None:
    scene = Scene(name="warm", expects="", decisions=[decision])
    tools, accepted = [jot, clash], list[str]()
    async with CutDatabase.in_memory(empty_constellation()) as database:
        async with acting(provider=model_of(scene), tools=tools, database=database) as first:
            await first.say("hello")
            await trio.testing.wait_all_tasks_blocked()
            database.cut_at(at, phase, first)
            try:
                accepted.append(await first.submit("go"))
                await rest(first)
            except Unavailable:
                assert at == 1
        assert database.commits == at
        database.cut = None
        async with running(provider=model_of(scene), tools=tools, database=database) as second:
            with trio.fail_after(PATIENCE_S):
                await rest(second)
            assert (await second.say("and now?")).status == "completed"
        assert await database.read(problems_of) == []
        turns_of = "SELECT id, status FROM turn WHERE sender = ? AND key = 2"
        stored = await database.read(rows, turns_of, USER)
        names = [name for (name,) in await database.read(rows, "SELECT name FROM event")]
        calls_of = [status for (status,) in await database.read(rows, "SELECT status FROM effect ORDER BY call")]
    if (at, phase) == (1, "before"):  # nothing was stored, and the sender knows
        assert (accepted, calls_of, len(stored)) == ([], [], 1)
        return
    assert [status for _id, status in stored] == ["completed"]
    assert at == 1 or accepted == [stored[0][0]]
    assert (calls_of, names.count("jotted"), names.count("clashed")) == (found, 1, 0)
