from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pattern_core.errors import InvalidInput, NotFound
from pattern_core.limits import RESULT_STORED_CHARS_MAX, RESULTS_MAX
from pattern_core.tools import results as module
from pattern_core.tools.builtin.result import LIMIT_DEFAULT, result
from pattern_core.tools.results import PIECE_CHARS_MAX, to_text
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.connection import Connection
from pattern_db.errors import RowNotFound
from pattern_db.journal.steps import EffectRow
from tests.pattern_core.memory.rig import ADA, BOB
from tests.pattern_core.tools.rig import ToolRig

WEB = EffectRow(1, 1, 0, "call_1", "web", "{}", b"", "idempotent", "key")


class Shelf:
    """The results that Ada's tools store, and the commit that a turn makes."""

    def __init__(self, tools: ToolRig) -> None:
        self.tools, self.rig = tools, tools.rig

    async def shorten(self, text: str, limit: int = 1_000, reader: str | None = "result") -> str:
        work = UnitOfWork()
        shown = await module.shorten(text, WEB, self.tools.context(work), limit=limit, reader=reader)
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


async def test_a_long_result_shows_both_ends_and_reads_on_where_it_stops(shelf: Shelf) -> None:
    text = numbered(1_000)
    shown = await shelf.shorten(text)
    [result_id] = await shelf.ids()
    assert len(shown) <= 1_000
    head, note, tail = shown.partition("\n[…")
    assert note and text.startswith(head) and text.endswith(tail.split("…]\n")[1])
    assert f"op=read, id={result_id}, offset={len(head)}" in shown
    assert "11000 characters in all" in shown
    which, _, text_on = (
        await shelf.rig.database.read(module.read, ADA, result_id, offset=len(head), limit=9)
    ).partition(":\n")
    assert head + text_on == text[: len(head) + 9]
    assert which.startswith(f"Characters {len(head)} to {len(head) + 9} of 11000 of a result of web, 20")


async def test_pieces_joined_are_the_whole(tools: ToolRig, shelf: Shelf) -> None:
    text = "äöü€😀 " * 20_000
    result_id = await shelf.stored(text)
    read, which = "", ""
    while not which.endswith("this is the end"):
        more = {"limit": 1_000_000} if read else {}
        which, _, piece = (await tools.call(result, op="read", id=result_id, offset=len(read), **more)).partition(":\n")
        assert len(piece) <= (PIECE_CHARS_MAX if read else LIMIT_DEFAULT)
        read += piece
        assert which.endswith(("this is the end", f"read on with offset={len(read)}"))
    assert read == text


@pytest.mark.parametrize("reader", [None, WEB.tool])
async def test_a_result_that_cannot_be_read_on_is_cut_and_not_stored(shelf: Shelf, reader: str | None) -> None:
    shown = await shelf.shorten(numbered(1_000), reader=reader)
    assert len(shown) <= 1_000
    assert "left out" in shown and "op=read" not in shown
    assert await shelf.ids() == []


async def test_a_call_that_is_given_up_leaves_nothing(shelf: Shelf) -> None:
    work = UnitOfWork()
    await module.shorten("x" * 50, WEB, shelf.tools.context(work), limit=10, reader="result")
    work.settle(committed=False)
    assert await shelf.ids() == []


async def test_results_are_the_agents_own(shelf: Shelf) -> None:
    result_id = await shelf.stored("x" * 50)
    with pytest.raises(RowNotFound):
        await shelf.rig.database.read(module.read, BOB, result_id, offset=0, limit=9)
    with pytest.raises(RowNotFound):
        await shelf.rig.database.read(module.find, BOB, result_id, "x", offset=0)


async def test_places_are_found_with_what_is_around_them(tools: ToolRig, shelf: Shelf) -> None:
    text = numbered(300) + "The OWL sleeps (a.b).\n" + "end" * 200
    result_id = await shelf.stored(text)

    async def find(pattern: str, offset: int = 0) -> str:
        return str(await tools.call(result, op="find", id=result_id, pattern=pattern, offset=offset))

    start = text.index("OWL")
    around = text[start - 120 : start + len("owl SLEEPS (a.b)") + 120]
    assert await find("owl SLEEPS (a.b)") == (
        f"1 places, each with up to 120 characters around it:\n[offset {start}] …{around}…"
    )
    many = await find("LINE")
    assert many.startswith("20 places") and many.count("[offset ") == 20
    assert many.endswith("\nThere are more: find again from offset 210.")
    assert "\n[offset 0] line 00000\n" in many
    assert "\n[offset 220] …" in await find("line", offset=210)
    assert "There are more" not in await find("line", offset=11 * 280)
    assert (await find("endend", offset=len(text) - 6)).endswith("endend")
    assert await find("a+b", offset=3) == f"Nothing in {result_id} holds 'a+b' from offset 3 on."


async def test_odd_questions_are_refused(shelf: Shelf) -> None:
    result_id = await shelf.stored("x" * 50)
    for offset, limit in ((-1, 5), (50, 5), (0, 0)):
        with pytest.raises(InvalidInput, match="50 characters"):
            await shelf.rig.database.read(module.read, ADA, result_id, offset=offset, limit=limit)
    for pattern in ("", "x" * 501):
        with pytest.raises(InvalidInput, match="1 to 500"):
            await shelf.rig.database.read(module.find, ADA, result_id, pattern, offset=0)


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
    last = await shelf.rig.database.read(module.read, ADA, result_id, offset=RESULT_STORED_CHARS_MAX - 1, limit=9)
    assert last.endswith("this is the end:\nx")


async def test_damage_is_reported(shelf: Shelf) -> None:
    result_id = await shelf.stored("x" * 50)

    def damage(connection: Connection) -> None:
        connection.execute("UPDATE tool_results SET data = x'00ff'")

    await shelf.rig.database.write(damage)
    with pytest.raises(NotFound, match="damaged"):
        await shelf.rig.database.read(module.read, ADA, result_id, offset=0, limit=9)


def test_results_become_text_also_where_json_cannot_represent_them() -> None:
    assert to_text("as it is", 100) == "as it is"
    assert to_text(None, 100) == "done"
    assert to_text({"a": ["ü", 1, None]}, 100) == '{"a":["ü",1,null]}'
    assert to_text("half \ud800", 100) == "half ?"
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
