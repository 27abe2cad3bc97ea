"""The decisions of the mirror, alone: whatever two sides do, and wherever it stops, no words are lost."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_server.cli.mirror.content import Form
from pattern_server.cli.mirror.plan import (
    Action,
    Do,
    Known,
    Local,
    Remote,
    Sent,
    decide,
    is_doubtful,
    recognised,
    resolved,
    settled,
)


def lines_of(text: str) -> set[str]:
    return set(text.split())


def merge(_form: Form, base: str, mine: str, theirs: str) -> str:
    """Merges sets of lines: what either added is there, what either took away is not."""
    first, second, third = lines_of(base), lines_of(mine), lines_of(theirs)
    return text_of((first & second & third) | (second - first) | (third - first))


def text_of(lines: set[str]) -> str:
    return "".join(f"{line}\n" for line in sorted(lines))


def known(text: str = "a\n", version: int = 3, **more: object) -> Known:
    return replace(Known(block_id="mem_1", path="ada/human.md", version=version, text=text), **more)  # type: ignore[arg-type]  # fields by name


def remote(text: str = "a\n", version: int = 3, locked: str | None = None) -> Remote:
    return Remote(form=Form.TEXT, version=version, text=text, locked=locked)


def do(state: Known | None, local: str | None, block: Remote | None, **more: bool) -> Action:
    return decide(state, Local(text=local), block, merge=merge, **more)


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
    both = do(known(), "a\nb\n", remote("a\nc\n", 4))
    assert (both.do, both.text, both.local) == (Do.PUSH, "a\nb\nc\n", "a\nb\n")
    assert do(known(), "a\nb\n", remote("a\nb\nc\n", 4)).do is Do.WRITE
    assert do(known(), "a\nb\n", remote(locked="kept by the system")).do is Do.ASIDE


def test_deleting_and_emptying_never_destroy() -> None:
    for gone in (None, "", " \n\n"):
        action = do(known(), gone, remote("a\nb\n", 4))
        assert (action.do, action.text) == (Do.WRITE, "a\nb\n")
        assert "restored" in action.note
    assert do(known(), None, remote(), deletes=True).do is Do.DELETE
    assert do(known(), None, remote("b\n", 4), deletes=True).do is Do.WRITE, "others changed it since"
    assert do(known(), "", remote(), deletes=True).do is Do.WRITE
    assert do(known(), None, remote(locked="a log"), deletes=True).do is Do.WRITE


def test_a_block_that_is_gone() -> None:
    assert do(known(), "a\n", None).do is Do.RETIRE
    assert do(known(), "a\nmine\n", None).do is Do.ASIDE
    assert do(known(), None, None).do is Do.FORGET
    assert decide(known(), Local(problem="no text"), None, merge=merge).do is Do.ASIDE


def test_unreadable_files_stay() -> None:
    for state in (None, known()):
        action = decide(state, Local(problem="it is not JSON"), remote("b\n", 9), merge=merge)
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


def test_a_lost_state_is_found_in_the_past() -> None:
    past = ((2, "a\nb\n"), (1, "a\n"))
    assert recognised("mem_1", "ada/human.md", "a", past) == known("a\n", 1)
    assert recognised("mem_1", "ada/human.md", "c", past) is None


class Crash(Exception):
    """The program dies here."""


@dataclass
class World:
    """A file, a block, and a mirror whose every act may be its last; before each act somebody may edit."""

    file: str | None = None
    versions: list[str] = field(default_factory=lambda: ["a\n"])
    state: Known | None = None
    aside: list[str] = field(default_factory=list)
    disturbances: list[tuple[str, int]] = field(default_factory=list)
    acts_left: int = 10**6
    words: set[str] = field(default_factory=lambda: {"a"})
    given_up: set[str] = field(default_factory=set)
    emptied: set[str] = field(default_factory=set)
    count: int = 0

    def edit(self, what: str, which: int) -> None:
        """A person (file) or an agent (block) edits."""
        self.count += 1
        word = f"w{self.count}"
        here = lines_of(self.file or "") if what.startswith("file") else lines_of(self.versions[-1])
        match what:
            case "file_add" if self.file is not None:
                self.words.add(word)
                self.given_up |= self.emptied  # emptied and written anew before anybody looked: that is replacing it
                self.file = text_of(here | {word})
            case "file_remove" if here:
                gone = sorted(here)[which % len(here)]
                self.given_up.add(gone)
                self.file = text_of(here - {gone})
            case "file_delete" | "file_empty":
                # What a person throws away before anybody saw it is the person's to throw away.
                self.given_up |= here - set().union(*map(lines_of, self.versions))
                self.file = None if what == "file_delete" else ""
                self.emptied |= here
            case "block_add":
                self.words.add(word)
                self.versions.append(text_of(here | {word}))
            case "block_remove" if here:
                gone = sorted(here)[which % len(here)]
                self.given_up.add(gone)
                self.versions.append(text_of(here - {gone}))

    def act(self) -> None:
        """Something is about to be done for good: others may be faster, and the program may die."""
        if self.disturbances:
            self.edit(*self.disturbances.pop())
        if self.acts_left <= 0:
            raise Crash
        self.acts_left -= 1

    def put(self, state: Known | None) -> None:
        self.act()
        self.state = state

    def step(self) -> bool:
        """One step of the mirror as `rounds` takes it; False when there is nothing to do."""
        seen, version, text = self.file, len(self.versions) - 1, self.versions[-1]
        state = None if self.state is None else settled(self.state, Local(text=seen))
        action = decide(state, Local(text=seen), remote(text, version), merge=merge)
        match action.do:
            case Do.NOTHING:
                return False
            case Do.REMEMBER:
                self.put(known(action.text, version))
            case Do.WRITE:
                if state is not None:
                    self.put(replace(state, incoming=(version, text)))
                self.act()
                if self.file == seen:
                    self.file, self.emptied = text, set()
                    self.put(known(text, version))
            case Do.PUSH:
                assert state is not None
                self.put(replace(state, sent=Sent(text=action.text, version=version, local=action.local)))
                self.act()
                if len(self.versions) - 1 != version:
                    self.put(replace(state, sent=None))
                    return True
                self.versions.append(action.text)
                self.put(replace(state, version=version + 1, text=action.local))
            case Do.ASIDE:
                self.put(None)
                self.aside.append(self.file or "")
                self.file = None
            case Do.ASK:
                self.ask(state, seen or "")
        return True

    def ask(self, state: Known | None, seen: str) -> None:
        """As `rounds` finds out."""
        now = len(self.versions) - 1
        if state is not None and state.sent is not None:
            after = state.sent.version + 1
            self.put(resolved(state, self.versions[after] if after <= now else None, now_version=now))
            return
        past = tuple((n, self.versions[n]) for n in range(now - 1, -1, -1))
        found = recognised("mem_1", "ada/human.md", seen, past)
        self.put(found)
        if found is None:
            self.aside.append(self.file or "")
            self.file = None

    def sync(self, acts: int) -> None:
        self.acts_left = acts
        try:
            for _ in range(20):
                if not self.step():
                    return
        except Crash:
            pass


edits = st.tuples(
    st.sampled_from(
        ["file_add", "file_add", "file_remove", "file_delete", "file_empty", "block_add", "block_add", "block_remove"]
    ),
    st.integers(0, 5),
)
scripts = st.lists(
    st.one_of(edits, st.tuples(st.just("sync"), st.sampled_from([0, 1, 2, 3, 4, 100]), st.lists(edits, max_size=3))),
    max_size=25,
)


@settings(max_examples=150, deadline=None)
@given(scripts)
def test_no_order_of_edits_and_crashes_loses_a_word(script: list[tuple[object, ...]]) -> None:
    world = World()
    for what, which, *more in script:
        if what == "sync":
            world.disturbances = list(more[0])  # type: ignore[call-overload]  # a list of edits, by the strategy above
            world.sync(int(str(which)))
        else:
            world.edit(str(what), int(str(which)))
    world.disturbances = []
    world.sync(10**6)
    world.sync(10**6)
    assert lines_of(world.file or "") == lines_of(world.versions[-1]), "both sides say the same in the end"
    kept = lines_of(world.versions[-1]).union(*map(lines_of, world.aside))
    assert world.words - world.given_up <= kept


@pytest.mark.parametrize("lost", [True, False])
def test_the_simulation_can_fail(lost: bool) -> None:
    world = World(file="a\nmine\n", state=known("a\n", 0), words={"a", "mine"})
    if lost:
        world.state = known("a\nmine\n", 0)  # a state that says too much: as if the file's words were in the block
    world.sync(10**6)
    assert ("mine" in lines_of(world.versions[-1])) is not lost
