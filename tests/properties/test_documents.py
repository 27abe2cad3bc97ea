"""Laws of documents: whatever is edited where and merged in whatever order, all copies come to the same text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pattern_core.memory.document import DocumentDamaged
from tests.pattern_core.memory.pen import Pen

Step = tuple[int, str, int, str]  # who, what, where (per mille of the length), text

steps = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.sampled_from(["insert", "delete", "set", "append", "send"]),
        st.integers(0, 1000),
        st.text(alphabet="ab\n🌍é", max_size=6),
    ),
    max_size=25,
)


def edit(document: Pen, what: str, place: int, text: str) -> None:
    at = document.length * place // 1000
    if what == "insert":
        document.splice(at, 0, text)
    elif what == "delete":
        document.splice(at, min(len(text), document.length - at), "")
    elif what == "append":
        document.append(text)
    else:
        document.set_text(text)
    document.commit("user:x", {}, now_ms=place)


@given(steps)
def test_two_copies_converge_whatever_they_do_and_whenever_they_meet(plan: list[Step]) -> None:
    first = Pen(1)
    copies = (first, Pen.load(first.snapshot(), peer=2))
    for who, what, place, text in plan:
        if what == "send":
            copies[1 - who].import_update(copies[who].export_since(copies[1 - who].version()))
        else:
            edit(copies[who], what, place, text)
    copies[0].import_update(copies[1].export_since(copies[0].version()))
    copies[1].import_update(copies[0].export_since(copies[1].version()))
    assert copies[0].text == copies[1].text
    assert copies[0].is_at(copies[1].version())


@given(steps)
def test_stored_updates_make_the_document_again_and_so_does_a_snapshot_in_between(plan: list[Step]) -> None:
    document = Pen(1)
    updates: list[bytes] = []
    snapshots: list[tuple[int, bytes]] = [(0, document.snapshot())]
    for _, what, place, text in plan:
        version = document.version()
        edit(document, what, place, text)
        if not document.is_at(version):
            updates.append(document.export_since(version))
            snapshots.append((len(updates), document.snapshot()))
    assert Pen.load(None, updates, peer=3).text == document.text
    for count, snapshot in snapshots:
        assert Pen.load(snapshot, updates[count:], peer=3).text == document.text
        assert Pen.load(snapshot, updates, peer=3).frontier() == document.frontier()


@given(st.text(), st.text())
def test_set_text_sets_the_text(before: str, after: str) -> None:
    document = Pen(1)
    document.append(before)
    document.set_text(after)
    assert document.text == after
    assert document.length == len(after)


def _sample() -> bytes:
    document = Pen(1)
    for word in ("one ", "two ", "three "):
        document.append(word)
        document.commit(f"user:{word}", {}, now_ms=0)
    return document.snapshot()


SAMPLE = _sample()


@given(st.binary(max_size=200))
def test_garbage_never_raises_anything_but_damage(data: bytes) -> None:
    with pytest.raises(DocumentDamaged):
        Pen.load(data, peer=1)


@given(st.integers(0, len(SAMPLE) - 1), st.integers(1, 255))
def test_a_flipped_byte_is_damage_or_of_no_consequence(at: int, by: int) -> None:
    flipped = bytearray(SAMPLE)
    flipped[at] ^= by
    try:
        loaded = Pen.load(bytes(flipped), peer=1)
    except DocumentDamaged as damage:
        assert damage.message
    else:
        assert loaded.text == "one two three "  # part of the header is not used
