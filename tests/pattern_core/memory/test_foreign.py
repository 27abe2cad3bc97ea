from __future__ import annotations

import pytest
import trio

from pattern_core.errors import InvalidInput
from pattern_core.memory import damage
from pattern_core.memory.damage import validate_foreign
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


async def test_a_child_that_dies_is_invalid_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damage, "_CHECK", "os")  # a module that ends at once, then one that is not there
    assert await validate_foreign(b"x") == b""
    monkeypatch.setattr(damage, "_CHECK", "no_such_module")
    with pytest.raises(InvalidInput, match="ended that process"):
        await validate_foreign(b"x")


async def test_what_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damage, "FOREIGN_TIMEOUT_S", 0.01)
    with pytest.raises(InvalidInput, match="took longer"):
        await validate_foreign(snapshot("x"))


async def test_what_unfolds_too_far_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damage, "SNAPSHOT_BYTES_MAX", 100)
    with pytest.raises(InvalidInput, match="unfolds to"):
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


async def test_a_hundred_megabytes_are_refused_before_anything_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damage, "_CHECK", "no_such_module")  # a child would say something else
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
