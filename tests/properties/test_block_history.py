"""A block's content and past are the same for every reader, whatever its writers do, take back, merge and lose."""

from __future__ import annotations

from collections.abc import Callable

import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_core.errors import PatternError
from pattern_core.memory.checkpoint import Consolidator, Retention, open_document, whole_document
from pattern_core.memory.document import State, UpdateText, document_at, state_of
from pattern_core.memory.history import BlockHistory
from pattern_core.testing.clock import StoppedClock
from pattern_db.columns import to_json
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.tables import block_checkpoints, block_versions
from tests.pattern_core.memory.life import Life, create
from tests.pattern_core.memory.pen import Pen
from tests.pattern_core.memory.rig import constellation

WRITERS = ("agent:agt_ada", "agent:agt_bob", "user:usr_1")
Step = tuple[str, str, int, str]  # what, who, where (per mille), text

steps = st.lists(
    st.tuples(
        st.sampled_from(
            (
                *("splice", "splice", "set", "field", "item", "count", "undo", "undo", "redo", "merge", "rollback"),
                *("consolidate", "consolidate", "consolidate", "reopen", "crash", "failed merge"),
            )
        ),
        st.sampled_from(WRITERS),
        st.integers(0, 1000),
        st.text(alphabet="ab\n🌍é", max_size=5),
    ),
    max_size=30,
)


@settings(deadline=None)
@given(st.text(alphabet="ab\n", max_size=6), steps)
def test_every_reader_sees_one_content_and_one_past(content: str, plan: list[Step]) -> None:
    trio.run(_play, content, plan)


async def _play(content: str, plan: list[Step]) -> None:
    connection = constellation()
    async with Database.in_memory(connection) as database:
        life = Life(connection, create(connection, content))
        consolidator = Consolidator(database, StoppedClock(0), lambda *_: None, retention=Retention(newest=2, days=1))
        past = [state_of(life.document)]
        for number, (what, who, place, text) in enumerate(plan):
            if what == "consolidate":
                await consolidator.consolidate(life.block_id)
            elif what == "reopen":
                life.reopen(number + 10)
            else:
                _do(life, past, (what, who, place, text), number + 10)
            past += [state_of(life.document)] * (life.version - len(past) + 1)
            stored = block_checkpoints.get_checkpoint_and_updates(connection, life.block_id)
            _assert_same(state_of(open_document(*stored, peer=0)), past[-1])
            _assert_same(state_of(life.document), past[-1])
        await _assert_past(database, connection, life.block_id, past)


def _do(life: Life, past: list[State], step: Step, peer: int) -> None:
    what, who, place, text = step
    base = place * life.version // 1000
    if what == "crash":  # what was not stored is gone with its process
        life.document.append("lost")
        life.document.commit(who, {}, now_ms=0)
        life.reopen(peer)
    elif what == "failed merge":
        _merge_and_fail(life)
    elif what in ("undo", "redo"):
        try:
            (life.undo if what == "undo" else life.redo)(who)
        except PatternError:
            return
    elif what == "merge":
        life.merge(who, base, [UpdateText(text=past[base].get("content", "") + text)])
    elif what == "rollback":
        life.rollback(who, past[base], base)
    else:
        life.edit(who, _write(what, place, text))


def _write(what: str, place: int, text: str) -> Callable[[Pen], None]:
    def write(document: Pen) -> None:
        at = document.length * place // 1000
        match what:
            case "splice":
                document.splice(at, min(place % 4, document.length - at), text)
            case "set":
                document.set_text(text)
            case "field":
                document.put_field("fields", "xyz"[place % 3], [text, place % 2 == 0] if text else None)
            case "item":
                items = len(state_of(document).get("items", []))
                at = items * place // 1000
                document.splice_items("items", at, min(place % 2, items - at), [text] if text else [])
            case _:
                document.add("counter_n", place % 7 - 3)

    return write


def _merge_and_fail(life: Life) -> None:
    _, updates = block_checkpoints.get_checkpoint_and_updates(life.connection, life.block_id)
    if not updates:
        return
    life.connection.execute("SAVEPOINT crash")
    block_checkpoints.consolidate_checkpoint(
        life.connection, life.block_id, b"half", None, updates[-1].seq, "2026-11-21T22:24:40.123Z"
    )
    life.connection.execute("ROLLBACK TO crash")
    life.connection.execute("RELEASE crash")


async def _assert_past(database: Database, connection: Connection, block_id: str, past: list[State]) -> None:
    """Recorded changes and the document's own history tell the same."""
    history, whole = BlockHistory(database), whole_document(connection, block_id)
    for version, state in enumerate(past):
        _assert_same(await history.state_at(block_id, version), state)
        line = block_versions.get(connection, block_id, version)
        assert line is not None
        _assert_same(state_of(document_at(whole, bytes.fromhex(line.frontiers))), state)
    lines = [line.text for line in await history.blame(block_id)]
    assert lines == past[-1].get("content", "").splitlines()
    numbers = [one.version for one in await history.versions(block_id, limit=100)]
    assert numbers == list(range(len(past)))[::-1][:100]


def _assert_same(left: State, right: State) -> None:
    assert _text(left) == _text(right)


def _text(state: State) -> str:
    return to_json({name: dict(sorted(v.items())) if isinstance(v, dict) else v for name, v in sorted(state.items())})
