"""The decisions of the mirror, alone; `test_rounds` has what comes of them."""

from __future__ import annotations

from dataclasses import replace

from pattern_server.cli.mirror.content import Form
from pattern_server.cli.mirror.plan import (
    Action,
    Block,
    Do,
    Known,
    Local,
    Sent,
    decide,
    is_doubtful,
    resolved,
    settled,
)


def known(text: str = "a\n", version: int = 3, **more: object) -> Known:
    return replace(Known(block_id="mem_1", path="ada/human.md", version=version, text=text), **more)  # type: ignore[arg-type]  # fields by name


def remote(text: str = "a\n", version: int = 3, locked: str | None = None) -> Block:
    block = Block(id="mem_1", agent_id="agent_ada", agent="ada", label="human", form=Form.TEXT, version=3, text="a\n")
    return replace(block, version=version, text=text, locked=locked)


def do(state: Known | None, local: str | None, block: Block | None) -> Action:
    return decide(state, Local(text=local), block)


def test_the_table_of_decisions() -> None:
    assert do(None, None, None).do is Do.NOTHING
    assert do(None, None, remote()).do is Do.WRITE
    assert do(None, "a", remote()).do is Do.REMEMBER
    assert do(None, "", remote()).do is Do.WRITE
    assert do(None, "other\n", remote()).do is Do.ASK
    assert do(known(), "a\n", remote()).do is Do.NOTHING
    assert do(known(), "a\n", remote(version=4)).do is Do.REMEMBER
    assert do(known(), "a\n", remote("b\n", 4)).do is Do.WRITE
    assert do(known(), "b\n", remote("b\n", 4)).do is Do.REMEMBER
    pushed = do(known(), "a\nb\n", remote())
    assert (pushed.do, pushed.text, pushed.local) == (Do.PUSH, "a\nb\n", "a\nb\n")
    both = do(known(), "a\nb\n", remote("c\na\n", 4))
    assert (both.do, both.text, both.local) == (Do.PUSH, "c\na\nb\n", "a\nb\n")
    assert do(known("a\nx\ny\n"), "a\ny\n", remote("a\ny\nz\n", 4)).do is Do.WRITE, "both removed the same"
    assert do(known(), "a\nb\n", remote(locked="kept by the system")).do is Do.ASIDE


def test_deleting_and_emptying_never_destroy() -> None:
    for gone in (None, "", " \n\n"):
        action = do(known(), gone, remote("a\nb\n", 4))
        assert (action.do, action.text) == (Do.WRITE, "a\nb\n")
        assert "restored" in action.note


def test_a_block_that_is_gone() -> None:
    assert do(known(), "a\n", None).do is Do.RETIRE
    assert do(known(), "a\nmine\n", None).do is Do.ASIDE
    assert do(known(), None, None).do is Do.FORGET
    assert decide(known(), Local(problem="no text"), None).do is Do.ASIDE


def test_unreadable_files_stay() -> None:
    for state in (None, known()):
        action = decide(state, Local(problem="it is not JSON"), remote("b\n", 9))
        assert (action.do, action.note) == (Do.REFUSE, "it is not JSON")


def test_an_older_block_means_a_restored_server_and_overwrites_nothing() -> None:
    assert do(known("a\nb\n", 9), "a\nb\n", remote("a\n", 2)).do is Do.ASK
    assert do(known("a\nb\n", 9), "a\n", remote("a\n", 2)).do is Do.REMEMBER


def test_a_great_loss_is_reported_and_waited_for() -> None:
    long = "".join(f"line{n}\n" for n in range(100))
    assert "memory undo" in do(known(long), "line1\n", remote(long)).note
    assert is_doubtful(known(long), Local(text="line1\n"))
    assert is_doubtful(known(), Local())
    assert not is_doubtful(known(), Local(text="a\nb\n"))
    assert not is_doubtful(None, Local())
    assert not is_doubtful(known(), Local(problem="x"))


def test_a_write_that_was_cut_off_is_seen_by_the_file() -> None:
    state = known("a\n", incoming=(4, "a\nb\n"))
    assert settled(state, Local(text="a\n")) == known("a\n")
    assert settled(state, Local()) == known("a\n")
    assert settled(state, Local(text="a\nb")) == known("a\nb\n", 4)
    assert settled(state, Local(text="a\nb\nmine\n")) == known("a\nb\n", 4), "it resembles the later one more"
    assert settled(known(), Local(text="z")) == known()


def test_a_text_that_was_on_its_way_is_looked_for_in_the_past() -> None:
    state = known("a\n", sent=Sent(text="a\nb\nc\n", version=4, local="a\nb\n"))
    assert do(state, "a\nb\n", remote("x\n", 7)).do is Do.ASK
    assert resolved(state, "a\nb\nc\n", now_version=5) == known("a\nb\n", 5)
    assert resolved(state, "another's\n", now_version=5) == known("a\n")
    assert resolved(state, None, now_version=4) == known("a\n")
    late = resolved(state, "a\nb\nc\n", now_version=4)  # it arrived after the block was read
    assert late == known("a\n"), "the next round looks again"
    assert resolved(known(), None, now_version=4) == known()
