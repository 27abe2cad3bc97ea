from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pattern_core.errors import InvalidInput
from pattern_core.errors import NotFound as Damaged
from pattern_core.limits import RESULT_STORED_CHARS_MAX, RESULTS_MAX
from pattern_core.tools import results as module
from pattern_core.tools.builtin.result import result
from pattern_core.tools.results import FOUND_MAX, PIECE_CHARS_MAX, Origin, to_text
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.connection import Connection
from pattern_db.errors import NotFound
from tests.pattern_core.memory.rig import ADA, BOB
from tests.pattern_core.tools.rig import ToolRig

WEB = Origin(agent_id=ADA, tool="web", call_id="call_1", reader="result")


class Shelf:
    """The results that Ada's tools store, and the commit that a turn makes."""

    def __init__(self, tools: ToolRig) -> None:
        self.rig = tools.rig
        self.results = tools.results

    async def shorten(self, text: str, limit: int = 1_000, origin: Origin = WEB) -> str:
        work = UnitOfWork()
        shown = await self.results.shorten(text, limit=limit, origin=origin, work=work)
        await self.rig.commit(work)
        return shown

    async def ids(self) -> list[str]:
        def read(connection: Connection) -> list[str]:
            return [row[0] for row in connection.execute("SELECT id FROM tool_results ORDER BY row")]

        return await self.rig.database.read(read)

    async def stored(self, text: str) -> str:
        await self.shorten(text, 10)
        return (await self.ids())[-1]


@pytest.fixture
def shelf(tools: ToolRig) -> Shelf:
    return Shelf(tools)


def numbered(lines: int) -> str:
    return "".join(f"line {number:05d}\n" for number in range(lines))


async def test_what_fits_stays_and_stores_nothing(shelf: Shelf) -> None:
    text = "x" * 1_000
    assert await shelf.shorten(text) == text
    assert await shelf.ids() == []


async def test_a_long_result_shows_both_ends_and_reads_on_where_it_stops(shelf: Shelf) -> None:
    text = numbered(1_000)
    shown = await shelf.shorten(text)
    [result_id] = await shelf.ids()
    assert len(shown) <= 1_000
    head, note, tail = shown.partition("\n[…")
    assert note and text.startswith(head) and text.endswith(tail.split("…]\n")[1])
    assert f"op=read, id={result_id}, offset={len(head)}" in shown
    assert "11000 characters in all" in shown
    piece = await shelf.results.read(ADA, result_id, offset=len(head))
    assert head + piece.text == text[: len(head) + len(piece.text)]
    assert (piece.tool, piece.total) == ("web", len(text))


async def test_pieces_joined_are_the_whole(shelf: Shelf) -> None:
    text = "äöü€😀 " * 20_000  # longer than what is compressed in place
    result_id = await shelf.stored(text)
    read, offset = "", 0
    while True:
        piece = await shelf.results.read(ADA, result_id, offset=offset, limit=1_000_000)
        assert len(piece.text) <= PIECE_CHARS_MAX
        read += piece.text
        if piece.next_offset is None:
            break
        offset = piece.next_offset
    assert read == text


async def test_nobody_is_sent_to_read_what_it_cannot(shelf: Shelf) -> None:
    for origin in (
        Origin(agent_id=ADA, tool="web", call_id="c", reader=None),
        Origin(agent_id=ADA, tool="result", call_id="c", reader="result"),
    ):
        shown = await shelf.shorten(numbered(1_000), origin=origin)
        assert len(shown) <= 1_000
        assert "left out" in shown and "op=read" not in shown
    assert await shelf.ids() == []


async def test_a_call_that_is_given_up_leaves_nothing(shelf: Shelf) -> None:
    work = UnitOfWork()
    await shelf.results.shorten("x" * 50, limit=10, origin=WEB, work=work)
    work.settle(committed=False)
    assert await shelf.ids() == []


async def test_results_are_the_agents_own(shelf: Shelf) -> None:
    result_id = await shelf.stored("x" * 50)
    with pytest.raises(NotFound):
        await shelf.results.read(BOB, result_id)
    with pytest.raises(NotFound):
        await shelf.results.find(BOB, result_id, "x")


async def test_find_tells_places_and_whether_there_are_more(shelf: Shelf) -> None:
    result_id = await shelf.stored(numbered(300) + "The OWL sleeps (a.b).\n" + "end" * 200)
    [place], is_more = await shelf.results.find(ADA, result_id, "owl SLEEPS (a.b)")
    assert not is_more
    assert "The OWL sleeps (a.b)." in place.around and place.around.startswith("…")
    assert (await shelf.results.read(ADA, result_id, offset=place.offset, limit=3)).text == "OWL"
    places, is_more = await shelf.results.find(ADA, result_id, "line")
    assert len(places) == FOUND_MAX and is_more
    rest, _ = await shelf.results.find(ADA, result_id, "line", offset=places[-1].offset + 1)
    assert rest[0].offset == places[-1].offset + 11
    assert await shelf.results.find(ADA, result_id, "a+b") == ([], False)


