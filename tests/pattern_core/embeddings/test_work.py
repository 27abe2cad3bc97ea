from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pattern_core.embeddings import work
from pattern_core.embeddings.embedder import EmbedderInfo
from pattern_core.embeddings.providers.deterministic import hashed_words
from pattern_core.embeddings.work import (
    PIECE_CHARS,
    PIECES_MAX,
    PREVIOUS_CHARS,
    pieces_of,
    split,
)
from pattern_db import maintenance, vectors
from pattern_db.connection import Connection, fetch_all
from pattern_db.enums import IndexState, Role, SearchKind
from pattern_db.tables import agents, archival, embeddings, memory_blocks, messages
from pattern_db.tables import embedding_indexes as indexes
from pattern_db.tables.embedding_indexes import IndexRow
from pattern_db.tables.embedding_sources import EmbeddingSource, Said
from tests.pattern_core.embeddings import stage

INFO = EmbedderInfo(provider="test", model="m", dimension=64, fingerprint="f")
OTHER = EmbedderInfo(provider="test", model="longer", dimension=72, fingerprint="g")


@pytest.fixture
def db() -> Connection:
    return stage.connection()


def made(batch: work.Batch) -> dict[str, bytes]:
    return {key: hashed_words(text, batch.index.dimension) for key, text in batch.missing.items()}


def counted(db: Connection, index: IndexRow) -> tuple[int, int, int]:
    """How many texts are done, of how many, and how many of them were refused."""
    coverage = indexes.coverage(db, index)
    return coverage.done, coverage.total, coverage.refused


def finish(db: Connection, index: IndexRow) -> int:
    """Work off all that is to be done; return how many texts had to be embedded."""
    count = 0
    while (batch := work.gather(db, index)) is not None:
        count += len(batch.missing)
        assert work.store(db, batch, made(batch), stage.NOW)
    return count


def test_a_batch_is_bounded_by_rows_and_by_pieces(db: Connection) -> None:
    for number in range(50):
        stage.keep(db, number, f"entry {number}")
    index = indexes.begin(db, INFO, IndexState.ACTIVE, stage.NOW)
    batch = work.gather(db, index)
    assert batch is not None
    assert len(batch.refs) == work.BATCH_ROWS
    for number in range(50, 55):
        stage.keep(db, number, " ".join(f"entry {number} part {part}" for part in range(4_000)))
    batch = work.gather(db, index)
    assert batch is not None
    assert len(batch.refs) == 1
    assert finish(db, index) > 100
    assert stage.stored(db) == stage.wanted(db)


def test_what_is_removed_between_gathering_and_storing_leaves_nothing(db: Connection) -> None:
    stage.say(db, 1, "to be removed")
    stage.keep(db, 1, "stays")
    index = indexes.begin(db, INFO, IndexState.ACTIVE, stage.NOW)
    while (batch := work.gather(db, index)) is not None:
        if (SearchKind.MESSAGE, "msg_1") in batch.refs:
            messages.tombstone(db, ["msg_1"])
        work.store(db, batch, made(batch), stage.NOW)
    assert {ref for _kind, ref, *_ in stage.stored(db)} == {"arc_1"}


def test_a_row_number_that_is_given_again_meanwhile_is_not_overlooked(db: Connection) -> None:
    index = indexes.begin(db, INFO, IndexState.ACTIVE, stage.NOW)
    stage.keep(db, 1, "first")
    batch = work.gather(db, index)
    assert batch is not None
    archival.delete(db, "arc_1")
    stage.keep(db, 2, "takes its row")
    work.store(db, batch, made(batch), stage.NOW)
    finish(db, index)
    assert stage.stored(db) == stage.wanted(db) != set()


def test_nothing_is_stored_for_an_index_that_was_given_up(db: Connection) -> None:
    stage.keep(db, 1, "words")
    indexes.begin(db, INFO, IndexState.ACTIVE, stage.NOW)
    index = work.start_switch(db, OTHER, stage.NOW)
    batch = work.gather(db, index)
    assert batch is not None
    work.cancel_switch(db)
    assert not work.store(db, batch, made(batch), stage.NOW)
    assert fetch_all(db, "SELECT count(*) FROM embeddings") == [(0,)]


