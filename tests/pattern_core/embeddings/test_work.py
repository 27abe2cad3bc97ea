from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pattern_core.embeddings import work
from pattern_core.embeddings.embedder import EmbedderInfo
from pattern_core.embeddings.providers.deterministic import hashed_words
from pattern_core.embeddings.settings import CODED
from pattern_core.embeddings.work import (
    PIECE_CHARS,
    PIECES_MAX,
    PREVIOUS_CHARS,
    pieces_of,
    split,
)
from pattern_core.errors import Conflict
from pattern_db import maintenance, vectors
from pattern_db.connection import Connection, fetch_all
from pattern_db.enums import CONSTELLATION_OWNER, IndexState, Role, SearchKind
from pattern_db.tables import agents, archival, embeddings, memory_blocks, messages, tasks
from pattern_db.tables import embedding_indexes as indexes
from pattern_db.tables import embedding_sources as sources
from pattern_db.tables.embedding_indexes import IndexRow
from pattern_db.tables.embedding_sources import EmbeddingSource, Said
from pattern_db.tables.tasks import TaskRow
from tests.pattern_core.embeddings.stage import NOW, World

INFO = EmbedderInfo(provider="test", model="m", dimension=64, fingerprint="f")
OTHER = EmbedderInfo(provider="test", model="longer", dimension=72, fingerprint="g")
THIRD = EmbedderInfo(provider="test", model="third", dimension=64, fingerprint="h")


@pytest.fixture
def world() -> World:
    return World()


def made(batch: work.Batch) -> dict[str, bytes]:
    return {key: hashed_words(text, batch.index.dimension) for key, text in batch.missing.items()}


def counted(db: Connection, index: IndexRow) -> tuple[int, int, int]:
    """How many texts are done, of how many, and how many of them were refused."""
    coverage = indexes.coverage(db, index)
    return coverage.done, coverage.total, coverage.refused


def begun(world: World) -> IndexRow:
    return indexes.begin(world.db, INFO, IndexState.ACTIVE, NOW)


def gathered(world: World, index: IndexRow) -> work.Batch:
    batch = work.gather(world.db, index)
    assert batch is not None
    return batch


def finish(db: Connection, index: IndexRow) -> int:
    """Work off all that is to be done; return how many texts had to be embedded."""
    count = 0
    while (batch := work.gather(db, index)) is not None:
        count += len(batch.missing)
        assert work.store(db, batch, made(batch), NOW)
    return count


def test_a_batch_is_bounded_by_rows_and_by_pieces(world: World) -> None:
    world.keep_many(50)
    index = begun(world)
    batch = gathered(world, index)
    assert len(batch.refs) == work.BATCH_ROWS
    for number in range(50, 55):
        world.keep(number, " ".join(f"entry {number} part {part}" for part in range(4_000)))
    batch = gathered(world, index)
    assert len(batch.refs) == 1
    assert finish(world.db, index) > 100
    assert world.stored() == world.wanted()


def test_a_row_number_that_is_given_again_meanwhile_is_not_overlooked(world: World) -> None:
    index = begun(world)
    world.keep(1, "first")
    batch = gathered(world, index)
    archival.delete(world.db, "arc_1")
    world.keep(2, "takes its row")
    work.store(world.db, batch, made(batch), NOW)
    finish(world.db, index)
    assert world.stored() == world.wanted() != set()


def test_nothing_is_stored_for_an_index_that_was_given_up(world: World) -> None:
    world.keep(1, "words")
    begun(world)
    index = work.start_switch(world.db, OTHER, NOW)
    batch = gathered(world, index)
    work.cancel_switch(world.db)
    assert not work.store(world.db, batch, made(batch), NOW)
    assert fetch_all(world.db, "SELECT count(*) FROM embeddings") == [(0,)]


def test_coverage_counts_rows(world: World) -> None:
    for number in range(40):
        world.say(number, f"message {number}", Role.TOOL if number % 2 else Role.USER)
    index = begun(world)
    assert counted(world.db, index) == (0, 40, 0)
    batch = gathered(world, index)
    work.store(world.db, batch, made(batch), NOW)
    assert counted(world.db, index) == (32, 40, 0)
    finish(world.db, index)
    assert counted(world.db, index) == (40, 40, 0)
    assert not indexes.coverage(world.db, index).left
    messages.tombstone(world.db, ["msg_0"])
    assert indexes.coverage(world.db, index).left