async def test_odd_questions_are_refused(shelf: Shelf) -> None:
    result_id = await shelf.stored("x" * 50)
    for offset, limit in ((-1, 5), (50, 5), (0, 0)):
        with pytest.raises(InvalidInput, match="50 characters"):
            await shelf.results.read(ADA, result_id, offset=offset, limit=limit)
    for pattern in ("", "x" * 501):
        with pytest.raises(InvalidInput, match="1 to 500"):
            await shelf.results.find(ADA, result_id, pattern)


async def test_what_is_stored_is_bounded(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESULTS_MAX", 3)
    for _ in range(5):
        await shelf.shorten("x" * 50, 10)
    assert len(await shelf.ids()) == 3
    assert RESULTS_MAX == 200


async def test_a_result_beyond_all_bounds_is_stored_in_part_and_says_so(shelf: Shelf) -> None:
    shown = await shelf.shorten("x" * (RESULT_STORED_CHARS_MAX + 1))
    assert f"only the first {RESULT_STORED_CHARS_MAX} are stored" in shown
    [result_id] = await shelf.ids()
    assert (await shelf.results.read(ADA, result_id)).total == RESULT_STORED_CHARS_MAX


async def test_damage_is_told(shelf: Shelf) -> None:
    result_id = await shelf.stored("x" * 50)

    def damage(connection: Connection) -> None:
        connection.execute("UPDATE tool_results SET data = x'00ff'")

    await shelf.rig.database.write(damage)
    with pytest.raises(Damaged, match="damaged"):
        await shelf.results.read(ADA, result_id)


def test_results_become_text() -> None:
    assert to_text("as it is", 100) == "as it is"
    assert to_text(None, 100) == "done"
    assert to_text({"a": ["ü", 1, None]}, 100) == '{"a":["ü",1,null]}'
    assert to_text("half \ud800", 100) == "half ?"


def test_what_json_cannot_say_is_told_all_the_same() -> None:
    assert to_text({"at": date(2026, 11, 22)}, 100) == '{"at":"2026-11-22"}'
    assert to_text({1, 2}, 100) == '"{1, 2}"'
    assert to_text({(1, 2): 3}, 100) == "{(1, 2): 3}"
    within: list[object] = []
    within.append(within)
    deep: list[object] = []
    for _ in range(10_000):
        deep = [deep]
    for endless in (within, deep):
        assert to_text(endless, 100).startswith("[[[[")


def test_a_long_result_keeps_both_ends_and_says_so() -> None:
    text = to_text("a" * 5000 + "end", 400)
    assert 397 <= len(text) <= 400  # a place with fewer digits than the length leaves room
    assert text.startswith("aaa")
    assert text.endswith("end")
    assert "5003 characters in all, 254 to 4919 are left out here" in text
    assert to_text("a" * 400, 400) == "a" * 400


@given(st.text(alphabet="ab🌍\ud800", max_size=300), st.integers(0, 200))
def test_no_result_is_longer_than_allowed_and_all_can_be_encoded(text: str, chars_max: int) -> None:
    result = to_text(text, chars_max)
    assert len(result) <= chars_max
    result.encode()


TEXT = numbered(1_000)


async def test_reading_on_to_the_end(tools: ToolRig, shelf: Shelf) -> None:
    result_id = await shelf.stored(TEXT)
    first = await tools.call(result, op="read", id=result_id)
    head, _, text = first.partition(":\n")
    assert head.startswith("Characters 0 to 8000 of 11000 of a result of web")
    assert head.endswith("read on with offset=8000")
    second = await tools.call(result, op="read", id=result_id, offset=8_000)
    assert "this is the end" in second
    assert text + second.partition(":\n")[2] == TEXT


async def test_finding(tools: ToolRig, shelf: Shelf) -> None:
    result_id = await shelf.stored(TEXT)
    found = await tools.call(result, op="find", id=result_id, pattern="LINE 00777")
    assert f"[offset {TEXT.index('line 00777')}]" in found
    assert "There are more" not in found
    assert "find again from offset 210" in await tools.call(result, op="find", id=result_id, pattern="line")
    assert "Nothing in" in await tools.call(result, op="find", id=result_id, pattern="owl")
