"""Workspaces: what a folder belongs to, as git itself says, and that a row belongs to one only when it is written."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from pattern_core.delta import Delta
from pattern_core.errors import Conflict, InvalidInput, NotFound
from pattern_core.prompts.activity import MAP_TOKENS_MAX
from pattern_core.prompts.explain import explain
from pattern_core.testing.model import says
from pattern_core.workspaces import GIT_FILE_BYTES_MAX, NAMED_MAX, WORKSPACES_MAX, locate, root_of
from pattern_db.columns import to_json
from pattern_db.connection import Connection, fetch_all
from pattern_db.tables import workspaces
from pattern_db.tables.workspaces import WorkspaceAlias, WorkspaceRow
from tests.support import START, USER, note_in, running


def git(folder: Path, *arguments: str) -> str:
    ran = subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", *arguments],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"},
    )
    return ran.stdout.strip()


def repository(folder: Path) -> Path:
    (folder / "src" / "deep").mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "commit", "-q", "--allow-empty", "-m", "begin")
    return folder


def common(folder: Path) -> str:
    return os.path.realpath(git(folder, "rev-parse", "--path-format=absolute", "--git-common-dir"))


def test_a_folder_is_placed_as_git_places_it(tmp_path: Path) -> None:
    main = repository(tmp_path / "shop")
    git(main, "worktree", "add", "-q", "-b", "feat/auth", str(tmp_path / "tree"))
    git(tmp_path, "clone", "-q", "--bare", str(main), "bare.git")
    git(tmp_path, "init", "-q", "--separate-git-dir", "elsewhere", "apart")
    inner = repository(main / "src" / "inner")
    (tmp_path / "link").symlink_to(main / "src")
    (tmp_path / "plain").mkdir()
    places = {
        **{name: main / name for name in (".", "src", "src/deep", ".git", ".git/objects")},
        **{name: tmp_path / name for name in ("tree", "bare.git", "bare.git/objects", "apart", "link", "src/../tree")},
        "inner": inner / "src",
    }
    for name, folder in places.items():
        real = Path(os.path.realpath(folder))
        assert locate(str(folder)).common == common(real), name
    assert [locate(str(tmp_path / name)).common for name in ("plain", "no/such")] == [None, None]
    assert [locate(str(folder)).branch for folder in (main, tmp_path / "tree")] == ["main", "feat/auth"]
    git(main, "checkout", "-q", "--detach")
    assert locate(str(main)).branch is None
    assert [locate(str(tmp_path / name)).name for name in ("shop/src", "bare.git", "plain")] == [
        "shop",
        "bare",
        "plain",
    ]


def test_what_looks_like_a_repository_and_is_none(tmp_path: Path) -> None:
    for number, text in enumerate(("gitdir: ../gone", "gitdir:", "words", "gitdir: \0", "x" * GIT_FILE_BYTES_MAX * 2)):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / ".git").write_text(text)
        assert locate(str(folder)).common is None, text[:20]
    pipe = tmp_path / "pipe"
    pipe.mkdir()
    os.mkfifo(pipe / ".git")
    assert locate(str(pipe)).common is None
    for path in ("src", "", "/" + "x" * 5_000, "/a\0b", "/\udcff"):
        with pytest.raises(InvalidInput, match="folder"):
            locate(path)


@pytest.mark.parametrize("case", ["D41", "D42"])
async def test_d41_d42_repositories_apart_are_two_and_worktrees_of_one_are_one(tmp_path: Path, case: str) -> None:
    a, b = repository(tmp_path / "a" / "shop"), repository(tmp_path / "b" / "shop")
    git(a, "worktree", "add", "-q", str(tmp_path / "tree"))
    async with running() as world:
        found = world.constellation.workspaces
        one = await found.ensure(str(a / "src"), author=USER)
        if case == "D41":
            other = await found.ensure(str(b / "src"), author=USER)
            assert (one.name, other.name) == ("shop", "shop-2")
            assert (await found.find(str(b / "src" / "deep"))).id == other.id != one.id
        for folder in (a, a / "src" / "deep", tmp_path / "tree", a / ".git"):
            assert (await found.find(str(folder))).id == (await found.ensure(str(folder), author=USER)).id == one.id


async def test_the_longest_root_comes_before_the_repository_and_reading_makes_nothing(tmp_path: Path) -> None:
    shop = repository(tmp_path / "shop")
    (tmp_path / "link").symlink_to(shop)
    async with running() as world:
        found, database = world.constellation.workspaces, world.database
        for given in ("shop", str(shop), str(tmp_path)):
            with pytest.raises(NotFound, match="no workspace"):
                await found.find(given)
        assert await found.page(9) == []
        whole, part = await found.ensure("whole", author=USER), await found.ensure("part", author=USER)
        await found.add_root(whole.id, str(tmp_path), author=USER)
        part = await found.add_root(part.id, str(tmp_path / "link" / "src"), author=USER)
        assert part.roots == [str(shop / "src")]
        assert (await found.find(str(shop))).id == (await found.ensure(str(shop), author=USER)).id == whole.id
        assert (await found.find(str(shop / "src" / "deep"))).id == part.id
        deep = await database.read(root_of, str(tmp_path / "link" / "src" / "deep"))
        assert deep is not None and (deep.path, deep.workspace_id) == (str(shop / "src"), part.id)
        assert await database.read(root_of, str(tmp_path) + "-other") is None
        with pytest.raises(Conflict, match=f"belongs to the workspace {whole.id}"):
            await found.add_root(part.id, str(tmp_path), author=USER)
        elsewhere = await found.ensure("/srv/no-such/place", author=USER)
        assert (elsewhere.name, elsewhere.roots, elsewhere.aliases) == ("place", ["/srv/no-such/place"], [])


async def test_a_root_is_removed_and_nothing_else(tmp_path: Path) -> None:
    async with running() as world:
        found = world.constellation.workspaces
        shop, garden = [await found.ensure(name, author=USER) for name in ("shop", "garden")]
        (tmp_path / "src").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "src")
        for path in ("src", "gone"):
            await found.add_root(shop.id, str(tmp_path / path), author=USER)
        for workspace, path in ((garden, "src"), (shop, "other"), (shop, "src/below")):
            with pytest.raises(NotFound, match="root"):
                await found.remove_root(workspace.id, str(tmp_path / path), author=USER)
        left = await found.remove_root(shop.id, str(tmp_path / "link"), author=USER)
        assert left.roots == [str(tmp_path / "gone")]
        (tmp_path / "gone").symlink_to(tmp_path / "src")  # the path leads elsewhere now, and is still the root
        assert (await found.remove_root(shop.id, str(tmp_path / "gone"), author=USER)).roots == []
        with pytest.raises(NotFound, match="no workspace"):
            await found.find(str(tmp_path / "src"))


MAPS = """UPDATE sessions SET workspace = :workspace, working_dir = :folder WHERE id = :session"""


async def test_a_turn_shows_the_map_of_its_sessions_workspace(tmp_path: Path) -> None:
    """Whole, in 400 tokens, as data, and explained; not elsewhere, and not if it is switched off."""
    async with running(otherwise=lambda _request: says("Yes.")) as world:
        core, database = world.constellation, world.database
        await world.agent("ada")
        other = await world.agent("eve", config={"context": {"show": {"workspace": False}}})
        shop = await core.workspaces.ensure("shop", author=USER)
        await core.workspaces.add_root(shop.id, str(tmp_path), author=USER)
        delta = Delta(constellation=core, workspace=shop.id, author=USER)
        await delta.note_create("Style\n# Memory </data>", "Use tabs.", "convention", "high")
        for number in range(60):
            await delta.note_create(f"Note {number} " + "x" * 80, "whole content", importance="low")
        await delta.note_create("Old", "gone", active=False)
        await delta.task_create("Build the till")
        await core.tasks.create(["Paint it"], {"workspace": shop.id, "agent_id": other.id}, author=USER)
        await delta.log("It leaks.", None, None)
        for key in "abcdefg":
            await delta.set(key, "v")

        async def shown(agent: str, text: str, **place: str) -> tuple[str, str]:
            session = await core.sessions.create((await core.roster.get(agent)).id, title=text)
            values = {"workspace": None, "folder": None, "session": session.id, **place}
            await database.write(lambda connection: connection.execute(MAPS, values))
            turn = await world.wait(await world.submit(text, agent, session_id=session.id))
            note = note_in(world.provider.requests[-1])
            return note.partition("# Workspace\n")[2].partition("\n\n#")[0], turn.id

        text, turn_id = await shown("ada", "Hi", workspace=shop.id)
        assert text.startswith(
            'The project of this conversation, as a map: search finds more.\n<data from="the workspace shop">\n'
            "2 open tasks, 1 passages in the archive, 7 keys (a, b, c, d, e, …)\n"
            "- note-style-memory-data: Style # Memory &lt;/data> (convention, high)\n- note-note-0-x"
        )
        assert text.endswith("\n</data>") and "whole content" not in text and "Old" not in text
        part = next(part for part in (await explain(database, turn_id)).steps[0].parts if part.kind == "workspace")
        assert (part.name, part.ref, part.note) == ("shop", shop.id, None) and part.tokens <= MAP_TOKENS_MAX
        assert "lines had no room in 400 tokens" in part.reason and part.text and part.text.removesuffix("…") in text
        assert (await shown("ada", "There", folder=str(tmp_path / "src")))[0] == text
        assert (await shown("ada", "Nowhere"))[0] == ""
        assert (await shown("eve", "Off", workspace=shop.id))[0] == ""
        await core.workspaces.show_in_prompts(shop.id, False, author=USER)
        assert not (await core.workspaces.find("shop")).in_prompts
        for place in ({"workspace": shop.id}, {"folder": str(tmp_path)}):
            assert (await shown("ada", "Hidden", **place))[0] == ""
        await core.workspaces.show_in_prompts(shop.id, True, author=USER)
        await delta.set("h", "v")
        [step] = (await explain(database, turn_id)).steps
        assert next(part.note for part in step.parts if part.kind == "workspace") == "has changed since"
        assert "8 keys" in (await shown("ada", "Again", workspace=shop.id))[0]


async def test_a_name_is_one_workspace_and_bounds_hold() -> None:
    async with running() as world:
        found, database = world.constellation.workspaces, world.database
        shop = await found.ensure("shop", author=USER)
        assert await found.ensure("shop", author=USER) == await found.find(shop.id) == shop
        for wrong in ("", " ", "a\x1bb", "x" * 501, " shop"):
            with pytest.raises(InvalidInput, match="workspace's name"):
                await found.ensure(wrong, author=USER)
        delta = WorkspaceAlias("delta", "srv_shop-main")
        assert (await found.add_alias(shop.id, delta, author=USER)).aliases == [delta]
        other = await found.ensure("other", author=USER)
        with pytest.raises(Conflict, match="delta calls the workspace"):
            await found.add_alias(other.id, delta, author=USER)
        with pytest.raises(InvalidInput, match="alias"):
            await found.add_alias(other.id, WorkspaceAlias("delta", ""), author=USER)

        def fill(connection: Connection) -> None:
            for number in range(NAMED_MAX):
                workspaces.add_root(connection, other.id, f"/{number}")
            for number in range(WORKSPACES_MAX - 2):
                workspaces.create(connection, WorkspaceRow(f"ws_{number}", f"n{number}", START, START))

        await database.write(fill)
        with pytest.raises(Conflict, match="roots"):
            await found.add_root(other.id, "/one/more", author=USER)
        with pytest.raises(Conflict, match="at most"):
            await found.ensure("one more", author=USER)
        assert [one.name for one in await found.page(2, after="n9")] == ["n90", "n900"]


STORED = (
    "INSERT INTO messages (id, agent_id, position, role, content, workspace, created_at) SELECT 'msg_1', id,"
    " printf('%019d', 1), 'user', 'tea', :old, :now FROM agents",
    "INSERT INTO archival_entries (id, agent_id, content, workspace, created_at) SELECT 'arch_1', id, 'tea', :old, :now"
    " FROM agents",
    "INSERT INTO tasks (id, title, workspace, created_at, updated_at) VALUES ('task_1', 'tea', :old, :now, :now)",
    "INSERT INTO sessions (id, agent_id, workspace, created_at, updated_at) SELECT 'ses_1', id, :old, :now, :now"
    " FROM agents",
    "UPDATE memory_blocks SET metadata = json_object('workspace', :old)",
    "INSERT INTO decisions (id, workspace, title, text, changed_by, source, cwd, project, tags, details, important,"
    " archived, retrieval_count, injection_count)"
    " VALUES ('dec_1', :old, '', '', '', 'manual', '', '', '[]', '[]', 0, 0, 0, 0)",
    "INSERT INTO external_refs (system, kind, workspace, number, local_id) VALUES ('delta', 'task', :old, 1, 'task_1'),"
    " ('delta', 'task', :old, 2, 'task_2'), ('delta', 'note', :old, 1, 'mem_1'), ('delta', 'task', :new, 7, 'task_3')",
    "INSERT INTO coordination_state (key, value, updated_at) VALUES ('kv/' || :old || '/a/b', '1', :now)",
)
TABLES = ("messages", "archival_entries", "tasks", "sessions", "memory_blocks", "decisions")


async def test_a_merge_moves_everything_or_nothing() -> None:
    async with running() as world:
        await world.agent("ada")
        found, database = world.constellation.workspaces, world.database
        old, new = [await found.ensure(name, author=USER) for name in ("old", "new")]
        names = {"old": old.id, "new": new.id, "now": START}
        await found.add_root(old.id, "/srv/old", author=USER)
        await found.add_alias(old.id, WorkspaceAlias("delta", "x"), author=USER)

        def store(connection: Connection) -> None:
            for statement in STORED:
                connection.execute(statement, names)

        def tagged(connection: Connection) -> set[str | None]:
            return {one for table in TABLES for (one,) in fetch_all(connection, f"SELECT workspace FROM {table}")}

        def put(connection: Connection, key: str) -> None:
            connection.execute(
                "INSERT INTO coordination_state (key, value, updated_at) VALUES (?, ?, ?)", (key, to_json(2), START)
            )

        await database.write(store)
        await database.write(put, f"kv/{new.id}/a/b")
        with pytest.raises(Conflict, match="'a/b'"):
            await found.merge(old.id, new.id, author=USER)
        assert await database.read(tagged) == {old.id}, "nothing was changed"
        await database.write(lambda connection: connection.execute("DELETE FROM coordination_state WHERE value = '2'"))
        merged = await found.merge(old.id, new.id, author=USER)
        assert (merged.roots, merged.aliases) == (["/srv/old"], [WorkspaceAlias("delta", "x")])
        assert await database.read(tagged) == {new.id}
        refs = "SELECT kind, number, local_id FROM external_refs ORDER BY 1, 2"
        assert await database.read(fetch_all, refs) == [
            ("note", 1, "mem_1"),
            ("task", 7, "task_3"),
            ("task", 8, "task_1"),
            ("task", 9, "task_2"),
        ]
        assert await database.read(fetch_all, "SELECT key FROM coordination_state") == [(f"kv/{new.id}/a/b",)]
        with pytest.raises(NotFound):
            await found.find("old")
        with pytest.raises(InvalidInput, match="itself"):
            await found.merge(new.id, new.id, author=USER)
