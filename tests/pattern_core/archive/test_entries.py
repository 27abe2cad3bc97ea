"""Entries: stored once, found again by what they say, superseded and kept; each change with its event; pages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from pattern_core.archive import entries
from pattern_core.archive.entries import (
    CHANGED,
    DETAILS_CHARS_MAX,
    TAG_CHARS_MAX,
    TAGS_MAX,
    Archive,
    NewEntry,
    SimilarEntry,
    StoredEntry,
    Terms,
    checked,
    find,
    foresee,
    store,
)
from pattern_core.archive.texts import CHUNK_CHARS_MAX
from pattern_core.errors import Conflict, InvalidInput, LimitReached, NotFound
from pattern_core.limits import ARCHIVE_ENTRY_CHARS_MAX
from pattern_core.testing import StoppedClock
from pattern_db.connection import Connection
from pattern_db.enums import CONSTELLATION_OWNER
from pattern_db.errors import RowNotFound
from pattern_db.tables import agents, archival
from tests.pattern_core.memory.rig import ADA, BOB, constellation
from tests.support import START, USER, Running, running

NOW, LATER = "2026-11-21T22:24:40.123Z", "2026-12-01T00:00:00.000Z"
TERMS = Terms(now=NOW)


@pytest.fixture
def db() -> Iterator[Connection]:
    connection = constellation()
    yield connection
    connection.close()


def put(db: Connection, content: str, entry_id: str = "arch_1", *, terms: Terms = TERMS, **fields: Any) -> StoredEntry:
    return store(db, ADA, checked(NewEntry(content=content, **fields)), entry_id, terms)


def correct(db: Connection, content: str, entry_id: str = "arch_2", **fields: Any) -> StoredEntry:
    """Store an entry in the place of arch_1."""
    return put(db, content, entry_id, terms=replace(TERMS, supersedes="arch_1"), **fields)


def test_an_entry_comes_back_whole(db: Connection) -> None:
    text = "".join(f"Paragraph {number} is about bees. " * 12 + "\n\n" for number in range(12))
    source = {"url": "https://b.example"}
    assert put(db, text, tags=[" bees ", "bees"], metadata={"n": 1}, workspace="hive", source=source).is_new
    entry = find(db, ADA, "arch_1")
    assert entry.content == text
    assert entry.chunks == len(text) // CHUNK_CHARS_MAX + 1
    assert (entry.tags, entry.metadata, entry.workspace) == (("bees",), {"n": 1}, "hive")
    assert entry.source == source
    assert find(db, ADA, "arch_1.3") == entry
    chunk = archival.get(db, "arch_1.3")
    assert (chunk.tags, chunk.workspace, chunk.metadata, chunk.content_hash) == (["bees"], "hive", None, None)
    assert archival.count_rows(db, ADA) == 4
    for owner, entry_id in ((BOB, "arch_1"), (ADA, "arch_2")):
        with pytest.raises((NotFound, RowNotFound)):
            find(db, owner, entry_id)


def test_the_same_is_found_and_not_stored_again(db: Connection) -> None:
    put(db, "Anna lives in Porto.")
    assert put(db, "anna lives in  Porto", "arch_2") == StoredEntry(entry_id="arch_1", is_new=False)
    assert put(db, "Anna lives in Porto, not in Braga.", "arch_3").is_new
    bobs = store(db, BOB, NewEntry(content="Anna lives in Porto."), "arch_4", TERMS)
    assert bobs.is_new  # what others know is not what Bob knows
    archival.update(db, "arch_1", {"valid_to": "2026-11-01T00:00:00.000Z"})
    assert put(db, "Anna lives in Porto.", "arch_5").is_new  # it is true again


def test_nearly_the_same_is_named_and_stored_only_by_force(db: Connection) -> None:
    put(db, "The user lives in Lisbon.")
    with pytest.raises(SimilarEntry, match="arch_1 says nearly the same: 'The user lives in Lisbon") as refused:
        put(db, "User lives in Lisbon", "arch_2")
    assert refused.value.details == {"entry_id": "arch_1", "content": "The user lives in Lisbon."}
    assert archival.count_rows(db, ADA) == 1
    assert put(db, "User lives in Lisbon", "arch_2", terms=replace(TERMS, force=True)).is_new


def test_different_facts_in_the_same_words_are_stored(db: Connection) -> None:
    facts = ["Anna is 30", "Anna is 31", "Anna likes Bob", "Bob likes Anna", "C++ is fine", "C# is fine", "don't", '"']
    stored = [put(db, fact, f"arch_{number}") for number, fact in enumerate(facts * 2)]
    assert [one.is_new for one in stored] == [True] * 8 + [False] * 8


def test_a_long_text_with_one_word_changed_is_near_wherever_it_is_cut(db: Connection) -> None:
    text = " ".join(f"thing{number} stands beside another{number}" for number in range(200)).replace("0", "o")
    for digit in "123456789":
        text = text.replace(digit, "abcdefghij"[int(digit)])
    put(db, text)
    assert find(db, ADA, "arch_1").chunks > 3
    with pytest.raises(SimilarEntry):
        put(db, text.replace("stands", "lies", 1), "arch_2")


def test_superseding_keeps_both_and_inherits(db: Connection) -> None:
    long = "Anna lives in Porto. " * 100
    put(db, long, tags=["anna"], workspace="w", metadata={"k": 1})
    terms = replace(TERMS, supersedes="arch_1.1")  # a chunk's id will do
    assert store(db, ADA, NewEntry(content="Anna lives in Braga."), "arch_2", terms).is_new
    old, new = find(db, ADA, "arch_1"), find(db, ADA, "arch_2")
    assert (old.content, old.valid_to, old.superseded_by) == (long, NOW, "arch_2")
    assert (new.tags, new.workspace, new.metadata, new.valid_to) == (("anna",), "w", {"k": 1}, None)
    assert archival.get(db, "arch_1.1").valid_to == NOW  # so that a search leaves every chunk out
    assert [row.id for row in archival.list_for_agent(db, ADA, 9, valid_at=NOW)] == ["arch_2"]
    assert [row.id for row in archival.versions(db, "arch_2", 9)] == ["arch_1", "arch_2"]


def test_the_old_one_ends_when_the_new_one_begins(db: Connection) -> None:
    put(db, "The user works for Acme.")
    correct(db, "User works for Acme", valid_from="2026-12-01T01:00:00+01:00")  # corrections may be near
    assert find(db, ADA, "arch_1").valid_to == find(db, ADA, "arch_2").valid_from == LATER


def test_superseding_twice(db: Connection) -> None:
    put(db, "Anna is 30")
    with pytest.raises(InvalidInput, match="already says this"):
        correct(db, "anna is 30")
    correct(db, "Anna is 31")
    assert correct(db, "Anna is 31", "arch_3") == StoredEntry(entry_id="arch_2", is_new=False)  # a repeated request
    with pytest.raises(Conflict, match="was superseded by arch_2"):
        correct(db, "Anna is 32", "arch_3")
    with pytest.raises((NotFound, RowNotFound)):
        store(db, BOB, NewEntry(content="Anna is 33"), "arch_3", replace(TERMS, supersedes="arch_1"))
    assert archival.count_rows(db, ADA) == 2
    put(db, "Anna is 32", "arch_4")  # what is known already may take the place of another
    terms = replace(TERMS, supersedes="arch_2")
    assert put(db, "Anna is 32", "arch_5", terms=terms) == StoredEntry(entry_id="arch_4", is_new=False)
    assert find(db, ADA, "arch_2").superseded_by == "arch_4"


def test_foreseeing_stores_nothing(db: Connection) -> None:
    foreseen = foresee(db, ADA, NewEntry(content="Anna is 30"), "arch_1", TERMS)
    assert (foreseen, archival.count_rows(db, ADA)) == (StoredEntry(entry_id="arch_1", is_new=True), 0)


def test_deleting_a_successor_leaves_the_past_as_it_is(db: Connection) -> None:
    put(db, "Anna is 30")
    correct(db, "Anna is 31")
    archival.delete(db, "arch_2")
    assert (find(db, ADA, "arch_1").superseded_by, find(db, ADA, "arch_1").valid_to) == (None, NOW)
    correct(db, "Anna is 32", "arch_3")
    agents.delete(db, ADA)
    assert archival.count_rows(db, ADA) == 0


def test_an_archive_has_an_end(db: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "ARCHIVE_ROWS_MAX", 3)
    put(db, "Anna is 30")
    put(db, "Bob is 30", "arch_2")
    with pytest.raises(LimitReached, match="this archive is full"):
        put(db, "x" * (2 * CHUNK_CHARS_MAX), "arch_3")
    assert archival.count_rows(db, ADA) == 2


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"content": " \n"}, "`content` is empty"),
        ({"content": "x" * (ARCHIVE_ENTRY_CHARS_MAX + 1)}, "at most 200000 characters"),
        ({"content": "a\0b"}, "NUL"),
        ({"content": "\ud800"}, "surrogate"),
        ({"tags": ["x" * (TAG_CHARS_MAX + 1)]}, "tags"),
        ({"tags": [" "]}, "tags"),
        ({"tags": [str(number) for number in range(TAGS_MAX + 1)]}, "tags"),
        ({"metadata": {"a": float("nan")}}, "`metadata` is not a JSON object"),
        ({"source": {"a": "x" * DETAILS_CHARS_MAX}}, "`source` has at most"),
        ({"valid_from": "2026-11"}, "`valid_from` is not a valid time"),
        ({"valid_to": "soon"}, "`valid_to` is not a valid time"),
        ({"valid_from": LATER, "valid_to": NOW}, "`valid_to` is before `valid_from`"),
    ],
)
def test_what_does_not_fit(fields: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        checked(NewEntry(**{"content": "x", **fields}))  # type: ignore[arg-type]  # wrong on purpose


@dataclass
class Shelf:
    """The archive of a running constellation; what it stores is agent_1's."""

    home: Running
    clock: StoppedClock

    @property
    def archive(self) -> Archive:
        return self.home.constellation.archive

    async def add(
        self, content: str, *, owner: str = "agent_1", supersedes: str | None = None, force: bool = False, **fields: Any
    ) -> tuple[str, bool]:
        new = NewEntry(content=content, **fields)
        entry, is_new = await self.archive.add(owner, new, author=USER, supersedes=supersedes, force=force)
        return entry.id, is_new

    async def shown(self, limit: int = 10, **wanted: Any) -> tuple[list[str], bool]:
        entries_, has_more = await self.archive.page("agent_1", limit, **wanted)
        return [one.id for one in entries_], has_more

    async def events(self) -> list[dict[str, object]]:
        return [dict(event.data) for event in await self.home.events() if event.name == CHANGED]