def test_vectors_follow_their_text_to_another_owner(world: World) -> None:
    world.note("shared", "words")
    index = begun(world)
    finish(world.db, index)
    world.db.execute("UPDATE memory_blocks SET agent_id = 'agt_eve'")
    assert finish(world.db, index) == 0
    near = vectors.nearest(world.db, SearchKind.BLOCK, hashed_words("words", 64), ["agt_eve"], 1)
    assert [neighbour.ref for neighbour in near] == ["blk_shared"]


def test_tasks_are_embedded_for_their_agent_and_again_when_they_change(world: World) -> None:
    tasks.create(world.db, [TaskRow("task_1", "pay the rent", NOW, NOW, agent_id="agt_ada")])
    index = begun(world)
    tasks.create(world.db, [TaskRow("task_2", "water the flowers", NOW, NOW)])
    assert finish(world.db, index) == 2

    def near(words: str, owner: str) -> list[str]:
        found = vectors.nearest(world.db, SearchKind.TASK, hashed_words(words, 64), [owner], 1)
        return [neighbour.ref for neighbour in found]

    assert (near("rent", "agt_ada"), near("flowers", CONSTELLATION_OWNER)) == (["task_1"], ["task_2"])
    tasks.update(world.db, "task_1", {"notes": "by bank"})
    tasks.update(world.db, "task_1", {"actual_minutes": 5})
    assert finish(world.db, index) == 1
    tasks.update(world.db, "task_1", {"parent_task_id": "task_2"})
    tasks.delete(world.db, "task_2")
    assert world.stored() == set(), "of those below it, too"


def test_summaries_are_embedded_and_stubs_are_not(world: World) -> None:
    world.summarise(1, "before there was a model")
    world.summarise(2, "3 messages were archived", is_stub=True)
    index = begun(world)
    world.summarise(3, "while there is one")
    assert counted(world.db, index) == (0, 3, 0)
    assert finish(world.db, index) == 2
    assert counted(world.db, index) == (3, 3, 0)
    assert {ref for _kind, ref, *_ in world.stored()} == {"sum_1", "sum_3"}
    near = vectors.nearest(world.db, SearchKind.SUMMARY, hashed_words("before a model", 64), ["agt_ada"], 1)
    assert [neighbour.ref for neighbour in near] == ["sum_1"]
    world.db.execute("UPDATE archive_summaries SET summary = 'another' WHERE id = 'sum_1'")
    assert finish(world.db, index) == 1


def test_of_a_message_its_own_words_codes_are_stored_and_of_other_texts_none(world: World) -> None:
    world.say(1, "Who likes green figs?")
    world.say(2, "Only Ruth does, really.")
    world.note("figs", "green figs")
    index = begun(world)

    def coded(text: str) -> bytes:
        words = CODED["passage"].findall(text)
        return hashed_words(text, 64) + b"".join(word[:4].encode().ljust(8) for word in words)

    while (batch := work.gather(world.db, index)) is not None:
        vectors_with_codes = {key: coded(text) for key, text in batch.missing.items()}
        assert work.store(world.db, batch, vectors_with_codes, NOW)
    found = fetch_all(world.db, "SELECT kind, codes FROM embeddings ORDER BY kind, id")
    codes = {kind: [row[1] for row in found if row[0] == kind] for kind in ("block", "message")}
    assert codes["block"] == [None]
    assert sorted(codes["message"]) == [b"Only    Ruth    does    real    ", b"like    gree    figs    "]
    (source,) = [
        sources.get(world.db, SearchKind.MESSAGE, ref) for kind, ref, *_ in world.stored() if ref.endswith("2")
    ]
    assert source is not None
    (piece,) = pieces_of(source)
    kept = embeddings.by_hash(world.db, index, [piece.content_hash])[piece.content_hash]
    assert kept[256:] == b"Only    Ruth    does    real    ", "what is taken over has its codes"


