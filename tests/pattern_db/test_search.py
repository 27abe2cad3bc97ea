from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_db import search, template
from pattern_db.connection import Connection, fetch_all
from pattern_db.enums import CONSTELLATION_OWNER, Permission, Role, SearchKind
from pattern_db.migrate import migrations_of
from pattern_db.search import Filters
from pattern_db.search_terms import parse
from pattern_db.tables import agents, archival, memory_blocks, messages
from pattern_db.tables.archival import ArchivalRow
from pattern_db.tables.memory_blocks import Attachment
from tests.pattern_db import vector_rows
from tests.pattern_db.conftest import NOW, MakeBlock, Say, hits, make_agent, make_passage
from tests.pattern_db.vector_rows import VectorRow


def find(db: Connection, query: str, **filters: object) -> list[int]:
    """Positions of the messages that hold one of the words."""
    return [int(row.position or "0") for row in hits(db, SearchKind.MESSAGE, query, **filters)]


@pytest.fixture
def talk(say: Say) -> None:
    say(1, "hello world", role=Role.USER)
    say(2, "goodbye world", role=Role.ASSISTANT)
    say(3, "the quick brown fox", agent="bob")
    say(4, "programming in C++ rocks, don't you think?", agent="bob")
    say(5, "foo-bar: baz")
    say(6, None)
    say(7, "vitamin C for Caroline")
    say(8, "我喜欢猫")
    say(9, "猫")


@pytest.mark.usefixtures("talk")
@pytest.mark.parametrize(
    ("word", "like"),
    [
        ("godbye", ["goodby"]),
        ("programing", ["program"]),
        ("Carolyn", ["carolin"]),
        ("ogram", ["program"]),
        ("vit", []),
        ("xylophone", []),
        ('"', []),
    ],
)
def test_words_like_one_that_no_text_holds(db: Connection, word: str, like: list[str]) -> None:
    assert search.words_like(db, SearchKind.MESSAGE, word, 3) == like
    assert search.words_like(db, SearchKind.BLOCK, word, 3) == []


@pytest.mark.usefixtures("talk")
@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("hello", [1]),
        ("WORLDS", [1, 2]),
        ("hello goodbye", [1, 2]),
        ('"quick brown fox"', [3]),
        ('"brown quick fox"', []),
        ("prog*", [4]),
        ("programs", [4]),
        ("xyz*", []),
        ('"quick bro"*', [3]),
        ("don't", [4]),
        ("C++", [4]),
        ("C", [4, 7]),
        ("Caroline's", [7]),
        ("bar", [5]),
        ("喜欢", [8]),
        ("猫", [8, 9]),
        ("欢喜", []),
        ("狗", []),
    ],
)
def test_what_a_query_finds(db: Connection, query: str, expected: list[int]) -> None:
    assert find(db, query) == expected


@pytest.mark.usefixtures("talk")
def test_filters_hold_inside_the_query(db: Connection, say: Say) -> None:
    say(20, "hello later", created_at="2026-12-01T00:00:00.000Z", session_id="s", workspace="w")
    say(21, "hello tagged", source_metadata={"tags": ["a", "b"]})
    say(22, "hello tool", role=Role.TOOL)
    assert find(db, "world", agents=["agt_ada"]) == [1, 2]
    assert find(db, "world", agents=["agt_bob"]) == []
    assert find(db, "world", agents=[]) == []
    assert find(db, "world", roles=[Role.ASSISTANT]) == [2]
    assert find(db, "hello", roles=None) == [1, 20, 21, 22]
    assert find(db, "hello", since="2026-12-01T00:00:00.000Z") == [20]
    assert find(db, "hello", until="2026-12-01T00:00:00.000Z") == [1, 21]
    assert find(db, "hello", sessions=["s"]) == [20]
    assert find(db, "hello", workspace="w") == [20]
    assert find(db, "hello", tags=["b", "c"]) == [21]
    assert find(db, "hello", tags=["c"]) == []