def test_a_vector_of_another_length_stores_nothing_of_its_batch(db: Connection) -> None:
    stage.keep(db, 1, "words")
    index = indexes.begin(db, INFO, IndexState.ACTIVE, stage.NOW)
    batch = work.gather(db, index)
    assert batch is not None
    with pytest.raises(ValueError, match="2 numbers"), db:
        work.store(db, batch, dict.fromkeys(batch.missing, bytes(8)), stage.NOW)
    assert fetch_all(db, "SELECT count(*) FROM embeddings") == [(0,)]
    assert counted(db, index) == (0, 1, 0)


def test_coverage_counts_rows(db: Connection) -> None:
    for number in range(40):
        stage.say(db, number, f"message {number}", Role.TOOL if number % 2 else Role.USER)
    index = indexes.begin(db, INFO, IndexState.ACTIVE, stage.NOW)
    assert counted(db, index) == (0, 40, 0)
    batch = work.gather(db, index)
    assert batch is not None
    work.store(db, batch, made(batch), stage.NOW)
    assert counted(db, index) == (32, 40, 0)
    assert indexes.coverage(db, index).left
    finish(db, index)
    assert counted(db, index) == (40, 40, 0)
    assert not indexes.coverage(db, index).left
    messages.tombstone(db, ["msg_0"])
    assert indexes.coverage(db, index).left


def test_another_owner_of_the_same_text_takes_its_vectors_along(db: Connection) -> None:
    stage.note(db, "shared", "words")
    index = indexes.begin(db, INFO, IndexState.ACTIVE, stage.NOW)
    finish(db, index)
    db.execute("UPDATE memory_blocks SET agent_id = 'agt_eve'")
    assert finish(db, index) == 0
    near = vectors.nearest(db, SearchKind.BLOCK, hashed_words("words", 64), ["agt_eve"], 1)
    assert [neighbour.ref for neighbour in near] == ["blk_shared"]


def test_summaries_are_embedded_and_stubs_are_not(db: Connection) -> None:
    stage.summarise(db, 1, "before there was a model")
    stage.summarise(db, 2, "3 messages were archived", is_stub=True)
    index = indexes.begin(db, INFO, IndexState.ACTIVE, stage.NOW)
    stage.summarise(db, 3, "while there is one")
    assert counted(db, index) == (0, 3, 0)
    assert finish(db, index) == 2
    assert counted(db, index) == (3, 3, 0)
    assert {ref for _kind, ref, *_ in stage.stored(db)} == {"sum_1", "sum_3"}
    near = vectors.nearest(db, SearchKind.SUMMARY, hashed_words("before a model", 64), ["agt_ada"], 1)
    assert [neighbour.ref for neighbour in near] == ["sum_1"]
    db.execute("UPDATE archive_summaries SET summary = 'another' WHERE id = 'sum_1'")
    db.execute("DELETE FROM archive_summaries WHERE id = 'sum_3'")
    assert finish(db, index) == 1
    assert {ref for _kind, ref, *_ in stage.stored(db)} == {"sum_1"}
    agents.delete(db, "agt_ada")
    assert stage.stored(db) == set()
    assert maintenance.check(db) == []


def test_a_rebuild_forgets_no_text_that_is_gone(db: Connection) -> None:
    stage.summarise(db, 1, "words")
    index = indexes.begin(db, INFO, IndexState.ACTIVE, stage.NOW)
    finish(db, index)
    db.execute("DELETE FROM archive_summaries")
    assert work.rebuild(db)
    finish(db, index)
    assert stage.stored(db) == set()


def test_what_one_model_refuses_keeps_the_vector_of_the_other(db: Connection) -> None:
    stage.keep(db, 1, "poison")
    finish(db, indexes.begin(db, INFO, IndexState.ACTIVE, stage.NOW))
    index = work.start_switch(db, OTHER, stage.NOW)
    batch = work.gather(db, index)
    assert batch is not None
    assert work.store(db, batch, {}, stage.NOW, dict.fromkeys(batch.missing, "no"))
    assert finish(db, index) == 0
    assert counted(db, index) == (1, 1, 1)
    near = vectors.nearest(db, SearchKind.ARCHIVAL, hashed_words("poison", 64), None, 1)
    assert [neighbour.ref for neighbour in near] == ["arc_1"]
    db.execute("UPDATE archival_entries SET content = 'bread'")
    assert finish(db, index) == 1
    assert counted(db, index) == (1, 1, 0)
    assert vectors.nearest(db, SearchKind.ARCHIVAL, hashed_words("poison", 64), None, 1) == []