def test_what_one_model_refuses_keeps_the_vector_of_the_other(world: World) -> None:
    world.keep(1, "poison")
    finish(world.db, begun(world))
    index = work.start_switch(world.db, OTHER, NOW)
    batch = gathered(world, index)
    assert work.store(world.db, batch, {}, NOW, dict.fromkeys(batch.missing, "no"))
    assert finish(world.db, index) == 0
    assert counted(world.db, index) == (1, 1, 1)
    near = vectors.nearest(world.db, SearchKind.ARCHIVAL, hashed_words("poison", 64), None, 1)
    assert [neighbour.ref for neighbour in near] == ["arc_1"]
    world.db.execute("UPDATE archival_entries SET content = 'bread'")
    assert finish(world.db, index) == 1
    assert counted(world.db, index) == (1, 1, 0)
    assert vectors.nearest(world.db, SearchKind.ARCHIVAL, hashed_words("poison", 64), None, 1) == []


ADDED: dict[str, Callable[[World, int, str], object]] = {
    "message": World.say,
    "result": lambda world, number, text: world.say(number, text, Role.TOOL),
    "entry": World.keep,
    "block": lambda world, number, text: world.note(f"note{number}", text),
    "summary": World.summarise,
    "stub": lambda world, number, text: world.summarise(number, text, is_stub=True),
}
# Rows of a table, and what happens to one of them.
CHANGES: dict[str, tuple[str, Callable[[Connection, str], object]]] = {
    "remove a message": ("messages", lambda db, ref: messages.tombstone(db, [ref])),
    "change a message": (
        "messages WHERE is_deleted = 0",
        lambda db, ref: db.execute("UPDATE messages SET content = 'changed' WHERE id = ?", (ref,)),
    ),
    "remove an entry": ("archival_entries", archival.delete),
    "remove a summary": (
        "archive_summaries",
        lambda db, ref: db.execute("DELETE FROM archive_summaries WHERE id = ?", (ref,)),
    ),
    "remove a block": (
        "memory_blocks WHERE is_active = 1",
        lambda db, ref: memory_blocks.deactivate(db, ref, NOW),
    ),
    "change a block": (
        "memory_blocks WHERE is_active = 1",
        lambda db, ref: memory_blocks.update_content(db, ref, "other", None, NOW),
    ),
}


