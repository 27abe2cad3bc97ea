"""What tools reach beyond memory: as much as the operator allows, and nothing where nothing was said."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from pattern_core.constellation import _toolbox
from pattern_core.ids import seeded_randomness
from pattern_core.runtime import Runtime
from pattern_core.shell.settings import ShellSettings
from pattern_core.tools.toolbox import Toolbox, ToolSettings
from pattern_core.web.web import WebSettings
from tests.pattern_core.turns.rig import Rig, accepted


def made(rig: Rig, settings: ToolSettings) -> Toolbox:
    runtime = Runtime(clock=rig.clock, randomness=seeded_randomness(1), tools=settings)
    return _toolbox(runtime, rig.database, rig.ids, rig.journal.commit_work, None)


async def test_without_settings_nothing_outside_is_reached() -> None:
    async with accepted() as rig:
        toolbox = made(rig, ToolSettings())
        assert (toolbox.web, toolbox.shell) == (None, None)
        assert toolbox.halt.current is None
        with pytest.raises(FrozenInstanceError):
            toolbox.web = object()  # type: ignore[misc,assignment]  # that it cannot be set is the point


async def test_each_service_is_there_by_its_own_settings(tmp_path: Path) -> None:
    async with accepted() as rig:
        web = made(rig, ToolSettings(web=WebSettings()))
        assert web.web is not None
        assert web.shell is None
        shell = made(rig, ToolSettings(shell=ShellSettings(roots=[tmp_path])))
        assert shell.shell is not None
        assert shell.web is None
