"""Opening a folder for mirroring."""

from __future__ import annotations

from pathlib import Path

import pytest

from pattern_core.errors import Conflict, InvalidInput
from pattern_server.cli.mirror.report import Event
from pattern_server.cli.mirror.rounds import Rules
from pattern_server.cli.mirror.session import opened
from tests.pattern_server.cli.mirror.shelf import Shelf


async def test_one_at_a_time_and_one_constellation(tmp_path: Path) -> None:
    root = tmp_path / "m"
    with opened(root, "con_1", Rules(), print):
        with pytest.raises(Conflict, match="another `pattern memory sync`"), opened(root, "con_1", Rules(), print):
            pass
        with opened(root, "con_1", Rules(is_dry=True), print):
            pass
    with pytest.raises(Conflict, match="con_1"), opened(root, "con_2", Rules(), print):
        pass
    with opened(root, "con_1", Rules(), print):
        pass


async def test_a_file_is_no_folder(tmp_path: Path) -> None:
    file = tmp_path / "m"
    file.write_text("x")
    with pytest.raises(InvalidInput, match="is a file"), opened(file, "con_1", Rules(), print):
        pass


async def test_a_round_says_what_it_came_to(tmp_path: Path) -> None:
    shelf = Shelf()
    shelf.add("human", "Likes tea.\n")
    shelf.add("broken", "x", damaged="bytes are missing")
    told: list[Event] = []
    with opened(tmp_path / "m", "con_1", Rules(), told.append) as mirror:
        outcome = await mirror.round(shelf.memory(), ["ada"])
    assert outcome.skipped == ["ada/broken.md"]
    assert not outcome.is_unsettled
    assert (tmp_path / "m/ada/human.md").read_text() == "Likes tea.\n"
