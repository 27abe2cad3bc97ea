from __future__ import annotations

import json

import pytest
from loro import ID, ExportMode, LoroDoc

from pattern_core.ids import seeded_randomness
from pattern_core.memory.document import Document, DocumentDamaged, commit_message, new_peer


def document(text: str = "", peer: int = 1) -> Document:
    made = Document(peer)
    if text:
        made.append(text)
        made.commit("user:ada", {}, now_ms=0)
    return made


def test_edits_count_in_code_points() -> None:
    made = document("Hello 🌍 world")
    assert made.length == 13
    made.splice(6, 1, "你好")
    made.append("!")
    assert made.text == "Hello 你好 world!"


def test_an_edit_outside_the_text_is_refused() -> None:
    with pytest.raises(DocumentDamaged, match="refused an edit"):
        document("abc").splice(2, 5, "")


def test_set_text_keeps_what_others_changed_meanwhile() -> None:
    one = document("The cat sat on the mat.")
    other = Document.load(one.snapshot(), peer=2)
    one.set_text("The dog sat on the mat.")
    other.set_text("The cat sat on the red mat.")
    before = one.version()
    one.import_update(other.export_since(before))
    assert one.text == "The dog sat on the red mat."


@pytest.mark.parametrize("seed", [1, 2])
def test_set_text_of_two_long_texts_without_likeness_is_bounded(seed: int) -> None:
    randomness = seeded_randomness(seed)
    before, after = (
        "start" + "".join("abcdef \n"[randomness.getrandbits(3)] for _ in range(60_000)) + "end" for _ in range(2)
    )
    made = document(before)
    made.set_text(after)
    assert made.text == after


def test_snapshot_and_updates_bring_the_text_back() -> None:
    made = document("one")
    snapshot, version = made.snapshot(), made.version()
    made.append(" two")
    made.commit("agent:a", {}, now_ms=0)
    first, version_2 = made.export_since(version), made.version()
    made.append(" three")
    made.commit("agent:a", {}, now_ms=0)
    second = made.export_since(version_2)
    loaded = Document.load(snapshot, [first, second], peer=2)
    assert loaded.text == "one two three"
    assert loaded.frontier() == made.frontier()
    assert loaded.is_at(made.version())
    assert Document.load(None, [made.export_since(Document(9).version())], peer=2).text == "one two three"


def test_an_update_twice_changes_nothing() -> None:
    made = document("one")
    made.import_update(made.snapshot())
    assert made.text == "one"


def test_a_missing_update_is_damage() -> None:
    made = document("one")
    version = made.version()
    made.append(" two")
    made.commit("agent:a", {}, now_ms=0)
    with pytest.raises(DocumentDamaged, match="builds on another one that is missing"):
        Document.load(None, [made.export_since(version)], peer=2)


def test_nothing_edited_is_the_same_version() -> None:
    made = document("one")
    version = made.version()
    made.set_text("one")
    made.splice(1, 0, "")
    made.commit("user:ada", {}, now_ms=0)
    assert made.is_at(version)
    made.append("!")
    made.commit("user:ada", {}, now_ms=0)
    assert not made.is_at(version)


@pytest.mark.parametrize("data", [b"", b"x", b"garbage" * 10, document("abc").snapshot()[:-3]])
def test_garbage_is_damage_and_nothing_else(data: bytes) -> None:
    with pytest.raises(DocumentDamaged):
        Document.load(data, peer=1)
    with pytest.raises(DocumentDamaged):
        Document.load(None, [data], peer=1)


def test_what_is_no_version_is_damage() -> None:
    for ask in (document("abc").export_since, document("abc").is_at):
        with pytest.raises(DocumentDamaged):
            ask(b"\xff\xff")


def test_history_says_who_why_and_when() -> None:
    made = Document(7)
    made.append("a")
    made.commit("agent:ada", {"turn": "turn_1"}, now_ms=1_700_000_000_999)
    made.append("b")
    made.commit("user:bob", {}, now_ms=1_700_000_001_000)
    peer = LoroDoc()  # type: ignore[no-untyped-call]  # the stubs of loro leave constructors untyped
    peer.import_(made.snapshot())
    first, second = peer.get_change(ID(7, 0)), peer.get_change(ID(7, 1))
    assert first is not None
    assert second is not None
    assert json.loads(first.message or "") == {"by": "agent:ada", "turn": "turn_1"}
    assert (first.timestamp, second.timestamp) == (1_700_000_000, 1_700_000_001)
    assert second.message == commit_message("user:bob", {}) == '{"by":"user:bob"}'


def test_the_text_is_in_the_container_that_other_programs_expect() -> None:
    peer = LoroDoc()  # type: ignore[no-untyped-call]  # the stubs of loro leave constructors untyped
    peer.get_text("content").insert(0, "theirs")
    peer.commit()
    assert Document.load(peer.export(ExportMode.Snapshot()), peer=1).text == "theirs"


def test_a_peer_is_a_number_that_the_format_can_hold() -> None:
    peers = {new_peer(seeded_randomness(seed)) for seed in range(100)}
    assert len(peers) == 100
    assert all(0 <= peer < 2**63 for peer in peers)
    Document(2**63 - 1)


def test_other_errors_pass_untouched() -> None:
    with pytest.raises(UnicodeEncodeError):
        document().append("\ud800")
