"""What the memory store shows is what the disk holds, whatever is edited, refused, not committed or opened again."""

from __future__ import annotations

import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_core.errors import InvalidInput, PatternError
from pattern_core.limits import MemoryLimits
from pattern_core.memory.checkpoint import Consolidator, open_document, whole_document
from pattern_core.memory.document import State, Writes
from pattern_core.memory.edits import AppendText, BlockEdit, EditRange, ReplaceText, SetText
from pattern_core.memory.history import blame, state_at, versions
from pattern_core.testing import StoppedClock
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.columns import to_json
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.errors import Busy
from pattern_db.tables import block_checkpoints, block_versions, memory_blocks
from tests.pattern_core.memory.life import Life, add, create, put_field, splice, splice_items
from tests.pattern_core.memory.rig import ADA, BY_ADA, BY_USER, Rig, constellation, prompt_blocks

LIMIT = 60
LABELS = ("one", "two")
text = st.text(alphabet="ab\n🌍", max_size=8)
edits: st.SearchStrategy[BlockEdit] = st.one_of(
    st.builds(AppendText, text=text),
    st.builds(SetText, text=text),
    st.builds(ReplaceText, old=text, new=text, mode=st.sampled_from(["first", "all"])),
    st.builds(EditRange, first=st.integers(0, 3), last=st.integers(1, 4), text=text),
)
steps = st.lists(
    st.tuples(
        st.sampled_from(["edit", "edit", "edit", "unit", "fail", "abandon", "reload", "consolidate"]),
        st.lists(st.tuples(st.sampled_from(LABELS), edits), min_size=1, max_size=3),
    ),
    max_size=15,
)


@given(steps)
def test_the_store_never_runs_ahead_of_the_disk_nor_falls_behind(
    plan: list[tuple[str, list[tuple[str, BlockEdit]]]],
) -> None:
    trio.run(_play, plan)


async def _play(plan: list[tuple[str, list[tuple[str, BlockEdit]]]]) -> None:
    async with Database.in_memory(constellation()) as database:
        rig = Rig(database, hot_max=1)
        for label in LABELS:
            await rig.block("start\n", label=label, char_limit=LIMIT)
        for number, (what, wanted) in enumerate(plan):
            before = await _shown(rig)
            expected = await _do(rig, what, wanted, before)
            if what == "reload":
                rig = Rig(database, hot_max=1, seed=number + 1)
            assert await _shown(rig) == expected
            assert await _on_disk(rig) == expected


async def _do(rig: Rig, what: str, wanted: list[tuple[str, BlockEdit]], before: dict[str, str]) -> dict[str, str]:
    """Do one step; return what each block should hold after it."""
    if what == "consolidate":
        for label in LABELS:
            await rig.store.blocks.consolidator.consolidate((await rig.store.view(ADA, label)).id)
        return before
    after = dict(before)
    if what in ("edit", "fail"):
        rig.fails = what == "fail"
        for label, edit in wanted:
            try:
                edited = await rig.store.edit(ADA, label, edit, by=BY_USER)
            except (PatternError, Busy):
                continue
            assert (edited.note != "Nothing changed") == (edited.block.content != after[label])
            after[label] = edited.block.content
        rig.fails = False
        return after
    if what in ("unit", "abandon"):
        work = UnitOfWork()
        for label, edit in wanted:
            try:
                after[label] = (await rig.store.edit(ADA, label, edit, by=BY_ADA, work=work)).block.content
            except PatternError:
                continue
        if what == "unit":
            await rig.commit(work)
            return after
        work.settle(committed=False)
    return before


async def _shown(rig: Rig) -> dict[str, str]:
    views = {view.label: view for view in await rig.store.list(ADA)}
    prompts = await prompt_blocks(rig.store, ADA)
    for view, prompt in zip(views.values(), prompts, strict=True):
        assert prompt.endswith(f")\n{view.content}") or not view.content.strip()
        assert len(view.content) <= LIMIT
    return {label: view.content for label, view in views.items()}


async def _on_disk(rig: Rig) -> dict[str, str]:
    """Return what the stored bytes make when nothing is open."""
    found = {}
    for row in await rig.database.read(memory_blocks.list_visible, ADA):
        checkpoint, updates = await rig.database.read(block_checkpoints.get_checkpoint_and_updates, row.id)
        document = open_document(checkpoint, updates, peer=99)
        assert document.frontier() == row.frontier
        assert row.last_seq == max([checkpoint.up_to_seq if checkpoint else 0, *(update.seq for update in updates)])
        found[row.label] = document.state().get("content", "")
    return found


# A block's content and past are the same for every reader, whatever its writers do, take back, merge and lose.

WRITERS = ("agent:agt_ada", "agent:agt_bob", "user:usr_1")
HistoryStep = tuple[str, str, int, str]  # what, who, where (per mille), text
history_steps = st.lists(
    st.tuples(
        st.sampled_from(
            (
                *("splice", "splice", "set", "field", "item", "count", "undo", "undo", "redo", "merge", "rollback"),
                *("consolidate", "consolidate", "consolidate", "reopen"),
            )
        ),
        st.sampled_from(WRITERS),
        st.integers(0, 1000),
        st.text(alphabet="ab\n🌍é", max_size=5),
    ),
    max_size=30,
)


@settings(deadline=None)
@given(st.text(alphabet="ab\n", max_size=6), history_steps)
def test_every_reader_sees_one_content_and_one_past(content: str, plan: list[HistoryStep]) -> None:
    trio.run(_play_history, content, plan)


