"""A server for each test that asks for one."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pattern_core.testing.model import ScriptedProvider, says
from tests.pattern_server.place import Place, config_for, serving


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that leaves a stream before its end closes the response; the iterators inside httpx2 cannot be closed."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.filterwarnings("ignore:Async generator 'httpx2:ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore:Async generator 'httpcore2:ResourceWarning"))


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, and no setting from the machine's environment."""
    for name in list(os.environ):
        if name.startswith(("PATTERN_", "ANTHROPIC_", "OPENAI_", "GEMINI_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def scripted() -> ScriptedProvider:
    """The provider named "scripted" of `place`; a test may exchange its script before the first question."""
    return ScriptedProvider(otherwise=says("All right."))


@pytest.fixture
async def place(alone: Path, scripted: ScriptedProvider) -> AsyncIterator[Place]:
    """A running server with an empty data directory."""
    async with serving(config_for(alone), {"scripted": scripted}) as found:
        yield found


@pytest.fixture
async def home(place: Place) -> Place:
    """The same with the constellation home and its agent ada."""
    await place.constellation()
    return place