@pytest.mark.usefixtures("talk")
def test_tombstones_are_never_found_and_archived_ones_are(db: Connection) -> None:
    messages.archive(db, "agt_ada", [f"{1:019d}"])
    assert find(db, "world") == [1, 2]
    messages.tombstone(db, [f"msg_{1:019d}"])
    assert find(db, "world") == [2]


@pytest.mark.usefixtures("talk")
def test_the_newest_come_first_and_are_counted(db: Connection) -> None:
    (term,) = parse("world").terms
    assert search.rows_of(db, SearchKind.MESSAGE, term, 1) == [2]
    assert search.spread(db, SearchKind.MESSAGE, term, 10) == 2
    assert search.spread(db, SearchKind.MESSAGE, term, 1) == 1
    assert search.size(db, SearchKind.MESSAGE) == 9
    assert search.size(db, SearchKind.BLOCK) == 0


@pytest.mark.usefixtures("talk")
def test_the_rows_of_several_terms_are_those_of_each(db: Connection) -> None:
    terms = parse("world C++ 喜欢 fox nothing of 猫").terms
    assert {term.cjk is not None for term in terms} == {True, False}
    one_by_one = [search.posted(db, SearchKind.MESSAGE, term, 1) for term in terms]
    assert search.newest(db, SearchKind.MESSAGE, terms, 1) == one_by_one
    assert one_by_one[0] == "[2]"
    assert search.newest(db, SearchKind.MESSAGE, [], 1) == []


@pytest.mark.parametrize("count", [0, 1, 2, 10])
def test_rows_in_one_text_are_counted_and_cut(count: int) -> None:
    posted = json.dumps(list(range(count, 0, -1)), separators=(",", ":"))
    assert search.count_posted(posted) == count
    for limit in (1, 2, 9, 10):
        assert json.loads(search.newest_posted(posted, limit)) == list(range(count, 0, -1))[:limit]


def test_a_search_is_narrow_if_it_may_leave_out_most() -> None:
    assert not search.is_narrow(Filters())
    assert not search.is_narrow(Filters(roles=None, before="9", include_superseded=True, now=NOW))
    by_words = Filters(since=NOW), Filters(until=NOW), Filters(workspace="w")
    by_lists = Filters(agents=[]), Filters(tags=[]), Filters(sessions=[])
    assert all(map(search.is_narrow, (*by_words, *by_lists)))
    assert search.is_narrow(Filters(roles=[Role.USER])) and search.is_narrow(Filters(roles=[*Role]))


def test_filters_hold_for_rows_of_vectors(db: Connection, say: Say) -> None:
    ada, bob = say(1, "tea", agent="ada"), say(2, "tea", agent="bob")
    for row in (ada, bob):
        vector_rows.insert(db, VectorRow(kind=SearchKind.MESSAGE, ref=row.id, scope=row.agent_id))
    allowed = search.condition(SearchKind.MESSAGE, Filters(agents=["agt_bob"]))
    found = db.execute(f"SELECT e.ref FROM embeddings AS e WHERE {allowed.sql}", dict(allowed.values)).fetchall()
    assert found == [(bob.id,)]


def test_bm25_puts_what_holds_more_first(db: Connection, say: Say) -> None:
    say(1, "tea")
    say(2, "a tea story")
    for number in range(3, 30):
        say(number, f"nothing of it {number}")
    ranked = search.best(db, SearchKind.MESSAGE, parse("tea story").terms, 9, Filters())
    assert [row for row, _ in ranked] == [2, 1]
    assert ranked[0][1] > ranked[1][1] > 0
    assert search.best(db, SearchKind.MESSAGE, parse("猫").terms, 9, Filters()) == []


def test_what_stands_around_a_message_of_its_session(db: Connection, say: Say) -> None:
    for number in range(1, 7):
        say(number, f"text {number}", session_id="one" if number < 5 else "two")
    say(10, "text of bob", agent="bob", session_id="one")
    found = search.surroundings(db, [1, 3, 5], 2)
    assert found[1] == ([], [2, 3])
    assert found[3] == ([2, 1], [4])
    assert found[5] == ([], [6])


