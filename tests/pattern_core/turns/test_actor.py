"""Actors: one turn at a time per agent, many agents at once, exactly one end for every turn; and how turns begin."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest
import trio
import trio.testing

from pattern_core.agents import Agent
from pattern_core.conversation import imports
from pattern_core.conversation.imports import PastMessage
from pattern_core.errors import Conflict, IdempotencyMismatch, InvalidInput, Overloaded, PatternError, Unavailable
from pattern_core.limits import Limits
from pattern_core.mcp_servers.servers import READY_WAIT_S, McpServers
from pattern_core.models.model import ModelReply, ModelRequest
from pattern_core.search import SearchRequest, SearchResult
from pattern_core.testing.model import Paced, ScriptedProvider, calls, says, together
from pattern_core.tools.tool import Tool
from pattern_core.turns import admission
from pattern_core.turns.admission import Arrival, IncomingMessage
from pattern_db import template
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.enums import Role
from pattern_db.migrate import migrations_of
from tests.pattern_core.mcp_servers.rig import program
from tests.support import PATIENCE_S, START, USER, Outside, Running, acting, in_memory, note, note_in, rows, running

T = TypeVar("T")
NOTE, PUT = calls("note", {"text": "x"}), calls("put", {"text": "x"})


async def test_an_agent_works_on_one_turn_at_a_time_in_order() -> None:
    at_once: list[int] = []
    provider = ScriptedProvider(otherwise=lambda request: slowly(request))

    def slowly(request: ModelRequest) -> Paced:
        at_once.append(provider.running)
        return Paced(answer=says(request.messages[-1].text), delay_s=0.001)

    async with acting(provider=provider) as world:
        for turn in [await world.submit(f"message {number}") for number in range(10)]:
            await world.constellation.wait(turn)
        assert at_once == [1] * 10
        history = await world.constellation.messages("ada", limit=50)
        said = [message.content for message in reversed(history) if message.role == "user"]
        assert said == [f"message {number}" for number in range(10)]
        answered = [message.content for message in reversed(history) if message.role == "assistant"]
        assert answered == said


async def test_agents_work_side_by_side() -> None:
    gate = trio.Event()
    async with running(otherwise=Paced(answer=says("ok"), gate=gate)) as world:
        for name in ("ada", "bob", "cyd"):
            await world.agent(name)
        turns = [await world.submit("hi", name) for name in ("ada", "bob", "cyd")]
        await trio.testing.wait_all_tasks_blocked()
        assert world.provider.running == 3
        assert not world.constellation.is_idle
        gate.set()
        for turn in turns:
            assert (await world.constellation.wait(turn)).status == "completed"
        await trio.testing.wait_all_tasks_blocked()
        assert world.constellation.is_idle


async def test_cancelling_stops_the_model_call_at_once() -> None:
    async with acting([Paced(answer=says("never"), gate=trio.Event()), says("next")]) as world:
        turn_id = await world.submit("hi")
        await trio.testing.wait_all_tasks_blocked()
        assert await world.constellation.cancel(turn_id)
        view = await world.constellation.wait(turn_id)
        assert view.status == "cancelled"
        assert world.provider.cancelled == 1
        assert not await world.constellation.cancel(turn_id)
        assert (await world.say("again")).status == "completed"


async def test_cancelling_a_queued_turn_ends_it_without_running() -> None:
    gate = trio.Event()
    async with acting([Paced(answer=says("one"), gate=gate), says("three")]) as world:
        first, second, third = [await world.submit(text) for text in ("one", "two", "three")]
        await trio.testing.wait_all_tasks_blocked()
        assert await world.constellation.cancel(second)
        assert (await world.constellation.wait(second)).status == "cancelled"
        gate.set()
        assert (await world.constellation.wait(first)).status == "completed"
        view = await world.constellation.wait(third)
        assert [message.content for message in view.messages] == ["three", "three"]
        contents = [message.text for message in world.provider.requests[-1].messages]
        assert "two" not in contents


async def test_a_turn_that_is_just_being_started_can_be_cancelled(tmp_path: Path) -> None:
    answer = Paced(answer=says("never"), gate=trio.Event())
    async with acting(otherwise=answer, path=tmp_path / "pattern.db") as world:
        for attempt in range(30):
            turn_id = await world.submit(f"message {attempt}")
            for _ in range(attempt % 10):
                await trio.lowlevel.checkpoint()
            assert await world.constellation.cancel(turn_id)
            with trio.fail_after(PATIENCE_S):
                assert (await world.constellation.wait(turn_id)).status == "cancelled"


async def test_what_is_accepted_while_the_constellation_stops_is_done_at_the_next_start(tmp_path: Path) -> None:
    accepted: list[str] = []

    async def send(world: Running) -> None:
        accepted.append(await world.submit("hello"))

    async with in_memory() as database, trio.open_nursery() as outside:
        outside.cancel_scope.deadline = trio.current_time() + PATIENCE_S
        async with acting(otherwise=says("ok"), database=database) as world:
            outside.start_soon(send, world)
            await trio.lowlevel.checkpoint()
        while not accepted:
            await trio.lowlevel.checkpoint()
        async with running(otherwise=says("ok"), database=database) as again:
            assert (await again.constellation.wait(accepted[0])).status == "completed"


# How a turn begins: an agent at rest whose conversation is in memory starts it with the message that it accepts.


class HeldDatabase(Database):
    """Holds each commit back until `holds` is set, if there is one; `commits` counts those that were asked for."""

    commits = 0
    holds: trio.Event | None = None

    async def write_and_announce(self, fn: Callable[[Connection], T], announce: Callable[[T], None]) -> T:
        """As the product's, once the gate is open."""
        self.commits += 1
        if self.holds is not None:
            await self.holds.wait()
        return await super().write_and_announce(fn, announce)


