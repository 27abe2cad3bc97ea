"""The long run: an agent with a real conversation of 200 turns and a window of 4,000 tokens, cut off three times.

Asserted at every question to the model, from outside: the prompt is within the window by a count of our own, every
vendor would take it, and no budget is passed. At the end: nothing that was said is lost, by listing and by search, and
the bill is exact. PATTERN_LONG_RUN=1 replays all conversations whole, and searches for every message.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import pytest
import trio

from pattern_core.budgets.budget import Budget
from pattern_core.constellation import Constellation
from pattern_core.errors import InvalidInput
from pattern_core.memory.block import NewBlock
from pattern_core.messages import ToolResult
from pattern_core.search import Mode, SearchRequest
from pattern_core.search.request import LIMIT_MAX
from pattern_core.testing import StoppedClock
from pattern_core.testing.model import ScriptedProvider
from pattern_core.tools.builtin import BUILTIN
from pattern_core.tools.tool import ToolContext, tool
from pattern_core.views import TurnView
from pattern_db.database import Database, DatabaseThreads
from pattern_db.enums import BlockType, EffectClass, SearchKind
from pattern_db.journal.budgets import BudgetScope, Period, Unit
from pattern_db.tables.messages import MessageRow
from tests.scenarios import long_run
from tests.scenarios.long_run import DIARY, LESSON, PROVIDER, Friend, Talk, Watch, lines_of, made_up
from tests.support import Running, note, on_file, rows, running

AGENT = "friend"
WHOLE = os.environ.get("PATTERN_LONG_RUN", "") not in ("", "0")
TURNS = 200
PATIENCE_S = 60.0
TURN_MS = 40 * 60 * 1000  # between two messages: a day has 36
DAY_MS = 24 * 3600 * 1000
CONFIG = {
    "context_window": long_run.WINDOW,
    "compaction": {"summary_tokens": long_run.SUMMARY_TOKENS},
    "limits": {"tokens": 60_000, "microdollars": 1_000_000},
}


@tool(effect=EffectClass.PURE)
async def flaky(_context: ToolContext, text: Annotated[str, "Anything."]) -> str:
    """Fail, whatever is asked."""
    raise InvalidInput(f"it cannot be done: {text}")


@dataclass
class Run:
    """A talk under way, over as many lives of the constellation as it takes."""

    path: Path
    talk: Talk
    clock: StoppedClock
    friend: Friend
    provider: ScriptedProvider
    accepted: list[tuple[str, str]] = field(default_factory=list)  # turn ids with what was said, in order
    refused: list[str] = field(default_factory=list)  # those that a budget ended
    threads: DatabaseThreads = field(default_factory=DatabaseThreads)
    lives: int = 0

    @asynccontextmanager
    async def alive(self) -> AsyncIterator[Running]:
        """A life; its end is abrupt: what is under way stays so."""
        self.lives += 1
        async with (
            await on_file(self.path, self.threads) as database,
            running(
                provider=self.provider,
                tools=[*BUILTIN, note, flaky],
                database=database,
                clock=self.clock,
                seed=self.lives,
                catalogue=long_run.catalogue(),
            ) as life,
        ):
            yield life

    async def begin(self) -> None:
        """Make the agent and its budgets."""
        async with self.alive() as life:
            await life.agent(
                AGENT,
                tools=["block_edit", "search", "note", "flaky"],
                prompt="You are a friend of long standing. Answer as a friend does.",
                config=CONFIG,
                memory=[NewBlock(label=DIARY, description="What you remember.", block_type=BlockType.CORE)],
            )
            day = Budget(BudgetScope.AGENT, "", Period.DAY, Unit.TOKENS, long_run.DAY_TOKENS)
            money = Budget(BudgetScope.CONSTELLATION, "", Period.TOTAL, Unit.MICRODOLLARS, long_run.TOTAL_MICRODOLLARS)
            await life.constellation.budgets.put(day)
            await life.constellation.budgets.put(money)

    async def tell(self, life: Running, number: int) -> TurnView | None:
        """Say the n-th thing and wait for the end of its turn; None if the friend holds still instead.

        Where the day's budget is used up, it is said again the next day.
        """
        while True:
            self.friend.begin(number)
            self.clock.advance(TURN_MS)
            text = self.talk.said[number]
            turn_id = await life.submit(text, AGENT)
            self.accepted.append((turn_id, text))
            view = await self.end_of(life, turn_id)
            if view is None or not self.is_put_off(view):
                return view

    def is_put_off(self, view: TurnView) -> bool:
        """Whether the day's budget was used up; then it is the next day."""
        if view.status != "limit":
            return False
        assert "the budget of this agent" in json.dumps(view.error)
        self.refused.append(view.id)
        self.clock.advance(DAY_MS)
        return True

    async def end_of(self, life: Running, turn_id: str) -> TurnView | None:
        """Wait for it; None if the friend holds still first."""
        found: list[TurnView] = []
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:

                async def held() -> None:
                    await self.friend.held.wait()
                    nursery.cancel_scope.cancel()

                nursery.start_soon(held)
                found.append(await life.constellation.wait(turn_id))
                nursery.cancel_scope.cancel()
        if found and found[0].has_ended:
            self.friend.watch.check(held=False)
            return found[0]
        return None

    async def live(self, first: int, end: int, *, hold: str | None) -> int:
        """Say what is to be said from `first` up to `end`; then, if it is to `hold`, continue until it does, and die.

        The next life ends the turn that was cut off. Returns what is to be said next: the same if that turn, whose dead
        call is charged too, uses up the day's budget.
        """
        async with self.alive() as life:
            number = first
            while number < end or hold is not None:
                if number >= end:
                    self.friend.hold = hold
                view = await self.tell(life, number)
                if view is None:
                    break
                assert view.status == "completed", view.error
                number += 1
            else:
                return number
        self.friend.hold, self.friend.held = None, trio.Event()
        async with self.alive() as life:
            turn_id, _text = self.accepted[-1]
            view = await self.end_of(life, turn_id)
            assert view is not None
            if self.is_put_off(view):
                return number
            assert view.status == "completed", view.error
        return number + 1