class Lives(RuleBasedStateMachine):
    """Texts come, change and go while batches are gathered, stored or lost, and models are switched."""

    def __init__(self) -> None:
        super().__init__()
        self.db = stage.connection()
        self.number = 0
        self.batch: work.Batch | None = None
        self.index = indexes.begin(self.db, INFO, IndexState.ACTIVE, stage.NOW)
        for text in ("red", "green", "blue"):
            self.say(text, Role.USER)
        self.finish()

    @rule(text=st.sampled_from(["red", "green", "blue " * 300, " "]), role=st.sampled_from([Role.USER, Role.TOOL]))
    def say(self, text: str, role: Role) -> None:
        self.number += 1
        stage.say(self.db, self.number, text, role)

    @rule(text=st.sampled_from(["red", "green"]))
    def keep(self, text: str) -> None:
        self.number += 1
        stage.keep(self.db, self.number, text)

    @rule(text=st.sampled_from(["red", "green", ""]))
    def note(self, text: str) -> None:
        self.number += 1
        stage.note(self.db, f"note{self.number}", text)

    @rule(text=st.sampled_from(["red", "green"]), is_stub=st.booleans())
    def summarise(self, text: str, is_stub: bool) -> None:
        self.number += 1
        stage.summarise(self.db, self.number, text, is_stub=is_stub)

    @rule(chance=st.integers(0, 1_000))
    def remove_a_summary(self, chance: int) -> None:
        if found := self._ids("archive_summaries"):
            self.db.execute("DELETE FROM archive_summaries WHERE id = ?", (found[chance % len(found)],))

    @rule(chance=st.integers(0, 1_000))
    def remove_a_message(self, chance: int) -> None:
        if found := self._ids("messages"):
            messages.tombstone(self.db, [found[chance % len(found)]])

    @rule(chance=st.integers(0, 1_000))
    def change_a_message(self, chance: int) -> None:
        if found := self._ids("messages", "is_deleted = 0"):
            self.db.execute("UPDATE messages SET content = 'changed' WHERE id = ?", (found[chance % len(found)],))

    @rule(chance=st.integers(0, 1_000))
    def remove_an_entry(self, chance: int) -> None:
        if found := self._ids("archival_entries"):
            archival.delete(self.db, found[chance % len(found)])

    @rule(chance=st.integers(0, 1_000), text=st.sampled_from(["red", "other"]))
    def change_a_block(self, chance: int, text: str) -> None:
        if found := self._ids("memory_blocks", "is_active = 1"):
            memory_blocks.update_content(self.db, found[chance % len(found)], text, None, stage.NOW)

    @rule(chance=st.integers(0, 1_000))
    def remove_a_block(self, chance: int) -> None:
        if found := self._ids("memory_blocks", "is_active = 1"):
            memory_blocks.deactivate(self.db, found[chance % len(found)], stage.NOW)

    @rule()
    def gather(self) -> None:
        self.batch = work.gather(self.db, self.index)

    @rule()
    @precondition(lambda self: self.batch is not None)
    def store(self) -> None:
        assert self.batch is not None
        work.store(self.db, self.batch, made(self.batch), stage.NOW)
        self.batch = None

    @rule()
    @precondition(lambda self: self.batch is not None)
    def store_but_for_what_is_refused(self) -> None:
        assert self.batch is not None
        refused = dict(list(self.batch.missing.items())[:1])
        vectors_made = {key: vector for key, vector in made(self.batch).items() if key not in refused}
        work.store(self.db, self.batch, vectors_made, stage.NOW, refused)
        self.batch = None

    @rule()
    def lose_the_batch(self) -> None:
        self.batch = None

    @rule()
    def switch(self) -> None:
        if len(indexes.live(self.db)) == 1:
            now = indexes.live(self.db)[0]
            self.index = work.start_switch(self.db, OTHER if now.fingerprint == "f" else INFO, stage.NOW)

    @rule()
    def give_up_the_switch(self) -> None:
        work.cancel_switch(self.db)
        self.index = indexes.live(self.db)[-1]

    @rule()
    def look_at_all_again(self) -> None:
        work.rebuild(self.db)

    @rule()
    def purge(self) -> None:
        from_the_start: tuple[str, str] | None = ("", "")
        for index in indexes.kept(self.db):
            while index.state is IndexState.RETIRED and from_the_start is not None:
                from_the_start = embeddings.purge(self.db, index, from_the_start, 3)

    @rule()
    def finish(self) -> None:
        finish(self.db, self.index)
        sql = "SELECT kind, ref, content_hash FROM embedding_refusals WHERE index_id = ?"
        refused = set(fetch_all(self.db, sql, (self.index.id,)))
        left_out = {(kind, ref, content_hash) for kind, ref, _, content_hash in stage.wanted(self.db)} & refused
        assert left_out == refused  # none is left of a text that is gone or another
        stored = stage.stored(self.db)
        assert stored == {one for one in stage.wanted(self.db) if (one[0], one[1], one[3]) not in refused}
        assert work.complete(self.db, self.index, stage.NOW)
        self.index = indexes.live(self.db)[-1]
        assert maintenance.check(self.db) == []

    @invariant()
    def no_vector_is_of_a_text_that_is_deleted(self) -> None:
        """Deleting takes the vectors of all models at once, without waiting for the queue."""
        left = fetch_all(
            self.db, "SELECT 1 FROM embeddings AS e JOIN messages AS m ON m.id = e.ref WHERE m.is_deleted = 1"
        )
        assert left == []

    def teardown(self) -> None:
        self.finish()
        self.db.close()

    def _ids(self, table: str, condition: str = "1") -> list[str]:
        return [row[0] for row in fetch_all(self.db, f"SELECT id FROM {table} WHERE {condition} ORDER BY id")]


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)


