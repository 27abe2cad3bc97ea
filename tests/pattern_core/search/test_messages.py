from __future__ import annotations

from dataclasses import replace

import pytest

from pattern_core.search import plan as planning
from pattern_core.search.messages import (
    BESIDE_ALIKE,
    WEIGHTS,
    NamedDate,
    by_session,
    named_dates,
    nearness,
    question_in,
    rank,
    speaker,
)
from pattern_core.search.plan import Ranked
from pattern_core.search.request import Mode
from pattern_db.enums import SearchKind
from pattern_db.search import Row
from tests.pattern_core.search.rig import Past


def ranking(rig: Past, query: str, *, mode: Mode = Mode.HYBRID, meant: str | None = None) -> list[str]:
    found, _ = rank(rig.db, rig.plan(query, meant, mode=mode))
    return [one.row.id for one in found]


def row(content: str, *, ref: str = "m", **more: str | None) -> Row:
    return Row(SearchKind.MESSAGE, 1, ref, ref, "a", content, "", **more)  # type: ignore[arg-type]  # columns as named


def chatter(rig: Past, count: int = 12) -> None:
    for number in range(count):
        rig.say(f"something else entirely {number}", session=f"other {number}")


def test_an_answer_is_found_by_the_question_before_it() -> None:
    rig = Past()
    chatter(rig)
    asked_ = rig.say("Where did you buy that lovely pottery?")
    answer = rig.say("At the market in Lisbon, on the last day.")
    assert ranking(rig, "where was the pottery bought")[:2] == [answer, asked_]
    assert ranking(rig, "where was the pottery bought", mode=Mode.WORDS)[:2] == [answer, asked_]
    assert ranking(rig, "pottery") == [asked_], "one word asks nothing"


def test_what_stands_beside_counts_within_a_session_only() -> None:
    rig = Past()
    chatter(rig)
    rig.say("pottery from the market", session="one")
    other = rig.say("see you", session="two")
    assert other not in ranking(rig, "pottery market")


def test_the_speaker_that_is_named_comes_first() -> None:
    rig = Past()
    chatter(rig)
    rig.say("I like running a lot", name="Tim", session="a")
    ruth = rig.say("I like running a lot", name="Ruth", session="b")
    tim = rig.say("I like running a lot", name="Tim", session="c")
    assert ranking(rig, "Does Ruth like running?")[0] == ruth
    assert ranking(rig, "Does Tim like running?")[0] == tim
    assert set(ranking(rig, "Ruth", mode=Mode.WORDS)) == set()


def test_the_day_that_is_named_comes_first() -> None:
    rig = Past()
    chatter(rig)
    first = rig.say("we had a picnic", when="2023-05-23T10:00:00.000Z", session="a")
    second = rig.say("we had a picnic", when="2023-08-23T10:00:00.000Z", session="b")
    assert ranking(rig, "the picnic in May 2023")[0] == first
    assert ranking(rig, "the picnic on 23 August 2023")[0] == second


def test_a_long_text_is_not_better_for_holding_every_word() -> None:
    rig = Past()
    chatter(rig)
    long = rig.say("apples " + "and other fruit " * 400 + "pears", session="a")
    short = rig.say("apples and pears " + "and other fruit " * 20, session="b")
    assert ranking(rig, "apples pears", mode=Mode.WORDS) == [short, long]


def test_of_very_common_words_the_newest_messages_count(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Past()
    old = rig.say("tea of old", session="a")
    for number in range(6):
        rig.say("tea", session=f"s{number}")
    monkeypatch.setattr(planning, "FULL", replace(planning.FULL, together=3))
    found = ranking(rig, "tea", mode=Mode.WORDS)
    assert len(found) == 3
    assert old not in found
    rare = rig.say("milk", session="last")
    assert len(ranking(rig, "tea milk", mode=Mode.WORDS)) == 3, "the rows of both words together"
    assert ranking(rig, "tea milk", mode=Mode.WORDS)[0] == rare


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("why?", "why?"),
        ("why? [a photo of a dog]", "why?"),
        ("为什么？", "为什么？"),
        ("I moved to Lisbon. Any tips? Or names?", "Any tips? Or names?"),
        ("We have a dog!\nIs that normal?", "Is that normal?"),
        ("why? Because.", ""),
        ("(why?)", ""),
        ("", ""),
    ],
)
def test_what_asks(text: str, expected: str) -> None:
    assert question_in(text) == expected


