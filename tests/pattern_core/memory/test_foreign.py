from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest
import trio

from pattern_core import children
from pattern_core.errors import InvalidInput
from pattern_core.memory import damage
from pattern_core.memory.damage import validate_foreign
from pattern_core.memory.document import DocumentDamaged, clean_snapshot, framed, opened_parts
from tests.pattern_core.memory.pen import Pen


def snapshot(text: str) -> bytes:
    made = Pen(5)
    made.append(text)
    made.commit("user:ada", {}, now_ms=0)
    return made.snapshot()


async def test_a_document_comes_back_clean() -> None:
    clean = await validate_foreign(snapshot("from elsewhere 🌍"))
    assert Pen.load(clean, peer=1).text == "from elsewhere 🌍"


@pytest.mark.parametrize("data", [b"", b"junk", snapshot("hello")[:-1]])
async def test_bytes_that_are_no_document_are_invalid_input(data: bytes) -> None:
    with pytest.raises(InvalidInput, match="not a document"):
        await validate_foreign(data)


async def test_too_many_bytes_never_reach_a_process() -> None:
    with pytest.raises(InvalidInput, match="at most 8388608 are taken"):
        await validate_foreign(bytes(damage.FOREIGN_BYTES_MAX + 1))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere memory is not bounded")
async def test_a_child_that_dies_is_invalid_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damage, "CHECK", replace(damage.CHECK, memory_bytes=2**20))
    with pytest.raises(InvalidInput, match="the process that opened them ended with"):
        await validate_foreign(snapshot("x"))


async def test_what_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damage, "CHECK", replace(damage.CHECK, timeout_s=0.01))
    with pytest.raises(InvalidInput, match="took longer"):
        await validate_foreign(snapshot("x"))


async def test_what_unfolds_too_far_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "OUTPUT_BYTES_MAX", 100)
    with pytest.raises(InvalidInput, match="wrote more than 100 bytes"):
        await validate_foreign(snapshot("x" * 1000))


async def test_the_loop_goes_on_meanwhile() -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await trio.sleep(0.005)
            ticks += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(tick)
        await validate_foreign(snapshot("x"))
        nursery.cancel_scope.cancel()
    assert ticks >= 2


async def test_a_hundred_megabytes_are_refused_before_anything_reads_them() -> None:
    with pytest.raises(InvalidInput, match="the document has 104857600 bytes"):
        await validate_foreign(bytes(100 * 1024 * 1024))


async def test_an_update_without_what_it_builds_on_is_no_document() -> None:
    made = Pen(5)
    made.append("one")
    made.commit("user:ada", {}, now_ms=0)
    version = made.version()
    made.append("two")
    made.commit("user:ada", {}, now_ms=0)
    update = made.export_since(version)
    with pytest.raises(InvalidInput, match="not a document"):
        await validate_foreign(update)
    flipped = bytearray(update)
    flipped[len(flipped) // 2] ^= 0x55
    with pytest.raises(InvalidInput, match="not a document"):
        await validate_foreign(bytes(flipped))


def parts() -> list[bytes]:
    document = Pen(5)
    document.append("one")
    document.commit("user:1", {}, now_ms=0)
    snapshot, version = document.snapshot(), document.version()
    document.append(" two")
    document.commit("user:1", {}, now_ms=0)
    return [snapshot, document.export_since(version)]


def test_how_far_stored_documents_open() -> None:
    whole, update = parts()
    documents = [[whole, update], [], [b"", update], [whole, b"junk", update], [whole]]
    answers = [json.loads(line) for line in opened_parts(framed(documents))]
    assert [count for count, _reason in answers] == [2, 0, 1, 1, 1]
    assert [bool(reason) for _count, reason in answers] == [False, False, True, True, False]


def test_a_clean_snapshot_holds_the_same_document() -> None:
    assert Pen.load(clean_snapshot(snapshot("hello")), peer=1).text == "hello"
    with pytest.raises(DocumentDamaged):
        clean_snapshot(b"junk")