async def _play_history(content: str, plan: list[HistoryStep]) -> None:
    connection = constellation()
    async with Database.in_memory(connection) as database:
        life = Life(connection, create(connection, content))
        limits = MemoryLimits(checkpoints_newest=2, checkpoints_days=1)
        consolidator = Consolidator(database, StoppedClock(0), lambda *_: None, limits)
        past = [life.document.state()]
        for number, (what, who, place, text) in enumerate(plan):
            if what == "consolidate":
                await consolidator.consolidate(life.block_id)
            elif what == "reopen":
                life.reopen(number + 10)
            else:
                _do_in_history(life, past, (what, who, place, text))
            past += [life.document.state()] * (life.version - len(past) + 1)
            stored = block_checkpoints.get_checkpoint_and_updates(connection, life.block_id)
            _assert_same(open_document(*stored, peer=0).state(), past[-1])
            _assert_same(life.document.state(), past[-1])
        await _assert_past(database, connection, life.block_id, past)


def _do_in_history(life: Life, past: list[State], step: HistoryStep) -> None:
    what, who, place, text = step
    base = place * life.version // 1000
    if what in ("undo", "redo"):
        try:
            (life.undo if what == "undo" else life.redo)(who)
        except PatternError:
            return
    elif what == "merge":
        life.merge(who, base, {"content": past[base].get("content", "") + text})
    elif what == "rollback":
        life.rollback(who, past[base], base)
    else:
        life.edit(who, _writes(life, what, place, text))


def _writes(life: Life, what: str, place: int, text: str) -> Writes:
    match what:
        case "splice":
            at = life.document.length * place // 1000
            return splice(at, min(place % 4, life.document.length - at), text)
        case "set":
            return {"content": text}
        case "field":
            return put_field("xyz"[place % 3], [text, place % 2 == 0] if text else None)
        case "item":
            items = len(life.document.state().get("items", []))
            at = items * place // 1000
            return splice_items(at, min(place % 2, items - at), [text] if text else [])
        case _:
            return add(place % 7 - 3)


async def _assert_past(database: Database, connection: Connection, block_id: str, past: list[State]) -> None:
    """Recorded changes and the document's own history tell the same."""
    whole = whole_document(connection, block_id)
    for version, state in enumerate(past):
        _assert_same(await database.read(state_at, block_id, version), state)
        line = block_versions.get(connection, block_id, version)
        assert line is not None
        _assert_same(whole.at(bytes.fromhex(line.frontiers)).state(), state)
    lines = [line.text for line in await database.read(blame, block_id)]
    assert lines == past[-1].get("content", "").splitlines()
    numbers = [one.version for one in await database.read(versions, block_id, limit=100)]
    assert numbers == list(range(len(past)))[::-1][:100]


def _assert_same(left: State, right: State) -> None:
    assert text_of(left) == text_of(right)


def text_of(state: State) -> str:
    return to_json({name: dict(sorted(v.items())) if isinstance(v, dict) else v for name, v in sorted(state.items())})


# Laws of undo: it is exact without edits of others, and redo is its inverse also with them.

UndoStep = tuple[str, int, int, str]  # who, where (per mille), how much goes, what comes
A, B = "agent:agt_ada", "agent:agt_bob"
undo_edits = st.lists(
    st.tuples(st.sampled_from([A, B]), st.integers(0, 1000), st.integers(0, 3), st.text("ab\n🌍", max_size=4)),
    max_size=12,
)


def edit(life: Life, who: str, place: int, delete: int, text: str) -> bool:
    at = life.document.length * place // 1000
    field = put_field("xy"[place % 2], text or None) if place % 5 == 0 else {}
    return life.edit(who, {**splice(at, min(delete, life.document.length - at), text), **field})


@given(st.text("ab", max_size=8), undo_edits)
def test_one_author_alone_walks_back_and_forth_through_every_version(content: str, plan: list[UndoStep]) -> None:
    connection = constellation()
    life = Life(connection, create(connection, content))
    states = [text_of(life.document.state())]
    for _, place, delete, text in plan:
        edit(life, A, place, delete, text)
        now = text_of(life.document.state())
        if now != states[-1]:
            states.append(now)
    for expected in states[-2::-1]:
        life.undo(A)
        assert text_of(life.document.state()) == expected
    for expected in states[1:]:
        life.redo(A)
        assert text_of(life.document.state()) == expected
    connection.close()


@given(st.text("ab", max_size=8), undo_edits)
def test_redo_brings_back_what_undo_took_whatever_others_did_before(content: str, plan: list[UndoStep]) -> None:
    connection = constellation()
    life = Life(connection, create(connection, content))
    for who, place, delete, text in plan:
        edit(life, who, place, delete, text)
        before = text_of(life.document.state())
        for author in (A, B):
            try:
                life.undo(author)
            except InvalidInput:
                continue
            life.redo(author)
            assert text_of(life.document.state()) == before
    connection.close()


@given(st.text("ab", min_size=1, max_size=8), undo_edits)
def test_what_others_wrote_survives_every_undo(content: str, plan: list[UndoStep]) -> None:
    """A writes small letters, B one capital letter at a time and removes nothing: undoing A takes no capital away."""
    connection = constellation()
    life = Life(connection, create(connection, content))
    capitals = 0
    for who, place, delete, text in plan:
        if who == B:
            edit(life, B, place // 5 * 5 + 1, 0, "C")
            capitals += 1
        else:
            at = life.document.length * place // 1000
            gone = life.text[at : at + delete]
            edit(life, A, place // 5 * 5 + 1, 0 if "C" in gone or "C" in life.text else delete, text)
    for undone in range(len(plan) + 1):
        try:
            life.undo(A)
        except InvalidInput:
            break
        assert life.text.count("C") == capitals, undone
    assert set(life.text) <= set(content) | {"C"}
    connection.close()
