from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from pattern_core.models.model import Usage
from pattern_core.models.tokens import estimate_request
from pattern_core.prompts.collect import LEAST, MOST, RATIOS_MAX, Calibration, last_calls
from pattern_core.testing.model import says
from pattern_db import template
from pattern_db.connection import Connection, fetch_all
from pattern_db.database import Database
from pattern_db.migrate import migrations_of
from pattern_db.tables import prompts
from tests.support import START, note, running


def test_what_a_vendor_counted_is_learnt_for_that_agent_and_model() -> None:
    known = Calibration()
    known.learn("ada", "m", [(1_000, 1_300)])
    assert known.ratio("ada", "m") == 1.3
    assert known.ratio("ada", "other") is known.ratio("bob", "m") is None
    known.learn("ada", "m", [(1_000, 1_000)])
    assert known.ratio("ada", "m") == pytest.approx(1.21)
    for _ in range(40):
        known.learn("ada", "m", [(1_000, 1_100)])
    assert known.ratio("ada", "m") == pytest.approx(1.1)


def test_odd_counts_do_not_lead_astray() -> None:
    known = Calibration()
    known.learn("ada", "m", [(10, 900), (1_000, 0)])
    assert known.ratio("ada", "m") == 1.0
    known.learn("ada", "m", [(1_000, 50_000)])
    known.learn("bob", "m", [(1_000, 1)])
    assert (known.ratio("ada", "m"), known.ratio("bob", "m")) == (MOST, LEAST)


def test_it_forgets_whom_it_has_not_seen_for_long() -> None:
    known = Calibration()
    for number in range(RATIOS_MAX + 1):
        known.learn(f"agent_{number}", "m", [(1_000, 2_000)])
    assert known.ratio("agent_0", "m") is None
    assert known.ratio("agent_1", "m") == 2.0


def test_where_there_is_nothing_to_learn_from_nobody_looks_twice() -> None:
    known = Calibration()
    known.learn("ada", "m", [])
    assert known.ratio("ada", "m") == 1.0
    known.learn("ada", "m", [(1_000, 1_500), (1_000, 1_000)])
    assert known.ratio("ada", "m") == pytest.approx(1.35)


async def test_what_rows_tell_is_what_was_learnt() -> None:
    usage = Usage(input_tokens=9_000, output_tokens=3)
    async with running(otherwise=lambda _request: replace(says("Yes."), usage=usage), tools=[note]) as world:
        ada = await world.agent("ada", prompt="Be kind. " * 200)
        await world.agent("bob", prompt="Be kind. " * 200)
        for name in ("ada", "bob", "ada"):
            await world.say("Is it so? " * 100, name)
        found = await world.database.read(last_calls, ada.id, "script-1")
        assert [counted for _estimated, counted in found] == [9_000, 9_000]
        for (estimated, _counted), request in zip(
            found, [world.provider.requests[0], world.provider.requests[2]], strict=True
        ):
            assert estimated == pytest.approx(estimate_request(request), rel=0.05)
        assert await world.database.read(last_calls, ada.id, "another") == []
        stored = await world.database.read(partial(prompts.counted, among=1), ada.id, "script-1", 9)
        assert [row.counted for row in stored] == [9_000]


async def test_a_new_process_estimates_as_the_one_before() -> None:
    answer = replace(says("Yes."), usage=Usage(input_tokens=2_000, output_tokens=3))
    async with Database.in_memory(template.in_memory(migrations_of("constellation"), now=START)) as database:
        async with running(otherwise=answer, database=database) as world:
            await world.agent("ada", prompt="Be kind. " * 400)
            await world.say("Is it so?")
            estimate = estimate_request(world.provider.requests[0])
        async with running(otherwise=answer, database=database) as world:
            await world.say("Is it so?")
        rows = await database.read(_prompt_tokens)
    assert rows[0] == pytest.approx(estimate, rel=0.2)
    assert rows[1] == pytest.approx(2_000, rel=0.1)


def _prompt_tokens(connection: Connection) -> list[int]:
    return [tokens for (tokens,) in fetch_all(connection, "SELECT prompt_tokens FROM step ORDER BY turn")]
