"""Rounds of the mirror: both sides brought together, new files, what is told, one process at a time."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from pattern_core.errors import Conflict, InvalidInput
from pattern_db.enums import CONSTELLATION_OWNER as EVERYONE
from pattern_server.cli.client import ServerFailed, ServerUnreachable
from pattern_server.cli.mirror.remote import Owner
from pattern_server.cli.mirror.rounds import (
    DOUBTFUL_SETTLE_S,
    SETTLE_S,
    Rules,
    is_passing,
    opened,
)
from tests.pattern_server.cli.mirror.shelf import ADA, Desk, Shelf


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    shelf = Shelf()
    shelf.add("human", "Likes tea.\n")
    return Desk(tmp_path / "m", shelf)


async def settled_round(desk: Desk, *names: str) -> None:
    """Rounds until nothing waits for a file to come to rest."""
    for _ in range(10):
        outcome = await desk.round(*names)
        if not outcome.is_unsettled:
            return
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


async def test_deleting_on_demand(desk: Desk, autojump_clock: trio.testing.MockClock) -> None:
    desk.rules = Rules(deletes=True)
    desk.shelf.add("garden", "Four beds.\n")
    desk.restart()
    await desk.round()
    desk.path("human.md").unlink()
    await settled_round(desk)
    assert [block.label for block in desk.shelf.blocks] == ["garden"]
    desk.shelf.add("tools", "One spade.\n")
    await desk.round()
    for name in ("garden.md", "tools.md"):
        desk.path(name).unlink()
    desk.path("").rmdir()
    await settled_round(desk)
    assert len(desk.shelf.blocks) == 2, "a folder that is gone as a whole is no wish to forget"
    assert desk.text("garden.md") == "Four beds.\n"


async def test_a_killed_server_is_asked_whether_it_took_the_text(
    desk: Desk, autojump_clock: trio.testing.MockClock
) -> None:
    await desk.round()
    for dies_early in (True, False):
        word = f"word{dies_early}"
        desk.path("human.md").write_text(desk.text("human.md") + word + "\n")
        desk.shelf.dies, desk.shelf.dies_early = not dies_early, dies_early
        with pytest.raises(ServerUnreachable):
            await settled_round(desk)
        desk.shelf.blocks[0].texts.append(desk.shelf.blocks[0].now + f"agent{dies_early}\n")
        desk.restart()
        await settled_round(desk)
        assert desk.shelf.blocks[0].now.count(word) == 1
        assert f"agent{dies_early}" in desk.text("human.md")


async def test_refused_texts_stay_with_the_reason_beside(desk: Desk, autojump_clock: trio.testing.MockClock) -> None:
    desk.shelf.limit = 30
    await desk.round()
    desk.path("human.md").write_text("x" * 31)
    await settled_round(desk)
    assert desk.text("human.md") == "x" * 31
    assert desk.others() == {"ada/human.md.error.txt"}
    assert "30 characters" in desk.text("human.md.error.txt")
    puts = desk.shelf.puts
    assert (await desk.round()).skipped == ["ada/human.md"]
    assert desk.did() == []
    assert desk.shelf.puts == puts, "the same is not asked again"
    desk.path("human.md").write_text("x" * 29)
    await settled_round(desk)
    assert desk.shelf.blocks[0].now == "x" * 29 + "\n"
    assert desk.others() == set()


async def test_what_was_refused_before_is_refused_again_with_its_reason(
    desk: Desk, autojump_clock: trio.testing.MockClock
) -> None:
    desk.shelf.limit = 30
    await desk.round()
    before = desk.text("human.md")
    for text, others in (
        ("x" * 31, {"ada/human.md.error.txt"}),
        (before, set()),
        ("x" * 31, {"ada/human.md.error.txt"}),
    ):
        desk.path("human.md").write_text(text)
        await settled_round(desk)
        assert desk.others() == others


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
    await settled_round(desk)
    assert "not JSON" in desk.text("mood.json.error.txt")
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
    for file in (desk.root / ".pattern-sync/blocks").iterdir():
        file.write_text("{")
    desk.shelf.blocks[0].texts.append("Likes tea.\nSails.\n")
    desk.restart()
    await settled_round(desk)
    assert desk.text("human.md") == "Likes tea.\nSails.\n", "its text was an earlier version"
    assert desk.others() == set()
    desk.path("human.md").write_text("A stranger's words.\n")
    for file in (desk.root / ".pattern-sync/blocks").iterdir():
        file.unlink()
    desk.restart()
    await settled_round(desk)
    assert desk.text("human.md") == "Likes tea.\nSails.\n"
    assert desk.text("human.md.yours.txt") == "A stranger's words.\n"
    desk.shelf.has_past = False
    desk.path("human.md").write_text("Likes tea.\n")
    for file in (desk.root / ".pattern-sync/blocks").iterdir():
        file.unlink()
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
    assert outcome.skipped == ["ada/human.md"]
    assert "bytes are missing" in desk.told[-1].note


async def test_a_dry_run_changes_nothing(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    shelf = Shelf()
    shelf.add("human", "Likes tea.\n")
    shelf.add("broken", "x", damaged="bytes are missing")
    desk = Desk(tmp_path / "m", shelf, rules=Rules(is_dry=True))
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


happenings = st.lists(
    st.sampled_from(["person", "person", "agent", "agent", "race", "round", "round", "kill", "kill early", "restart"]),
    min_size=4,
    max_size=14,
)


@settings(max_examples=25, deadline=None)
@given(happenings)
def test_every_word_arrives_once_whatever_happens(script: list[str]) -> None:
    async def main() -> None:
        with tempfile.TemporaryDirectory() as folder:
            await _happen(Desk(Path(folder) / "m", Shelf()), script)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def _happen(desk: Desk, script: list[str]) -> None:
    """Each word is three times a sign of its own, so that no merge can take two of them for each other."""
    block, words = desk.shelf.add("human", "anfang\n"), 0
    await desk.round()

    def word() -> str:
        nonlocal words
        words += 1
        return chr(0x4E00 + words) * 3 + "\n"

    def agent() -> None:
        block.texts.append(word() + block.now)

    for what in script:
        match what:
            case "person":
                desk.path("human.md").write_text(desk.text("human.md") + word())
            case "agent":
                agent()
            case "race":
                desk.shelf.before_put = agent
            case "kill":
                desk.shelf.dies = True
            case "kill early":
                desk.shelf.dies_early = True
            case "restart":
                desk.restart()
            case "round":
                try:
                    await settled_round(desk)
                except ServerUnreachable:
                    desk.restart()
    desk.shelf.dies = desk.shelf.dies_early = False
    await settled_round(desk)
    assert sorted(block.now.split()) == sorted(["anfang", *(chr(0x4E00 + n + 1) * 3 for n in range(words))])
    assert desk.text("human.md") == block.now
    assert desk.others() == set()


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
    await settled_round(empty)
    assert empty.others() == {"ada/what?.md.error.txt", "ada/raw.md.error.txt", "ada/long.md.error.txt"}
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
    for file in (empty.root / ".pattern-sync/blocks").iterdir():
        file.unlink()
    empty.restart()
    await settled_round(empty)
    assert [block.texts for block in empty.shelf.blocks] == [["mine\n"]]
    assert empty.others() == set()


async def test_one_at_a_time_and_one_constellation(tmp_path: Path) -> None:
    root = tmp_path / "m"
    with opened(root, "con_1", Rules(), print):
        with pytest.raises(Conflict, match="nother `pattern memory sync`"), opened(root, "con_1", Rules(), print):
            pass
        with opened(root, "con_1", Rules(is_dry=True), print):
            pass
    with pytest.raises(Conflict, match="con_1"), opened(root, "con_2", Rules(), print):
        pass
    with opened(root, "con_1", Rules(), print):
        pass


async def test_a_file_is_no_folder(tmp_path: Path) -> None:
    file = tmp_path / "m"
    file.write_text("x")
    with pytest.raises(InvalidInput, match="is a file"), opened(file, "con_1", Rules(), print):
        pass


async def test_owners() -> None:
    shelf = Shelf(agents=[ADA, {"id": "agent_old", "name": "old", "status": "archived"}])
    assert await shelf.memory().owners([]) == [Owner(id="agent_ada", name="ada"), Owner(id=EVERYONE, name=EVERYONE)]
    assert await shelf.memory().owners(["ada", EVERYONE]) == [
        Owner(id="agent_ada", name="ada"),
        Owner(id=EVERYONE, name=EVERYONE),
    ]
    with pytest.raises(ServerFailed):
        await shelf.memory().owners(["nobody"])
