from __future__ import annotations

import re
import struct
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pattern_core.embeddings.providers.deterministic import hashed_words
from pattern_core.errors import InvalidInput
from pattern_core.search import RELEVANT_MIN, GroupBy, Mode, SearchRequest, SearchResult, search
from pattern_core.search.find import blended, find, nameless, query_vector, rank_documents, without
from pattern_core.search.hits import CHARS_MAX, holds, reason, snippet, stems_of
from pattern_core.search.plan import ABSENT_MAX, Ranked
from pattern_core.search.request import QueryVector, check
from pattern_db.database import Database
from pattern_db.enums import Role, SearchKind
from pattern_db.search import Row
from pattern_db.tables.embedding_indexes import IndexRow
from tests.pattern_core.memory.rig import ADA, BOB
from tests.pattern_core.search.rig import Past, asked
from tests.pattern_core.texts import DIMENSION


@pytest.fixture
async def past() -> AsyncIterator[Past]:
    past = Past()
    async with Database.in_memory(past.db) as past.database:
        yield past


@dataclass
class Vectors:
    """Queries as vectors of hashed words, or a notice that there are none."""

    notice: str | None = None
    fingerprints: list[str] = field(default_factory=list)  # of the answers to come, then the one of `Texts.embed`
    dimensions: list[int] = field(default_factory=list)  # as well

    async def query_vector(self, text: str, _live: Sequence[IndexRow]) -> QueryVector:
        fingerprint = self.fingerprints.pop(0) if self.fingerprints else "f"
        dimension = self.dimensions.pop(0) if self.dimensions else DIMENSION
        vector = None if self.notice else hashed_words(text, dimension)
        return QueryVector(vector=vector, codes=text.encode(), notice=self.notice, fingerprint=fingerprint)


async def looked(past: Past, query: str, queries: Vectors | None = None, **fields: Any) -> SearchResult:
    return await search(past.database, SearchRequest(query=query, **fields), queries)


SUMMARY = "They spoke of green tea, at length."


async def test_summaries_are_found_beside_their_messages(past: Past) -> None:
    said = past.say("green tea")
    summary = past.summarise(1, SUMMARY)
    result = await looked(past, "green tea", mode=Mode.WORDS)
    assert {hit.kind for hit in result.hits} == {SearchKind.MESSAGE, SearchKind.SUMMARY}
    past.embed(SearchKind.MESSAGE, said, "green tea")
    both = await looked(past, "green tea", Vectors())
    assert [hit.kind for hit in both.hits] == [SearchKind.MESSAGE, SearchKind.SUMMARY]
    meant = await looked(past, "green tea", Vectors(), mode=Mode.MEANING)
    assert [hit.kind for hit in meant.hits] == [SearchKind.MESSAGE]
    past.embed(SearchKind.SUMMARY, summary, "drinks talked over")
    # No word of the question stands in the summary or the message.
    meant = await looked(past, "which drinks?", Vectors(), mode=Mode.MEANING)
    assert [hit.kind for hit in meant.hits] == [SearchKind.SUMMARY, SearchKind.MESSAGE]
    assert meant.hits[1].id == said


async def test_the_summaries_of_others_are_not_found(past: Past) -> None:
    past.say("green tea")
    summary = past.summarise(1, SUMMARY, agent=BOB)
    past.embed(SearchKind.SUMMARY, summary, "drinks talked over", scope=BOB)
    for agent, found in ((ADA, []), (BOB, [summary])):
        result = await looked(
            past, "which drinks?", Vectors(), mode=Mode.MEANING, kinds=[SearchKind.SUMMARY], agents=[agent]
        )
        assert [hit.id for hit in result.hits] == found


async def test_hits_say_why_and_the_best_has_one(past: Past) -> None:
    past.say("green tea and green apples")
    past.say("some tea")
    past.say("nothing of the kind", session="other")
    result = await looked(past, "green tea", mode=Mode.WORDS)
    assert [hit.content for hit in result.hits] == ["green tea and green apples", "some tea"]
    assert result.hits[0].score == 1.0
    assert result.hits[0].parts["words"] == 1.0
    assert "its words fit (+1.00)" in result.hits[0].reason
    assert result.notice is None