def message(text: str, speaker: str | None = None, previous: Said | None = None) -> EmbeddingSource:
    return EmbeddingSource(
        kind=SearchKind.MESSAGE, ref="msg_1", scope="agt_ada", text=text, speaker=speaker, previous=previous
    )


def texts_of(source: EmbeddingSource) -> list[str]:
    return [piece.text for piece in pieces_of(source)]


def test_a_message_is_embedded_with_what_was_said_before() -> None:
    assert texts_of(message("Yes, in May.")) == ["Yes, in May."]
    before = Said(text="Will you go to Lisbon?", speaker="Ruth")
    assert texts_of(message("Yes, in May.", "Bea", before)) == ["Ruth: Will you go to Lisbon?\nBea: Yes, in May."]
    assert texts_of(message("Yes.", None, Said(text=" ", speaker=None))) == ["Yes."]


def test_of_a_long_message_before_only_the_end_counts() -> None:
    (text,) = texts_of(message("Yes.", None, Said(text="word " * 500 + "the question?", speaker=None)))
    assert text.endswith("the question?\nYes.")
    assert len(text) <= PREVIOUS_CHARS + 10


def test_the_title_stands_with_every_piece() -> None:
    block = EmbeddingSource(kind=SearchKind.BLOCK, ref="b", scope="a", text="words. " * 500, title="notes")
    pieces = texts_of(block)
    assert len(pieces) > 2
    assert all(piece.startswith("notes\nwords.") for piece in pieces)


def test_blank_texts_have_nothing_to_embed() -> None:
    assert pieces_of(message(" \n\t")) == []


def test_a_piece_ends_where_a_reader_would_end_it() -> None:
    paragraph = "One sentence. " * 50
    assert split(f"{paragraph}\n\n{paragraph}") == [paragraph.strip(), paragraph.strip()]
    assert all(piece.endswith(".") for piece in split("A sentence of some words. " * 200))
    assert all(piece.endswith("word") for piece in split("word " * 1_000))
    assert [len(piece) for piece in split("x" * 2_000)] == [PIECE_CHARS, PIECE_CHARS, 200]
    assert len(split("x" * PIECE_CHARS * (PIECES_MAX + 5))) == PIECES_MAX


def test_equal_texts_have_equal_hashes_and_others_do_not() -> None:
    (one,), (other,), (odd,) = (pieces_of(message(text)) for text in ("a", "b", "\ud800"))
    assert pieces_of(message("a")) == [one]
    assert one.content_hash != other.content_hash
    assert len(odd.content_hash) == 32


@given(st.lists(st.sampled_from(["word", " ", ".", "\n", "\n\n", "日本。", "🙂"]), max_size=2_000).map("".join))
def test_nothing_is_lost_and_no_piece_is_too_long(text: str) -> None:
    pieces = split(text)
    assert "".join("".join(pieces).split()) == "".join(text.split())
    assert all(0 < len(piece) <= PIECE_CHARS for piece in pieces)
