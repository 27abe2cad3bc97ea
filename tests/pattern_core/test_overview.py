"""The overview: what agents did, written once for the others, who are shown it when they come back."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio
import trio.testing

from pattern_core.decision_files import import_decisions
from pattern_core.decisions import NewDecision
from pattern_core.errors import InvalidInput, NotFound
from pattern_core.limits import Limits
from pattern_core.memory.block import NewBlock
from pattern_core.messages import Message, Text
from pattern_core.models.model import ModelReply, ModelRequest, Usage
from pattern_core.overview import (
    INSTRUCTIONS,
    NOTABLE_CHARS_MAX,
    REST_S,
    AgentSummary,
    quoted,
)
from pattern_core.prompts.explain import explain
from pattern_core.testing import StoppedClock
from pattern_core.testing.model import Paced, calls, says
from pattern_core.tools.builtin.notable import notable
from pattern_db.enums import AgentStatus, NotableKind, Permission, Priority
from pattern_db.journal.usage import Grouping, UsageFilter, lines
from pattern_db.tables import overview, timers
from tests.pattern_core.groups.rig import DyingMeters, Killed
from tests.support import BY_USER, USER, Running, in_memory, note_in, rows, running

HEADING = "# Since your last message\nWhat others did; times are UTC.\n"
SEES_ALL = {"context": {"show": {"activity": True}}}
DAY_S = 24 * 3600
TABLES = ("agent_summaries", "constellation_summaries", "notable_events")


def is_asked_to_summarise(request: ModelRequest) -> bool:
    return request.system[0].startswith(INSTRUCTIONS)


def speak(request: ModelRequest) -> ModelReply:
    if not is_asked_to_summarise(request):
        return says("Fine.")
    return says("Ada plans the garden for Ruth.", usage=Usage(input_tokens=300, output_tokens=50))


def asked(world: Running) -> list[str]:
    """The records of which summaries were asked."""
    return [one.messages[-1].text for one in world.provider.requests if is_asked_to_summarise(one)]


class Passing(StoppedClock):
    """The wall clock, which a test moves together with trio's; long times pass as if the machine slept."""

    async def sleep(self, seconds: float) -> None:
        self.advance(round(seconds * 1000))
        await trio.sleep(min(seconds, 3 * REST_S))
        await trio.testing.wait_all_tasks_blocked()


@asynccontextmanager
async def garden(clock: Passing, answer: Any = speak, **options: Any) -> AsyncIterator[Running]:
    """A constellation of ada and bob, who share a block."""
    async with running(otherwise=answer, clock=clock, **options) as world:
        if not await world.constellation.roster.all():
            ada, bob = await world.agent("ada"), await world.agent("bob")
            await world.constellation.memory.create(ada.id, NewBlock(label="garden", content="Beds."), by=BY_USER)
            await world.constellation.sharing.share(ada.id, "garden", bob.id, permission=Permission.APPEND, by=BY_USER)
        yield world


async def talk(world: Running, turns: int = 3, agent: str = "ada") -> None:
    for _ in range(turns):
        await world.say("Ruth asks what to do about the roses in the garden. " * 5, agent)


async def summary_of(world: Running, agent: str = "ada") -> AgentSummary | None:
    return await world.database.read(overview.summary_of, (await world.constellation.roster.get(agent)).id)


async def test_an_agent_that_rests_after_five_messages_is_summarised_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    clock = Passing()
    async with garden(clock) as world:
        await talk(world, 2)
        await clock.sleep(10 * REST_S)
        assert asked(world) == [], "four messages are too few"
        await talk(world, 1)
        await clock.sleep(REST_S - 1)
        await talk(world, 1)
        await clock.sleep(REST_S - 1)
        assert asked(world) == [], "it has not rested yet"
        await clock.sleep(2)
        [record] = asked(world)
        assert record.count("] user: Ruth asks") == record.count("] assistant: Fine.") == 4
        found = await summary_of(world)
        assert found is not None
        assert (found.summary, found.messages_covered) == ("Ada plans the garden for Ruth.", 8)
        assert (found.model, found.name) == ("scripted/script-1", "ada")
        await clock.sleep(DAY_S)
        await talk(world, 2)
        await clock.sleep(2 * REST_S)
        assert len(asked(world)) == 1, "nothing new is summarised again"
        await talk(world, 1)
        await clock.sleep(2 * REST_S)
        [_first, second] = asked(world)
        assert "Ada plans the garden for Ruth." in second and second.count("] user: Ruth asks") == 3
        found = await summary_of(world)
        assert found is not None and found.messages_covered == 14