class Lives(RuleBasedStateMachine):
    """Texts come, change and go while batches are gathered, stored or lost, and models are switched."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.db = self.world.db
        self.number = 0
        self.batch: work.Batch | None = None
        self.index = indexes.begin(self.db, INFO, IndexState.ACTIVE, NOW)
        for text in ("red", "green", "blue"):
            self.add(text, "message")
        self.finish()

    @rule(text=st.sampled_from(["red", "green", "blue " * 300, " "]), kind=st.sampled_from(sorted(ADDED)))
    def add(self, text: str, kind: str) -> None:
        self.number += 1
        ADDED[kind](self.world, self.number, text)

    @rule(chance=st.integers(0, 1_000), change=st.sampled_from(sorted(CHANGES)))
    def change(self, chance: int, change: str) -> None:
        rows, act = CHANGES[change]
        if found := fetch_all(self.db, f"SELECT id FROM {rows} ORDER BY id"):
            act(self.db, found[chance % len(found)][0])

    @rule()
    def gather(self) -> None:
        self.batch = work.gather(self.db, self.index)

    @rule(refused_count=st.integers(0, 1))
    @precondition(lambda self: self.batch is not None)
    def store(self, refused_count: int) -> None:
        assert self.batch is not None
        refused = dict(list(self.batch.missing.items())[:refused_count])
        vectors_made = {key: vector for key, vector in made(self.batch).items() if key not in refused}
        work.store(self.db, self.batch, vectors_made, NOW, refused)
        self.batch = None

    @rule()
    def lose_the_batch(self) -> None:
        self.batch = None

    @rule()
    def switch(self) -> None:
        if len(indexes.live(self.db)) == 1:
            now = indexes.live(self.db)[0]
            self.index = work.start_switch(self.db, OTHER if now.fingerprint == "f" else INFO, NOW)

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
        left_out = {(kind, ref, content_hash) for kind, ref, _, content_hash in self.world.wanted()} & refused
        assert left_out == refused  # none is left of a text that is gone or another
        stored = self.world.stored()
        assert stored == {one for one in self.world.wanted() if (one[0], one[1], one[3]) not in refused}
        assert work.complete(self.db, self.index, NOW)
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
        agents.delete(self.db, "agt_ada")
        assert self.world.stored() == set()
        self.db.close()


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
    assert texts_of(message(" \n\t")) == []
    before = Said(text="Will you go to Lisbon?", speaker="Ruth")
    assert texts_of(message("Yes, in May.", "Bea", before)) == ["Ruth: Will you go to Lisbon?\nBea: Yes, in May."]
    assert texts_of(message("Yes.", None, Said(text=" ", speaker=None))) == ["Yes."]
    pieces = pieces_of(message("Yes, in May. " * 500, "Bea", before))
    assert [piece.before for piece in pieces] == [3, *[0] * (len(pieces) - 1)] and len(pieces) > 2


def test_of_a_long_message_before_only_the_end_counts() -> None:
    (text,) = texts_of(message("Yes.", None, Said(text="word " * 500 + "the question?", speaker=None)))
    assert text.endswith("the question?\nYes.")
    assert len(text) <= PREVIOUS_CHARS + 10


def test_the_title_stands_with_every_piece() -> None:
    block = EmbeddingSource(kind=SearchKind.BLOCK, ref="b", scope="a", text="words. " * 500, title="notes")
    pieces = texts_of(block)
    assert len(pieces) > 2
    assert all(piece.startswith("notes\nwords.") for piece in pieces)


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


def states(world: World) -> dict[str, IndexState]:
    return {index.model: index.state for index in indexes.kept(world.db)}


def test_there_must_be_something_to_switch_from(world: World) -> None:
    with pytest.raises(Conflict, match="starts automatically"):
        work.start_switch(world.db, INFO, NOW)
    assert not work.rebuild(world.db)
    begun(world)
    assert states(world) == {"m": IndexState.ACTIVE}
    with pytest.raises(Conflict, match="already"):
        work.start_switch(world.db, INFO, NOW)
    assert not work.cancel_switch(world.db)
    assert work.rebuild(world.db)


def test_an_equal_fingerprint_of_another_length_is_another_model(world: World) -> None:
    index = begun(world)
    assert index.matches(INFO)
    assert not index.matches(replace(INFO, dimension=128))
    assert work.start_switch(world.db, replace(INFO, dimension=128), NOW).dimension == 128


def test_it_takes_over_only_when_every_text_is_done(world: World) -> None:
    first = begun(world)
    world.keep(1, "words")
    building = work.start_switch(world.db, OTHER, NOW)
    assert work.start_switch(world.db, OTHER, NOW) == building
    assert not work.complete(world.db, building, NOW)
    assert states(world) == {"m": IndexState.ACTIVE, "longer": IndexState.BUILDING}
    world.keep(2, "more words")
    world.db.execute("DELETE FROM archival_entries")
    for kind, cursor in indexes.cursors(world.db, building.id).items():
        indexes.advance(world.db, building.id, move=(cursor, replace(cursor, low=0, kind=kind)))
    assert not work.complete(world.db, building, NOW)  # the removal of a text was noted, and is not worked off
    world.db.execute("DELETE FROM embedding_changes")
    assert work.complete(world.db, building, NOW)
    assert states(world) == {"m": IndexState.RETIRED, "longer": IndexState.ACTIVE}
    assert not work.complete(world.db, first, NOW)


def test_a_third_model_replaces_the_second(world: World) -> None:
    begun(world)
    work.start_switch(world.db, OTHER, NOW)
    work.start_switch(world.db, THIRD, NOW)
    assert states(world) == {
        "m": IndexState.ACTIVE,
        "third": IndexState.BUILDING,
        "longer": IndexState.RETIRED,
    }
    assert work.cancel_switch(world.db)
    assert states(world)["third"] is IndexState.RETIRED
