"""New files become blocks."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio.testing

from tests.pattern_server.cli.mirror.shelf import Desk, Shelf
from tests.pattern_server.cli.mirror.test_rounds import settled_round


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    desk = Desk(tmp_path / "m", Shelf())
    desk.path("").mkdir()
    return desk


async def test_a_new_markdown_file_is_a_new_block(desk: Desk, autojump_clock: trio.testing.MockClock) -> None:
    desk.path("日記.md").write_text("Sonne\n")
    desk.path("file%3Anotes.md").write_text("x")
    desk.path("empty.md").write_text("\n")
    desk.path("data.json").write_text("{}")
    (desk.root / "strangers").mkdir()
    (desk.root / "strangers/x.md").write_text("x")
    await settled_round(desk)
    assert {block.label: block.now for block in desk.shelf.blocks} == {"日記": "Sonne\n", "file:notes": "x\n"}
    puts = desk.shelf.puts
    desk.restart()
    await settled_round(desk)
    assert desk.shelf.puts == puts
    assert desk.did() == []


async def test_what_cannot_be_a_block_stays_with_the_reason(desk: Desk, autojump_clock: trio.testing.MockClock) -> None:
    desk.path("what?.md").write_text("x")
    desk.path("raw.md").write_bytes(b"\xff")
    desk.path("long.md").write_text("x" * 2000)
    await settled_round(desk)
    assert desk.others() == {"ada/what?.md.error.txt", "ada/raw.md.error.txt", "ada/long.md.error.txt"}
    outcome = await desk.round()
    assert len(outcome.skipped) == 3
    assert desk.told == []
    assert desk.shelf.blocks == []


async def test_two_who_make_the_same_block(desk: Desk, autojump_clock: trio.testing.MockClock) -> None:
    desk.path("garden.md").write_text("mine\n")

    def somebody_else() -> None:
        desk.shelf.add("garden", "theirs\n")

    desk.shelf.before_put = somebody_else
    await settled_round(desk)
    assert desk.text("garden.md") == "theirs\n"
    assert desk.text("garden.md.yours.txt") == "mine\n"


async def test_a_crash_after_the_making(desk: Desk, autojump_clock: trio.testing.MockClock) -> None:
    desk.path("garden.md").write_text("mine\n")
    await settled_round(desk)
    for file in (desk.root / ".pattern-sync/blocks").iterdir():
        file.unlink()
    desk.restart()
    await settled_round(desk)
    assert [block.texts for block in desk.shelf.blocks] == [["mine\n"]]
    assert desk.others() == set()
