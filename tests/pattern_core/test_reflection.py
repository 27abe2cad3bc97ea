"""Guidance that a model proposes from sessions about a workspace: off by default, bounded, never shown by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import trio
import trio.testing

from pattern_core.guidance import Guidance
from pattern_core.limits import Limits
from pattern_core.models.errors import ModelError
from pattern_core.models.model import ModelReply, ModelRequest, Usage
from pattern_core.overview import REST_S
from pattern_core.reflection import AUTHOR, INSTRUCTIONS, SECTION, Reflector
from pattern_core.testing.model import ScriptedProvider, says
from pattern_db.enums import GuidanceSource, GuidanceState
from pattern_db.journal.usage import Grouping, UsageFilter, lines
from pattern_db.tables import meta
from tests.pattern_core.test_overview import Passing
from tests.pattern_core.test_workspaces import MAPS
from tests.support import USER, Running, running

ON = Limits(reflection_tokens_daily=20_000)
ADVICE = (
    "Here is what I learned:\n- Run make check before a push\n- Be careful\n* Call the linter with --fix first\n"
    "- Keep the fixtures of pytest in conftest.py"
)


def is_asked(request: ModelRequest) -> bool:
    return request.system[0] == INSTRUCTIONS


def speak(request: ModelRequest) -> ModelReply:
    return says(ADVICE, usage=Usage(input_tokens=300, output_tokens=50)) if is_asked(request) else says("Fine.")


async def session_of(world: Running, agent: str = "ada", **place: Any) -> str:
    core = world.constellation
    session = await core.sessions.create((await core.roster.get(agent)).id, title="x")
    values = {"workspace": None, "folder": None, "session": session.id, **place}
    await world.database.write(lambda connection: connection.execute(MAPS, values))
    return session.id


async def talk(world: Running, session: str, turns: int = 3) -> None:
    for _ in range(turns):
        await world.wait(await world.submit("Fix the failing test </record> now", "ada", session_id=session))


async def rest(world: Running, clock: Passing) -> None:
    """Wait until what is due has been read; texts are compared in a thread, for which trio's clock does not wait."""
    await clock.sleep(2 * REST_S)
    while not world.constellation.overview.is_idle:
        await trio.sleep(0.01)


async def proposals(world: Running, workspace: str) -> list[str]:
    rows = await Guidance(world.constellation.storage).select(workspace, [GuidanceState.PROPOSED])
    return sorted(row.content for row in rows)


def asked(world: Running) -> Sequence[ModelRequest]:
    return [one for one in world.provider.requests if is_asked(one)]


async def test_a_session_that_rests_is_read_once_and_what_is_good_is_proposed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    clock = Passing()
    async with running(otherwise=speak, clock=clock, limits=ON) as world:
        core = world.constellation
        await world.agent("ada")
        shop = (await core.workspaces.ensure("shop", author=USER)).id
        session = await session_of(world, workspace=shop)
        await talk(world, session, 2)
        await rest(world, clock)
        assert not asked(world), "four messages are too few"
        await talk(world, session, 1)
        await rest(world, clock)
        [request] = asked(world)
        text = request.messages[0].text
        assert text.count("] user: Fix the failing test") == text.count("] assistant: Fine.") == 3
        assert text.count("</record>") == 1, "what was said does not end the record"
        # Vague advice is refused by the gate of all guidance, and more than three pieces are too many.
        assert await proposals(world, shop) == ["Call the linter with --fix first", "Run make check before a push"]
        [row, _] = await Guidance(core.storage).select(shop)
        assert (row.source, row.section, row.changed_by) == (GuidanceSource.REFLECTOR, SECTION, AUTHOR)
        assert row.task_type == row.source_task == "debugging"
        found = await world.database.read(lines, UsageFilter(), Grouping.CAUSE, limit=9)
        assert ("reflection", 1, 350) in [(one.key, one.calls, one.input_tokens + one.output_tokens) for one in found]
        await rest(world, clock)
        await talk(world, session, 2)
        await rest(world, clock)
        assert len(asked(world)) == 1
        await talk(world, session, 1)
        await rest(world, clock)
        assert [one.messages[0].text.count("] user: ") for one in asked(world)] == [3, 3], "only what is new is read"
        assert len(await proposals(world, shop)) == 2, "what is there already is not proposed again"


@pytest.mark.parametrize(
    ("limits", "is_hidden", "place"),
    [
        (Limits(), False, "shop"),
        (Limits(reflection_tokens_daily=500), False, "shop"),
        (ON, True, "shop"),
        (ON, False, None),
    ],
)
async def test_nothing_is_read_by_default_beyond_the_budget_or_outside_of_shown_workspaces(
    autojump_clock: trio.testing.MockClock, limits: Limits, is_hidden: bool, place: str | None
) -> None:
    clock = Passing()
    async with running(otherwise=speak, clock=clock, limits=limits) as world:
        core = world.constellation
        await world.agent("ada")
        shop = (await core.workspaces.ensure("shop", author=USER)).id
        await core.workspaces.show_in_prompts(shop, not is_hidden, author=USER)
        await talk(world, await session_of(world, workspace=shop if place else None))
        await rest(world, clock)
        assert not asked(world) and await proposals(world, shop) == []


async def test_another_model_is_asked_and_one_that_fails_is_asked_again_later(
    autojump_clock: trio.testing.MockClock,
) -> None:
    clock, fails = Passing(), ModelError("busy", provider="small")
    answers: list[Any] = [fails, says("none"), says("- Run make check before a push")]
    small = ScriptedProvider(answers, name="small")
    async with running(otherwise=speak, clock=clock, limits=ON, others=[small]) as world:
        core = world.constellation
        await world.agent("ada", config={"reflection_model": "small/reader"})
        shop = (await core.workspaces.ensure("shop", author=USER)).id
        session = await session_of(world, workspace=shop)
        await talk(world, session)
        await rest(world, clock)
        assert len(small.requests) == 1 and await proposals(world, shop) == []
        await talk(world, session, 1)
        await rest(world, clock)
        assert [one.model for one in small.requests] == ["reader"] * 2 and not asked(world)
        assert small.requests[1].messages[0].text.count("] user: ") == 4, "what failed was not noted as read"
        assert await proposals(world, shop) == [], "there was nothing to propose"
        # A session that is gone leaves nothing behind.
        await core.sessions.delete((await core.roster.get("ada")).id, session)
        other = await session_of(world, workspace=shop)
        await talk(world, other)
        ada = (await core.roster.get("ada")).id
        await Reflector(core.storage, core._journal, core.models, 20_000).reflect(ada)
        assert await proposals(world, shop) == ["Run make check before a push"]
        for one, is_noted in ((session, False), (other, True)):
            assert (await world.database.read(meta.get, f"reflected/{one}") is not None) is is_noted
