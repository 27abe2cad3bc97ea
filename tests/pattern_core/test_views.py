from __future__ import annotations

from dataclasses import replace

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from pattern_core.embeddings.embedder import EmbedderInfo
from pattern_core.models.errors import ModelRefused
from pattern_core.models.model import Usage
from pattern_core.testing import Paced, calls, says
from pattern_core.views import condition, view_turn, view_turns
from pattern_db.enums import IndexState, PathType
from pattern_db.errors import RowNotFound
from pattern_db.journal.usage import UsageSum
from pattern_db.tables import embedding_indexes, folders
from pattern_db.tables.folders import FolderRow
from tests.pattern_core.memory.life import create
from tests.pattern_core.memory.rig import NOW, constellation
from tests.support import START, USER, acting, note, running

MODEL = EmbedderInfo(provider="deterministic", model="words", dimension=4, fingerprint="ab")


async def test_a_turn_that_completed() -> None:
    usage = Usage(input_tokens=100, output_tokens=10, cached_tokens=40)
    script = [calls("note", {"text": "x"}, usage=usage), says("done", usage=usage)]
    async with running(script, tools=[note]) as it:
        agent = await it.agent()
        view = await it.say("hello")
        assert await it.database.read(view_turn, view.id) == view
    assert (view.agent_id, view.sender, view.status, view.error, view.steps) == (agent.id, USER, "completed", None, 2)
    assert view.has_ended
    assert (view.created_at, view.started_at, view.ended_at) == (START, START, START)
    assert [(message.role, message.content) for message in view.messages] == [
        ("user", "hello"),
        ("assistant", None),
        ("tool", "noted x"),
        ("assistant", "done"),
    ]
    assert view.usage == UsageSum(200, 20, 80, None, False)


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


async def test_a_turn_that_failed_says_why() -> None:
    async with acting([ModelRefused("not this", provider="scripted")]) as it:
        view = await it.say("hello")
    assert (view.status, view.error) == ("failed", {"code": ModelRefused.code, "message": "not this"})
    assert [message.content for message in view.messages] == ["hello"]


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


async def test_each_turn_shows_its_own_messages() -> None:
    async with running([says("one"), says("two"), says("three")]) as it:
        for name in ("ada", "bob"):
            await it.agent(name)
        views = [await it.say("a"), await it.say("b", "bob"), await it.say("c")]
        with pytest.raises(RowNotFound, match="no turn turn_9"):
            await it.database.read(view_turn, "turn_9")
    shown = [[message.content for message in view.messages] for view in views]
    assert shown == [["a", "one"], ["b", "two"], ["c", "three"]]


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