def test_each_kind_of_result_has_its_fields(db: Connection, say: Say, make_block: MakeBlock) -> None:
    say(1, "we drank tea", session_id="s1", source_metadata={"name": "Ruth"})
    make_block("shopping", content_preview="milk, tea", metadata={"schema": "text", "tags": ["home"]})
    stored = ArchivalRow(id="arc_1", agent_id="agt_ada", content="tea", metadata={"topic": 1}, created_at=NOW)
    archival.insert(db, stored)
    kinds = (SearchKind.MESSAGE, SearchKind.BLOCK, SearchKind.ARCHIVAL)
    (message,), (block,), (entry,) = (hits(db, kind, "tea") for kind in kinds)
    assert (message.session_id, message.role, message.speaker) == ("s1", Role.USER, "Ruth")
    assert (block.label, block.content) == ("shopping", "milk, tea")
    assert (entry.content, entry.metadata) == ("tea", '{"topic":1}')
    assert [row.label for row in hits(db, SearchKind.BLOCK, "shopping", tags=["home"])] == ["shopping"]
    assert hits(db, SearchKind.BLOCK, "shopping", tags=["work"]) == []
    assert list(search.rows(db, SearchKind.ARCHIVAL, ["arc_1", "arc_2"], Filters()).values()) == [entry]


def test_superseded_entries_only_if_asked_for_and_chunks_lead_to_their_entry(db: Connection) -> None:
    for entry, more in (
        ("old", {"valid_to": "2026-01-01T00:00:00.000Z"}),
        ("later", {"valid_to": "2030-01-01T00:00:00.000Z"}),
        ("new", {"tags": ["x"]}),
        ("new.1", {"parent_entry_id": "new", "chunk_index": 1, "tags": ["x"]}),
    ):
        row = ArchivalRow(id=entry, agent_id="agt_ada", content=f"tea {entry}", created_at=NOW, **more)
        archival.insert(db, row)

    def seen(**filters: object) -> list[str]:
        return [row.ref for row in hits(db, SearchKind.ARCHIVAL, "tea", **filters)]

    assert seen(now=NOW) == ["later", "new", "new.1"]
    assert seen() == ["new", "new.1"]
    assert seen(include_superseded=True) == ["old", "later", "new", "new.1"]
    assert seen(tags=["x"]) == ["new", "new.1"]
    assert {row.id for row in hits(db, SearchKind.ARCHIVAL, "tea", tags=["x"])} == {"new"}
    assert seen(sessions=["s"]) == []


def test_blocks_own_lent_and_deleted(db: Connection, make_block: MakeBlock) -> None:
    own = make_block("a", owner="agt_ada", content_preview="tea")
    lent = make_block("b", owner="agt_bob", content_preview="tea")
    make_block("c", owner="agt_bob", content_preview="tea")
    make_block("d", owner=CONSTELLATION_OWNER, content_preview="tea")
    loan = Attachment(block_id=lent.id, agent_id="agt_ada", permission=Permission.READ_ONLY, attached_at=NOW)
    memory_blocks.attach(db, loan)

    def seen(*owners: str) -> list[str]:
        return sorted(row.label or "" for row in hits(db, SearchKind.BLOCK, "tea", agents=owners))

    assert seen("agt_ada") == ["a", "b"]
    assert seen("agt_ada", CONSTELLATION_OWNER) == ["a", "b", "d"]
    memory_blocks.deactivate(db, own.id, NOW)
    assert seen("agt_ada") == ["b"]