@pytest.fixture
async def shelf() -> AsyncIterator[Shelf]:
    clock = StoppedClock()
    async with running(clock=clock) as home:
        yield Shelf(home, clock)


async def test_an_entrys_life(shelf: Shelf) -> None:
    archive = shelf.archive
    first, is_new = await archive.add("agent_1", NewEntry(content="Anna is 30", tags=["anna"]), author=USER)
    assert (is_new, first.created_at, first.source) == (True, START, {"author": USER})
    old = first.id
    newer, _ = await shelf.add("Anna is 31", supersedes=old)
    assert [one.id for one in await archive.versions("agent_1", newer)] == [old, newer]
    entry = await archive.change("agent_1", newer, {"tags": ["x"], "metadata": {"a": 1}, "workspace": "w"})
    assert (entry.tags, entry.metadata, entry.workspace, entry.content) == (("x",), {"a": 1}, "w", "Anna is 31")
    assert await archive.get("agent_1", newer) == entry
    await archive.delete("agent_1", newer)
    with pytest.raises(NotFound):
        await archive.get("agent_2", old)
    of = {"agent_id": "agent_1", "entry_id": newer}
    assert await shelf.events() == [
        {"agent_id": "agent_1", "entry_id": old},
        {**of, "supersedes": old},
        of,
        {**of, "is_deleted": True},
    ]


