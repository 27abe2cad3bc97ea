"""The archive as the API uses it: one transaction and one event for each change, and pages."""

from __future__ import annotations

import pytest

from pattern_core.archive import store
from pattern_core.archive.entries import NewEntry, SimilarEntry
from pattern_core.archive.store import CHANGED, Archive, EntryFilter, changed
from pattern_core.errors import Conflict, InvalidInput, NotFound
from pattern_core.testing.clock import StoppedClock
from pattern_db.enums import CONSTELLATION_OWNER
from tests.support import START, USER, Running, running


async def told(home: Running) -> list[dict[str, object]]:
    return [dict(event.data) for event in await home.events() if event.name == CHANGED]


async def put(archive: Archive, content: str, owner: str = "agent_1", **fields: object) -> str:
    new = NewEntry(content=content, **fields)  # type: ignore[arg-type]  # the tests know the fields
    return (await archive.add(owner, new, author=USER)).entry.id


async def test_an_entrys_life() -> None:
    async with running() as home:
        archive = home.constellation.archive
        added = await archive.add("agent_1", NewEntry(content="Anna is 30", tags=["anna"]), author=USER)
        assert added.is_new
        assert (added.entry.created_at, added.entry.source) == (START, {"author": USER})
        old = added.entry.id
        newer = await archive.add("agent_1", NewEntry(content="Anna is 31"), author=USER, supersedes=old)
        assert [one.id for one in await archive.versions("agent_1", newer.entry.id)] == [old, newer.entry.id]
        entry = await archive.change("agent_1", newer.entry.id, {"tags": ["x"], "metadata": {"a": 1}, "workspace": "w"})
        assert (entry.tags, entry.metadata, entry.workspace, entry.content) == (("x",), {"a": 1}, "w", "Anna is 31")
        assert await archive.get("agent_1", newer.entry.id) == entry
        await archive.delete("agent_1", newer.entry.id)
        with pytest.raises(NotFound):
            await archive.get("agent_2", old)
        of = {"agent_id": "agent_1", "entry_id": newer.entry.id}
        assert await told(home) == [
            {"agent_id": "agent_1", "entry_id": old},
            {**of, "supersedes": old},
            of,
            {**of, "is_deleted": True},
        ]


async def test_what_is_there_already_tells_nothing() -> None:
    async with running() as home:
        archive = home.constellation.archive
        first = await put(archive, "The user likes tea.")
        again = await archive.add("agent_1", NewEntry(content="the user likes tea"), author=USER)
        assert (again.entry.id, again.is_new) == (first, False)
        with pytest.raises(SimilarEntry):
            await archive.add("agent_1", NewEntry(content="user likes tea"), author=USER)
        assert (await archive.add("agent_1", NewEntry(content="user likes tea"), author=USER, force=True)).is_new
        assert len(await told(home)) == 2


async def test_pages_are_newest_first_and_leave_out_what_holds_no_more() -> None:
    clock = StoppedClock()
    async with running(clock=clock) as home:
        archive = home.constellation.archive
        ids = [await put(archive, f"fact {number}", tags=["even"] if number % 2 == 0 else []) for number in range(5)]
        await put(archive, "fact 9", owner=CONSTELLATION_OWNER)
        clock.advance(1)
        newer = (await archive.add("agent_1", NewEntry(content="fact 7"), author=USER, supersedes=ids[1])).entry.id
        expected = [newer, *reversed([one for one in ids if one != ids[1]])]
        seen: list[str] = []
        wanted, has_more = EntryFilter(), True
        while has_more:
            shown, has_more = await archive.page("agent_1", wanted, 2)
            seen += [one.id for one in shown]
            wanted = EntryFilter(after=(shown[-1].created_at, shown[-1].id))
        assert seen == expected
        everything, _ = await archive.page("agent_1", EntryFilter(include_superseded=True), 10)
        assert [one.id for one in everything] == [newer, *reversed(ids)]
        tagged, _ = await archive.page("agent_1", EntryFilter(tag="even"), 10)
        assert [one.id for one in tagged] == [ids[4], ids[2], ids[0]]


async def test_a_page_goes_on_where_its_last_entry_was_deleted() -> None:
    clock = StoppedClock()
    async with running(clock=clock) as home:
        archive = home.constellation.archive
        ids = []
        for number in range(4):
            ids.append(await put(archive, f"fact {number}"))
            clock.advance(1)
        [_newest, last], _ = await archive.page("agent_1", EntryFilter(), 2)
        await archive.delete("agent_1", last.id)
        rest, has_more = await archive.page("agent_1", EntryFilter(after=(last.created_at, last.id)), 2)
        assert ([one.id for one in rest], has_more) == ([ids[1], ids[0]], False)


async def test_a_page_of_long_texts_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "PAGE_CHARS_MAX", 5_000)
    async with running() as home:
        archive = home.constellation.archive
        for number in range(4):
            await put(archive, f"fact {number} " * 300)  # 2,100 characters
        shown, has_more = await archive.page("agent_1", EntryFilter(), 10)
        assert (len(shown), has_more) == (2, True)
        monkeypatch.setattr(store, "PAGE_CHARS_MAX", 1)
        assert len((await archive.page("agent_1", EntryFilter(), 10))[0]) == 1


async def test_the_end_of_an_entry_may_be_set_but_not_of_a_superseded_one() -> None:
    async with running() as home:
        archive = home.constellation.archive
        old = await put(archive, "Anna is 30")
        ended = await archive.change("agent_1", old, {"valid_to": "2026-01-01T00:00:00Z"})
        assert ended.valid_to == START
        assert await archive.page("agent_1", EntryFilter(), 10) == ([], False)
        with pytest.raises(InvalidInput, match="before `valid_from`"):
            await archive.change("agent_1", old, {"valid_from": "2026-01-02T00:00:00Z"})
        await archive.change("agent_1", old, {"valid_to": None})
        await archive.add("agent_1", NewEntry(content="Anna is 31"), author=USER, supersedes=old)
        with pytest.raises(Conflict, match="took its place"):
            await archive.change("agent_1", old, {"valid_to": None})


def test_the_event_names_what_happened() -> None:
    assert changed("a", "e").data == {"agent_id": "a", "entry_id": "e"}
    assert changed("a", "e", "d", is_deleted=True).data["is_deleted"] is True