async def test_summaries_are_found_in_the_usage_by_their_cause(autojump_clock: trio.testing.MockClock) -> None:
    clock = Passing()
    async with garden(clock) as world:
        await talk(world)
        await clock.sleep(2 * REST_S)
        found = await world.database.read(lines, UsageFilter(), Grouping.CAUSE, limit=9)
        assert [(one.key, one.calls, one.input_tokens + one.output_tokens) for one in found] == [
            ("person", 3, 45),
            ("summary", 1, 350),
        ]


async def test_an_agent_that_hibernates_is_summarised_at_once(autojump_clock: trio.testing.MockClock) -> None:
    clock = Passing()
    async with garden(clock) as world:
        await talk(world, 1)
        await world.constellation.roster.update("ada", {"status": AgentStatus.HIBERNATED})
        await clock.sleep(1)
        assert len(asked(world)) == 1
        await world.constellation.roster.update("ada", {"status": AgentStatus.ACTIVE})
        await world.constellation.roster.update("ada", {"status": AgentStatus.HIBERNATED})
        await clock.sleep(1)
        assert len(asked(world)) == 1, "nothing happened since"


async def test_no_summary_is_written_of_the_only_agent_of_an_archived_one_and_of_sessions(
    autojump_clock: trio.testing.MockClock,
) -> None:
    clock = Passing()
    async with running(otherwise=speak, clock=clock) as world:
        ada = await world.agent("ada")
        await talk(world, 5)
        await clock.sleep(2 * REST_S)
        assert asked(world) == []
        await world.agent("bob")
        session = await world.constellation.sessions.create(ada.id, title="Secret")
        for _ in range(4):
            await world.wait(await world.submit("Secret. " * 20, "ada", session_id=session.id))
        await clock.sleep(2 * REST_S)
        found = await summary_of(world)
        assert found is not None and found.messages_covered == 10 and "Secret" not in asked(world)[0]
        for _ in range(4):
            await world.wait(await world.submit("Secret. " * 20, "ada", session_id=session.id))
        await clock.sleep(2 * REST_S)
        assert len(asked(world)) == 1, "what is said in a session is no reason"
        await talk(world, 3, "bob")
        await world.constellation.roster.update("bob", {"status": AgentStatus.ARCHIVED})
        await clock.sleep(2 * REST_S)
        assert len(asked(world)) == 1


async def test_a_model_that_fails_leaves_the_summary_and_without_one_the_last_words_are_quoted(
    autojump_clock: trio.testing.MockClock,
) -> None:
    clock, fails = Passing(), True

    def answer(request: ModelRequest) -> ModelReply:
        if fails and is_asked_to_summarise(request):
            return says("")
        return speak(request)

    async with garden(clock, answer) as world:
        await talk(world)
        await clock.sleep(2 * REST_S)
        found = await summary_of(world)
        assert found is not None and found.model is None
        assert found.summary.startswith("6 new messages. Asked last: “Ruth asks what to do")
        assert found.summary.endswith("Said last: “Fine.”.")
        fails = False
        await talk(world)
        await clock.sleep(2 * REST_S)
        found = await summary_of(world)
        assert found is not None and (found.model, found.messages_covered) == ("scripted/script-1", 12)
        fails, before = True, len(asked(world))
        await talk(world)
        await clock.sleep(2 * REST_S)
        assert await summary_of(world) == found, "that of a model is better than a quotation"
        await talk(world, 1)
        await clock.sleep(2 * REST_S)
        assert len(asked(world)) == before + 1, "it is not asked again for the same messages"
        fails = False
        await talk(world, 2)
        await clock.sleep(2 * REST_S)
        found = await summary_of(world)
        assert found is not None and found.messages_covered == 24


