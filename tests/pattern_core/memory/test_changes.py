from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pattern_core.memory.changes import applied, carried, change_by, change_to, document_of, inverse
from pattern_core.memory.content import writes_to
from pattern_core.memory.document import (
    Change,
    Count,
    HistoryDamaged,
    Keys,
    Splice,
    Spliced,
    State,
    cleaned,
    packed,
    unpacked,
)
from pattern_core.memory.schema import readable
from pattern_db.columns import to_json
from tests.pattern_core.memory.rig import BY_USER

values = st.one_of(st.integers(-3, 3), st.booleans(), st.text("ab🌍", max_size=2), st.just([1, {"a": True}]))
states: st.SearchStrategy[State] = st.fixed_dictionaries(
    {
        "content": st.text("ab\n🌍", max_size=10),
        "items": st.lists(values, max_size=5),
        "fields": st.dictionaries(st.sampled_from("xyz"), values, max_size=3),
        "counter_n": st.integers(-3, 3),
    }
).map(lambda state: {name: value for name, value in state.items() if value})


def same(left: State, right: State) -> bool:
    return to_json(readable(left)) == to_json(readable(right))


@given(states, states)
def test_a_change_leads_there_and_its_inverse_back(before: State, after: State) -> None:
    change = change_to(before, after)
    assert same(applied(before, change), after)
    assert same(applied(before, unpacked(packed(change) or b"")), after)
    assert same(applied(after, inverse(change)), before)
    assert (change == {}) == same(before, after)


@given(states, states, states)
def test_whichever_of_two_changes_comes_first_they_come_to_the_same(base: State, one: State, other: State) -> None:
    mine, theirs = change_to(base, one), change_to(base, other)
    after_theirs = applied(other, carried(mine, theirs, wins=True))
    after_mine = applied(one, carried(theirs, mine, wins=False))
    assert same(after_theirs, after_mine)


def text(*splices: tuple[int, str, str]) -> Change:
    return {"content": Spliced(True, tuple(Splice(*one) for one in splices))}


def test_what_is_carried_past_a_change_moves_with_it() -> None:
    late = text((4, "four", "4"))
    assert applied({"content": "xx one four"}, carried(late, text((0, "", "xx "), (3, "", "")), wins=True)) == {
        "content": "xx one 4"
    }


def test_a_removal_leaves_what_was_added_within() -> None:
    removal, within = text((0, "abcd", "")), text((2, "", "XX"))
    assert carried(removal, within, wins=False) == text((0, "ab", ""), (2, "cd", ""))
    assert applied({"content": "abXXcd"}, carried(removal, within, wins=False)) == {"content": "XX"}


def test_a_key_that_both_set_is_the_winners() -> None:
    mine: Change = {"fields": Keys({"x": (1, 2)})}
    theirs: Change = {"fields": Keys({"x": (1, 3), "y": (None, 1)})}
    assert carried(mine, theirs, wins=False) == {}
    assert carried(mine, theirs, wins=True) == {"fields": Keys({"x": (3, 2)})}


def test_what_changes_nothing_is_left_out() -> None:
    nothing: Change = {
        "a": Count(0),
        "b": Keys({"x": (1, 1)}),
        "c": Spliced(True, ()),
        "d": Spliced(True, (Splice(1, "a", "a"),)),
    }
    assert cleaned(nothing) == {}
    assert cleaned({"fields": Keys({"x": (1, True)})}) != {}


@pytest.mark.parametrize(
    "data", [b"", b"junk", b"{", b'{"a":"t"}', b'{"a":[]}', b'{"a":["t",[1]]}', b"[]", b'{"a":{"k":1}}']
)
def test_bytes_that_are_no_change_are_damage(data: bytes) -> None:
    with pytest.raises(HistoryDamaged):
        unpacked(data)


def test_long_changes_are_compressed_and_none_stays_none() -> None:
    long = packed(text((0, "", "abc" * 1000)))
    assert long is not None
    assert len(long) < 100
    assert unpacked(long) == text((0, "", "abc" * 1000))
    assert packed(None) is None


# Changes and states put into documents.

STATE = {"content": "some text\n", "items": [1, True, "x"], "fields": {"a": {"b": [1]}}, "counter_n": 3}


def test_what_is_written_to_reach_a_state_leaves_nothing_else() -> None:
    document = document_of(STATE)
    document.sign(STATE, writes_to(STATE, {"content": "other"}), BY_USER, now_ms=0)
    assert document.state() == {"content": "other"}


def test_true_is_not_one() -> None:
    change = change_to({"items": [1]}, {"items": [True]})
    assert change == {"items": Spliced(False, (Splice(0, (1,), (True,)),))}
    assert document_of({"fields": {"a": True}}).state() != {"fields": {"a": 2}}
    assert change_to({"fields": {"a": 1}}, {"fields": {"a": True}})


def test_a_change_that_does_not_fit_is_refused() -> None:
    with pytest.raises(HistoryDamaged, match="does not match"):
        applied({"content": "a"}, {"content": Spliced(True, (Splice(5, "b", ""),))})


def test_what_is_written_is_a_change() -> None:
    assert change_by({"content": "abc"}, {"content": "acd"}) == text((1, "b", ""), (1, "", "d"))
