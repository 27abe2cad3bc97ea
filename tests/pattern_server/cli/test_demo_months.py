"""The tour's stations about agents that run for months, on a server of the test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pattern_server.cli import demo_months
from pattern_server.cli.demo_months import ask_for_consent, consent_at_last, keep_limits, outgrow_a_window
from pattern_server.cli.demo_tour import ClaimFailed, Tour
from pattern_server.cli.output import Output
from tests.pattern_server.cli.touring import Here
from tests.pattern_server.place import config_for, serving

pytestmark = [
    pytest.mark.filterwarnings("ignore:Async generator 'httpx2:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Async generator 'httpcore2:ResourceWarning"),
]


@asynccontextmanager
async def touring(folder: Path) -> AsyncIterator[Tour]:
    """A tour in a constellation without agents."""
    async with serving(config_for(folder)) as place:
        await place.constellation(agent=None)
        yield Tour(folder=folder, child=Here(place), output=Output())


async def test_consent_and_a_budget(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with touring(alone) as tour:
        await ask_for_consent(tour)
        await consent_at_last(tour)
        await keep_limits(tour)
    shown = capsys.readouterr().out
    assert "what cleo asked is still open: cleo wants to run block_edit(" in shown
    assert "leaves no room for this call" in shown
    assert "│ core human" in shown


async def test_a_conversation_outgrows_its_window(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with touring(alone) as tour:
        await outgrow_a_window(tour)
    assert "messages left her prompt" in capsys.readouterr().out


async def test_a_budget_that_stops_nothing_ends_the_tour(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_months, "BUDGET_TOKENS", 1_000_000)
    with pytest.raises(ExceptionGroup) as failed:
        async with touring(alone) as tour:
            await ask_for_consent(tour)
            await keep_limits(tour)
    assert failed.group_contains(ClaimFailed, match="might pass a budget")


async def test_what_is_not_found_ends_the_tour(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_months, "QUESTION", "What is the weather on Mars?")
    with pytest.raises(ExceptionGroup) as failed:
        async with touring(alone) as tour:
            await outgrow_a_window(tour)
    assert failed.group_contains(ClaimFailed, match="still found")