@asynccontextmanager
async def run_of(path: Path, talk: Talk, *, failing: Sequence[int] = (), density: float = 1.0) -> AsyncIterator[Run]:
    """A run whose agent exists."""
    clock = StoppedClock()
    with DatabaseThreads() as threads:
        async with await on_file(path, threads):
            pass
        friend = Friend(talk=talk, watch=Watch(path, clock), failing=failing, density=density)
        provider = ScriptedProvider(name=PROVIDER, otherwise=friend.answer)
        run = Run(path=path, talk=talk, clock=clock, friend=friend, provider=provider, threads=threads)
        await run.begin()
        try:
            yield run
        finally:
            friend.watch.close()


async def play(run: Run) -> None:
    """The whole talk, with its three deaths: in the middle of an answer, of a compaction, and of an answer again."""
    turns = len(run.talk.said)
    number = await run.live(0, turns // 4, hold="answer")
    number = await run.live(number, turns // 2, hold="summary")
    number = await run.live(number, turns * 3 // 4, hold="answer")
    assert await run.live(number, turns, hold=None) == turns
    assert run.friend.summaries > 5


async def listed(constellation: Constellation) -> list[MessageRow]:
    """All messages of the agent, oldest first, as clients page through them."""
    found: list[MessageRow] = []
    before: str | None = None
    while page := await constellation.messages(AGENT, limit=100, before=before):
        found += page
        before = page[-1].position
    return found[::-1]


async def check_nothing_is_lost(run: Run, constellation: Constellation, *, every: int) -> None:
    """Each thing that was said stands exactly once, in order, and is found as a phrase.

    By its words alone a greeting is not among the hits where hundreds of messages greet and say more.
    """
    messages = await listed(constellation)
    refused = set(run.refused)
    expected: list[tuple[str, str]] = []
    answers = iter(run.talk.answers)
    for turn_id, text in run.accepted:
        expected.append(("user", text))
        if turn_id not in refused:
            expected.append(("assistant", next(answers)))
    assert next(answers, None) is None
    said = [(row.role.value, row.content) for row in messages if row.role != "tool" and row.parts is None]
    assert said == expected
    for row in [row for row in messages if row.role != "tool" and row.content][::every]:
        assert row.content is not None
        words = row.content.replace('"', " ")
        request = SearchRequest(query=f'"{words}"', kinds=[SearchKind.MESSAGE], mode=Mode.WORDS, limit=LIMIT_MAX)
        hits = (await constellation.search(request)).hits
        assert row.content in [hit.content for hit in hits], row.content


async def check_archive(run: Run, database: Database) -> None:
    """Summaries follow one another without a gap, and stand for all that is archived, which is most of it."""
    chain = await database.read(
        rows,
        "SELECT id, previous_summary_id, start_position, end_position, depth, is_stub, summary FROM archive_summaries"
        " ORDER BY created_at, rowid",
    )
    assert [row[1] for row in chain] == [None, *(row[0] for row in chain[:-1])]
    assert any(row[4] for row in chain), "no summary stands for those before it"
    assert sum(1 for row in chain if row[5]) >= len(run.friend.failing), "who cannot be summarised leaves with a stub"
    uncovered = await database.read(
        rows,
        "SELECT count(*) FROM messages AS m WHERE is_archived AND NOT EXISTS (SELECT 1 FROM archive_summaries AS s"
        " WHERE m.position BETWEEN s.start_position AND s.end_position)",
    )
    assert uncovered == [(0,)]
    counted = await database.read(rows, "SELECT count(*) FILTER (WHERE is_archived), count(*) FROM messages")
    assert counted[0][0] > counted[0][1] // 2  # type: ignore[operator]  # counts


async def check_bill(run: Run, database: Database) -> None:
    """What was answered is charged exactly, and what was cut off by an estimate; nothing is held any more."""
    sql = (
        "SELECT sum(input_tokens), sum(output_tokens), sum(cost_microdollars), count(*) FROM usage WHERE is_estimate = "
    )
    exact = (await database.read(rows, sql + "0"))[0]
    usages = run.friend.usages
    assert exact == (
        sum(usage.input_tokens for usage in usages),
        sum(usage.output_tokens for usage in usages),
        run.friend.cost,
        len(usages),
    )
    assert (await database.read(rows, sql + "1"))[0][3] == 3 + len(run.friend.failing)
    assert await database.read(rows, "SELECT count(*) FROM reservation") == [(0,)]


async def check(run: Run, *, every: int) -> None:
    """All that must hold at the end."""
    async with run.alive() as life:
        constellation, database = life.constellation, life.database
        await check_nothing_is_lost(run, constellation, every=every)
        await check_archive(run, database)
        await check_bill(run, database)
        block = await constellation.memory.view((await constellation.roster.get(AGENT)).id, DIARY)
        assert await constellation.memory.value_of(block) == "".join(run.friend.noted)
        assert len(run.friend.noted) >= len(run.talk.said) // 10
    assert run.friend.last is not None
    results = [part for message in run.friend.last.messages for part in message.parts if isinstance(part, ToolResult)]
    assert any(LESSON in result.content for result in results), "an early fact is not found by the tool"


def with_lesson(texts: Sequence[str]) -> list[str]:
    """The lines with a fact among the first that is asked for in the last turn."""
    return [*texts[:4], LESSON, *texts[5:]]


async def test_an_agent_lives_through_a_long_real_conversation(tmp_path: Path, shared_data: Path) -> None:
    samples = json.loads((shared_data / "locomo" / "dev.json").read_text())
    talk = Talk.of(with_lesson(lines_of(samples[0])), TURNS)
    async with run_of(tmp_path / "pattern.db", talk, failing=[3]) as run:
        await play(run)
        assert run.refused, "the day's budget was never met: it proves nothing"
        await check(run, every=8)


@pytest.mark.parametrize("density", [1.0, 1.4])
async def test_an_agent_learns_how_its_vendor_counts(tmp_path: Path, density: float) -> None:
    talk = Talk.of(with_lesson(made_up(72)), 36)
    async with run_of(tmp_path / "pattern.db", talk, density=density) as run:
        await play(run)
        assert run.friend.refused == 0  # what its vendor counts is learnt before it matters, and outlives restarts
        await check(run, every=5)


@pytest.mark.skipif(not WHOLE, reason="minutes of talk; PATTERN_LONG_RUN=1 runs it")
@pytest.mark.parametrize("number", range(5))
async def test_agents_live_through_whole_conversations(tmp_path: Path, shared_data: Path, number: int) -> None:
    texts = lines_of(json.loads((shared_data / "locomo" / "dev.json").read_text())[number])
    talk = Talk.of(with_lesson(texts), len(texts) // 2)
    async with run_of(tmp_path / "pattern.db", talk, failing=[2, 7]) as run:
        await play(run)
        await check(run, every=1)
