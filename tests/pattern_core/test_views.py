from __future__ import annotations

from dataclasses import replace

import trio
from trio.testing import wait_all_tasks_blocked

from pattern_core.embeddings.embedder import EmbedderInfo
from pattern_core.testing import Paced, says
from pattern_core.views import condition, view_conversation, view_tree, view_turn, view_turns
from pattern_db.enums import IndexState, PathType
from pattern_db.tables import embedding_indexes, folders, sources
from pattern_db.tables.folders import FolderRow
from pattern_db.tables.sources import SourceRow
from tests.pattern_core.groups.rig import group, say, speak, submit
from tests.pattern_core.memory.life import create
from tests.pattern_core.memory.rig import NOW, constellation
from tests.support import START, acting, running, until

MODEL = EmbedderInfo(provider="deterministic", model="words", dimension=4, fingerprint="ab")


async def test_turns_are_listed_without_their_messages() -> None:
    async with running([says("one"), says("two")]) as it:
        agent = await it.agent()
        views = [await it.say("hello"), await it.say("again")]
        listed = await it.database.read(view_turns, 10, before=None, status=None, agent_id=agent.id, group_id=None)
        assert listed == [replace(view, messages=[], text=None) for view in reversed(views)]
        (older,) = await it.database.read(
            view_turns, 1, before=listed[0].key, status=None, agent_id=None, group_id=None
        )
        assert older.id == views[0].id


async def test_a_turn_under_way_and_one_that_waits() -> None:
    gate = trio.Event()
    async with acting([Paced(answer=says("late"), gate=gate), says("later")]) as it:
        first, second = await it.submit("one"), await it.submit("two")
        await wait_all_tasks_blocked()
        working, waiting = [await it.database.read(view_turn, turn) for turn in (first, second)]
        gate.set()
        assert (await it.constellation.wait(second)).status == "completed"
    assert (working.status, working.has_ended, working.started_at) == ("running", False, START)
    assert [message.content for message in working.messages] == ["one"]
    assert (waiting.status, waiting.has_ended, waiting.started_at, waiting.messages) == ("queued", False, None, [])


def test_the_condition_of_a_file_counts_vectors_and_unavailable_folders() -> None:
    connection = constellation()
    found = condition(connection)
    assert (found.index, found.done, found.total, found.unavailable) == (None, 0, 0, [])
    create(connection, "Ruth lives in Lisbon.")
    found = condition(connection)
    assert (found.index, found.done, found.total) == (None, 0, 1)
    index = embedding_indexes.begin(connection, MODEL, IndexState.ACTIVE, NOW)
    for name in ("gone", "there"):
        row = FolderRow(id=f"fld_{name}", name=name, path_type=PathType.VIRTUAL, embedding_model="", created_at=NOW)
        folders.create(connection, row)
    folders.note_unavailable(connection, "fld_gone", "it was moved")
    found = condition(connection)
    assert (found.index, found.done, found.total) == (index, 0, 1)
    assert [(one.name, one.status_reason) for one in found.unavailable] == [("gone", "it was moved")]
    assert found.sources == []
    sources.create(connection, SourceRow("src_1", "broken", "rss", {}, NOW, NOW))
    sources.change(connection, "src_1", {"error": "it is away", "failing_since": NOW})
    [(source, in_doubt, people)] = condition(connection).sources
    assert (source.name, source.error, in_doubt, people) == ("broken", "it is away", 0, [])


async def test_a_groups_turn_is_a_tree_and_an_agents_is_not() -> None:
    async with running(otherwise=speak) as it:
        await group(it, "debate", {"judge": "bob", "rounds": 1})
        tree = await it.database.read(view_tree, await say(it))
        assert [(one.name, one.reason, one.status) for one in tree] == [
            ("ada", "round 1", "completed"),
            ("cleo", "round 1", "completed"),
            ("bob", "judge", "completed"),
        ]
        assert await it.database.read(view_tree, await it.say("hello")) == []


async def test_what_was_said_in_a_group_is_shown_with_how_far_it_is_trusted() -> None:
    async with running(otherwise=speak) as world:
        desk = await group(world, "parallel", names=["ada", "bob"])
        await say(world, "one")
        await submit(world, "two", sender="conversant:mia")
        await until(lambda: world.constellation.is_idle)
        said = await world.database.read(view_conversation, desk.id, 9, before=None, session_id=None)
        assert [(one.content, trust) for one, trust in reversed(said)] == [
            *((words, "partner") for words in ("one", "ada answers", "bob answers")),
            *((words, "conversant") for words in ("two", "ada answers", "bob answers")),
        ]
        assert await world.database.read(view_conversation, desk.id, 9, before=None, session_id="ses_no") == []
