from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pattern_db import search, template
from pattern_db.connection import Connection, fetch_all
from pattern_db.enums import CONSTELLATION_OWNER, Permission, Role, SearchKind
from pattern_db.migrate import migrations_of
from pattern_db.search import Filters, Hit, to_match
from pattern_db.tables import agents, archival, block_sharing, memory_blocks, messages
from pattern_db.tables.agents import AgentRow
from pattern_db.tables.archival import ArchivalRow
from pattern_db.tables.block_sharing import Attachment
from pattern_db.tables.memory_blocks import BlockRow
from pattern_db.tables.messages import MessageRow

NOW = "2026-11-21T22:24:40.123Z"
Say = Callable[..., MessageRow]
MakeBlock = Callable[..., BlockRow]
MESSAGES = (SearchKind.MESSAGE,)


def numbers(hits: list[Hit]) -> list[int]:
    return [int(hit.position or "0") for hit in hits]


def find(db: Connection, query: str, **filters: object) -> list[int]:
    """Positions of the messages that hold all words, in order of position."""
    hits = search.search(db, query, 50, kinds=MESSAGES, filters=Filters(**filters), any_word=False)  # type: ignore[arg-type]  # as the test names them
    return sorted(numbers(hits))


@pytest.fixture
def talk(say: Say) -> None:
    say(1, "hello world", role=Role.USER)
    say(2, "goodbye world", role=Role.ASSISTANT)
    say(3, "the quick brown fox", agent="bob")
    say(4, "programming in C++ rocks, don't you think?", agent="bob")
    say(5, "foo-bar: baz")
    say(6, None)


@pytest.mark.usefixtures("talk")
@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("hello", [1]),
        ("world", [1, 2]),
        ("WORLD worlds", [1, 2]),
        ("hello world", [1]),
        ("hello goodbye", []),
        ("hello OR goodbye", [1, 2]),
        ("world -hello", [2]),
        ('world -"hello world"', [2]),
        ('"quick brown fox"', [3]),
        ('"brown quick fox"', []),
        ("prog*", [4]),
        ("programs", [4]),
        ("xyz*", []),
        ('"quick bro"*', [3]),
        ("don't", [4]),
        ("C++ rocks", [4]),
        ("foo-bar: baz", [5]),
        ("hello OR", [1]),
        ("OR", []),
        ("-world", []),
        ("AND NOT NEAR", []),
        ('"unbalanced', []),
        ("(hello", [1]),
        ("content:hello", []),
        ("", []),
        (" \t * \" -'", []),
    ],
)
def test_what_a_query_finds(db: Connection, query: str, expected: list[int]) -> None:
    assert find(db, query) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("two words", '"two" AND "words"'),
        ('"a phrase" word', '"a phrase" AND "word"'),
        ("a OR b c", '("a" OR "b") AND "c"'),
        ("keep -drop -this", '("keep") NOT ("drop" OR "this")'),
        ("pre*", '"pre"*'),
        ("***", ""),
    ],
)
def test_the_expression(text: str, expected: str) -> None:
    assert to_match(text) == expected


def test_any_word_leaves_fillers_out_unless_there_is_nothing_else() -> None:
    assert to_match("what did the cat eat", any_word=True) == '"cat" OR "eat"'
    assert to_match("to be or not to be", any_word=True) == '"to" OR "be" OR "or" OR "not" OR "to" OR "be"'
    assert to_match("who is it", any_word=True) == '"who" OR "is" OR "it"'


def test_a_very_long_text_is_cut() -> None:
    assert to_match("word " * 5000).count('"word"') == search.TERMS_MAX


EMPTY = template.in_memory(migrations_of("constellation"), now=NOW)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=40) | st.text(alphabet="ab*\"-()^:+{}\\\0 ORNT'", max_size=25), st.booleans())
@example('"', True)
@example("\0\ud800", False)
@example('a"b"c* -"', True)
@example("\u0301", False)
def test_no_text_is_a_syntax_error(text: str, any_word: bool) -> None:
    match = to_match(text, any_word=any_word)
    if match:
        fetch_all(EMPTY, "SELECT rowid FROM message_fts WHERE message_fts MATCH ?", (match,))
    assert search.search(EMPTY, text, 5, kinds=tuple(SearchKind), any_word=any_word) == []


@pytest.mark.usefixtures("talk")
def test_filters_hold_inside_the_query(db: Connection, say: Say) -> None:
    say(7, "hello later", created_at="2026-12-01T00:00:00.000Z")
    assert find(db, "world", agents=["agt_ada"]) == [1, 2]
    assert find(db, "world", agents=["agt_bob"]) == []
    assert find(db, "world", agents=[]) == []
    assert find(db, "world", roles=[Role.ASSISTANT]) == [2]
    assert find(db, "hello", since="2026-12-01T00:00:00.000Z") == [7]
    assert find(db, "hello", until="2026-12-01T00:00:00.000Z") == [1]
    for number in range(10, 40):
        say(number, "hello hello hello", agent="bob")
    hits = search.search(db, "hello", 1, kinds=MESSAGES, filters=Filters(agents=["agt_ada"]))
    assert [hit.agent_id for hit in hits] == ["agt_ada"]


@pytest.mark.usefixtures("talk")
def test_tombstones_never_archived_unless_told_not(db: Connection) -> None:
    messages.archive_before(db, "agt_ada", f"{2:019d}")
    assert find(db, "world") == [1, 2]
    assert find(db, "world", include_archived=False) == [2]
    messages.tombstone(db, [f"msg_{1:019d}"])
    assert find(db, "world") == [2]


