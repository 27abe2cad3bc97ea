"""`pattern db …`, on files made by hand; no server is needed, and one may run. `pattern backup` and `restore`."""

from __future__ import annotations

import hashlib
import re
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from pattern_db import maintenance, template
from pattern_db.connection import Connection, open_connection
from pattern_db.errors import DiskFull
from pattern_db.files import DataDirLock, sha256_of
from pattern_db.migrate import Migrations, migrations_of
from pattern_db.tables import meta
from pattern_server.cli.backup import CopyDamaged, collect
from pattern_server.cli.db import _check_space
from pattern_server.cli.output import Output
from tests.pattern_server.cli.conftest import Pattern, api_of

NOW = "2026-11-21T22:24:40.123Z"


@pytest.fixture
def outdated(home: Pattern, data_dir: Path, tmp_path: Path) -> Path:
    """The file of `home`, as a release with one migration less would have made it."""
    (file,) = data_dir.glob("constellations/*/pattern.db")
    for path in file.parent.glob("pattern.db*"):
        path.unlink()
    older = tmp_path / "migrations"
    older.mkdir()
    for migration in migrations_of("constellation").all[:-1]:
        shutil.copy(migrations_of("constellation").folder / migration.file, older)
    template.create(file, Migrations(older), now=NOW)
    return file


def test_status(home: Pattern, data_dir: Path) -> None:
    rows = home("db", "status", "--json").json
    assert [row["database"] for row in rows] == ["(global)", "home"]
    assert all(row["version"] == row["newest"] and row["state"] == "up to date" for row in rows)
    assert rows[1]["rows"]["agents"] == 1
    assert [row["database"] for row in home("db", "status", "-c", "home", "--json").json] == ["home"]
    assert "up to date" in home("db", "status").out


def test_migrating_shows_its_plan_then_does_it(home: Pattern, data_dir: Path, outdated: Path) -> None:
    before = outdated.read_bytes()
    assert [row["state"] for row in home("db", "status", "--json").json] == ["up to date", "1 pending"]
    assert "pattern db migrate" in home("db", "status").err
    plan = home("db", "migrate", "--dry-run", "--json").json
    assert plan == [{"database": "home", "migration": migrations_of("constellation").all[-1].file}]
    assert outdated.read_bytes() == before
    refused = home("agent", "list", "-c", "home")
    assert refused.code == 1
    assert "pattern db migrate" in refused.err
    done = home("db", "migrate")
    assert done.code == 0, done.err
    (copy,) = (data_dir / "backups").iterdir()
    assert str(copy) in done.out
    assert home("db", "migrate").out == "Every database is up to date.\n"
    assert all(row["state"] == "up to date" for row in home("db", "status", "--json").json)


