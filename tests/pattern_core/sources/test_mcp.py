"""Resources of an MCP server: what changed is shown as a difference, and what a server does harms its source alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from pattern_core.errors import InvalidInput, NotFound, Unavailable
from pattern_core.mcp_settings import McpSettings, Streamable
from pattern_core.sources.kinds.file import FILES_MAX, TEXT_CHARS_MAX
from pattern_core.sources.kinds.mcp import ResourceSource
from pattern_core.sources.source import Arrivals, SourceAccount
from pattern_core.testing import StoppedClock
from pattern_core.testing.wire import Play, WireServer
from pattern_core.web.policy import SourceSettings
from pattern_db.tables.sources import SourceRow
from tests.pattern_core.mcp_servers.rig import is_alive, program
from tests.support import START

KIND = ResourceSource()


class Watching:
    """A source without a constellation: what it returned is its cursor the next time. `has` says what there is."""

    def __init__(self, folder: Path, *habits: str, settings: McpSettings | None = None, **config: Any) -> None:
        self.log = folder / "log"
        reach = SourceSettings(mcp={"it": settings or program(self.log, *habits)})
        checked = KIND.checked({"server": "it", **config}, reach)
        row = SourceRow("src_1", "it", "mcp", checked, START, START)
        self.account = SourceAccount(row=row, settings=reach, clock=StoppedClock())

    def has(self, **texts: Any) -> None:
        found = {f"note:///{name}": text for name, text in texts.items()}
        (self.log.with_name("log.json")).write_text(json.dumps(found))

    async def poll(self) -> Arrivals:
        with trio.fail_after(60):
            arrived = await self.account.call(KIND.poll)
        cursor = json.loads(json.dumps(dict(arrived.cursor)))
        self.account = replace(self.account, row=replace(self.account.row, sync_cursor=cursor))
        return arrived

    async def titles(self, **texts: Any) -> list[str]:
        self.has(**texts)
        return [one.title.removeprefix("note:///") for one in (await self.poll()).events]


async def test_what_changes_is_a_difference(tmp_path: Path) -> None:
    it = Watching(tmp_path)
    assert await it.titles(a="one\ntwo\n", b="b") == []
    assert await it.titles(a="one\ntwo\n", b="b") == []
    it.has(a="one\nthree\n", c="new")
    arrived = await it.poll()
    assert [one.title for one in arrived.events] == [
        "note:///a was changed",
        "note:///c was added",
        "note:///b was deleted",
    ]
    assert "-two\n+three" in arrived.events[0].text and arrived.wait_s == 900.0
    natives = {one.native for one in arrived.events}
    assert await it.titles(a="one\ntwo\n", b="b", c="new") == ["a was changed", "b was added"]  # as it was: also news
    for texts in ({"a": "one\nthree\n"}, {"a": "one\ntwo\n", "b": "b"}, {"a": "one\nthree\n"}):
        it.has(**texts)
        found = {one.native for one in (await it.poll()).events}
        assert found and not found & natives
        natives |= found


async def test_a_pattern_chooses_and_bytes_and_long_texts_are_not_shown(tmp_path: Path) -> None:
    it = Watching(tmp_path, pattern="note:///x*")
    assert await it.titles(x1=["AAAA"], x2="y" * (TEXT_CHARS_MAX + 1), a="no") == []
    it.has(x1=["AAAB"], x2="z" * (TEXT_CHARS_MAX + 1), a="other")
    events = (await it.poll()).events
    assert [one.title for one in events] == ["note:///x1 was changed", "note:///x2 was changed"]
    assert all("not shown" in one.text for one in events)


async def test_one_that_cannot_be_read_is_as_it_was(tmp_path: Path) -> None:
    it = Watching(tmp_path)
    assert await it.titles(a="one", b=None) == []
    assert await it.titles(a=None, b="two") == ["b was added"]
    assert await it.titles(a="one", b="two") == []


async def test_too_many_are_refused_and_pages_are_read_on(tmp_path: Path) -> None:
    it = Watching(tmp_path, pattern="note:///x*")
    assert await it.titles(**{f"a{number}": "no" for number in range(300)}, x="yes") == []
    assert await it.titles(**{f"a{number}": "no" for number in range(300)}, x="or no") == ["x was changed"]
    with pytest.raises(Unavailable, match="narrower pattern"):
        await it.titles(**{f"x{number}": "no" for number in range(FILES_MAX + 1)})


@pytest.mark.parametrize(
    ("habits", "more", "why"),
    [
        (("broken",), {}, "no key was given"),
        (("slow",), {"start_timeout_s": 0.3, "call_timeout_s": 0.3}, r"not done within 0\.6 s"),
        ((), {"missing": ("KEY",)}, "the variable KEY is not set"),
    ],
)
async def test_a_server_that_cannot_be_used(habits: Any, more: Any, why: str, tmp_path: Path) -> None:
    it = Watching(tmp_path, settings=program(tmp_path / "log", *habits, **more))
    it.has(a="one")
    with pytest.raises(Unavailable, match=why):
        await it.poll()


async def test_a_server_without_resources_and_an_address_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="offers no resources"):
        await Watching(tmp_path).poll()
    async with WireServer(otherwise=Play(chunks=(b"<html>",), headers={"content-type": "text/html"})) as server:
        it = Watching(tmp_path, settings=McpSettings(reach=Streamable(url=server.url), start_timeout_s=5))
        with pytest.raises(Unavailable, match="cannot be used"):
            await it.poll()


async def test_nothing_is_left_of_a_program_when_a_look_is_over_or_cancelled(tmp_path: Path) -> None:
    it = Watching(tmp_path, "pid")
    await it.titles(a="one")
    hanging = Watching(tmp_path, "pid", "slow")
    with trio.move_on_after(2.0):
        await hanging.poll()
    pids = [int(pid) for pid in (tmp_path / "log").read_text().split() if pid.isdecimal()]
    assert len(pids) == 2 and not any(map(is_alive, pids))


def test_configuration(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"\[mcp\.it\]"):
        KIND.checked({"server": "it"}, SourceSettings())
    with pytest.raises(InvalidInput, match="every_s"):
        Watching(tmp_path, every_s=1)
