"""The tour's stations about memory, on a server of the test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pattern_server.cli import demo_memory
from pattern_server.cli.demo_memory import consent, explain, find
from pattern_server.cli.demo_tour import ClaimFailed, Tour
from pattern_server.cli.output import Output
from tests.pattern_server.cli.touring import Here
from tests.pattern_server.place import DETERMINISTIC, config_for, serving

pytestmark = [
    pytest.mark.filterwarnings("ignore:Async generator 'httpx2:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Async generator 'httpcore2:ResourceWarning"),
]


@asynccontextmanager
async def touring(folder: Path, **embeddings: Any) -> AsyncIterator[Tour]:
    """A tour whose first stations are behind it."""
    async with serving(config_for(folder, embeddings=embeddings or DETERMINISTIC)) as place:
        block = {"label": "human", "content": "Ruth is allergic to walnuts.\n"}
        await place.constellation(model_provider="embedded", memory=[block])
        yield Tour(folder=folder, child=Here(place), output=Output())


async def test_one_authors_change_is_taken_back(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with touring(alone) as tour:
        await explain(tour)
    shown = capsys.readouterr().out
    assert "by user   Undid version 1" in shown
    assert "by agent" in shown


async def test_a_person_is_asked(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with touring(alone) as tour:
        await consent(tour)
    shown = capsys.readouterr().out
    assert "bob wants to append in the block rules" in shown
    assert "│ The children may stay up until nine." in shown


async def test_what_is_there_is_found_by_meaning(
    alone: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_memory, "BY_MEANING", "plumber in the cellar")  # this model knows only words
    async with touring(alone) as tour:
        await find(tour)
    shown = capsys.readouterr().out
    assert "(file boiler.md)" in shown
    assert "and by meaning (" in shown


async def test_a_find_that_is_none_ends_the_tour(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_memory, "BY_MEANING", "walnuts")
    with pytest.raises(ExceptionGroup) as failed:
        async with touring(alone) as tour:
            await find(tour)
    assert failed.group_contains(ClaimFailed, match="burst pipe")


async def test_without_a_model_it_says_so(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with touring(alone, provider="none") as tour:
        await find(tour)
    assert "by words alone, since there is no model for meaning here" in capsys.readouterr().out


async def test_a_model_that_takes_too_long_is_not_waited_for(
    alone: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_memory, "VECTORS_WAIT_S", 0.0)
    monkeypatch.setattr(demo_memory, "BY_MEANING", "plumber")
    async with touring(alone) as tour:
        await find(tour)
    assert "plumber" in capsys.readouterr().out
