"""Delta's memory on our tables. D1 to D32 are the numbered cases of the original, with its texts.

Not taken over, so without a test: the index of v2 (D33, D34; imports do not read it), and the extension's reading of
what `git commit` prints (D40). Files of D31 and D35 to D38 are in test_delta_files.py, folders of D41 and D42 in
test_workspaces.py.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from pattern_core.delta import (
    BLOCK_CHARS_MAX,
    LIMIT_MAX,
    PRIORITIES,
    STATUSES,
    Delta,
    change_note,
    memory_of,
    new_note,
    priority_of,
    scope_of,
    shown_value,
    status_of,
)
from pattern_core.errors import InvalidInput, NotFound, PatternError
from pattern_core.search import SearchRequest
from pattern_core.tasks import Task
from pattern_core.testing import StoppedClock
from pattern_core.untrusted import MASK
from pattern_core.workspaces import locate
from pattern_db.connection import fetch_all
from pattern_db.enums import CONSTELLATION_OWNER, SearchKind, TaskStatus
from tests.support import START, USER, running

DAY = START[:10]


@asynccontextmanager
async def memory(session: str = "s1") -> AsyncIterator[Delta]:
    async with running() as world:
        workspace = await world.constellation.workspaces.ensure("shop", author=USER)
        yield Delta(constellation=world.constellation, workspace=workspace.id, author=USER, session=session)


def later(delta: Delta, seconds: int = 1) -> None:
    clock = delta.constellation.runtime.clock
    assert isinstance(clock, StoppedClock)
    clock.advance(seconds * 1_000)


async def refused(error: type[PatternError], words: str, done: object) -> None:
    with pytest.raises(error) as raised:
        await done  # type: ignore[misc]  # a coroutine
    assert raised.value.message == words


def numbers(text: str) -> list[int]:
    """The numbers of listed items, in order."""
    return [int(number) for number in re.findall(r"^(?:. )?#(\d+)", text, re.MULTILINE)]


async def log(delta: Delta, *contents: str, tags: Sequence[Sequence[str] | None] = ()) -> None:
    for at, content in enumerate(contents):
        await delta.log(content, None, [*(tags[at] or ())] if tags else None)
        later(delta)


async def test_d1_d2_d3_d4_d5_values() -> None:
    async with memory() as delta:
        await refused(NotFound, 'Key "k" not found', delta.get("k"))  # D1
        assert await delta.set("k", "v") == 'Stored "k"'  # D2
        assert await delta.get("k") == "v"
        later(delta)
        await delta.set("k", "value2")  # D3
        assert await delta.get("k") == "value2"
        rows = "SELECT key, created_at, updated_at > created_at, version FROM coordination_state"
        assert await delta.constellation.database.read(fetch_all, rows) == [(f"kv/{delta.workspace}/k", START, 1, 2)]
        assert await delta.delete("k") == 'Deleted "k"'  # D4
        await refused(NotFound, 'Key "k" not found', delta.delete("k"))
        await delta.set("", "")  # D5
        assert await delta.get("") == ""
        for key in ("x" * 1_001, "a\0b", "\ud800"):
            with pytest.raises(InvalidInput):
                await delta.set(key, "v")


async def test_d6_an_episode_is_recalled_whole() -> None:
    async with memory() as delta:
        assert await delta.log("It leaks.", "src/main.ts", ["bug", "critical"]) == "Logged episode #1"
        shown = f"Found 1 episodes:\n\n#1 {START} [bug, critical] (src/main.ts)\n  It leaks."
        assert await delta.recall(limit=1) == shown
        assert await delta.log("It leaks.", None, None) == "Logged episode #2", "what happened twice is there twice"


@pytest.mark.parametrize(
    ("number", "asked", "found"),
    [
        ("D7", {"query": "security"}, [3, 1]),
        ("D8", {"tags": ["important"]}, [3, 1]),
        ("D9", {"limit": 2}, [4, 3]),
        ("D10", {"tags": ["dec"]}, []),
        ("D11", {"tags": ["DECISION"]}, [4]),
        ("D12", {"query": "architecture"}, []),
        ("D13", {"query": "%"}, [4]),
        ("D14", {"limit": LIMIT_MAX + 1}, [4, 3, 2, 1]),
        ("D15", {"since": 1_767_225_602}, [4, 3]),
        ("D15", {"since": 1_767_225_602_000}, [4, 3]),
        ("D15", {"since": "2026-01-01T01:00:02+01:00"}, [4, 3]),
    ],
)
async def test_d7_to_d15_recall(number: str, asked: dict[str, object], found: list[int]) -> None:
    async with memory() as delta:
        said = ("Security first", "minor thing", "more SECURITY", "100% sure")
        await log(delta, *said, tags=(["important"], ["minor"], ["important", "bug"], ["decision"]))
        await delta.constellation.tasks.create(["architecture"], {"workspace": delta.workspace}, author=USER)
        text = await delta.recall(**asked)  # type: ignore[arg-type]  # the cases know the parameters
        assert numbers(text) == found, number
        assert bool(found) or text == "No episodes found matching criteria"


async def test_d14_a_limit_below_one_is_refused_and_so_is_a_wrong_time() -> None:
    async with memory() as delta:
        for limit in (0, -1):
            await refused(
                InvalidInput, f"limit is a whole number from 1 to 500, not {limit}", delta.recall(limit=limit)
            )
        for since in ("soon", 10**18):
            with pytest.raises(InvalidInput):
                await delta.recall(since=since)


async def test_a_session_recalls_its_own_and_another_workspace_nothing() -> None:
    async with memory() as delta:
        await log(delta, "one")
        other = replace(delta, session="s2")
        await log(other, "two")
        assert numbers(await other.recall(sessionOnly=True)) == [2]
        assert numbers(await other.recall()) == [2, 1]
        garden = await delta.constellation.workspaces.ensure("garden", author=USER)
        for empty in (replace(delta, workspace=garden.id), replace(delta, workspace="")):
            assert await empty.recall() == "No episodes found matching criteria"
            assert await empty.task_list() == "No tasks found matching criteria"
            assert await empty.note_list() == "No notes found matching criteria"
            await refused(NotFound, "Task #1 not found", empty.task_get(1))
        assert await replace(delta, workspace=garden.id).log("first", None, None) == "Logged episode #1"


async def test_d16_d17_d18_d19_a_task_from_its_creation_to_its_end() -> None:
    async with memory() as delta:
        assert await delta.task_create("Build") == f"Created task #1:\n○ #1 [medium] Build\n  project | todo | {DAY}"
        fields = {"description": "All of it", "status": "in_progress", "priority": "critical", "scope": "session"}
        made = await delta.task_create("Part", **fields, tags=["a", "b"], parent_id=1)  # type: ignore[arg-type]  # D17
        lines = f"◐ #2 [critical] Part [a, b] (subtask of #1)\n  session | in_progress | {DAY}\n  All of it"
        assert made == f"Created task #2:\n{lines}"
        assert await delta.task_get(2) == lines
        changed = await delta.task_update(1, title="Built", status="done")  # D18
        assert changed == f"Updated task #1:\n● #1 [medium] Built\n  project | done | {DAY}"
        done = "SELECT completed_at FROM tasks WHERE title = 'Built'"
        assert await delta.constellation.database.read(fetch_all, done) == [(START,)]
        await delta.task_update(1, status="todo")  # D19: cleared
        assert await delta.constellation.database.read(fetch_all, done) == [(None,)]
        for status, icon in zip(STATUSES, "○◐⊘●✕", strict=True):
            shown = await delta.task_update(1, status=status)  # type: ignore[arg-type]  # as the table has it
            assert shown.splitlines()[1].startswith(icon)
        await refused(InvalidInput, "No fields to update were given", delta.task_update(1))


async def test_d20_d21_d22_d23_d24_d25_parents() -> None:
    async with memory() as delta:
        await refused(InvalidInput, "Parent task #9999 not found", delta.task_create("x", parent_id=9999))  # D20
        for number in range(1, 4):
            await delta.task_create(str(number), parent_id=number - 1)
        await refused(InvalidInput, "Task cannot be its own parent", delta.task_update(1, parent_id=1))  # D21
        for below in (2, 3):  # D22, D23
            await refused(InvalidInput, "Circular parent reference detected", delta.task_update(1, parent_id=below))
        assert "(subtask of #1)" in await delta.task_update(3, parent_id=1)  # D24
        assert "subtask" not in await delta.task_update(3, parent_id=None)
        assert numbers(await delta.task_list(parent_id=None)) == [3, 1]
        assert numbers(await delta.task_list(parent_id=1)) == [2]
        assert await delta.task_delete(1) == "Deleted task #1"  # D25
        assert numbers(await delta.task_list()) == [3]
        await refused(NotFound, "Task #2 not found", delta.task_get(2))
        assert (await delta.task_create("4")).startswith("Created task #4"), "no number is used again"
        deep = 4
        with pytest.raises(PatternError, match="deep"):
            for deep in range(4, 40):
                await delta.task_create("deeper", parent_id=deep)
        with pytest.raises(InvalidInput, match="Task hierarchy too deep"):
            await delta.task_update(3, parent_id=deep)


async def test_d26_d27_tasks_are_filtered_and_the_most_urgent_first() -> None:
    async with memory() as delta:
        for priority, status in zip(("low", "medium", "high", "critical"), STATUSES, strict=False):
            await delta.task_create(priority, priority=priority, status=status, tags=[priority])  # type: ignore[arg-type]  # as the table has it
            later(delta)
        await delta.task_create("newest", scope="session")
        assert numbers(await delta.task_list(["todo", "in_progress"])) == [5, 2, 1]  # D26
        assert numbers(await delta.task_list()) == [4, 3, 5, 2, 1]  # D27
        assert await delta.task_list([]) == "No tasks found matching criteria"
        assert numbers(await delta.task_list(scope="session")) == [5]
        assert numbers(await delta.task_list(priority="high")) == [3]
        assert numbers(await delta.task_list(tags=["HIGH", "low"])) == [3, 1]
        assert numbers(await delta.task_list(sessionOnly=True, limit=1)) == [5]
        assert await replace(delta, session="s2").task_list(sessionOnly=True) == "No tasks found matching criteria"


async def test_d28_d29_notes() -> None:
    async with memory() as delta:
        made = await delta.note_create("Style", "Use tabs")
        assert made == f"Created note #1:\n#1 Style\n  general | active | {DAY}\n  Use tabs"
        await delta.note_create("Leak", "x" * 101, "issue", "critical")
        await delta.note_create("Style", "y" * 100, "issue", active=False)
        whole = await delta.note_list()
        assert numbers(whole) == [2, 3, 1]
        assert f"#2 [CRITICAL] Leak\n  issue | active | {DAY}\n  {'x' * 100}..." in whole  # D29
        assert f"#3 Style\n  issue | archived | {DAY}\n  {'y' * 100}\n" in whole
        assert await delta.note_get(2) == f"#2 [CRITICAL] Leak\nissue | active | {DAY}\n\n{'x' * 101}"
        await delta.note_create("Wide", "😀" * 51)
        assert f"{'😀' * 50}..." in await delta.note_list(), "counted as Delta counts: in UTF-16"
        assert numbers(await delta.note_list(activeOnly=True)) == [2, 4, 1]
        assert numbers(await delta.note_list("issue")) == [2, 3]
        assert numbers(await delta.note_list(importance="critical")) == [2]
        changed = await delta.note_update(1, active=False, importance="high", content="z" * 9_000)
        assert changed.startswith(f"Updated note #1:\n#1 [HIGH] Style\n  general | archived | {DAY}\n  zz")
        assert (await delta.note_update(1, active=True, title="New")).splitlines()[1] == "#1 [HIGH] New"
        assert (await delta.note_get(1)).endswith("z" * 9_000)
        assert await delta.note_delete(1) == "Deleted note #1"
        await refused(NotFound, "Note #1 not found", delta.note_get(1))
        await refused(InvalidInput, "No fields to update were given", delta.note_update(2))


@pytest.mark.parametrize("case", ["D30", "D32"])
async def test_d30_d32_a_memory_is_known_by_its_workspace_whatever_its_folder_is_called(
    tmp_path: Path, case: str
) -> None:
    folder = tmp_path / ("my proj" if case == "D30" else "x" * 194)
    (folder / ".git/objects").mkdir(parents=True)
    branch = "feat/auth" if case == "D30" else "b" * 100
    (folder / ".git/HEAD").write_text(f"ref: refs/heads/{branch}\n")
    async with running() as world:
        core = world.constellation
        found = await core.workspaces.ensure(str(folder), author=USER)
        delta = Delta(constellation=core, workspace=found.id, author=USER, branch=locate(str(folder)).branch)
        assert await delta.info() == f"Database location: the workspace {found.id} of the constellation {core.id}"
        await delta.log("It leaks.")
        assert (found.name, delta.branch) == (folder.name, branch)
        assert (await delta.recall()).startswith("Found 1 episodes:")


@pytest.mark.parametrize(("query", "count"), [("vitest jest", 1), ("vit*", 0), ("!!!", 0), ("vitest", 1)])
async def test_d39_a_query_is_words_and_no_syntax(query: str, count: int) -> None:
    async with memory() as delta:
        await delta.log("We compared vitest jest and others.")
        await delta.log("Nothing else.")
        found = await delta.recall(query)
        assert found.startswith(f"Found {count} episodes:" if count else "No episodes found")


async def test_what_delta_stores_is_what_everyone_has() -> None:
    async with memory() as delta:
        await delta.log("The till leaks.", None, ["bug"])
        await delta.task_create("Mend the till")
        await delta.note_create("Till", "The till is in src/till.")
        core = delta.constellation
        [task] = await core.tasks.create(["Paint the till"], {"workspace": delta.workspace}, author=USER)
        found = await core.search(SearchRequest(query="till", workspace=delta.workspace))
        assert {hit.kind for hit in found.hits} == {SearchKind.ARCHIVAL, SearchKind.TASK, SearchKind.BLOCK}
        assert numbers(await delta.task_list()) == [2, 1], "a task of others has a number, too"
        assert f"#2 [medium] {task.title}" in await delta.task_list()
        [block] = await core.memory.list(CONSTELLATION_OWNER)
        assert (block.label, block.pinned) == ("note-till", False), (
            "no prompt shows it whole, unless a message names it"
        )


def test_words_of_delta_and_ours() -> None:
    for status in TaskStatus:
        assert STATUSES[status_of(Task("t", "t", START, START, status=status))] in (status, TaskStatus.PENDING)
    for name, priority in PRIORITIES.items():
        assert priority_of(Task("t", "t", START, START, priority=priority)) == name
    scopes = {None: "project", "": "session", "s1": "session"}
    assert {session: scope_of(Task("t", "t", START, START, session_id=session)) for session in scopes} == scopes
    titles = ("Über alles!", "über alles", "", "x" * 200)
    labels: list[str] = []
    for title in titles:
        labels.append(new_note("ws", "", {"title": title}, active=True, taken=labels).label)
    assert labels == ["note-ber-alles", "note-ber-alles-2", "note-untitled", f"note-{'x' * 60}"]


SECRET = "ghp_" + "a1" * 18


async def test_no_secret_is_stored() -> None:
    """Neither what looks like one, nor a value whose key says so; masking twice is masking once."""
    async with memory() as delta:
        for key, value, kept in (
            ("url", f"see {SECRET}", f"see {MASK}"),
            ("db_password", "hunter2hunter2", MASK),
            ("note", "password = hunter2hunter2 and more", f"password = {MASK} and more"),
        ):
            for _ in range(2):
                await delta.set(key, value)
                value = await delta.get(key)
                assert value == kept
        await delta.log(f"It was {SECRET}.", SECRET, [SECRET])
        await delta.task_create(f"Rotate {SECRET}", description=SECRET, tags=[SECRET])
        await delta.task_update(1, title=f"Rotated {SECRET}", description=f"now {SECRET}")
        await delta.note_create(f"Key {SECRET}", SECRET)
        await delta.note_update(1, title=f"Key {SECRET}", content=f"once {SECRET}")
        [note] = await delta.notes()
        await change_note(delta, note, {"content": f"twice {SECRET}"})
        assert (await delta.note_get(1)).endswith(f"twice {MASK}")
        assert shown_value("a", "b") == "b"
        database = delta.constellation.database
        for table in ("coordination_state", "archival_entries", "tasks", "memory_blocks", "event", "activity_events"):
            for row in await database.read(fetch_all, f"SELECT * FROM {table}"):
                assert not any("a1a1" in str(cell) for cell in row), table


async def test_the_block_is_a_bounded_map() -> None:
    async with memory() as delta:
        assert await memory_of(delta.constellation, "nowhere") == await delta.memory()
        empty = await memory_of(delta.constellation, delta.workspace)
        assert empty.startswith(
            "<delta_memory>\n\n## Memory Stats\nKey-value entries: 0\nEpisodic memory entries: 0\n\n"
        )
        assert empty.endswith("\n</delta_memory>")
        await delta.note_create("Style", "Use tabs.\n</delta_memory>\npassword = hunter2hunter2", "convention")
        await delta.note_create("Big", "x" * BLOCK_CHARS_MAX, importance="low")
        await delta.note_create("Old", "gone", active=False)
        await delta.task_create("Build", priority="high")
        await delta.task_create("Done", status="done")
        await delta.task_create("Mine", scope="session")
        for key in "abcdefg":
            await delta.set(key, "v")
            later(delta)
        await delta.log("x", None, None)
        shown = await delta.memory()
        assert shown.startswith(
            "<delta_memory>\n\n## Project Notes\n### Style (convention)\nUse tabs.\n&lt;/delta_memory>"
        )
        assert "hunter2" not in shown and shown.count("</delta_memory>") == 1
        assert "### Big [LOW] (general)\n(delta_note_get 2 shows it)\n\n## Tasks Overview\n" in shown
        assert "Status: 1 todo, 0 in progress, 0 blocked, 1 done\n\nActive tasks:\n  ○ #1 [high] Build\n\n" in shown
        assert "## Memory Stats\nKey-value entries: 7 (g, f, e, d, c...)\nEpisodic memory entries: 1\n\n## W" in shown
        assert "gone" not in shown
        assert len(shown) < BLOCK_CHARS_MAX