@asynccontextmanager
async def warm(
    *script: ModelReply | Paced, tools: Sequence[Tool] = (note,), limits: Limits | None = None
) -> AsyncIterator[tuple[Running, HeldDatabase]]:
    """A constellation whose agent has had a turn and is at rest."""
    async with HeldDatabase.in_memory(template.in_memory(migrations_of("constellation"), now=START)) as database:
        assert isinstance(database, HeldDatabase)
        first = says("hello")
        async with acting(
            [first, *script], otherwise=says("ok"), tools=tools, database=database, limits=limits
        ) as world:
            await world.say("hello")
            await trio.testing.wait_all_tasks_blocked()
            assert world.constellation.is_idle
            database.commits = 0
            yield world, database


async def said(database: Database) -> list[object]:
    """What was said to agents after the first hello."""
    stored = await database.read(rows, "SELECT content FROM messages WHERE role = 'user' ORDER BY position")
    return [content for (content,) in stored][1:]


@pytest.mark.parametrize(
    ("script", "commits"),
    [([], 2), ([NOTE], 3), ([NOTE, NOTE], 4), ([PUT], 4), ([together(NOTE, NOTE)], 4), ([together(NOTE, PUT)], 5)],
    ids=["no call", "local", "two local steps", "outside", "two local calls", "both"],
)
async def test_what_a_turn_costs_in_commits(
    script: list[ModelReply], commits: int, autojump_clock: trio.testing.MockClock
) -> None:
    async with warm(*script, says("done"), tools=[note, *Outside().tools]) as (world, database):
        assert (await world.say("go")).status == "completed"
        assert database.commits == commits  # no stream waits for the pieces of its answer, so they are not stored


async def test_the_first_turn_of_a_session_starts_with_its_acceptance() -> None:
    async with warm(says("done")) as (world, database):
        ada = await world.constellation.roster.get("ada")
        session = await world.constellation.sessions.create(ada.id)
        database.commits = 0
        turn = await world.wait(await world.submit("go", session_id=session.id))
        assert turn.status == "completed"
        # One more than without a session: the other conversation is hidden, so it is looked for before the prompt.
        assert database.commits == 3


async def test_a_new_session_is_created_with_its_first_message_or_not_at_all() -> None:
    async with warm(says("done"), Paced(answer=says("late"), gate=trio.Event())) as (world, database):
        sessions, ada = world.constellation.sessions, await world.constellation.roster.get("ada")

        async def sent(content: str) -> str:
            new = sessions.new(None, "test")
            incoming = IncomingMessage(
                agent_id="ada", content=content, sender=USER, session_id=new.id, new_session=new, policy="reject"
            )
            return (await world.constellation.submit(incoming)).turn_id

        database.commits = 0
        turn = await world.wait(await sent("go"))
        assert (turn.status, database.commits) == ("completed", 3)
        assert [one.id for one in await sessions.newest(ada.id, 9)] == [turn.session_id]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(imports, "SESSIONS_MAX", 1)
            with pytest.raises(InvalidInput, match="at most 1 sessions"):
                await sent("again")
        await sent("busy with this")
        with pytest.raises(Conflict, match="busy"):
            await sent("again")
        assert len(await sessions.newest(ada.id, 9)) == 2


