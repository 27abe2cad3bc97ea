"""Entries within a transaction: stored once, found again by what they say, superseded and kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from pattern_core.archive import entries
from pattern_core.archive.entries import (
    DETAILS_CHARS_MAX,
    ENTRY_CHARS_MAX,
    TAG_CHARS_MAX,
    TAGS_MAX,
    NewEntry,
    SimilarEntry,
    StoredEntry,
    Terms,
    checked,
    checked_fields,
    find,
    foresee,
    store,
)
from pattern_core.archive.texts import CHUNK_CHARS_MAX
from pattern_core.errors import Conflict, InvalidInput, LimitReached, NotFound
from pattern_db.connection import Connection
from pattern_db.errors import NotFound as RowNotFound
from pattern_db.tables import agents, archival
from tests.pattern_core.memory.rig import ADA, BOB, constellation

NOW, LATER = "2026-11-21T22:24:40.123Z", "2026-12-01T00:00:00.000Z"
TERMS = Terms(now=NOW)


@pytest.fixture
def db() -> Iterator[Connection]:
    connection = constellation()
    yield connection
    connection.close()


def put(db: Connection, content: str, entry_id: str = "arch_1", **fields: object) -> StoredEntry:
    new = checked(NewEntry(content=content, **fields))  # type: ignore[arg-type]  # the tests know the fields
    return store(db, ADA, new, entry_id, TERMS)


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
    assert archival.count(db, ADA) == 1
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
    assert archival.count(db, ADA) == 1
    forced = store(db, ADA, NewEntry(content="User lives in Lisbon"), "arch_2", replace(TERMS, force=True))
    assert forced == StoredEntry(entry_id="arch_2", is_new=True)


def test_different_facts_in_the_same_words_are_stored(db: Connection) -> None:
    facts = [
        "Anna is 30",
        "Anna is 31",
        "Anna likes Bob",
        "Bob likes Anna",
        "C++ is fine",
        "C# is fine",
        "don't",
        '"',
    ] * 2
    stored = [put(db, fact, f"arch_{number}") for number, fact in enumerate(facts)]
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
    put(db, "Anna works for Acme.")
    new = checked(NewEntry(content="Anna works for Bolt.", valid_from="2026-12-01T01:00:00+01:00"))
    store(db, ADA, new, "arch_2", replace(TERMS, supersedes="arch_1"))
    assert find(db, ADA, "arch_1").valid_to == find(db, ADA, "arch_2").valid_from == LATER


def test_superseding_twice(db: Connection) -> None:
    put(db, "Anna is 30")
    terms = replace(TERMS, supersedes="arch_1")
    with pytest.raises(InvalidInput, match="says this already"):
        store(db, ADA, NewEntry(content="anna is 30"), "arch_2", terms)
    store(db, ADA, NewEntry(content="Anna is 31"), "arch_2", terms)
    again = store(db, ADA, NewEntry(content="Anna is 31"), "arch_3", terms)
    assert again == StoredEntry(entry_id="arch_2", is_new=False)  # a repeated request
    with pytest.raises(Conflict, match="was superseded by arch_2"):
        store(db, ADA, NewEntry(content="Anna is 32"), "arch_3", terms)
    with pytest.raises((NotFound, RowNotFound)):
        store(db, BOB, NewEntry(content="Anna is 33"), "arch_3", terms)
    assert archival.count(db, ADA) == 2


def test_what_is_known_already_may_take_the_place_of_another(db: Connection) -> None:
    put(db, "Anna is 30")
    put(db, "Anna is 31", "arch_2")
    merged = store(db, ADA, NewEntry(content="Anna is 31"), "arch_3", replace(TERMS, supersedes="arch_1"))
    assert merged == StoredEntry(entry_id="arch_2", is_new=False)
    assert find(db, ADA, "arch_1").superseded_by == "arch_2"


def test_a_correction_of_one_word_is_no_duplicate_of_what_it_corrects(db: Connection) -> None:
    put(db, "The user lives in Lisbon.")
    assert store(
        db, ADA, NewEntry(content="User lives in Lisbon"), "arch_2", replace(TERMS, supersedes="arch_1")
    ).is_new


def test_foreseeing_stores_nothing(db: Connection) -> None:
    assert foresee(db, ADA, NewEntry(content="Anna is 30"), "arch_1", TERMS) == StoredEntry(
        entry_id="arch_1", is_new=True
    )
    assert archival.count(db, ADA) == 0


def test_deleting_a_successor_leaves_the_past_as_it_is(db: Connection) -> None:
    put(db, "Anna is 30")
    store(db, ADA, NewEntry(content="Anna is 31"), "arch_2", replace(TERMS, supersedes="arch_1"))
    archival.delete(db, "arch_2")
    assert (find(db, ADA, "arch_1").superseded_by, find(db, ADA, "arch_1").valid_to) == (None, NOW)
    store(db, ADA, NewEntry(content="Anna is 32"), "arch_3", replace(TERMS, supersedes="arch_1"))
    agents.delete(db, ADA)
    assert archival.count_rows(db, ADA) == 0


def test_an_archive_has_an_end(db: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "ROWS_MAX", 3)
    put(db, "Anna is 30")
    put(db, "Bob is 30", "arch_2")
    with pytest.raises(LimitReached, match="this archive is full"):
        put(db, "x" * (2 * CHUNK_CHARS_MAX), "arch_3")
    assert archival.count_rows(db, ADA) == 2


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"content": " \n"}, "`content` is empty"),
        ({"content": "x" * (ENTRY_CHARS_MAX + 1)}, "at most 200000 characters"),
        ({"content": "a\0b"}, "NUL"),
        ({"content": "\ud800"}, "surrogate"),
        ({"tags": ["x" * (TAG_CHARS_MAX + 1)]}, "tags"),
        ({"tags": [" "]}, "tags"),
        ({"tags": [str(number) for number in range(TAGS_MAX + 1)]}, "tags"),
        ({"workspace": ""}, "workspace"),
        ({"metadata": {"a": float("nan")}}, "`metadata` is not a JSON object"),
        ({"source": {"a": "x" * DETAILS_CHARS_MAX}}, "`source` has at most"),
        ({"valid_from": "2026-11-21"}, "`valid_from` cannot be read"),
        ({"valid_to": "soon"}, "`valid_to` cannot be read"),
        ({"valid_from": LATER, "valid_to": NOW}, "`valid_to` is before `valid_from`"),
    ],
)
def test_what_does_not_fit(fields: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        checked(NewEntry(**{"content": "x", **fields}))  # type: ignore[arg-type]  # wrong on purpose


def test_fields_that_are_not_given_are_not_touched() -> None:
    assert checked_fields({}) == {}
    assert checked_fields({"tags": None, "valid_to": None}) == {"tags": (), "valid_to": None}
