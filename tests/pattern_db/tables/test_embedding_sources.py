from __future__ import annotations

from collections.abc import Callable

from pattern_db.connection import Connection
from pattern_db.enums import EMBEDDED, Role, SearchKind
from pattern_db.tables import embedding_sources as sources
from pattern_db.tables import memory_blocks, messages
from pattern_db.tables.embedding_sources import Said
from pattern_db.tables.memory_blocks import BlockRow
from pattern_db.tables.messages import MessageRow

Say = Callable[..., MessageRow]


def before(db: Connection, message: MessageRow) -> Said | None:
    source = sources.get(db, SearchKind.MESSAGE, message.id)
    assert source is not None
    return source.previous


def test_a_message_and_what_was_said_before_it(db: Connection, say: Say) -> None:
    first = say(1, "one", source_metadata={"name": "Ruth"}, session_id="s")
    other = say(2, "elsewhere", session_id="t")
    say(3, "a result", role=Role.TOOL, session_id="s")
    second = say(4, "two", session_id="s")
    stranger = say(5, "bob's", agent="bob", session_id="s")
    assert before(db, first) is before(db, other) is before(db, stranger) is None
    assert before(db, second) == Said(text="one", speaker="Ruth")
    assert sources.successor(db, first.id) == second.id
    assert sources.successor(db, second.id) is None
    messages.tombstone(db, [first.id])
    assert before(db, second) is None
    assert sources.successor(db, first.id) == second.id
    assert sources.successor(db, "msg_none") is None


def test_it_does_not_look_back_forever(db: Connection, say: Say) -> None:
    say(1, "one")
    for number in range(sources.LOOKBACK):
        say(2 + number, "a result", role=Role.TOOL)
    assert before(db, say(50, "two")) is None


def test_what_has_no_words_of_its_own_is_none(db: Connection, say: Say) -> None:
    for row in (say(1, None), say(2, "a result", role=Role.TOOL)):
        assert sources.get(db, SearchKind.MESSAGE, row.id) is None
    for kind in EMBEDDED:
        assert sources.get(db, kind, "none") is None


def test_blocks_and_passages_have_titles(db: Connection, make_block: Callable[..., BlockRow], now: str) -> None:
    block = make_block("notes", content_preview="words")
    found = sources.get(db, SearchKind.BLOCK, block.id)
    assert found is not None
    assert (found.title, found.text, found.scope) == ("notes", "words", "agt_ada")
    memory_blocks.deactivate(db, block.id, now)
    assert sources.get(db, SearchKind.BLOCK, block.id) is None
    db.execute(
        "INSERT INTO folders (id, name, path_type, embedding_model, created_at) VALUES ('f', 'n', 'virtual', '', ?)",
        (now,),
    )
    db.execute("INSERT INTO folder_files (id, folder_id, name, uploaded_at) VALUES ('d', 'f', 'a.md', ?)", (now,))
    db.execute(
        "INSERT INTO file_passages (id, file_id, content, heading, created_at) VALUES ('p', 'd', 'words', 'Top', ?)",
        (now,),
    )
    passage = sources.get(db, SearchKind.FILE, "p")
    assert passage is not None
    assert (passage.title, passage.scope, passage.parent) == ("a.md: Top", "f", "d")


def test_rows_upwards_and_downwards(db: Connection, say: Say) -> None:
    ids = [say(number, "words").id for number in range(4)]
    assert sources.newer(db, SearchKind.MESSAGE, 2, 9) == [(3, ids[2]), (4, ids[3])]
    assert sources.older(db, SearchKind.MESSAGE, 3, 2) == [(3, ids[2]), (2, ids[1])]