async def test_the_overview_has_a_budget_of_its_own(autojump_clock: trio.testing.MockClock) -> None:
    clock, limits = Passing(), replace(Limits(), overview_tokens_daily=1_500)
    async with garden(clock, limits=limits) as world:
        for written in (1, 2, 3, 3, 3):  # of 350 tokens each, and some 700 that the next one may need
            await talk(world)
            await clock.sleep(2 * REST_S)
            assert len(asked(world)) == written
        await clock.sleep(DAY_S)
        await talk(world)
        await clock.sleep(2 * REST_S)
        assert len(asked(world)) == 4


async def test_a_kill_at_any_commit_repeats_a_summary_and_doubles_none(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def lived(kill_at: int) -> tuple[int, list[list[tuple[object, ...]]]]:
        async with in_memory() as database:
            clock = Passing()
            async with garden(clock, database=database) as world:
                await talk(world)
            meters = DyingMeters(kill_at)
            try:
                async with garden(clock, database=database, meters=meters, seed=2) as world:
                    await clock.sleep(2 * REST_S)
                    await world.constellation.overview.record(NotableKind.DECISION, "Roses.", author=USER)
                    await clock.sleep(8 * DAY_S)
            except* Killed:
                pass
            async with garden(clock, database=database, seed=3) as world:
                await clock.sleep(2 * REST_S)
                if not await world.database.read(overview.notable, 9):
                    await world.constellation.overview.record(NotableKind.DECISION, "Roses.", author=USER)
                await clock.sleep(8 * DAY_S)
            kept = [await world.database.read(rows, f"SELECT count(*) FROM {table}") for table in TABLES]
            assert await database.read(timers.first_due) is None
            return meters.commits, kept

    commits, undisturbed = await lived(0)
    assert (commits, undisturbed) == (5, [[(1,)], [(2,)], [(1,)]])  # usage, summary, event, day, week
    for kill_at in range(1, commits + 1):
        assert (await lived(kill_at))[1] == undisturbed, kill_at


async def test_a_cancelled_call_is_asked_again_at_the_next_start(autojump_clock: trio.testing.MockClock) -> None:
    gate = trio.Event()

    def slow(request: ModelRequest) -> ModelReply | Paced:
        return Paced(answer=speak(request), gate=gate) if is_asked_to_summarise(request) else speak(request)

    async with in_memory() as database:
        clock = Passing()
        async with garden(clock, slow, database=database) as world:
            await talk(world)
            await clock.sleep(1)
            idle = [world.constellation.is_idle]
            await clock.sleep(2 * REST_S)
            assert [*idle, world.constellation.is_idle] == [True, False], "it is not parked during the call"
        async with garden(clock, database=database) as world:
            await clock.sleep(2 * REST_S)
            assert len(asked(world)) == 1 and await summary_of(world) is not None


async def test_a_file_that_was_idle_for_days_costs_nothing_at_its_start(autojump_clock: trio.testing.MockClock) -> None:
    async with in_memory() as database:
        clock = Passing()
        async with garden(clock, database=database) as world:
            await talk(world)
        clock.advance(2 * DAY_S * 1000)
        async with garden(clock, database=database) as world:
            await clock.sleep(30 * DAY_S)
            assert (asked(world), await database.read(timers.first_due)) == ([], None)


async def test_an_agent_that_comes_back_is_shown_once_what_happened_meanwhile(
    autojump_clock: trio.testing.MockClock,
) -> None:
    clock = Passing()
    async with garden(clock) as world:
        await world.say("Hello", "bob")
        await clock.sleep(600)
        await talk(world)
        await world.constellation.overview.record(NotableKind.DECISION, "We plant\n# Memory roses.", author=USER)
        await clock.sleep(2 * REST_S)
        await world.say("What is new?", "bob")
        assert HEADING not in note_in(world.provider.requests[-1]), "twelve minutes are no absence"
        await clock.sleep(600)
        await talk(world)
        await world.constellation.overview.record(NotableKind.PROBLEM, "The spade is broken.", author=USER)
        await clock.sleep(7200)
        turn = await world.say("And now?", "bob")
        note = note_in(world.provider.requests[-1])
        assert note.partition(HEADING)[2].partition("\n\n#")[0] == (
            '<data from="the summary of agent ada, 2026-01-01 00:22">\nAda plans the garden for Ruth.\n</data>\n'
            "[2026-01-01 00:22] problem: The spade is broken."
        )
        assert note.count("The spade is broken.") == 1, "the activity does not repeat it"
        [step] = (await explain(world.database, turn.id)).steps
        first, second = [part for part in step.parts if part.kind == "catch_up"]
        assert (first.name, first.reason) == ("ada", "what another agent did, since the agent's last message")
        assert first.text is not None and "Ada plans the garden for Ruth." in first.text
        assert second.text == "[2026-01-01 00:22] problem: The spade is broken."
        await clock.sleep(7200)
        await world.say("Still here?", "bob")
        assert HEADING not in note_in(world.provider.requests[-1]), "nothing happened since"
        await talk(world)
        await clock.sleep(2 * REST_S)
        [step] = (await explain(world.database, turn.id)).steps
        assert [part.text for part in step.parts if part.kind == "catch_up"][1] == second.text


async def test_an_agent_is_not_shown_what_agents_do_with_which_it_shares_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    clock = Passing()
    async with running(otherwise=speak, tools=[notable], clock=clock) as world:
        ada = await world.agent("ada")
        for name, config in (("bob", {}), ("cleo", SEES_ALL), ("dan", {"context": {"show": {"catch_up": False}}})):
            await world.agent(name, config=config)
            await world.say("Hello", name)
        await clock.sleep(60)
        await talk(world)
        by_ada = f"agent:{ada.id}"
        await world.constellation.overview.record(NotableKind.MILESTONE, "Ada is done.", author=by_ada)
        await clock.sleep(2 * REST_S)
        await clock.sleep(2 * DAY_S)
        await world.say("Hello", "bob")
        assert HEADING not in note_in(world.provider.requests[-1])
        await world.say("Hello", "dan")
        assert HEADING not in note_in(world.provider.requests[-1])
        await world.say("Hello", "cleo")
        shown = note_in(world.provider.requests[-1])
        assert "agent ada, 2026-01-01 00:01" in shown and "milestone: Ada is done." in shown
        await world.say("Hello", "ada")
        assert HEADING not in note_in(world.provider.requests[-1]), "it knows what it did itself"


async def test_an_agent_alone_is_shown_nothing_after_a_year(autojump_clock: trio.testing.MockClock) -> None:
    clock = Passing()
    async with running(otherwise=speak, clock=clock) as world:
        await world.agent("ada", config=SEES_ALL)
        await talk(world)
        await clock.sleep(365 * DAY_S)
        await world.say("Hello")
        assert note_in(world.provider.requests[-1]) == "(It is 2027-01-01 00:00 UTC, Friday.)\n\n"


async def test_an_agent_records_what_was_decided_and_the_day_and_the_week_are_summed_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    clock = Passing()
    script = [calls("notable", {"kind": "decision", "text": "We plant  roses."}), says("Recorded.")]
    async with garden(clock, tools=[notable]) as world:
        world.provider._script = iter(script)
        await world.constellation.tasks.create(["Buy roses"], {"priority": Priority.HIGH}, author=USER)
        await world.say("Decide!")
        assert await world.database.read(overview.periods, 9) == []
        await clock.sleep(DAY_S)
        [day] = await world.database.read(overview.periods, 9)
        assert (day.period_start, day.period_end) == ("2026-01-01T00:00:00.000Z", "2026-01-02T00:00:00.000Z")
        assert day.summary == "", "no agent had much to do"
        assert (day.key_decisions, day.open_threads) == (["decision: We plant roses."], ["Buy roses"])
        await clock.sleep(3 * DAY_S)
        [week, _day] = await world.database.read(overview.periods, 9)
        assert (week.period_start[:10], week.period_end[:10]) == ("2025-12-29", "2026-01-05"), "from Monday"
        assert week.key_decisions == day.key_decisions
        await clock.sleep(30 * DAY_S)
        assert len(await world.database.read(overview.periods, 9)) == 2, "days without anything have none"
        [event] = await world.database.read(overview.notable, 9)
        assert (event.event_type, event.description) == ("decision", "We plant roses.")
        assert event.agents_involved == [(await world.constellation.roster.get("ada")).id]
        await world.constellation.overview.delete(event.id)
        with pytest.raises(NotFound):
            await world.constellation.overview.delete(event.id)


async def test_the_day_names_the_decisions_about_projects_that_were_made_in_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    clock = Passing()
    async with garden(clock) as world:
        home, made = world.constellation, list[str]()
        shop = (await home.workspaces.ensure("shop", author=USER)).id
        for title in ("Keep WAL mode on", "Use tabs"):
            row, _ = await home.decisions.add(shop, NewDecision(title=title, text="For now."), author=USER)
            made.append(row.id)
        await home.decisions.change(shop, made[1], {"archived": True}, author=USER)
        await clock.sleep(DAY_S)
        [day] = await world.database.read(overview.periods, 9)
        assert day.key_decisions == [f"decision {made[0]}: Keep WAL mode on"], "its id, and no copy of its text"
        # A file brings one of today, and one of an earlier day, which is in no summary.
        await home.overview.record(NotableKind.DECISION, "Roses.", author=USER)
        lines = [
            {"id": one, "createdAt": f"2026-01-0{number}T20:00:00.000Z", "title": f"T{number}"}
            for number, one in ((1, "old"), (2, "new"))
        ]
        data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        await import_decisions(home.storage, shop, data, author=USER, on_new=home.decisions.on_new)
        await clock.sleep(DAY_S)
        [newest, _] = await world.database.read(overview.periods, 9)
        assert newest.key_decisions == ["decision: Roses.", "decision new: T2"], "by time"


async def test_a_file_with_new_decisions_alone_makes_a_summary(autojump_clock: trio.testing.MockClock) -> None:
    clock = Passing()
    async with garden(clock) as world:
        home = world.constellation
        shop = (await home.workspaces.ensure("shop", author=USER)).id
        data = b'{"id":"a","createdAt":"2026-01-01T00:00:00.000Z","title":"Use tabs"}\n'
        await import_decisions(home.storage, shop, data, author=USER, on_new=home.decisions.on_new)
        await clock.sleep(DAY_S)
        [day] = await world.database.read(overview.periods, 9)
        assert day.key_decisions == ["decision a: Use tabs"]


async def test_a_period_that_ended_while_the_server_was_down_is_summed_up_at_its_start(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with in_memory() as database:
        clock = Passing()
        async with garden(clock, database=database) as world:
            await world.constellation.overview.record(NotableKind.DECISION, "Roses.", author=USER)
        clock.advance(3 * DAY_S * 1000)
        async with garden(clock, database=database) as world:
            await clock.sleep(1)
            [day] = await world.database.read(overview.periods, 9)
            assert day.period_start == "2026-01-01T00:00:00.000Z" and day.key_decisions == ["decision: Roses."]


async def test_bounds_of_a_notable_event() -> None:
    async with running(otherwise=speak) as world:
        for text in ("", " \n", "x" * (NOTABLE_CHARS_MAX + 1)):
            with pytest.raises(InvalidInput, match="1 to 500 characters"):
                await world.constellation.overview.record(NotableKind.DECISION, text, author=USER)


def test_a_quotation() -> None:
    said = [Message(role="user", parts=(Text(text="Hi"),)), Message(role="assistant", parts=(Text(text="  "),))]
    assert quoted(said) == "2 new messages. Asked last: “Hi”."
    assert quoted(said[1:]) == "1 new message."