def test_files_of_attached_folders(db: Connection) -> None:
    for name in ("1", "2"):
        make_passage(db, name, "about tea")
    db.execute("INSERT INTO folder_attachments VALUES ('fld_1', 'agt_ada', 'read', ?)", (NOW,))
    found = hits(db, SearchKind.FILE, "tea", agents=["agt_ada"])
    assert [(row.id, row.label, row.agent_id) for row in found] == [("psg_1", "notes.md", None)]
    assert [row.id for row in hits(db, SearchKind.FILE, "tea", tags=["2"])] == ["psg_2"]
    assert len(hits(db, SearchKind.FILE, "tea")) == 2
    assert hits(db, SearchKind.FILE, "tea", workspace="w") == []


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["say", "silent", "change", "hush", "delete", "block", "label", "archive", "forget"]),
        st.integers(0, 3),
        st.sampled_from(["tea", "milk and tea", "", "grüße", "grüße 猫", "teas tea 猫が"]),
    ),
    max_size=14,
)


@settings(max_examples=25, deadline=None)
@given(STEPS)
def test_the_indexes_follow_every_change(steps: list[tuple[str, int, str]]) -> None:
    db = template.in_memory(migrations_of("constellation"), now=NOW)
    agents.create(db, make_agent("ada"))
    insert = (
        "INSERT OR REPLACE INTO messages (id, agent_id, position, role, content, created_at)"
        " VALUES (?1, 'agt_ada', printf('%019d', ?2), 'user', ?3, ?4)"
    )
    block = (
        "INSERT OR REPLACE INTO memory_blocks (id, agent_id, label, description, block_type, content_preview,"
        " loro_snapshot, created_at, updated_at) VALUES (?1, 'agt_ada', ?2 || '!', '', 'core', ?3, x'', ?4, ?4)"
    )
    entry = (
        "INSERT OR REPLACE INTO archival_entries (id, agent_id, content, metadata, created_at)"
        " VALUES (?1, 'agt_ada', ?3, json_array(?2), ?4)"
    )
    for action, number, text in steps:
        key = f"row_{number}"
        if action in ("say", "silent", "block", "archive"):
            sql = {"say": insert, "silent": insert, "block": block, "archive": entry}[action]
            db.execute(sql, (key, number, None if action == "silent" else text, NOW))
        elif action in ("change", "hush"):
            db.execute("UPDATE messages SET content = ? WHERE id = ?", (text if action == "change" else None, key))
        elif action == "label":
            db.execute("UPDATE OR IGNORE memory_blocks SET label = ? || ? WHERE id = ?", (text, number, key))
        else:
            table = "messages" if action == "delete" else "archival_entries"
            db.execute(f"DELETE FROM {table} WHERE id = ?", (key,))
    for index in search.indexes():
        db.execute(f"INSERT INTO {index}({index}, rank) VALUES ('integrity-check', 1)")
    stored = {row[0] for row in fetch_all(db, "SELECT id FROM messages WHERE content LIKE '%tea%'")}
    assert {row.id for row in hits(db, SearchKind.MESSAGE, "tea")} == stored
    stored = {row[0] for row in fetch_all(db, "SELECT id FROM messages WHERE content LIKE '%猫%'")}
    assert {row.id for row in hits(db, SearchKind.MESSAGE, "猫")} == stored
    db.close()


@pytest.mark.usefixtures("talk")
def test_rebuild_and_optimize_change_nothing_that_is_found(db: Connection) -> None:
    before = find(db, "world fox 猫")
    search.rebuild(db)
    search.optimize(db)
    assert find(db, "world fox 猫") == before == [1, 2, 3, 8, 9]
    assert "cjk_fts" in search.indexes()


def test_a_sample_is_even_and_of_what_was_spoken(db: Connection, say: Say) -> None:
    assert search.sample(db, 3) == []
    for position in range(1, 8):
        say(position, f"{position} hello", role=Role.TOOL if position == 5 else Role.USER)
    assert search.sample(db, 3) == [(None, "1 hello"), (None, "3 hello")], "of 1, 3 and 5, the last is a tool's"
    assert len(search.sample(db, 100)) == 6