def test_who_asks_in_the_end_has_still_said_something() -> None:
    rig = Past()
    chatter(rig)
    asks = rig.say("Which dog would fit into a flat?", session="a")
    tells = rig.say("We have a dog in the flat now and she is called Mabel. Any tips?", session="b")
    found, _ = rank(rig.db, rig.plan("dog flat"))
    parts = {one.row.id: one.parts["question"] for one in found}
    assert parts[asks] == WEIGHTS.question
    assert WEIGHTS.question / 2 < parts[tells] < 0


def test_the_speaker_stands_in_the_metadata_or_before_the_text() -> None:
    assert speaker("Ruth", "hello") == "Ruth"
    assert speaker(None, "Tim Miller: hello") == "Tim Miller"
    assert speaker(None, "at 10:30: hello") == ""


def test_what_a_filter_leaves_is_found_however_many_others_fit_better() -> None:
    rig = Past()
    wanted = rig.say("the pottery was from the market, as far as I know", session="mine")
    for number in range(600):
        rig.say("pottery market", session=f"other {number % 7}")
    found, _ = rank(rig.db, rig.plan("pottery market", sessions=["mine"]))
    assert [one.row.id for one in found] == [wanted]
    half = [f"other {number}" for number in range(4)]
    found, _ = rank(rig.db, rig.plan("pottery market", sessions=half))
    assert len(found) >= planning.FULL.candidates
    assert {one.row.session_id for one in found} == set(half)


def test_what_is_excluded_does_not_crowd_out_the_rest() -> None:
    rig = Past()
    wanted = rig.say("tea", session="mine")
    for number in range(600):
        rig.say("tea with milk", session=f"other {number}")
    assert ranking(rig, "tea -milk", mode=Mode.WORDS) == [wanted]


def said(ref: str, session: str | None, value: float) -> Ranked:
    return Ranked(row=row("", ref=ref, session_id=session), parts={"words": value})


def test_one_very_good_message_beats_several_fair_ones_and_of_equals_the_rest_decides() -> None:
    found = [said("1", "best", 1.0), said("2", "rich", 0.9), said("3", "rich", 0.9), said("4", "poor", 0.9)]
    groups = by_session(found)
    assert [(group[1].row.session_id, group[2]) for group in groups] == [("rich", 2), ("best", 1), ("poor", 1)]
    found[0] = said("1", "best", 2.0)
    assert by_session(found)[0][1].row.id == "1"


def test_messages_without_a_session_stand_for_themselves() -> None:
    assert [count for _, _, count in by_session([said("1", None, 1.0), said("2", None, 0.5)])] == [1, 1]
    assert by_session([]) == []


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("on 23 May, 2023", [NamedDate(2023, 5, 23)]),
        ("on May 3, 2023", [NamedDate(2023, 5, 3)]),
        ("in December 2023", [NamedDate(2023, 12, None)]),
        ("the 3rd of March", [NamedDate(None, 3, 3)]),
        ("in July", [NamedDate(None, 7, None)]),
        ("2024-01-31 or 2024-02", [NamedDate(2024, 1, 31), NamedDate(2024, 2, None)]),
        ("what may I march for", []),
        ("2024-13-01", []),
        ("", []),
    ],
)
def test_dates_that_are_named(query: str, expected: list[NamedDate]) -> None:
    assert named_dates(query) == expected


