"""What is told, once; and files at rest."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from pattern_server.cli.mirror.disk import Disk
from pattern_server.cli.mirror.plan import Do, Known, Local
from pattern_server.cli.mirror.report import DOUBTFUL_SETTLE_S, SETTLE_S, Event, Looks, Report


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    (tmp_path / "ada").mkdir()
    return Disk(tmp_path)


def test_a_refusal_is_told_once_per_content(disk: Disk) -> None:
    told: list[Event] = []
    report = Report(disk, told.append, is_dry=False)
    for _ in range(2):
        report.refuse("ada/x.md", Local(text="a"), "too long")
    assert [event.note for event in told] == ["too long"]
    assert report.has_refused("ada/x.md", Local(text="a"))
    assert not report.has_refused("ada/x.md", Local(text="b"))
    report.refuse("ada/x.md", Local(text="b"), "too long")
    assert len(told) == 2
    assert report.skipped == {"ada/x.md"}
    assert (disk.root / "ada/x.md.error.txt").exists()
    report.accept("ada/x.md")
    assert not (disk.root / "ada/x.md.error.txt").exists()
    assert not report.has_refused("ada/x.md", Local(text="b"))


def test_only_what_was_done_is_told(disk: Disk) -> None:
    told: list[Event] = []
    report = Report(disk, told.append, is_dry=True)
    for deed in (Do.NOTHING, Do.ASK, Do.REMEMBER, Do.FORGET):
        report.done("ada/x.md", deed)
    assert told == []
    report.done("ada/x.md", Do.WRITE, version=3)
    report.done("ada/x.md", Do.REMEMBER, "was ada/y.md")
    report.skip("ada/x.md", Do.ASIDE, "why")
    report.forgotten("mem_1.json")
    report.refuse("ada/x.md", Local(), "dry")
    assert [event.did for event in told] == [Do.WRITE, Do.REMEMBER, Do.ASIDE, Do.FORGET, Do.REFUSE]
    assert list((disk.root / "ada").iterdir()) == []


async def test_a_file_is_at_rest_after_a_moment(disk: Disk, autojump_clock: trio.testing.MockClock) -> None:
    file, looks = disk.root / "ada/x.md", Looks(disk)
    known = Known(block_id="mem_1", path="ada/x.md", version=0, text="a")
    file.write_text("ab")
    assert not looks.is_at_rest("ada/x.md", known, Local(text="ab"))
    assert looks.is_unsettled
    await trio.sleep(SETTLE_S)
    assert looks.is_at_rest("ada/x.md", known, Local(text="ab"))
    file.write_text("")
    assert not looks.is_at_rest("ada/x.md", known, Local(text=""))
    await trio.sleep(SETTLE_S)
    assert not looks.is_at_rest("ada/x.md", known, Local(text=""))
    await trio.sleep(DOUBTFUL_SETTLE_S - SETTLE_S)
    assert looks.is_at_rest("ada/x.md", known, Local(text=""))