def test_the_best_scores_one_and_order_follows_the_score(db: Connection, say: Say) -> None:
    say(1, "tea")
    say(2, "a tea story")
    for number in range(3, 30):
        say(number, f"nothing of it {number}")
    hits = search.search(db, "tea story", 9, kinds=MESSAGES)
    assert numbers(hits) == [2, 1]
    assert hits[0].score == 1.0
    assert 0 < hits[1].score < 1
    assert hits[0].words < hits[1].words < 0


def test_every_kind_says_what_it_found(db: Connection, say: Say, make_block: MakeBlock) -> None:
    say(1, "we drank tea", session_id="s1", source_metadata={"channel": 7})
    make_block("shopping", content_preview="milk, tea", metadata={"schema": "text"})
    archival.insert(
        db, ArchivalRow(id="arc_1", agent_id="agt_ada", content="a fact", metadata={"topic": "tea"}, created_at=NOW)
    )
    hits = {hit.kind: hit for hit in search.search(db, "tea", 9)}
    assert set(hits) == {SearchKind.MESSAGE, SearchKind.BLOCK, SearchKind.ARCHIVAL}
    assert all(hit.score == 1.0 for hit in hits.values())
    message, block, entry = hits[SearchKind.MESSAGE], hits[SearchKind.BLOCK], hits[SearchKind.ARCHIVAL]
    assert (message.session_id, message.role, message.metadata) == ("s1", Role.USER, {"channel": 7})
    assert (block.label, block.content, block.metadata) == ("shopping", "milk, tea", {"schema": "text"})
    assert (entry.content, entry.metadata) == ("a fact", {"topic": "tea"})
    assert [hit.label for hit in search.search(db, "shopping", 9)] == ["shopping"]
    assert "tea" in message.snippet


def test_a_snippet_shows_the_words_and_little_else(db: Connection, say: Say) -> None:
    say(1, "filler " * 500 + "the needle is here " + "filler " * 500)
    hit = search.search(db, "needle", 1)[0]
    assert "needle" in hit.snippet
    assert len(hit.snippet) < 250


def test_blocks_own_lent_and_deleted(db: Connection, make_block: MakeBlock) -> None:
    own = make_block("a", owner="agt_ada", content_preview="tea")
    lent = make_block("b", owner="agt_bob", content_preview="tea")
    make_block("c", owner="agt_bob", content_preview="tea")
    make_block("d", owner=CONSTELLATION_OWNER, content_preview="tea")
    block_sharing.attach(
        db, Attachment(block_id=lent.id, agent_id="agt_ada", permission=Permission.READ_ONLY, attached_at=NOW)
    )

    def seen(*owners: str) -> list[str]:
        hits = search.search(db, "tea", 9, kinds=[SearchKind.BLOCK], filters=Filters(agents=owners))
        return sorted(hit.label or "" for hit in hits)

    assert seen("agt_ada") == ["a", "b"]
    assert seen("agt_ada", CONSTELLATION_OWNER) == ["a", "b", "d"]
    memory_blocks.deactivate(db, own.id, NOW)
    assert seen("agt_ada") == ["b"]


def test_files_of_attached_folders(db: Connection) -> None:
    for number in (1, 2):
        db.execute("INSERT INTO folders VALUES (?1, ?1, NULL, 'virtual', NULL, 'm', ?2)", (f"fld_{number}", NOW))
        db.execute(
            "INSERT INTO folder_files (id, folder_id, name, uploaded_at) VALUES (?, ?, 'notes.txt', ?)",
            (f"fil_{number}", f"fld_{number}", NOW),
        )
        db.execute(
            "INSERT INTO file_passages (id, file_id, content, created_at) VALUES (?, ?, 'about tea', ?)",
            (f"psg_{number}", f"fil_{number}", NOW),
        )
    db.execute("INSERT INTO folder_attachments VALUES ('fld_1', 'agt_ada', 'read', ?)", (NOW,))
    hits = search.search(db, "tea", 9, kinds=[SearchKind.FILE], filters=Filters(agents=["agt_ada"]))
    assert [(hit.id, hit.label, hit.agent_id) for hit in hits] == [("psg_1", "notes.txt", None)]
    assert len(search.search(db, "tea", 9, kinds=[SearchKind.FILE])) == 2


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["say", "silent", "change", "hush", "delete", "block", "label", "archive", "forget"]),
        st.integers(0, 3),
        st.sampled_from(["tea", "milk and tea", "", "grüße", "teas tea"]),
    ),
    max_size=14,
)


@settings(max_examples=25, deadline=None)
@given(STEPS)
def test_the_indexes_follow_every_change(steps: list[tuple[str, int, str]]) -> None:
    db = template.in_memory(migrations_of("constellation"), now=NOW)
    agents.create(
        db,
        AgentRow(
            id="agt_ada", name="a", model_provider="p", model_name="m", system_prompt="", created_at=NOW, updated_at=NOW
        ),
    )
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
    assert {hit.id for hit in search.search(db, "tea", 99, kinds=MESSAGES)} == stored
    db.close()


@pytest.mark.usefixtures("talk")
def test_rebuild_and_optimize_change_nothing_that_is_found(db: Connection) -> None:
    before = search.search(db, "world fox", 9)
    search.rebuild(db)
    search.optimize(db)
    assert search.search(db, "world fox", 9) == before
