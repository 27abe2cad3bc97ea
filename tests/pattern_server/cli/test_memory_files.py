"""Blocks as files: rounds that bring both sides together, new files, what is reported, one process at a time."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_core.errors import Conflict, InvalidInput
from pattern_db.enums import CONSTELLATION_OWNER as EVERYONE
from pattern_server.cli.client import ServerFailed, ServerUnreachable
from pattern_server.cli.memory_files import (
    DOUBTFUL_SETTLE_S,
    FILE_BYTES_MAX,
    SETTLE_S,
    Mirror,
    MirroredBlock,
    MirrorEvent,
    SyncState,
    is_passing,
    opened,
    owners_of,
)
from tests.pattern_server.cli.shelf import ADA, Desk, Kept, Shelf


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    shelf = Shelf()
    shelf.add("human", "Likes tea.\n")
    return Desk(tmp_path / "m", shelf)


async def settled_round(desk: Desk, *names: str) -> list[MirrorEvent]:
    """Rounds until nothing waits for a file to come to rest; what they reported."""
    told: list[MirrorEvent] = []
    for _ in range(10):
        outcome = await desk.round(*names)
        told += desk.told
        if not outcome.is_unsettled:
            return told
        await trio.sleep(DOUBTFUL_SETTLE_S)
    raise AssertionError("it never came to rest")


async def test_both_directions(desk: Desk, autojump_clock: trio.testing.MockClock) -> None:
    await desk.round()
    assert desk.text("human.md") == "Likes tea.\n"
    desk.path("human.md").write_text("Likes tea.\nLikes figs.\n")
    assert (await desk.round()).is_unsettled, "somebody may still be saving"
    await trio.sleep(SETTLE_S)
    await desk.round()
    assert desk.shelf.blocks[0].now == "Likes tea.\nLikes figs.\n"
    desk.shelf.blocks[0].texts.append("Likes tea.\nLikes figs.\nSails.\n")
    await desk.round()
    assert desk.text("human.md").endswith("Sails.\n")
    puts = desk.shelf.puts
    await desk.round()
    assert desk.did() == []
    assert desk.shelf.puts == puts


async def test_edits_on_both_sides_merge(desk: Desk, autojump_clock: trio.testing.MockClock) -> None:
    await desk.round()
    desk.path("human.md").write_text("Likes tea.\nmine\n")
    desk.shelf.blocks[0].texts.append("theirs\nLikes tea.\n")
    desk.shelf.before_put = lambda: desk.shelf.blocks[0].texts.append("theirs\nLikes tea.\nlate\n")
    await settled_round(desk)
    said = desk.shelf.blocks[0].now
    assert sorted(said.split("\n")) == ["", "Likes tea.", "late", "mine", "theirs"]
    assert desk.text("human.md") == said


async def test_deleted_and_emptied_files_come_back(desk: Desk, autojump_clock: trio.testing.MockClock) -> None:
    await desk.round()
    for is_emptied in (False, True):
        desk.path("human.md").unlink()
        if is_emptied:
            desk.path("human.md").write_text("")
        assert (await desk.round()).is_unsettled
        await trio.sleep(SETTLE_S)
        assert (await desk.round()).is_unsettled, "a saving editor may leave a file empty for a moment"
        await settled_round(desk)
        assert desk.text("human.md") == "Likes tea.\n"
        assert desk.shelf.blocks[0].texts == ["Likes tea.\n"]


async def test_a_file_that_lost_most_of_its_text_is_waited_for(
    desk: Desk, autojump_clock: trio.testing.MockClock
) -> None:
    desk.shelf.blocks[0].texts.append("".join(f"line{n}\n" for n in range(100)))
    await desk.round()
    desk.path("human.md").write_text("line1\n")
    assert (await desk.round()).is_unsettled
    await trio.sleep(SETTLE_S)
    assert (await desk.round()).is_unsettled, "an editor may be in the middle of saving it"
    (pushed,) = await settled_round(desk)
    assert "memory undo" in pushed.note


@pytest.mark.parametrize("dies", ["dies", "dies_early"])
async def test_a_killed_server_is_asked_whether_it_took_the_text(
    desk: Desk, dies: str, autojump_clock: trio.testing.MockClock
) -> None:
    await desk.round()
    desk.path("human.md").write_text("Likes tea.\nLikes figs.\n")
    setattr(desk.shelf, dies, True)
    with pytest.raises(ServerUnreachable):
        await settled_round(desk)
    desk.path("human.md").write_text("Likes tea.\nLikes figs.\nmine\n")
    desk.shelf.blocks[0].texts.append(desk.shelf.blocks[0].now + "theirs\n")
    desk.restart()
    await settled_round(desk)
    assert desk.text("human.md") == desk.shelf.blocks[0].now
    assert sorted(desk.text("human.md").splitlines()) == ["Likes figs.", "Likes tea.", "mine", "theirs"]


async def test_refused_texts_stay_and_the_reason_is_reported_once(
    desk: Desk, autojump_clock: trio.testing.MockClock
) -> None:
    desk.shelf.limit = 30
    await desk.round()
    desk.path("human.md").write_text("x" * 31)
    (refused,) = await settled_round(desk)
    assert desk.text("human.md") == "x" * 31
    assert (refused.did, refused.skipped) == ("refuse", True)
    assert "30 characters" in refused.note
    puts = desk.shelf.puts
    assert (await desk.round()).skipped == {"ada/human.md"}
    assert desk.did() == []
    assert desk.shelf.puts == puts, "the same is not asked again"
    desk.path("human.md").write_text("x" * 29)
    await settled_round(desk)
    assert desk.shelf.blocks[0].now == "x" * 29 + "\n"


async def test_what_was_refused_before_is_refused_again_with_its_reason(
    desk: Desk, autojump_clock: trio.testing.MockClock
) -> None:
    desk.shelf.limit = 30
    await desk.round()
    before = desk.text("human.md")
    for text, did in (("x" * 31, ["refuse"]), (before, []), ("x" * 31, ["refuse"])):
        desk.path("human.md").write_text(text)
        assert [event.did for event in await settled_round(desk)] == did


async def test_a_server_in_trouble_refuses_no_text(desk: Desk, autojump_clock: trio.testing.MockClock) -> None:
    await desk.round()
    desk.path("human.md").write_text("Ruth\n")
    desk.shelf.is_ill = True
    with pytest.raises(ServerFailed, match="ill"):
        await settled_round(desk)
    assert desk.others() == set()
    desk.shelf.is_ill = False
    await settled_round(desk)
    assert desk.shelf.blocks[0].now == "Ruth\n"


async def test_structured_blocks_and_logs(desk: Desk, autojump_clock: trio.testing.MockClock) -> None:
    desk.shelf.add("mood", {"now": "calm", "count": 1}, schema={"Map": {"fields": []}})
    desk.shelf.add("diary", [{"said": "one"}], schema={"Log": {}})
    await desk.round()
    mood = json.loads(desk.text("mood.json"))
    desk.path("mood.json").write_text(json.dumps({**mood, "now": "glad"}))
    desk.shelf.blocks[1].texts.append({"now": "calm", "count": 2})
    await settled_round(desk)
    assert desk.shelf.blocks[1].now == {"now": "glad", "count": 2}
    assert json.loads(desk.text("mood.json")) == {"now": "glad", "count": 2}
    desk.path("mood.json").write_text('{"now": ')
    (refused,) = await settled_round(desk)
    assert "not JSON" in refused.note
    assert desk.path("diary.jsonl").stat().st_mode & 0o222 == 0
    desk.path("diary.jsonl").chmod(0o644)
    desk.path("diary.jsonl").write_text('{"said": "forged"}\n')
    await settled_round(desk)
    assert desk.text("diary.jsonl") == '{"said": "one"}\n'
    assert "forged" in desk.text("diary.jsonl.yours.txt")
    assert len(desk.shelf.blocks[2].texts) == 1


async def test_blocks_that_are_gone_leave_their_words(desk: Desk, autojump_clock: trio.testing.MockClock) -> None:
    desk.shelf.add("garden", "Four beds.\n")
    await desk.round()
    desk.path("garden.md").write_text("Four beds.\nmine\n")
    desk.shelf.blocks.clear()
    await settled_round(desk)
    assert not desk.path("human.md").exists()
    assert (desk.root / ".pattern-sync/removed/ada%2Fhuman.md").read_text() == "Likes tea.\n"
    assert desk.text("garden.md.yours.txt") == "Four beds.\nmine\n"


async def test_a_lost_state_and_a_stranger(desk: Desk, autojump_clock: trio.testing.MockClock) -> None:
    await desk.round()
    (desk.root / ".pattern-sync/state.json").write_text("{")
    desk.shelf.blocks[0].texts.append("Likes tea.\nSails.\n")
    desk.restart()
    await settled_round(desk)
    assert desk.text("human.md") == "Likes tea.\nSails.\n", "its text was an earlier version"
    assert desk.others() == set()
    desk.path("human.md").write_text("A stranger's words.\n")
    (desk.root / ".pattern-sync/state.json").unlink()
    desk.restart()
    await settled_round(desk)
    assert desk.text("human.md") == "Likes tea.\nSails.\n"
    assert desk.text("human.md.yours.txt") == "A stranger's words.\n"
    desk.shelf.has_past = False
    desk.path("human.md").write_text("Likes tea.\n")
    (desk.root / ".pattern-sync/state.json").unlink()
    desk.restart()
    await settled_round(desk)
    assert desk.text("human.md.yours-2.txt") == "Likes tea.\n", "versions that are not kept cannot be recognised"


async def test_names_move_with_their_blocks(desk: Desk, autojump_clock: trio.testing.MockClock) -> None:
    await desk.round()
    desk.shelf.blocks[0].label = "person"
    await desk.round()
    assert desk.text("person.md") == "Likes tea.\n"
    desk.shelf.agents = [{**desk.shelf.agents[0], "name": "Ada: II"}]
    await desk.round()
    assert (desk.root / "Ada%3A II/person.md").read_text() == "Likes tea.\n"
    assert not desk.path("").exists()
    (desk.root / "Ada%3A II/taken.md").symlink_to("/nowhere")
    desk.shelf.blocks[0].label = "taken"
    assert (await desk.round()).skipped
    assert (desk.root / "Ada%3A II/person.md").exists()


async def test_another_kind_of_document_gets_another_file(desk: Desk, autojump_clock: trio.testing.MockClock) -> None:
    await desk.round()
    desk.shelf.blocks[0].schema = {"List": {}}
    desk.shelf.blocks[0].texts.append(["tea"])
    await settled_round(desk)
    assert json.loads(desk.text("human.json")) == ["tea"]
    assert not desk.path("human.md").exists()


async def test_links_are_not_followed_and_damage_is_reported(
    desk: Desk, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    await desk.round()
    secret = tmp_path / "secret"
    secret.write_text("nobody's business")
    desk.path("human.md").unlink()
    desk.path("human.md").symlink_to(secret)
    await settled_round(desk)
    assert desk.shelf.blocks[0].texts == ["Likes tea.\n"]
    assert secret.read_text() == "nobody's business"
    desk.shelf.blocks[0].damaged = "bytes are missing"
    outcome = await desk.round()
    assert outcome.skipped == {"ada/human.md"}
    assert "bytes are missing" in desk.told[-1].note


async def test_a_dry_run_changes_nothing(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    shelf = Shelf()
    shelf.add("human", "Likes tea.\n")
    shelf.add("broken", "x", damaged="bytes are missing")
    desk = Desk(tmp_path / "m", shelf, is_dry=True)
    await desk.round()
    assert desk.did() == [("ada/human.md", "write"), ("ada/broken.md", "refuse")]
    assert not desk.root.exists()


def test_which_refusals_pass() -> None:
    assert [status for status in (400, 401, 404, 412, 429, 503) if is_passing(_failed(status))] == [401, 429, 503]


def _failed(status: int) -> ServerFailed:
    return ServerFailed("no", status=status, problem_code="x")


async def test_a_round_is_refused_as_a_whole(desk: Desk) -> None:
    with pytest.raises(ServerFailed, match="no such agent"):
        await desk.round("nobody")


class Killed(Exception):
    """The program dies here."""


class MortalMirror(Mirror):
    """A mirror before whose changes somebody may edit, or the program may die."""

    def __init__(self, life: Life) -> None:
        self._life = life
        super().__init__(life.desk.root, "con_1", life.desk.told.append)

    def _write(self, block: MirroredBlock, path: str, expected: str | None, note: str = "") -> None:
        self._life.act()
        self._life.is_writing = True
        super()._write(block, path, expected, note)
        self._life.is_writing = False

    def _set_aside(self, block_id: str, path: str, note: str) -> None:
        self._life.act()
        super()._set_aside(block_id, path, note)

    def _put(self, block_id: str, state: SyncState | None) -> None:
        if state is not None and self._read(state.path) == state.text:
            self._life.emptied.clear()
        self._life.act()
        super()._put(block_id, state)


@dataclass
class Life:
    """A person and an agent who edit, also between any two acts of the mirror, of which each may be its last.

    Each word is three times a sign of its own, so that no merge can take two of them for each other.
    """

    desk: Desk
    block: Kept
    words: set[str] = field(default_factory=lambda: {"anfang"})
    given_up: set[str] = field(default_factory=set)  # what somebody threw away
    emptied: set[str] = field(default_factory=set)  # what a file said that is gone, until it is written again
    disturbances: list[tuple[str, int]] = field(default_factory=list)
    acts_left: int = 10**6
    is_gentle: bool = True  # nobody removed anything, and the program never died
    is_writing: bool = False
    may_repeat: bool = False  # it died after it had written the file, and before it had noted that

    def begin(self) -> None:
        """Start the program."""
        self.is_writing = False
        self.desk.mirror = MortalMirror(self)
        self.desk.shelf.before_put = self.arrive

    def arrive(self) -> None:
        """A change comes to the server."""
        self.desk.shelf.before_put = self.arrive
        self.act()

    def act(self) -> None:
        """Something is about to be done for good: others may be faster, and the program may die."""
        if self.disturbances:
            self.edit(*self.disturbances.pop())
        if self.acts_left <= 0:
            self.may_repeat |= self.is_writing
            raise Killed
        self.acts_left -= 1

    def edit(self, what: str, which: int) -> None:
        """A person (file) or an agent (block) edits, or the server is about to be killed."""
        path, word = self.desk.path("human.md"), chr(0x4E00 + len(self.words)) * 3
        file = path.read_text() if path.exists() else ""
        here = self.words_in(file if what.startswith("file") else self.block.now)
        gone = sorted(here)[which % len(here)] if here else ""
        self.is_gentle &= what.endswith(("add", "kill", "kill early"))
        match what:
            case "file_add" if path.exists():
                self.words.add(word)
                self.given_up |= self.emptied  # emptied and written anew before anybody looked: that is replacing it
                path.write_text(f"{file}{word}\n")
            case "file_remove" if gone:
                self.given_up.add(gone)
                path.write_text(file.replace(f"{gone}\n", ""))
            case "file_delete" | "file_empty":
                # What a person throws away before anybody saw it is the person's to throw away.
                self.given_up |= here.difference(*map(self.words_in, self.block.texts))
                self.emptied |= here
                path.unlink(missing_ok=True)
                if what == "file_empty":
                    path.write_text("")
            case "block_add":
                self.words.add(word)
                self.block.texts.append(f"{word}\n{self.block.now}")
            case "block_remove" if gone:
                self.given_up.add(gone)
                self.block.texts.append(self.block.now.replace(f"{gone}\n", ""))
            case "kill" | "kill early":
                setattr(self.desk.shelf, {"kill": "dies", "kill early": "dies_early"}[what], True)

    def words_in(self, text: str) -> set[str]:
        """Return the words in a text; a merge may put two of them into one line."""
        return {word for word in self.words if word in text}

    async def sync(self, acts: int) -> None:
        """Make rounds until both sides rest; a program that dies is started again."""
        self.acts_left = acts
        try:
            await settled_round(self.desk)
        except (Killed, ServerUnreachable) as error:
            self.is_gentle &= not isinstance(error, Killed)
            self.begin()


edits = st.tuples(
    st.sampled_from(
        ["file_add"] * 3 + ["file_remove", "file_delete", "file_empty"]
        + ["block_add"] * 3 + ["block_remove", "kill", "kill early"]
    ),
    st.integers(0, 5),
)  # fmt: skip
syncs = st.tuples(st.just("sync"), st.sampled_from([0, 1, 2, 3, 4, 100]), st.lists(edits, max_size=3))


@settings(max_examples=100, deadline=None)
@given(st.lists(edits | syncs, max_size=25))
def test_no_order_of_edits_and_deaths_loses_or_repeats_a_word(script: list[tuple[Any, ...]]) -> None:
    async def main() -> None:
        with tempfile.TemporaryDirectory() as folder:
            await _live(Desk(Path(folder) / "m", Shelf()), script)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def _live(desk: Desk, script: list[tuple[Any, ...]]) -> None:
    life = Life(desk, desk.shelf.add("human", "anfang\n"))
    desk.path("").mkdir()
    life.begin()
    for what, which, *disturbances in script:
        if what == "sync":
            life.disturbances = [*disturbances[0]]
            await life.sync(which)
        else:
            life.edit(what, which)
    life.disturbances = []
    desk.shelf.dies = desk.shelf.dies_early = False
    await life.sync(10**6)
    await life.sync(10**6)
    said, aside = life.block.now, [(desk.root / file).read_text() for file in desk.others()]
    assert desk.text("human.md").strip() == said.strip(), "both sides say the same in the end"
    assert life.may_repeat or all(said.count(word) < 2 for word in life.words), "no word came twice"
    assert life.words - life.given_up <= life.words_in("\n".join([said, *aside]))
    assert not (life.is_gentle and aside), "what can be merged is never set aside"


@pytest.fixture
def empty(tmp_path: Path) -> Desk:
    desk = Desk(tmp_path / "m", Shelf())
    desk.path("").mkdir()
    return desk


async def test_a_new_markdown_file_is_a_new_block(empty: Desk, autojump_clock: trio.testing.MockClock) -> None:
    empty.path("日記.md").write_text("Sonne\n")
    empty.path("file%3Anotes.md").write_text("x")
    empty.path("empty.md").write_text("\n")
    empty.path("data.json").write_text("{}")
    (empty.root / "strangers").mkdir()
    (empty.root / "strangers/x.md").write_text("x")
    await settled_round(empty)
    assert {block.label: block.now for block in empty.shelf.blocks} == {"日記": "Sonne\n", "file:notes": "x\n"}
    puts = empty.shelf.puts
    empty.restart()
    await settled_round(empty)
    assert empty.shelf.puts == puts
    assert empty.did() == []


async def test_what_is_no_block_stays_with_the_reason(empty: Desk, autojump_clock: trio.testing.MockClock) -> None:
    empty.path("what?.md").write_text("x")
    empty.path("raw.md").write_bytes(b"\xff")
    empty.path("long.md").write_text("x" * 2000)
    refused = await settled_round(empty)
    assert {event.path for event in refused} == {"ada/what?.md", "ada/raw.md", "ada/long.md"}
    outcome = await empty.round()
    assert len(outcome.skipped) == 3
    assert empty.told == []
    assert empty.shelf.blocks == []


async def test_two_who_make_the_same_block(empty: Desk, autojump_clock: trio.testing.MockClock) -> None:
    empty.path("garden.md").write_text("mine\n")

    def somebody_else() -> None:
        empty.shelf.add("garden", "theirs\n")

    empty.shelf.before_put = somebody_else
    await settled_round(empty)
    assert empty.text("garden.md") == "theirs\n"
    assert empty.text("garden.md.yours.txt") == "mine\n"


async def test_a_crash_after_the_making(empty: Desk, autojump_clock: trio.testing.MockClock) -> None:
    empty.path("garden.md").write_text("mine\n")
    await settled_round(empty)
    (empty.root / ".pattern-sync/state.json").unlink()
    empty.restart()
    await settled_round(empty)
    assert [block.texts for block in empty.shelf.blocks] == [["mine\n"]]
    assert empty.others() == set()


async def test_one_at_a_time_and_one_constellation(tmp_path: Path) -> None:
    root = tmp_path / "m"
    with opened(root, "con_1", print):
        with pytest.raises(Conflict, match="nother `pattern memory sync`"), opened(root, "con_1", print):
            pass
        with opened(root, "con_1", print, is_dry=True):
            pass
    with pytest.raises(Conflict, match="con_1"), opened(root, "con_2", print):
        pass
    with opened(root, "con_1", print):
        pass


async def test_a_file_is_no_folder(tmp_path: Path) -> None:
    file = tmp_path / "m"
    file.write_text("x")
    with pytest.raises(InvalidInput, match="is a file"), opened(file, "con_1", print):
        pass


async def test_owners() -> None:
    shelf = Shelf(agents=[ADA, {"id": "agent_old", "name": "old", "status": "archived"}])
    everyone = {"ada": "agent_ada", EVERYONE: EVERYONE}
    assert await owners_of(shelf.home(), []) == everyone
    assert await owners_of(shelf.home(), ["ada", EVERYONE]) == everyone
    with pytest.raises(ServerFailed):
        await owners_of(shelf.home(), ["nobody"])


def test_reading(tmp_path: Path) -> None:
    (tmp_path / "ada").mkdir()
    mirror, file = Desk(tmp_path, Shelf()).mirror, tmp_path / "ada/human.md"
    assert mirror is not None
    assert mirror._read("ada/human.md") is None
    assert mirror._read("nobody/human.md") is None
    file.write_text("Likes tea.\n")
    assert mirror._read("ada/human.md") == "Likes tea.\n"
    with file.open("wb") as sparse:
        sparse.truncate(FILE_BYTES_MAX + 1)
    with pytest.raises(InvalidInput, match="larger"):
        mirror._read("ada/human.md")
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(InvalidInput, match="plain file"):
        mirror._read("ada/human.md")


async def test_setting_aside_never_overwrites(desk: Desk, autojump_clock: trio.testing.MockClock) -> None:
    for number, others in enumerate((1, 2, 3), 1):
        desk.path("").mkdir(exist_ok=True)
        desk.path("human.md").write_text(f"a stranger's {number}\n")
        (desk.root / ".pattern-sync/state.json").unlink()
        desk.restart()
        await settled_round(desk)
        assert len(desk.others()) == others
    assert desk.text("human.md.yours-3.txt") == "a stranger's 3\n"


async def test_names_differ_where_case_does_not_count(desk: Desk) -> None:
    desk.shelf.add("Human", "Another.\n")
    await desk.round()
    assert {file.name for file in desk.path("").iterdir()} == {"human.md", "mem_2.md"}