async def test_a_tools_result_comes_after_what_it_repeats(past: Past) -> None:
    past.say("tea", role=Role.TOOL)
    said = past.say("tea")
    assert [hit.id for hit in (await looked(past, "tea")).hits] == [said]
    result = await looked(past, "tea", roles=list(Role))
    assert result.hits[0].id == said
    assert result.hits[1].score < 0.9
    assert "a tool's result (×0.7)" in result.hits[1].reason


async def test_meaning_finds_what_words_do_not(past: Past) -> None:
    other = past.say("the sea")
    meant = past.say("about sailing")
    past.embed(SearchKind.MESSAGE, other, "mountain")
    past.embed(SearchKind.MESSAGE, meant, "boats")
    for mode in (Mode.HYBRID, Mode.MEANING):
        result = await looked(past, "boats", Vectors(), mode=mode)
        assert result.hits[0].id == meant
        assert result.hits[0].parts["meaning"] > 0
        assert result.notice is None
    assert (await looked(past, "boats", Vectors(), mode=Mode.WORDS)).hits == []


async def test_a_switch_between_embedding_and_searching_is_noticed(past: Past) -> None:
    said = past.say("boats")
    past.embed(SearchKind.MESSAGE, said, "boats")
    queries = Vectors(fingerprints=["of the model before", "f"])
    (hit,) = (await looked(past, "boats", queries, mode=Mode.MEANING)).hits
    assert "meaning" in hit.parts
    assert queries.fingerprints == []
    result = await looked(past, "boats", Vectors(fingerprints=["of another model"] * 9), mode=Mode.MEANING)
    assert [hit.id for hit in result.hits] == [said]
    assert "meaning" not in result.hits[0].parts
    assert "takes over" in str(result.notice)


async def test_sessions_are_ranked_by_their_best_messages(past: Past) -> None:
    for session, text in [
        ("a", "tea and cake"), ("a", "more tea"), ("b", "tea"), ("c", "weather"), (None, "cake with tea")
    ]:  # fmt: skip
        past.say(text, session=session)
    hits = (await looked(past, "tea cake", group_by=GroupBy.SESSION)).hits
    assert [(hit.session_id, hit.id, hit.count) for hit in hits] == [("a", "1", 2), (None, "5", 1), ("b", "3", 1)]


async def test_what_holds_the_words_comes_before_the_best_of_a_kind_that_does_not(past: Past) -> None:
    past.note("notes", "green tea from the hills of Assam")
    past.say("some tea perhaps")
    hits = (await looked(past, "green tea Assam")).hits
    assert [hit.kind for hit in hits] == [SearchKind.BLOCK, SearchKind.MESSAGE]
    assert hits[1].score < 0.6


async def test_what_holds_none_of_the_words_still_counts_a_tenth_for_them(past: Past) -> None:
    past.note("notes", "boats")
    said = past.say("about sailing")
    past.embed(SearchKind.MESSAGE, said, "boats")
    hits = (await looked(past, "boats", Vectors())).hits
    assert [hit.kind for hit in hits] == [SearchKind.MESSAGE, SearchKind.BLOCK]
    assert hits[1].score == pytest.approx((1 + 0) / (0.1 + 1))


async def test_phrases_and_what_is_left_out_hold_for_every_kind(past: Past) -> None:
    past.say("hot green tea")
    past.say("green hot tea")
    past.note("notes", "green hot tea with milk")
    past.note("other", "hot green tea with milk")

    async def found(query: str) -> set[str]:
        return {hit.content for hit in (await looked(past, query)).hits}

    assert await found('"green tea"') == {"hot green tea", "hot green tea with milk"}
    assert await found("tea -milk") == {"hot green tea", "green hot tea"}
    assert await found('tea -"green tea"') == {"green hot tea", "green hot tea with milk"}