def test_a_migration_that_fails_leaves_the_file_and_names_the_copy(
    home: Pattern, data_dir: Path, outdated: Path
) -> None:
    with closing(open_connection(outdated)) as connection:
        newest = migrations_of("constellation").all[-1].sql
        made = re.findall(r"CREATE TABLE (\w+)|ALTER TABLE (\w+) ADD COLUMN (\w+)", newest)[-1]
        # What it makes is there already.
        connection.execute(f"CREATE TABLE {made[0]} (id)" if made[0] else f"ALTER TABLE {made[1]} ADD {made[2]} TEXT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    before = outdated.read_bytes()
    ran = home("db", "migrate")
    assert ran.code == 1
    assert migrations_of("constellation").all[-1].file in ran.err
    assert outdated.read_bytes() == before
    (copy,) = (data_dir / "backups").iterdir()
    assert str(copy) in ran.err


def outdate(file: Path, *, version: int = migrations_of("constellation").newest - 1) -> None:
    """Make the file anew, as an older release would have, with an agent and a message."""
    for path in file.parent.glob("pattern.db*"):
        path.unlink()
    template.create(file, migrations_of("constellation").up_to(version), now=NOW)
    with closing(open_connection(file)) as connection:
        connection.execute(
            "INSERT INTO agents (id, name, model_provider, model_name, system_prompt, config, enabled_tools,"
            " created_at, updated_at) VALUES ('agt_ada', 'ada', 'p', 'm', '', '{}', '[]', ?1, ?1)",
            (NOW,),
        )
        say(connection, 1)


def say(connection: Connection, number: int) -> None:
    connection.execute(
        "INSERT INTO messages (id, agent_id, position, role, content, created_at)"
        " VALUES ('msg_' || ?1, 'agt_ada', printf('%019d', ?1), 'user', 'tea', ?2)",
        (number, NOW),
    )


def path_of(pattern: Pattern, name: str) -> Path:
    return Path(pattern("db", "status", "-c", name, "--json").json[0]["path"])


def test_one_file_that_cannot_be_migrated_leaves_the_others(home: Pattern, data_dir: Path) -> None:
    for name in ("broken", "odd", "last"):
        assert home("constellation", "create", name).code == 0
    for name in ("broken", "odd", "last", "home"):
        outdate(path_of(home, name))
    path_of(home, "broken").write_bytes(b"no database" * 1000)
    with closing(open_connection(path_of(home, "odd"))) as connection:
        connection.execute("UPDATE schema_migrations SET sha256 = 'x' WHERE version = 1")
    plan = home("db", "migrate", "--dry-run", "--json")
    assert (plan.code, [row["database"] for row in plan.json]) == (1, ["home", "last"])
    ran = home("db", "migrate", "--json")
    assert {row["database"]: row["outcome"] for row in ran.json} == {
        "broken": "failed",
        "odd": "failed",
        "last": "done",
        "home": "done",
    }
    assert (ran.code, "Failed: broken" in ran.err, "Failed: odd" in ran.err) == (1, True, True)
    assert "no other database" in home("db", "migrate").out.lower()


def test_the_copy_of_a_run_that_did_not_end_is_used_again(home: Pattern, data_dir: Path, outdated: Path) -> None:
    """Unless the file has changed since."""
    before = outdated.read_bytes()
    assert home("db", "migrate").code == 0
    (copy,) = (data_dir / "backups").iterdir()
    outdated.write_bytes(before)  # as if it had been killed behind the copy
    assert home("db", "migrate", "--json").json[0]["backup"] == str(copy)
    assert [*(data_dir / "backups").iterdir()] == [copy]
    outdate(outdated)
    assert home("db", "migrate", "--json").json[0]["backup"] != str(copy)
    copy.write_bytes(b"damaged")
    outdate(outdated)
    assert home("db", "migrate").code == 0


def test_a_migration_says_before_what_it_takes(home: Pattern, outdated: Path) -> None:
    said = home("db", "migrate", "--dry-run").err
    assert "The migration (files: 1, " in said and " s. It needs " in said, said
    too_large = maintenance.Status(
        version=1, newest=2, pending=("0002_a.sql",), file_bytes=1 << 60, free_bytes=0, wal_bytes=0, rows={}
    )
    with pytest.raises(DiskFull, match="Free some space, or migrate one constellation at a time"):
        _check_space(outdated.parent, [too_large], Output())


@pytest.mark.parametrize("is_sound", [True, False])
def test_a_sample_is_tried_first(home: Pattern, data_dir: Path, outdated: Path, is_sound: bool) -> None:
    outdate(outdated)
    if not is_sound:
        with closing(open_connection(outdated)) as connection:
            connection.execute("PRAGMA foreign_keys = 0").fetchall()
            connection.execute("DELETE FROM agents")
    assert home("constellation", "create", "small").code == 0
    outdate(path_of(home, "small"))
    with closing(open_connection(path_of(home, "small"))) as connection:
        connection.execute("VACUUM").fetchall()
    ran = home("db", "migrate", "--sample", "1")
    assert ran.code == (0 if is_sound else 1), ran.err
    assert ("home: no problems" in ran.out, "small: no problems" in ran.out) == (is_sound, False)
    assert ("nothing was migrated" in ran.err) == (not is_sound)
    assert (data_dir / "backups").exists() == is_sound


def test_an_upgrade_is_tried_on_copies(home: Pattern, data_dir: Path) -> None:
    assert home("constellation", "create", "other").code == 0
    (file, other) = (path_of(home, name) for name in ("home", "other"))
    outdate(file, version=30)
    with closing(open_connection(other)) as connection:  # a process was killed: its last rows are in the log
        connection.execute("CREATE TABLE agent_note (id TEXT PRIMARY KEY) STRICT")
        left = {path: path.read_bytes() for path in (other, other.with_name("pattern.db-wal"))}
    for path, content in left.items():
        path.write_bytes(content)
    before = {path: path.read_bytes() for path in sorted(data_dir.rglob("*.db*")) if path.suffix != ".db-shm"}
    assert len(before) == 4
    checked = home("upgrade", "check", "--json")
    assert checked.code == 0, checked.err
    assert [(row["database"], row["problems"]) for row in checked.json] == [
        *(("(global)", []), ("home", []), ("other", [])),
    ]
    assert {path: path.read_bytes() for path in before} == before
    assert sorted(path for path in data_dir.rglob("*.db*") if path.suffix != ".db-shm") == sorted(before)


def test_what_an_upgrade_would_break_is_named(home: Pattern, outdated: Path) -> None:
    with closing(open_connection(outdated)) as connection:
        newest = migrations_of("constellation").all[-1].sql
        made = re.findall(r"CREATE TABLE (\w+)|ALTER TABLE (\w+) ADD COLUMN (\w+)", newest)[-1]
        connection.execute(f"CREATE TABLE {made[0]} (id)" if made[0] else f"ALTER TABLE {made[1]} ADD {made[2]} TEXT")
    checked = home("upgrade", "check")
    assert (checked.code, "this version: 1 of 2" in checked.out) == (1, True)
    assert migrations_of("constellation").all[-1].file in checked.out
    assert home("upgrade", "check", "--sample", "1").code == 1, "the largest file is in a sample of one"


def test_a_migration_is_undone(home: Pattern, data_dir: Path) -> None:
    file, newest = path_of(home, "home"), migrations_of("constellation").newest
    nothing = home("db", "rollback", "--yes")
    assert (nothing.code, nothing.out) == (0, "No database has a copy of an older version.\n")
    outdate(file, version=30)
    assert home("db", "migrate").code == 0
    with closing(open_connection(file)) as connection:
        for number in (2, 3):
            say(connection, number)
    before = file.read_bytes()
    plan = home("db", "rollback", "--dry-run", "--json").json
    assert [(row["database"], row["version"], row["back_to"], row["lost"]) for row in plan] == [
        ("home", newest, 30, {"messages": 2})
    ]
    assert "messages: 2" in home("db", "rollback", "home", "--dry-run").out
    refused = home("db", "rollback")
    assert (refused.code, "add --yes" in refused.err, file.read_bytes() == before) == (2, True, True)
    with DataDirLock.acquire(data_dir):
        assert home("db", "rollback", "--yes").code == 1
    done = home("db", "rollback", "home", "--yes")
    assert done.code == 0, done.err
    assert "home: version 30 again" in done.out
    assert home("db", "status", "-c", "home", "--json").json[0]["version"] == 30
    with closing(open_connection(file.with_name("pattern.db.replaced"))) as newer:
        assert newer.execute("SELECT count(*) FROM messages").get == 3
    assert home("db", "rollback", "--yes").out == "No database has a copy of an older version.\n"
    assert home("db", "migrate").code == 0
    assert home("db", "rollback", "nothing", "--yes").code == 1


def test_what_cannot_be_put_back_is_named_and_the_rest_is(home: Pattern, data_dir: Path) -> None:
    assert home("constellation", "create", "other").code == 0
    for name in ("home", "other"):
        outdate(path_of(home, name))
    assert home("db", "migrate").code == 0
    (copy,) = (data_dir / "backups").glob(f"{path_of(home, 'home').parent.name}.*")
    copy.write_bytes(b"damaged" * 1000)
    done = home("db", "rollback", "--yes")
    assert (done.code, "Failed: home" in done.err, "other: version" in done.out) == (1, True, True)
    assert home("db", "status", "-c", "home", "--json").json[0]["state"] == "up to date"


def test_what_is_in_use_is_left_out(home: Pattern, outdated: Path) -> None:
    with DataDirLock.acquire(outdated.parent):
        migrating = home("db", "migrate")
        assert migrating.code == 3
        assert "Skipped: home" in migrating.err
    assert home("db", "migrate").code == 0


def test_checking_finds_damage(home: Pattern, data_dir: Path) -> None:
    assert home("db", "check").code == 0
    (folder,) = data_dir.glob("constellations/*")
    with DataDirLock.acquire(folder):
        assert home("db", "check").code == 0, "a copy of a file in use is read"
    file = folder / "pattern.db"
    with closing(open_connection(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    content = bytearray(file.read_bytes())
    middle = len(content) // 2048 // 2 * 2048
    content[middle : middle + 2048] = b"\x55" * 2048
    file.write_bytes(content)
    damaged = home("db", "check", "--json")
    assert damaged.code == 1
    assert [bool(one["problems"]) for one in damaged.json] == [False, True]
    with DataDirLock.acquire(folder):
        assert home("db", "check").code == 1


def test_what_is_derived_is_repaired(home: Pattern, data_dir: Path) -> None:
    file = path_of(home, "home")
    with closing(open_connection(file)) as connection:
        connection.execute("INSERT INTO task_fts(rowid, content) VALUES (9, 'nothing has these words')")
    checked = home("db", "check")
    assert (checked.code, "db check --repair" in checked.out) == (1, True), checked.out
    with DataDirLock.acquire(file.parent):
        assert home("db", "check", "--repair").code == 1
    repaired = home("db", "check", "--repair", "--json")
    assert repaired.code == 0, repaired.out
    assert [len(one["repaired"]) for one in repaired.json] == [0, 1]
    assert "Repaired" not in home("db", "check", "--repair").out


def test_a_damaged_block_is_found_and_brought_back(home: Pattern, data_dir: Path) -> None:
    for text in ("Ruth lives in Lisbon.", "Ruth lives in Porto."):
        assert home("memory", "edit", "human", "--content", text, "-c", "home", "-a", "ada").code == 0
    shared = home("memory", "create", "house rules", "--content", "Be kind.", "-c", "home", "--everyone")
    assert shared.code == 0, shared.err
    (folder,) = data_dir.glob("constellations/*")
    with closing(open_connection(folder / "pattern.db")) as connection:
        connection.execute("UPDATE memory_block_updates SET update_blob = x'00'").fetchall()
        connection.execute("UPDATE memory_blocks SET loro_snapshot = x'00' WHERE label = 'house rules'").fetchall()
    checked = home("db", "check")
    assert checked.code == 1
    assert "the block human is damaged" in checked.out
    assert "pattern memory repair human -c home -a ada\n" in checked.out
    assert "pattern memory repair 'house rules' -c home --everyone\n" in checked.out
    with DataDirLock.acquire(folder):
        assert "the block human is damaged" in home("db", "check").out, "also in a copy of a file in use"
    assert "human is damaged" in home("memory", "list", "-c", "home", "-a", "ada").err
    refused = home("memory", "append", "human", "More.", "-c", "home", "-a", "ada", "--json")
    assert refused.code == 1
    assert "pattern memory repair human" in refused.err
    repaired = home("memory", "repair", "human", "-c", "home", "-a", "ada")
    assert repaired.code == 0, repaired.err
    assert "nothing was lost" in repaired.out
    assert home("memory", "show", "human", "-c", "home", "-a", "ada").out == "Ruth lives in Porto.\n"
    assert home("memory", "repair", "house rules", "-c", "home", "--everyone").code == 0
    assert home("db", "check").code == 0


def test_the_owner_of_a_damaged_block_may_be_gone(home: Pattern, data_dir: Path) -> None:
    (file,) = data_dir.glob("constellations/*/pattern.db")
    with closing(open_connection(file)) as connection:
        connection.execute("UPDATE memory_blocks SET loro_snapshot = x'00', agent_id = 'grp_1'").fetchall()
    assert "-c home -a grp_1" in home("db", "check").out


def test_vacuum(home: Pattern, data_dir: Path) -> None:
    assert home("db", "vacuum").code == 0
    (folder,) = data_dir.glob("constellations/*")
    with DataDirLock.acquire(folder):
        refused = home("db", "vacuum", "-c", "home")
        assert refused.code == 1
        assert "in use" in refused.err
        assert home("db", "vacuum").code == 3


def test_old_events_and_steps_are_pruned(home: Pattern, data_dir: Path) -> None:
    """Not what was said; and nothing of what is younger than the days that are kept."""
    home("chat", "-c", "home", "Remember that Ruth lives in Lisbon.")
    said = home("history", "show", "-c", "home", "-a", "ada", "--json").json
    assert home("db", "prune", "--json").json[0]["turns"] == 0
    would = home("db", "prune", "--days", "0", "--dry-run", "--json").json
    done = home("db", "prune", "--days", "0", "--json").json
    assert would == done
    assert (done[0]["turns"], done[0]["steps"] > 0, done[0]["events"] > 5) == (1, True, True)
    assert "events: 0, steps: 0" in home("db", "prune", "-c", "home", "--days", "0").out
    assert home("history", "show", "-c", "home", "-a", "ada", "--json").json == said
    (folder,) = data_dir.glob("constellations/*")
    with DataDirLock.acquire(folder):
        assert home("db", "prune").code == 3
        assert home("db", "prune", "-c", "home").code == 3


def test_a_copy_restores_everything(home: Pattern, tmp_path: Path) -> None:
    home("chat", "-c", "home", "Remember that Ruth lives in Lisbon.")
    copy = tmp_path / "copies" / "home.db"
    made = home("backup", "-c", "home", "-o", str(copy), "--json").json
    assert made["sha256"] == hashlib.sha256(copy.read_bytes()).hexdigest()
    assert made["bytes"] == copy.stat().st_size
    assert [path.name for path in copy.parent.iterdir()] == ["home.db"]

    home("chat", "-c", "home", "Remember that Ruth moved to Porto.")
    restored = home("restore", str(copy), "--as", "before")
    assert restored.code == 0, restored.err
    answer = home("chat", "-c", "before", "What do you know about Ruth?").out
    assert "Lisbon" in answer
    assert "Porto" not in answer
    assert "Porto" in home("chat", "-c", "home", "What do you know about Ruth?").out


@pytest.mark.parametrize("content", [b"", b"no database" * 1000])
def test_a_registry_that_is_no_database_is_not_migrated(home: Pattern, data_dir: Path, content: bytes) -> None:
    for path in data_dir.glob("global.db*"):
        path.unlink()
    (data_dir / "global.db").write_bytes(content)
    for line in (("db", "migrate"), ("db", "status"), ("constellation", "list")):
        refused = home(*line)
        assert (refused.code, "estore a backup" in refused.err, "migrate" in refused.err) == (1, True, False)
    assert (data_dir / "global.db").read_bytes() == content or not content, "SQLite gives an empty file its header"


def test_an_older_copy_is_restored_and_migrated_if_asked(home: Pattern, outdated: Path) -> None:
    with closing(open_connection(outdated)) as connection, connection:
        meta.initialise(connection, "con_old", NOW)
    before = outdated.read_bytes()
    refused = home("restore", str(outdated), "--as", "old")
    assert (refused.code, "--migrate" in refused.err) == (1, True), refused.err
    restored = home("restore", str(outdated), "--as", "old", "--migrate")
    assert restored.code == 0, restored.err
    assert outdated.read_bytes() == before
    assert [row["state"] for row in home("db", "status", "-c", "old", "--json").json] == ["up to date"]
    assert home("agent", "list", "-c", "old").code == 0


def test_refusals(home: Pattern, tmp_path: Path) -> None:
    (tmp_path / "there.db").write_text("mine")
    assert home("backup", "-c", "home", "-o", str(tmp_path / "there.db")).code == 1
    assert (tmp_path / "there.db").read_text() == "mine"


async def test_a_copy_that_arrives_damaged_is_not_used(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"words")
    api = api_of(lambda request: (200, {}, request.url.path.encode()))
    with pytest.raises(CopyDamaged):
        await collect(api, {"path": str(source), "sha256": "0" * 64}, target)
    assert source.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
    await collect(api, {"path": str(source), "sha256": sha256_of(source)}, target)
    assert target.read_bytes() == b"words"
    assert not source.exists()
    path = api.at("backups", "home.db")
    elsewhere = {"path": "/nowhere/home.db", "sha256": hashlib.sha256(path.encode()).hexdigest()}
    await collect(api, elsewhere, target, "backups")
    assert target.read_text() == path


def test_a_changed_audit_log_is_found(home: Pattern, data_dir: Path) -> None:
    assert home("user", "add", "ben").code == 0
    assert home("db", "check").code == 0
    with closing(open_connection(data_dir / "global.db")) as connection:
        connection.execute("DROP TRIGGER audit_log_no_update")
        connection.execute("UPDATE audit_log SET object = '/users' WHERE seq = 2")
    checked = home("db", "check")
    assert (checked.code, "entry 2 does not fit" in checked.out) == (1, True)
    (found,) = (row for row in home("doctor", "--json").json if row["check"] == "databases" and row["state"] != "ok")
    assert (found["state"], "(global): the audit log was changed" in found["message"]) == ("problem", True)