async def test_a_replay_and_a_busy_agent_take_the_other_way_and_lose_nothing() -> None:
    async with warm() as (world, database):
        first = await world.submit("go", key="key-1")
        await world.constellation.wait(first)
        await trio.testing.wait_all_tasks_blocked()
        incoming = IncomingMessage(agent_id="ada", content="go", sender=USER, idempotency_key="key-1")
        replay = await world.constellation.submit(incoming)
        assert (replay.turn_id, replay.is_replay) == (first, True)
        gate = trio.Event()
        world.provider._script = iter([Paced(answer=says("late"), gate=gate)])
        busy = await world.submit("slow", key="key-2")
        waiting = await world.submit("next")
        assert await world.submit("slow", key="key-2") == busy
        gate.set()
        for turn_id in (busy, waiting):
            assert (await world.constellation.wait(turn_id)).status == "completed"
        assert await said(database) == ["go", "slow", "next"]
        # A replay leaves nothing in the conversation in memory either.
        asked = [message.text for message in world.provider.requests[-1].messages if message.role == "user"]
        assert asked == ["hello", "go", "slow", "next"]


async def test_messages_at_once_are_all_accepted_in_order_and_answered_once() -> None:
    async with warm() as (world, database):
        sent: list[str] = []

        async def send(content: str) -> None:
            sent.append(await world.submit(content))

        for attempt in range(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send, f"{attempt} a")
                for _step in range(attempt):
                    await trio.lowlevel.checkpoint()
                nursery.start_soon(send, f"{attempt} b")
                await trio.lowlevel.checkpoint()
                nursery.start_soon(send, f"{attempt} c")
            for turn_id in sent:
                assert (await world.constellation.wait(turn_id)).status == "completed"
            await trio.testing.wait_all_tasks_blocked()
        assert len(set(sent)) == 30
        keys = await database.read(rows, "SELECT key FROM turn ORDER BY batch_id")
        assert keys == sorted(keys)
        told = await said(database)
        assert sorted(map(str, told)) == sorted(f"{attempt} {name}" for attempt in range(10) for name in "abc")
        # From the second attempt on the one was on its way before the other was sent.
        assert told[3:] == [f"{attempt} {name}" for attempt in range(1, 10) for name in "abc"]


def _waits(connection: Connection, agent: Agent) -> None:
    """A message that waits in the rows, and that nobody told the agent of."""
    incoming = IncomingMessage(agent_id=agent.id, content="waits", sender=USER)
    admission.accept(connection, Arrival.of(incoming, agent, turn_id="turn_waits", seed=1, now=START), Limits())


@pytest.mark.parametrize("is_awake", [False, True])
@pytest.mark.parametrize(
    ("error", "key", "policy"),
    [(IdempotencyMismatch, "key-1", None), (Overloaded, None, None), (Conflict, None, "reject")],
)
async def test_what_is_refused_raises_to_its_sender_and_leaves_nothing(
    error: type[PatternError], key: str | None, policy: str | None, is_awake: bool
) -> None:
    async with warm(limits=Limits(inbox_per_agent_max=1)) as (world, database):
        agent = await world.constellation.roster.get("ada")
        await world.constellation.wait(await world.submit("known", key="key-1"))
        await trio.testing.wait_all_tasks_blocked()
        gate = trio.Event()
        if is_awake:
            world.provider._script = iter([Paced(answer=says("late"), gate=gate)])
            await world.submit("running")
            await trio.testing.wait_all_tasks_blocked()
        if error is not IdempotencyMismatch:
            await database.write(_waits, agent)
        counts = "SELECT (SELECT count(*) FROM turn), (SELECT count(*) FROM event), (SELECT count(*) FROM messages)"
        before = await database.read(rows, counts)
        with pytest.raises(error):
            await world.submit("other", key=key, policy=policy)
        assert await database.read(rows, counts) == before
        gate.set()
        assert (await world.say("and now?")).status == "completed" if error is IdempotencyMismatch else True
        assert "other" not in await said(database)
        assert "other" not in [message.text for message in world.provider.requests[-1].messages]


async def test_a_sender_that_is_cancelled_is_accepted_or_not_and_nothing_between() -> None:
    async with warm() as (world, database):
        database.holds = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.submit, "go")
            await trio.testing.wait_all_tasks_blocked()
            assert database.commits == 1
            nursery.cancel_scope.cancel()
            database.holds.set()
        await trio.testing.wait_all_tasks_blocked()
        assert await said(database) == ["go"]
        assert await database.read(rows, "SELECT status FROM turn") == [("completed",)] * 2


async def test_an_agent_that_is_stopped_starts_nothing() -> None:
    async with warm() as (world, database):
        agent, actors = await world.constellation.roster.get("ada"), world.constellation._actors
        world.provider._otherwise = Paced(answer=says("never"), gate=trio.Event())
        async with trio.open_nursery() as nursery:
            for attempt in range(20):
                nursery.start_soon(world.submit, f"message {attempt}")
                for _step in range(attempt % 5):
                    await trio.lowlevel.checkpoint()
                with trio.fail_after(PATIENCE_S / 4):
                    await actors.stop(agent.id, "user")
                assert actors.is_idle
                actors.release(agent.id)
        await actors.stop(agent.id, "user")
        assert await database.read(rows, "SELECT count(*) FROM turn WHERE status = 'running'") == [(0,)]