async def test_filters(past: Past) -> None:
    past.say("tea of ada")
    late = past.say("tea of bob", agent_id=BOB, role=Role.ASSISTANT)
    past.note("notes", "tea block")

    async def found(**fields: Any) -> set[str]:
        return {hit.content for hit in (await looked(past, "tea", **fields)).hits}

    assert await found() == {"tea of ada", "tea of bob", "tea block"}
    assert await found(agents=[ADA]) == {"tea of ada", "tea block"}
    assert await found(roles=[Role.ASSISTANT], kinds=[SearchKind.MESSAGE]) == {"tea of bob"}
    assert await found(before=f"{int(late):019}") == {"tea of ada", "tea block"}
    assert len(await found(limit=1)) == 1
    assert await found(since="2030-01-01T00:00:00+01:00") == set()


@pytest.mark.parametrize("mode", [Mode.HYBRID, Mode.MEANING])
async def test_without_a_model_the_words_are_left_and_a_notice(past: Past, mode: Mode) -> None:
    said = past.say("tea")
    absent = f"searched by words only, not by {mode.value}: no embedder is configured"
    for queries, notice in ((Vectors("still loading"), "still loading"), (None, absent)):
        result = await looked(past, "tea", queries, mode=mode)
        assert ([hit.id for hit in result.hits], result.notice) == ([said], notice)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (SearchRequest(query="  "), "the query is empty"),
        (SearchRequest(query="x" * 16_001), "at most 16000"),
        (SearchRequest(query="x", limit=0), "between 1 and 500"),
        (SearchRequest(query="x", limit=501), "between 1 and 500"),
        (SearchRequest(query="x", kinds=[]), "name at least one kind: message, block"),
        (SearchRequest(query="x", kinds=[SearchKind.BLOCK], group_by=GroupBy.SESSION), "add the kind message"),
        (SearchRequest(query="x", tags=["t"] * 201), "at most 200 tags"),
        (SearchRequest(query="x", since="2026-01-01T00:00:00"), "`since` is not a valid time: .* has no offset"),
        (SearchRequest(query="x", until="soon"), "`until` is not a valid time"),
    ],
)
async def test_what_cannot_be_asked(past: Past, request_: SearchRequest, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        await search(past.database, request_)


async def test_a_quick_search_asks_for_a_vector_only_where_texts_have_some(past: Past) -> None:
    said = past.say("green tea")
    queries = Vectors(fingerprints=["f"])
    result = await looked(past, "green tea", queries, is_quick=True)
    assert ([hit.id for hit in result.hits], result.notice) == (
        [said],
        "searched by words alone: no text is embedded yet",
    )
    assert queries.fingerprints == ["f"], "no model was asked"
    past.embed(SearchKind.MESSAGE, said, "green tea")
    result = await looked(past, "green tea", queries, is_quick=True)
    assert ([hit.id for hit in result.hits], result.notice, queries.fingerprints) == ([said], None, [])
    assert "meaning" in result.hits[0].parts


async def test_who_is_asked_about_does_not_outweigh_what_is_asked(past: Past) -> None:
    about = past.say("hello", name="Ruth", session="other")
    meant = past.say("harbour", name="Ruth")
    past.embed(SearchKind.MESSAGE, about, "Ruth Ruth Ruth Ruth of")
    past.embed(SearchKind.MESSAGE, meant, "boats Tim Amy")
    for query in ("Ruth boats", "Who is Ruth?"):
        request = SearchRequest(query=query, mode=Mode.MEANING)
        whole = await query_vector(past.database, request, Vectors(), [])
        is_blended = whole.vector != hashed_words(query, DIMENSION)
        assert whole.codes == (b"boats" if is_blended else query.encode()), "of the words that are no names"
        assert is_blended == (query == "Ruth boats")
        documents = SearchRequest(query=query, kinds=[SearchKind.ARCHIVAL])
        alone = (await query_vector(past.database, documents, Vectors(), [])).vector
        assert alone == hashed_words(query, DIMENSION)
    result = await looked(past, "Ruth boats", Vectors(), mode=Mode.MEANING)
    assert result.hits[0].id == meant


@pytest.mark.parametrize(
    ("query", "left"),
    [
        ("What does Ada cook?", "What does cook?"),
        ("what are ada’s and Bob's plans", "what are and plans"),
        ("Adam's apple", None),
        ("it's Monday, isn't it", None),
        ("", None),
    ],
)
def test_names_and_their_possessives_are_left_out_as_whole_words(query: str, left: str | None) -> None:
    assert without(query, {"ada", "bob"}) == left


def test_names_are_those_of_who_speaks() -> None:
    said = Past()
    assert nameless(said.db, "What does Ruth cook?") is None
    said.say("I made soup", name="Ruth Miller")
    said.say("Tim: and I ate it")
    assert nameless(said.db, "What does Ruth cook?") == "What does cook?"
    assert nameless(said.db, "Does Tim like what Ruth Miller cooks?") == "Does like what cooks?"
    assert nameless(said.db, "who is Ruth?") is None, "nothing is left that would tell anything"
    assert nameless(said.db, "What does Zoe cook?") is None


def test_a_blend_stands_between_two_vectors() -> None:
    east, north = struct.pack("<2f", 1, 0), struct.pack("<2f", 0, 1)
    assert struct.unpack("<2f", blended(east, north)) == pytest.approx((0.5**0.5, 0.5**0.5))
    assert struct.unpack("<2f", blended(east, struct.pack("<2f", -1, 0))) == (0.0, 0.0)


ENTRY = SearchKind.ARCHIVAL


def ranking_entries(rig: Past, query: str, meant: str | None = None) -> list[str]:
    found, _ = rank_documents(rig.db, rig.plan(query, meant, kinds=[ENTRY]), ENTRY)
    return [one.row.id for one in found]


def test_words_and_meaning_count_half_each() -> None:
    rig = Past()
    rig.entry("both", "lift of a wing")
    rig.entry("words", "lift of a wing")
    rig.entry("meaning", "aerofoil")
    rig.entry("neither", "cooking")
    for ref, text in (("both", "wing lift"), ("words", "x"), ("meaning", "wing lift"), ("neither", "y z")):
        rig.embed(ENTRY, ref, text)
    found = ranking_entries(rig, "wing lift", "wing lift")
    assert found[0] == "both"
    assert set(found[1:3]) == {"words", "meaning"}
    assert sorted(ranking_entries(rig, "wing lift")) == ["both", "words"]


def test_the_chunks_of_an_entry_are_one_hit() -> None:
    rig = Past()
    rig.entry("long", "the first part, on cooking")
    rig.entry("long.1", "the second part, on wings and wings", parent="long")
    rig.entry("other", "wings")
    assert sorted(ranking_entries(rig, "wings")) == ["long", "other"]


def test_terms_that_the_index_does_not_know_count_too() -> None:
    rig = Past()
    rig.entry("plus", "a book on C++")
    rig.entry("letter", "a book on C")
    rig.entry("cat", "关于猫的书")
    assert ranking_entries(rig, "book C++")[0] == "plus"
    assert ranking_entries(rig, "C++") == ["plus"]
    assert ranking_entries(rig, "猫") == ["cat"]


def test_times_are_read_and_tools_left_out() -> None:
    request = SearchRequest(query="x", kinds=[SearchKind.FILE], since="2026-01-01T01:00:00+01:00", tags=["t"])
    found = check(request)
    assert (found.since, found.until, found.tags) == ("2026-01-01T00:00:00.000Z", None, ["t"])
    assert found.roles == (Role.USER, Role.ASSISTANT, Role.SYSTEM)
    assert check(SearchRequest(query="x" * 10_000, roles=[Role.TOOL])).roles == [Role.TOOL]


def test_the_place_with_the_most_different_words_is_shown() -> None:
    text = "needle " + "filler " * 300 + "a needle in the haystack is here " + "filler " * 300
    shown = snippet(text, stems_of(("needles", "haystack")))
    assert "needle in the haystack" in shown
    assert shown.startswith("…filler ")
    assert shown.endswith(" filler…")
    shown = snippet("filler " * 300 + "the needle is here", stems_of(("needles",)))
    assert shown.endswith("the needle is here")


def test_a_text_without_the_words_shows_its_beginning() -> None:
    assert snippet("start " + "filler " * 300, stems_of(("needle",))).startswith("start filler")


@given(st.text(st.characters(exclude_characters="…"), max_size=600), st.lists(st.text(max_size=6), max_size=3))
def test_it_is_short_and_of_the_text(text: str, words: list[str]) -> None:
    shown = snippet(text, stems_of(tuple(words)))
    assert len(shown) <= CHARS_MAX + 2
    assert shown.strip("…") in " ".join(text.split())


def test_forms_of_a_word_are_found_where_it_begins() -> None:
    assert holds("We went WALKING there", stems_of(("Walks",)))
    assert not holds("the biking tour", stems_of(("king",)))
    assert holds("昨日は東京タワーへ", stems_of(("タワー",))), "there are no blanks between words"
    assert not holds("anything", ())
    text = "filler " * 100 + "İstanbul: the bazaar " + "filler " * 100
    assert "bazaar" in snippet(text, stems_of(("bazaar",))), "a letter that is two in lower case moves nothing"


ROW = Row(kind=SearchKind.BLOCK, row=1, ref="b", id="b", agent_id="a", content="", created_at="")


def test_the_reason_names_what_counts() -> None:
    assert reason(Ranked(row=ROW, parts={"words": 0.5, "question": -0.17, "alike": 0.001})) == (
        "its words fit (+0.50), it asks (-0.17)"
    )


async def test_the_best_score_says_whether_anything_has_to_do_with_the_query(past: Past) -> None:
    for number in range(24):
        past.embed(SearchKind.MESSAGE, past.say(f"harbour {number}"), f"harbour boats {number}")
    past.embed(SearchKind.MESSAGE, past.say("the greenhouse keys"), "greenhouse keys hang")

    async def best(query: str, **fields: Any) -> float:
        result = await looked(past, query, Vectors(), **fields)
        scores = [hit.score for hit in result.hits]
        assert scores == sorted(scores, reverse=True)
        is_doubtful = bool(scores) and scores[0] < RELEVANT_MIN
        assert is_doubtful == ("has much to do with the query" in str(result.notice))
        return scores[0] if scores else 0.0

    assert await best("greenhouse keys") > 0.8
    assert await best("mathematics homework") < 0.3
    assert await best("greenhouse keys", mode=Mode.WORDS) == pytest.approx(1.0)
    assert 0.3 < await best("greenhouse mathematics", mode=Mode.WORDS) < 0.7
    assert await best("mathematics homework", mode=Mode.WORDS) == 0.0


@pytest.mark.parametrize(
    ("query", "notice"),
    [
        ("?!", "the query has no words to look for"),
        (" ".join(f"word{number}" for number in range(64)), None),
        (" ".join(f"word{number}" for number in range(65)), "has 65 different words; the 64 rarest were looked for"),
        ("的" + "".join(chr(0x4E00 + number) for number in range(300)), "300 .* the 64 rarest of the first 256 were"),
    ],
)
async def test_what_is_left_out_of_a_query_is_said(past: Past, query: str, notice: str | None) -> None:
    past.say(query)
    found = (await looked(past, query, mode=Mode.WORDS)).notice
    assert found is None if notice is None else re.search(notice, str(found))


async def test_of_a_long_query_the_rarest_words_count(past: Past) -> None:
    meant = past.say("the harbour")
    for number in range(70):
        past.say(" ".join(f"word{word}" for word in range(number, 70)), session=f"s{number}")
    absent = [f"absent{number}" for number in range(70)]
    result = await looked(past, " ".join([*absent, *(f"word{number}" for number in range(70)), "harbour"]), limit=100)
    assert meant in {hit.id for hit in result.hits}


async def test_words_alone_find_what_both_find_without_a_model(past: Past) -> None:
    past.say("what shall we cook on Sunday")
    past.say("lentils")
    past.say("the weather", session="other")
    by_words = await looked(past, "cook Sunday", mode=Mode.WORDS)
    assert [hit.content for hit in by_words.hits] == ["what shall we cook on Sunday", "lentils"]
    assert by_words.hits == (await looked(past, "cook Sunday")).hits


async def test_vectors_of_one_model_and_several_lengths_are_never_compared(past: Past) -> None:
    said = past.say("green tea", name="Ruth")
    past.embed(SearchKind.MESSAGE, said, "green tea")
    queries = Vectors(dimensions=[2 * DIMENSION])
    result = await looked(past, "green tea", queries, mode=Mode.MEANING)
    assert ([hit.id for hit in result.hits], queries.dimensions) == ([said], [])


def typed() -> Past:
    """Return what the queries below look for, each in a session of its own."""
    rig = Past()
    for text in (
        "the new restaurant at the harbour",
        "we recommend a receipt for everything",
        "call getUserName before parse_config_file",
        "the Müller family lives in Königstraße",
        "meine Krankenversicherung kostet zu viel",
        "я читал интересную книгу о собаках",
        "في المكتبة كتاب جديد",
        "the party was great 🎉",
        "finance report of the Zürich office",
        "the weather is nice",
    ):
        rig.say(text, session=text)
    return rig


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("restuarant", "the new restaurant"),
        ("retsaurant", "the new restaurant"),
        ("harbur", "the new restaurant"),
        ("reccomend", "we recommend"),
        ("username", "call getUserName"),
        ("parseConfigFile", "call getUserName"),
        ("get_user_name", None),  # three words, each of which may stand anywhere
        ("config", "call getUserName"),
        ("Mueller", "the Müller family"),
        ("müller", "the Müller family"),
        ("Koenigstrasse", "the Müller family"),
        ("Versicherung", "meine Krankenversicherung"),
        ("Krankenversicherungen", "meine Krankenversicherung"),
        ("Krankenversicherungsbeitrag", "meine Krankenversicherung"),
        ("книги", "я читал"),
        ("собака", "я читал"),
        ("مكتبة", "في المكتبة"),
        ("كتابهم", "في المكتبة"),
        ("🎉", "the party"),
        ("ｆｉｎａｎｃｅ", "finance report"),
        ("ﬁnance", "finance report"),
        ("zurich", "finance report"),
        ("qwertzuiop", None),
        ("tea", None),
    ],
)
def test_what_is_typed_another_way_than_it_stands_in_the_text(query: str, found: str | None) -> None:
    result = find(typed().db, asked(query, mode=Mode.WORDS), None)
    assert [hit.content.startswith(str(found)) for hit in result.hits] == ([] if found is None else [True])
    assert all(hit.score > RELEVANT_MIN for hit in result.hits)


