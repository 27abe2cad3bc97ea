from __future__ import annotations

import json

import pytest
from loro import ID, LoroDoc

from pattern_core.ids import seeded_randomness
from pattern_core.memory.block import Attribution
from pattern_core.memory.document import (
    Change,
    Count,
    DocumentDamaged,
    Keys,
    Signed,
    Splice,
    Spliced,
    Writes,
    common_ends,
    new_peer,
)
from tests.pattern_core.memory.life import Pen
from tests.pattern_core.memory.rig import BY_USER


def document(text: str = "", peer: int = 1) -> Pen:
    made = Pen(peer)
    typed(made, text)
    return made


def test_set_text_keeps_what_others_changed_meanwhile() -> None:
    one = document("The cat sat on the mat.")
    other = Pen.load(one.snapshot(), peer=2)
    one.set_text("The dog sat on the mat.")
    other.set_text("The cat sat on the red mat.")
    before = one.version()
    one.import_update(other.export_since(before))
    assert one.text == "The dog sat on the red mat."


def test_set_text_of_two_long_texts_without_likeness_is_bounded() -> None:
    randomness = seeded_randomness(1)
    before, after = (
        "start" + "".join("abcdef \n"[randomness.getrandbits(3)] for _ in range(60_000)) + "end" for _ in range(2)
    )
    made = document(before)
    made.set_text(after)
    assert made.text == after


def test_a_missing_update_is_damage() -> None:
    made = document("one")
    version = made.version()
    made.append(" two")
    made.commit("agent:a")
    with pytest.raises(DocumentDamaged, match="depends on a missing one"):
        Pen.load(None, [made.export_since(version)], peer=2)


def test_what_is_no_version_is_damage() -> None:
    with pytest.raises(DocumentDamaged):
        document("abc").export_since(b"\xff\xff")


def test_history_has_author_cause_and_time() -> None:
    made = Pen(7)
    made.sign({}, {"content": "a"}, Attribution(author="agent:ada", cause={"turn": "turn_1"}), now_ms=1_700_000_000_999)
    made.sign({}, {"content": "ab"}, Attribution(author="user:bob"), now_ms=1_700_000_001_000)
    peer = LoroDoc()  # type: ignore[no-untyped-call]  # the stubs of loro leave constructors untyped
    peer.import_(made.snapshot())
    first, second = peer.get_change(ID(7, 0)), peer.get_change(ID(7, 1))
    assert first is not None
    assert second is not None
    assert json.loads(first.message or "") == {"by": "agent:ada", "turn": "turn_1"}
    assert (first.timestamp, second.timestamp) == (1_700_000_000, 1_700_000_001)
    assert second.message == '{"by":"user:bob"}'


def test_a_peer_is_a_number_that_the_format_can_hold() -> None:
    peers = {new_peer(seeded_randomness(seed)) for seed in range(100)}
    assert len(peers) == 100
    assert all(0 <= peer < 2**63 for peer in peers)
    Pen(2**63 - 1)


def test_other_errors_pass_untouched() -> None:
    with pytest.raises(UnicodeEncodeError):
        document().append("\ud800")


# Versions of documents.


def signed(document: Pen, writes: Writes) -> Signed:
    return document.sign(document.state(), writes, BY_USER, now_ms=0)


def typed(document: Pen, text: str) -> None:
    document.append(text)
    document.commit("user:1")


def test_what_is_done_is_recorded_with_what_it_replaced() -> None:
    document = Pen(1)
    typed(document, "a🌍bc")
    change: Change = {
        "content": Spliced(True, (Splice(1, "🌍b", "X"),)),
        "fields": Keys({"k": (None, [1])}),
        "items": Spliced(False, (Splice(0, (), ("one", None)),)),
        "counter_n": Count(2.0),
    }
    version = document.version()
    made = signed(document, change)
    assert made.change == change
    assert (made.update, made.frontier) == (document.export_since(version), document.frontier())
    change = {"fields": Keys({"k": ([1], None)}), "items": Spliced(False, (Splice(0, ("one",), ()),))}
    made = signed(document, change)
    assert made.change == change
    typed(document, "later")
    assert "content" not in made.change
    assert signed(document, {}).change == {}


def test_runs_that_touch_are_one_splice() -> None:
    document = Pen(1)
    typed(document, "abcdef")
    splices = Splice(1, "bc", "X"), Splice(0, "", "Y"), Splice(2, "f", "")
    made = signed(document, {"content": Spliced(True, splices)})
    assert made.change == {"content": Spliced(True, (Splice(1, "bc", "XY"), Splice(2, "f", "")))}


def test_what_has_no_recorded_form_is_none() -> None:
    document = Pen(1)
    document._doc.get_movable_list("items").insert(0, 1)
    assert signed(document, {}).change is None


def test_a_state_snapshot_continues_without_the_history() -> None:
    document = Pen(1)
    for number in range(50):
        typed(document, str(number))
    version, frontier = document.version(), document.frontier()
    state = Pen.load(document.state_snapshot(), peer=2)
    assert (state.text, state.frontier(), state.is_at(version)) == (document.text, frontier, True)
    assert document.has_whole_history()
    assert not state.has_whole_history()
    typed(state, "!")
    document.import_update(state.export_since(version))
    assert document.text == state.text
    assert Pen.load(document.export_since(None), peer=3).text == state.text


def test_an_earlier_version_is_a_document_of_its_own() -> None:
    document = Pen(1)
    typed(document, "one")
    frontier = document.frontier()
    typed(document, "two")
    assert document.at(frontier).state() == {"content": "one"}
    assert document.text == "onetwo"
    shallow = Pen.load(document.state_snapshot(), peer=2)
    for known, at in ((document, b"junk"), (shallow, frontier)):
        with pytest.raises(DocumentDamaged):
            known.at(at)


def test_containers_that_are_empty_are_left_out() -> None:
    made = Pen(1)
    assert (made.state(), made.text) == ({}, "")
    made.append("a")
    made.splice(0, 1, "")
    assert made.state() == {}


@pytest.mark.parametrize(
    "change",
    [
        Spliced(False, (Splice(0, (1,), ()),)),
        Spliced(False, (Splice(3, (), (1,)),)),
        Spliced(True, (Splice(3, "", "x"),)),
        Spliced(True, (Splice(2, "?????", ""),)),
    ],
)
def test_changes_made_for_another_content_are_damage(change: Spliced) -> None:
    with pytest.raises(DocumentDamaged, match="refused an edit"):
        Pen(1).apply({"content": change})


def test_the_ends_that_texts_and_lists_have_in_common_do_not_overlap() -> None:
    assert common_ends("abcXde", "abcYYde") == (3, 2)
    assert common_ends("aaa", "aa") == (2, 0)
    assert common_ends(["one", "two"], ["two"]) == (0, 1)
    assert common_ends("", "a") == (0, 0)
