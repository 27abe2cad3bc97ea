"""Laws of undo: it is exact where nobody interferes, and redo is its inverse where somebody does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pattern_core.errors import InvalidInput
from pattern_core.memory.document import State, state_of
from pattern_db.columns import to_json
from tests.pattern_core.memory.life import Life, create
from tests.pattern_core.memory.pen import Pen
from tests.pattern_core.memory.rig import constellation

Step = tuple[str, int, int, str]  # who, where (per mille), how much goes, what comes
A, B = "agent:agt_ada", "agent:agt_bob"
edits = st.lists(
    st.tuples(st.sampled_from([A, B]), st.integers(0, 1000), st.integers(0, 3), st.text("ab\n🌍", max_size=4)),
    max_size=12,
)


def edit(life: Life, who: str, place: int, delete: int, text: str) -> bool:
    def write(document: Pen) -> None:
        at = document.length * place // 1000
        document.splice(at, min(delete, document.length - at), text)
        if place % 5 == 0:
            document.put_field("fields", "xy"[place % 2], text or None)

    return life.edit(who, write)


def text_of(state: State) -> str:
    return to_json({name: dict(sorted(v.items())) if isinstance(v, dict) else v for name, v in sorted(state.items())})


@given(st.text("ab", max_size=8), edits)
def test_one_author_alone_walks_back_and_forth_through_every_version(content: str, plan: list[Step]) -> None:
    connection = constellation()
    life = Life(connection, create(connection, content))
    states = [text_of(state_of(life.document))]
    for _, place, delete, text in plan:
        edit(life, A, place, delete, text)
        now = text_of(state_of(life.document))
        if now != states[-1]:
            states.append(now)
    for expected in states[-2::-1]:
        life.undo(A)
        assert text_of(state_of(life.document)) == expected
    for expected in states[1:]:
        life.redo(A)
        assert text_of(state_of(life.document)) == expected
    connection.close()


@given(st.text("ab", max_size=8), edits)
def test_redo_brings_back_what_undo_took_whatever_others_did_before(content: str, plan: list[Step]) -> None:
    connection = constellation()
    life = Life(connection, create(connection, content))
    for who, place, delete, text in plan:
        edit(life, who, place, delete, text)
        before = text_of(state_of(life.document))
        for author in (A, B):
            try:
                life.undo(author)
            except InvalidInput:
                continue
            life.redo(author)
            assert text_of(state_of(life.document)) == before
    connection.close()


@given(st.text("ab", min_size=1, max_size=8), edits)
def test_what_others_wrote_survives_every_undo(content: str, plan: list[Step]) -> None:
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