async def test_what_is_there_already_is_no_event(shelf: Shelf) -> None:
    first, _ = await shelf.add("The user likes tea.")
    assert await shelf.add("the user likes tea") == (first, False)
    with pytest.raises(SimilarEntry):
        await shelf.add("user likes tea")
    assert (await shelf.add("user likes tea", force=True))[1]
    assert len(await shelf.events()) == 2


async def test_pages_are_newest_first_and_leave_out_what_ended(shelf: Shelf) -> None:
    ids = [(await shelf.add(f"fact {number}", tags=[] if number % 2 else ["even"]))[0] for number in range(5)]
    await shelf.add("fact 9", owner=CONSTELLATION_OWNER)
    shelf.clock.advance(1)
    newer, _ = await shelf.add("fact 7", supersedes=ids[1])
    seen: list[str] = []
    after, has_more = None, True
    while has_more:
        shown, has_more = await shelf.archive.page("agent_1", 2, after=after)
        seen += [one.id for one in shown]
        after = (shown[-1].created_at, shown[-1].id)
    assert seen == [newer, *reversed([one for one in ids if one != ids[1]])]
    assert await shelf.shown(include_superseded=True) == ([newer, *reversed(ids)], False)
    assert await shelf.shown(tag="even") == ([ids[4], ids[2], ids[0]], False)


async def test_a_page_continues_where_its_last_entry_was_deleted(shelf: Shelf) -> None:
    ids = []
    for number in range(4):
        ids.append((await shelf.add(f"fact {number}"))[0])
        shelf.clock.advance(1)
    [_newest, last], _ = await shelf.archive.page("agent_1", 2)
    await shelf.archive.delete("agent_1", last.id)
    assert await shelf.shown(2, after=(last.created_at, last.id)) == ([ids[1], ids[0]], False)


async def test_a_page_of_long_texts_ends_early(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "PAGE_CHARS_MAX", 5_000)
    ids = [(await shelf.add(f"fact {number} " * 300))[0] for number in range(4)]  # 2,100 characters each
    assert await shelf.shown() == ([ids[3], ids[2]], True)
    monkeypatch.setattr(entries, "PAGE_CHARS_MAX", 1)
    assert await shelf.shown() == ([ids[3]], True)


async def test_the_end_of_an_entry_may_be_set_but_not_of_a_superseded_one(shelf: Shelf) -> None:
    old, _ = await shelf.add("Anna is 30")
    ended = await shelf.archive.change("agent_1", old, {"valid_to": "2026-01-01T00:00:00Z"})
    assert ended.valid_to == START
    assert await shelf.shown() == ([], False)
    with pytest.raises(InvalidInput, match="before `valid_from`"):
        await shelf.archive.change("agent_1", old, {"valid_from": "2026-01-02T00:00:00Z"})
    await shelf.archive.change("agent_1", old, {"valid_to": None})
    await shelf.add("Anna is 31", supersedes=old)
    with pytest.raises(Conflict, match="replaced it"):
        await shelf.archive.change("agent_1", old, {"valid_to": None})
