"""The turns under way, and wishes about them."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import trio

from pattern_core.agents.running import RunningTurns
from tests.pattern_core.agents.rig import accepted


async def test_a_turn_is_listed_while_it_runs() -> None:
    turns = RunningTurns()
    async with accepted() as rig:
        with turns.listed(rig.turn) as running:
            assert turns.has("turn_1")
            assert (running.agent_id, running.scope.deadline) == (rig.turn.agent.id, rig.turn.deadline)
        assert not turns.has("turn_1")
        with pytest.raises(ZeroDivisionError), turns.listed(rig.turn):
            raise ZeroDivisionError
        assert not turns.has("turn_1")


async def test_it_is_cancelled_by_its_id_by_its_agent_or_with_all() -> None:
    turns = RunningTurns()
    async with accepted() as rig:
        assert not turns.cancel("turn_1", "user")
        for stop in (
            lambda: turns.cancel("turn_1", "user"),
            lambda: turns.cancel_all("user"),
            lambda: turns.cancel_all("user", agent_id=rig.turn.agent.id),
        ):
            with turns.listed(rig.turn) as running:
                turns.cancel_all("gone", agent_id="agent_other")
                assert not running.scope.cancel_called
                with running.scope:
                    stop()
                    await trio.sleep_forever()
                assert (running.scope.cancelled_caught, running.reason) == (True, "user")


async def test_wishes_reach_the_turn_at_its_border() -> None:
    turns = RunningTurns()
    async with accepted() as rig:
        turns.stop_at_border("turn_1", "superseded")
        turns.steer(rig.turn.agent.id)
        assert (rig.turn.wishes.stop, rig.turn.wishes.joins) == (None, False)
        with ExitStack() as stack:
            running = stack.enter_context(turns.listed(rig.turn))
            turns.stop_at_border("turn_2", "superseded")
            turns.steer("agent_other")
            assert (rig.turn.wishes.stop, rig.turn.wishes.joins) == (None, False)
            turns.stop_at_border("turn_1", "superseded")
            turns.steer(rig.turn.agent.id)
            assert not running.scope.cancel_called
            assert (rig.turn.wishes.stop, rig.turn.wishes.joins) == ("superseded", True)
            # The first reason stays, as in the turn's row: so a restart ends it the same way.
            turns.stop_at_border("turn_1", "rolled_back")
            assert turns.cancel("turn_1", "user")
            assert (rig.turn.wishes.stop, running.reason) == ("superseded", "superseded")