@pytest.mark.parametrize(
    ("query", "day", "expected"),
    [
        ("23 May 2023", "2023-05-23", 1.0),
        ("23 May 2023", "2023-05-24", 1.0),
        ("23 May 2023", "2023-05-30", 0.7),
        ("23 May 2023", "2023-06-20", 0.3),
        ("23 May 2023", "2024-05-23", 0.0),
        ("23 May", "2024-05-23", 1.0),
        ("May 2023", "2023-05-01", 1.0),
        ("December 2023", "2024-01-05", 0.3),
        ("July", "2020-08-05", 0.3),
        ("30 February 2023", "2023-02-28", 0.0),
        ("no date", "2023-02-28", 0.0),
    ],
)
def test_how_near_a_day_is(query: str, day: str, expected: float) -> None:
    assert nearness(named_dates(query), f"{day}T12:00:00.000Z") == expected


def test_a_message_of_a_session_that_holds_more_of_the_words_comes_first() -> None:
    rig = Past()
    chatter(rig)
    rig.say("the harbour, then", session="b")
    for number in range(8):
        rig.say(f"and so it went on {number}", session="b")
    rig.say("boats from Assam", session="b")
    alone = rig.say("the harbour, then", session="a")
    beside = rig.say("the harbour, then", session="b")
    found, _ = rank(rig.db, rig.plan("harbour boats Assam"))
    value = {one.row.id: one.parts["session"] for one in found}
    assert value[beside] == pytest.approx(WEIGHTS.session)
    assert 0 < value[alone] < value[beside]


def test_what_is_not_among_the_nearest_is_compared_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Past()
    meant = rig.say("boats", session="a")
    also = rig.say("harbour boats", session="b")
    rig.embed(SearchKind.MESSAGE, meant, "boats")
    rig.embed(SearchKind.MESSAGE, also, "boats tea")
    monkeypatch.setattr(planning, "FULL", replace(planning.FULL, nearest=1))
    found, _ = rank(rig.db, rig.plan("harbour boats", "boats", limit=1))
    assert {one.row.id: one.parts["meaning"] for one in found} == {
        meant: WEIGHTS.meaning,
        also: pytest.approx(WEIGHTS.meaning / 2, rel=0.2),
    }


def test_beside_meaning_words_count_by_how_much_of_the_query_one_message_holds() -> None:
    rig = Past()
    chatter(rig)
    meant = rig.say("sailing", session="a")
    rig.say("a green door", session="b")
    rig.embed(SearchKind.MESSAGE, meant, "boats")
    query = "green boats of Assam"
    by_words, beside = (
        max(one.parts.get("words", 0.0) for one in rank(rig.db, rig.plan(query, meaning))[0])
        for meaning in (None, "boats")
    )
    assert by_words == 1.0
    assert 0.3 < beside < 0.7
    assert ranking(rig, query, mode=Mode.MEANING, meant="boats")[0] == meant


def test_a_message_whose_words_mean_what_the_querys_do_comes_first() -> None:
    rig = Past()
    first, second = (rig.say("We have it now.", session=session) for session in "ab")
    beside = rig.say("I see.", session="c")
    asked, answer = rig.say("What about it?", session="c"), rig.say("Well, Assam.", session="c")
    for message in (first, second, beside, asked, answer):
        rig.embed(SearchKind.MESSAGE, message, "tea")
    like, unlike = b"\x0f" + bytes(7), b"\xff" * 8
    for message, codes in ((first, unlike), (second, unlike + like), (beside, unlike), (asked, like), (answer, unlike)):
        rig.db.execute("UPDATE embeddings SET codes = ? WHERE ref = ?", (codes, message))
    searched = replace(rig.plan("Where is the kettle", "tea"), codes=like)
    found = {one.row.id: one.parts.get("alike", 0.0) for one in rank(rig.db, searched)[0]}
    assert found[asked] == found[second] > found[answer] > found[beside] > found[first] == 0.0
    greatest, without = (
        max(one.parts["meaning"] for one in rank(rig.db, plan)[0]) for plan in (searched, replace(searched, codes=b""))
    )
    assert greatest == pytest.approx(BESIDE_ALIKE * without), "meaning counts less beside them"