def test_words_that_were_looked_for_instead_are_said() -> None:
    rig = typed()
    notice = find(rig.db, asked("restuarant harbour"), None).notice
    assert notice == 'no text holds "restuarant", so words like it were looked for: restaur'
    assert find(rig.db, asked('"restuarant"'), None).hits == [], "what is in quotes must occur"
    assert find(rig.db, asked("restuarant", is_quick=True), None).hits == []
    absent = " ".join(f"qwertz{number}" for number in range(ABSENT_MAX))
    assert find(rig.db, asked(f"{absent} restuarant"), None).hits == [], "each costs a look through all words"


async def test_a_short_message_has_the_question_that_it_answers(past: Past) -> None:
    past.say("Congratulations! What is the puppy called?", role=Role.ASSISTANT)
    past.say("Mabel, after my grandmother.")
    past.say("My grandmother was a cook, and every Sunday the house was full of the smell of cakes.")
    hits = (await looked(past, "puppy called grandmother")).hits
    assert {hit.content[:5]: hit.answers for hit in hits} == {
        "Mabel": "What is the puppy called?",
        "Congr": None,
        "My gr": None,
    }
    hits = (await looked(past, "puppy called grandmother", roles=[Role.USER])).hits
    assert {hit.answers for hit in hits} == {None}, "the question is not among what may be found"