async def test_a_message_that_was_not_stored_when_the_constellation_stops_is_refused() -> None:
    refused: list[PatternError] = []

    async def send(world: Running) -> None:
        try:
            await world.submit("go")
        except Unavailable as error:
            refused.append(error)

    async with trio.open_nursery() as outside, warm() as (world, database):
        database.holds = trio.Event()
        outside.start_soon(send, world)
        await trio.testing.wait_all_tasks_blocked()
        assert database.commits == 1
        world.nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await trio.testing.wait_all_tasks_blocked()
            assert len(refused) == 1
            assert await database.read(rows, "SELECT count(*) FROM turn") == [(1,)]


async def test_accepting_does_not_wait_for_recall() -> None:
    async with warm() as (world, database):
        past = PastMessage(role=Role.USER, content="The keys hang in the kitchen.", created_at="2024-05-01T00:00:00Z")
        await world.constellation.imports.add("ada", [past], author=USER)
        await database.write(rows, "UPDATE messages SET is_archived = 1 WHERE source = 'import'")
        await world.say("hello again")  # it is warm again
        searching, found = trio.Event(), trio.Event()

        async def search(_request: SearchRequest) -> SearchResult:
            searching.set()
            await found.wait()
            return await world.constellation.search(_request)

        world.constellation._services.prompts.search = search
        await world.constellation.roster.update("ada", {"config": {"context": {"recall_timeout_ms": 10_000}}})
        turn_id = await world.submit("Where are the keys?")
        await searching.wait()
        view = await world.constellation.turn(turn_id)
        assert (view.status, world.provider.asked) == ("running", 2)
        found.set()
        assert (await world.constellation.wait(turn_id)).status == "completed"
        assert "kitchen" in note_in(world.provider.requests[-1])


async def test_accepting_does_not_wait_for_servers_that_start(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with warm() as (world, _database):
        constellation = world.constellation
        settings = {"x": program(tmp_path / "log")}  # and nobody runs it
        constellation.mcp.by_name.update(McpServers(settings, constellation.tools).by_name)
        await constellation.roster.update("ada", {"enabled_tools": ["note", "x__*"]})
        began = trio.current_time()
        turn_id = await world.submit("go")
        assert trio.current_time() == began
        assert (await constellation.wait(turn_id)).status == "completed"
        assert READY_WAIT_S <= trio.current_time() - began < READY_WAIT_S + 1
        assert "The tools of the MCP server x are not there: it is starting" in str(world.provider.requests[-1])
        waits = [event.data["servers"] for event in await world.events(turn_id) if event.name == "mcp.starting"]
        assert waits == [["x"]]
        began = trio.current_time()
        assert (await world.say("again")).status == "completed"
        assert trio.current_time() - began < 1


@pytest.mark.parametrize(
    ("config", "status", "words"),
    [('{"limits": {"tokens": 1}}', "limit", "is too low"), ('{"temperature": "hot"}', "failed", "temperature")],
)
async def test_a_turn_that_cannot_take_its_first_step_was_accepted_and_says_why(
    config: str, status: str, words: str
) -> None:
    async with warm() as (world, database):
        await database.write(lambda db: db.execute("UPDATE agents SET config = ?", (config,)).fetchall())
        world.constellation.roster._known.clear()
        view = await world.say("go")
        assert (view.status, world.provider.asked) == (status, 1)
        assert words in str((view.error or {})["message"])
        assert await said(database) == ["go"]
        assert await world.names(view.id) == ["turn.queued", "turn.started", f"turn.{status}"]


async def test_of_reasons_to_stop_the_first_stays() -> None:
    async with acting([Paced(answer=says("never"), gate=trio.Event())]) as world:
        turn_id = await world.submit("go")
        actors = world.constellation._actors
        await trio.testing.wait_all_tasks_blocked()
        for reason in ("superseded", "rolled_back"):
            actors._running[turn_id].stop_at_border(reason)
        actors.cancel_all("user", agent_id="agent_other")
        await trio.testing.wait_all_tasks_blocked()
        assert (await world.constellation.turn(turn_id)).status == "running"
        actors.cancel_all("user")
        view = await world.constellation.wait(turn_id)
        assert (view.status, view.error) == ("cancelled", {"code": "cancelled", "message": "cancelled: superseded"})
