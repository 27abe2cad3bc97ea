from __future__ import annotations

import hashlib
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from pattern_db import backup, maintenance, template
from pattern_db.connection import Connection, fetch_all, open_connection, open_in_memory
from pattern_db.errors import (
    Corrupt,
    DatabaseError,
    MigrationEdited,
    MigrationFailed,
    RowConflict,
    RowNotFound,
    SchemaOutdated,
    SchemaTooNew,
)
from pattern_db.files import shipped
from pattern_db.journal import events, steps
from pattern_db.migrate import Estimate, Kind, Migrations, ledger, migrations_of, require_ledger
from pattern_db.tables import agents, embedding_indexes, meta, prompts, timers
from pattern_db.tables.timers import TimerRow
from tests.pattern_db.conftest import make_index
from tests.pattern_db.older import NOW, ROWS, create_older

LATER = "2026-11-22T08:00:00.000Z"
FIRST = """
CREATE TABLE things (id INTEGER PRIMARY KEY, name TEXT NOT NULL) STRICT;
CREATE TABLE log (id INTEGER PRIMARY KEY, line TEXT) STRICT;
CREATE TRIGGER things_log AFTER INSERT ON things BEGIN
    INSERT INTO log (line) VALUES ('a; b');
    INSERT INTO log (line) VALUES (new.name);
END;
"""
MORE = "CREATE TABLE more (id INTEGER PRIMARY KEY);"


class Folder:
    """A folder of migrations and a database beside it."""

    def __init__(self, path: Path) -> None:
        self.folder = path / "migrations"
        self.folder.mkdir()
        self.database = path / "data" / "pattern.db"
        self.database.parent.mkdir()
        self.backup = path / "backups" / "before.db"

    def write(self, *files: str) -> Migrations:
        for path in self.folder.iterdir():
            path.unlink()
        for number, sql in enumerate(files, start=1):
            (self.folder / f"{number:04d}_step.sql").write_text(sql)
        return Migrations(self.folder)

    def make(self, migrations: Migrations) -> None:
        connection = open_connection(self.database, create=True)
        migrations.apply(connection, now=NOW)
        connection.execute("INSERT INTO things (name) VALUES ('kept')")
        connection.close()

    def digest(self) -> str:
        return hashlib.sha256(self.database.read_bytes()).hexdigest()

    def files(self) -> list[str]:
        return sorted(path.name for path in self.database.parent.iterdir())

    def rows(self, sql: str) -> list[tuple[object, ...]]:
        with closing(open_connection(self.database)) as connection:
            return fetch_all(connection, sql)

    def check(self, migrations: Migrations) -> None:
        with closing(open_connection(self.database)) as connection:
            migrations.check(connection)


@pytest.fixture
def place(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_pending_files_are_applied_once_in_order_after_a_backup(place: Folder) -> None:
    place.make(place.write(FIRST))
    newer = place.write(FIRST, "ALTER TABLE things ADD COLUMN size INTEGER;", "UPDATE things SET size = 3;")
    done = newer.migrate(place.database, backup_to=place.backup, now="2027-01-01T00:00:00.000Z")
    assert (done.before, done.after, done.applied) == (1, 3, ("0002_step.sql", "0003_step.sql"))
    assert place.rows("SELECT name, size FROM things") == [("kept", 3)]
    assert place.rows("PRAGMA user_version") == [(3,)]
    rows = place.rows("SELECT version, name, applied_at FROM schema_migrations ORDER BY version")
    assert rows[1:] == [(2, "step", "2027-01-01T00:00:00.000Z"), (3, "step", "2027-01-01T00:00:00.000Z")]
    report = backup.verify(place.backup)
    assert (report.version, report.rows["things"]) == (1, 1)
    again = newer.migrate(place.database, backup_to=place.backup, now=NOW)
    assert (again.applied, again.backup) == ((), None)
    assert place.files() == ["pattern.db"]


@pytest.mark.parametrize(
    ("stored", "known", "error", "message"),
    [
        (
            [FIRST],
            [FIRST, MORE],
            SchemaOutdated,
            r"pattern\.db is at schema version 1, this server needs 2: run `pattern db migrate`",
        ),
        ([FIRST, MORE], [FIRST], SchemaTooNew, "version 2, this server knows 1: upgrade the server"),
        ([FIRST], [FIRST.replace("things", "thinks")], MigrationEdited, r"0001_step\.sql"),
    ],
)
def test_a_file_of_other_migrations_is_refused_and_left_alone(
    place: Folder, stored: list[str], known: list[str], error: type[DatabaseError], message: str
) -> None:
    place.make(place.write(*stored))
    digest = place.digest()
    migrations = place.write(*known)
    with pytest.raises(error, match=message):
        place.check(migrations)
    if error is not SchemaOutdated:
        with pytest.raises(error):
            migrations.migrate(place.database, backup_to=place.backup, now=NOW)
    assert place.digest() == digest
    assert not place.backup.exists()


def test_line_ends_are_no_edit(place: Folder) -> None:
    place.make(place.write(FIRST))
    (place.folder / "0001_step.sql").write_bytes(FIRST.replace("\n", "\r\n").encode())
    place.check(Migrations(place.folder))


@pytest.mark.parametrize(
    "broken",
    [
        "INSERT INTO things (name) VALUES ('half'); SELECT nothing FROM nowhere;",
        "INSERT INTO things (name) VALUES ('half'); COMMIT;",
        "INSERT INTO things (name) VALUES ('half'); ROLLBACK; CREATE TABLE x (y);",
        "SAVEPOINT mine; INSERT INTO things (name) VALUES ('half'); RELEASE mine;",
        "ATTACH ':memory:' AS other;",
        "CREATE TABLE child (id INTEGER PRIMARY KEY, thing INTEGER REFERENCES things(id));"
        " PRAGMA defer_foreign_keys = 1; INSERT INTO child VALUES (1, 99);",
        "CREATE TABLE big (x BLOB); INSERT INTO big SELECT zeroblob(3000000); INSERT INTO nowhere VALUES (1);",
    ],
)
def test_a_failing_file_leaves_every_byte_and_the_backup(place: Folder, broken: str) -> None:
    place.make(place.write(FIRST))
    digest = place.digest()
    bad = place.write(FIRST, "CREATE TABLE fine (id INTEGER PRIMARY KEY);", broken)
    with pytest.raises(MigrationFailed, match=f"is unchanged, and a copy of it is {place.backup}"):
        bad.migrate(place.database, backup_to=place.backup, now=NOW)
    assert place.digest() == digest
    assert place.files() == ["pattern.db"]
    assert backup.verify(place.backup).rows["things"] == 1
    repaired = place.write(FIRST, "CREATE TABLE fine (id INTEGER PRIMARY KEY);", "SELECT 1;")
    assert repaired.migrate(place.database, backup_to=place.backup.with_name("second.db"), now=NOW).after == 3


def test_what_a_killed_process_left_in_the_log_is_kept(place: Folder) -> None:
    place.make(place.write(FIRST))
    connection = open_connection(place.database)
    connection.execute("INSERT INTO things (name) VALUES ('in the log')")
    copies = [(place.database.with_name(name), place.database.with_name(name).read_bytes()) for name in place.files()]
    connection.close()
    for path, content in copies:
        path.write_bytes(content)
    newer = place.write(FIRST, "ALTER TABLE things ADD COLUMN size INTEGER;")
    newer.migrate(place.database, backup_to=place.backup, now=NOW)
    assert place.rows("SELECT count(*) FROM things") == [(2,)]
    assert backup.verify(place.backup).rows["things"] == 2


def test_what_migrating_takes_grows_with_the_files() -> None:
    takes = Estimate.of([10_000_000, 1_000_000])
    assert (takes.files, takes.size, takes.needed) == (2, 11_000_000, 31_000_000)
    assert 1 < takes.seconds < 60
    assert Estimate.of([]) == Estimate(files=0, size=0, needed=0, seconds=0)


def test_an_earlier_copy_is_used_again_if_it_is_equal(place: Folder) -> None:
    place.make(place.write(FIRST))
    earlier, before = place.backup, place.database.read_bytes()
    newer = place.write(FIRST, MORE)
    newer.migrate(place.database, backup_to=earlier, now=NOW)
    new = earlier.with_name("new.db")
    place.database.write_bytes(before)
    assert newer.migrate(place.database, backup_to=new, earlier=earlier, now=NOW).backup == earlier
    place.database.write_bytes(before)
    with closing(open_connection(place.database)) as connection:
        connection.execute("INSERT INTO things (name) VALUES ('later')")
    assert newer.migrate(place.database, backup_to=new, earlier=earlier, now=NOW).backup == new
    place.database.write_bytes(before)
    earlier.write_bytes(b"damaged")
    assert newer.migrate(place.database, backup_to=new.with_name("3.db"), earlier=earlier, now=NOW).after == 2


def test_no_backup_no_migration(place: Folder) -> None:
    place.make(place.write(FIRST))
    digest = place.digest()
    newer = place.write(FIRST, MORE)
    place.backup.parent.mkdir()
    place.backup.write_bytes(b"an older backup")
    with pytest.raises(RowConflict):
        newer.migrate(place.database, backup_to=place.backup, now=NOW)
    with pytest.raises(RowNotFound):
        newer.migrate(place.database.with_name("none.db"), backup_to=place.backup, now=NOW)
    assert (place.digest(), place.backup.read_bytes()) == (digest, b"an older backup")


@pytest.mark.parametrize(
    "names", [["0002_a.sql"], ["0001_a.sql", "0003_b.sql"], ["0001_a.sql", "0001_b.sql"], ["1.sql"]]
)
def test_numbers_run_without_gaps(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).write_text("SELECT 1;")
    with pytest.raises(ValueError, match=r"should be number|is not named"):
        Migrations(tmp_path)


@pytest.mark.parametrize("kind", ["constellation", "global"])
def test_the_shipped_migrations(kind: Kind) -> None:
    migrations = migrations_of(kind)
    assert migrations == Migrations(shipped(f"migrations/{kind}"))
    connection = template.in_memory(migrations, now=NOW)
    migrations.check(connection)
    assert ledger(connection) == {migration.version: migration.sha256 for migration in migrations.all}
    assert embedding_indexes.tables(connection) == set(), "no vector tables before there are vectors"
    connection.close()


def test_a_database_without_a_ledger_is_none_of_ours() -> None:
    with closing(open_in_memory()) as connection:
        assert ledger(connection) == {}
        for look in (require_ledger, migrations_of("constellation").check):
            with pytest.raises(Corrupt, match="restore a backup"):
                look(connection)


SHIPPED = migrations_of("constellation")


@pytest.mark.parametrize("version", range(1, SHIPPED.newest + 1))
def test_a_file_of_every_version_becomes_like_a_new_one(tmp_path: Path, version: int) -> None:
    path = tmp_path / "pattern.db"
    create_older(path, version)
    SHIPPED.migrate(path, backup_to=tmp_path / "backup.db", now=NOW)
    schema = "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name"
    with closing(open_connection(path)) as old, closing(template.in_memory(SHIPPED, now=NOW)) as new:
        assert fetch_all(old, schema) == fetch_all(new, schema)
        assert maintenance.check(old) == []
        if version == 30:
            assert timers.due(old, NOW, 9) == [TimerRow("approval", "apr_1", NOW)]
        if version >= 5:
            assert fetch_all(old, "SELECT rowid FROM message_fts('tea')") == [(1,)]
            assert fetch_all(old, "SELECT DISTINCT doc FROM cjk_vocab") == [(4,)]
        if version >= 8:
            assert [(event.seq, event.turn, event.created_at) for event in events.after(old, 0, limit=9)] == [
                (1, 1, NOW)
            ]
            assert [row.args for row in steps.calls_of_turn(old, 1)] == ["{}"]
            if version >= 17:
                [shown] = [step.shown for step in prompts.of_turn(old, 1)]
                assert shown is not None
                assert shown.stable.parts == "{}"
            agents.delete(old, "agt_ada")
            assert [event.turn for event in events.after(old, 0, limit=9)] == [None]


EFFECT = (
    "INSERT INTO effect (turn, step, call, call_id, tool, args, args_hash, class, idempotency_key, status, started_at,"
    " ended_at) VALUES (1, 1, {}, 'c', '{}', '{{}}', x'', 'unsafe', 'k', '{}', {}, :later)"
)
USAGE = (
    "INSERT INTO usage (turn, step, attempt, provider, model, input_tokens, output_tokens, cached_tokens,"
    " cost_microdollars, is_estimate) VALUES (1, {}, 1, 'p', 'm', 100, 10, 40, {}, 0)"
)
VECTOR_OF_MODEL = (
    "INSERT INTO embeddings (kind, ref, scope, content_hash, model, dimension, created_at, vector)"
    " VALUES ('message', '{0}', 'agt_ada', 'h', '{0}', {1}, :now, zeroblob(4 * {1}))"
)
VECTOR = (
    "INSERT INTO embeddings (index_id, kind, ref, scope, content_hash, dimension, created_at, vector)"
    " VALUES (1, '{0}', '{1}', 'agt_ada', 'h', 4, :now, zeroblob(16)) RETURNING id"
)
WORKSPACE_OF = (
    "SELECT r.id, w.name FROM {} AS r LEFT JOIN workspaces AS w ON w.id = r.workspace"
    " WHERE r.id LIKE '%!_8' ESCAPE '!' OR r.id LIKE '%!_9' ESCAPE '!' ORDER BY 1"
)
Answers = dict[str, list[tuple[object, ...]]]
# What an older file holds, and what is asked of it after the migration.
TAKEN_UP: dict[str, tuple[list[str], Answers]] = {
    "tool_rules": (
        [
            EFFECT.format(0, "mail", "done", ":now"),
            EFFECT.format(1, "mail", "done", ":later"),
            EFFECT.format(2, "note", "done", "NULL"),
            EFFECT.format(3, "web", "error", ":now"),
        ],
        {"SELECT agent_id, tool, last_at FROM tool_use": [("agt_ada", "mail", LATER), ("agt_ada", "note", LATER)]},
    ),
    "budgets": (
        [
            "INSERT INTO step (turn, no, attempt, status, provider, model, cursor, prefix_hash, request_hash,"
            " started_at, ended_at) VALUES (1, 1, 1, 'done', 'p', 'm', '', x'', x'', :now, :later)",
            USAGE.format(1, 7),
            USAGE.format(2, "NULL"),
        ],
        {
            "SELECT step, purpose, agent_id, at, cost_microdollars FROM usage ORDER BY step": [
                (1, "step", "agt_ada", LATER, 7),
                (2, "step", "agt_ada", NOW, None),
            ],
            "SELECT day, calls, unpriced_calls, cost_microdollars FROM usage_day ORDER BY day": [
                (NOW[:10], 1, 1, 0),
                (LATER[:10], 1, 0, 7),
            ],
        },
    ),
    "embeddings": (
        [
            "CREATE VIRTUAL TABLE message_embeddings USING vec0(embedding float[4])",
            VECTOR_OF_MODEL.format("small", 4),
            VECTOR_OF_MODEL.format("large", 8),
        ],
        {
            "SELECT model, dimension, state FROM embedding_indexes ORDER BY model": [
                ("large", 8, "retired"),
                ("small", 4, "retired"),
            ],
            "SELECT ref, dimension FROM embeddings ORDER BY ref": [("large", 8), ("small", 4)],
            "SELECT 1 FROM sqlite_schema WHERE sql LIKE '%USING vec0%'": [],
        },
    ),
    "summary_vectors": (
        [
            "INSERT INTO archive_summaries (id, agent_id, summary, start_position, end_position, message_count,"
            " started_at, ended_at, created_at) VALUES ('sum_1', 'agt_ada', 'tea', printf('%019d', 1),"
            " printf('%019d', 1), 1, :now, :now, :now)",
            "INSERT INTO embedding_indexes (fingerprint, provider, model, dimension, state, suffix, created_at) VALUES"
            " ('f', 'test', 'm', 4, 'active', '', :now), ('g', 'test', 'n', 4, 'retired', '_2', :now)",
            "INSERT INTO embedding_cursors (kind, index_id, low, high) VALUES ('message', 1, 2, 7)",
            "INSERT INTO embedding_changes (index_id, kind, ref) VALUES (1, 'message', 'msg_1')",
            "INSERT INTO embedding_refusals VALUES (1, 'block', 'blk_1', 'h', 'agt_ada', 'no')",
            VECTOR.format("message", "msg_2"),
            "UPDATE embeddings SET id = 41",
        ],
        {
            "SELECT kind, index_id, low, high FROM embedding_cursors ORDER BY kind": [
                ("message", 1, 2, 7),
                ("summary", 1, 1, 1),
            ],
            "SELECT reason FROM embedding_refusals": [("no",)],
            "SELECT row, id FROM archive_summaries": [(1, "sum_1")],
            "SELECT id, ref, length(vector) FROM embeddings": [(41, "msg_2", 16)],
            VECTOR.format("summary", "sum_1"): [(42,)],
            "DELETE FROM archive_summaries": [],
            "SELECT kind, ref FROM embedding_changes": [("message", "msg_1"), ("summary", "sum_1")],
        },
    ),
    "task_search": (
        [
            "INSERT INTO embedding_indexes (fingerprint, provider, model, dimension, state, suffix, created_at) VALUES"
            " ('f', 'test', 'm', 4, 'active', '', :now)",
            "INSERT INTO tasks (id, title, priority, tags, parent_task_id, created_at, updated_at) VALUES"
            " ('part', 'Book the train', 3, '[\"x\"]', 'whole', :now, :now),"
            " ('whole', 'Travel', 1, NULL, NULL, :now, :now)",
            VECTOR.format("message", "msg_1"),
        ],
        {
            "SELECT row, id, priority, tags, parent_task_id, content FROM tasks ORDER BY row": [
                (1, "part", 3, '["x"]', "whole", "Book the train"),
                (2, "whole", 1, None, None, "Travel"),
            ],
            "SELECT rowid FROM task_fts WHERE task_fts MATCH 'trains'": [(1,)],
            "SELECT kind, low, high FROM embedding_cursors": [("task", 2, 2)],
            VECTOR.format("task", "part"): [(2,)],
            "UPDATE tasks SET status = 'blocked', blocked_reason = 'no money', notes = 'Ask' WHERE id = 'part'": [],
            "SELECT kind, ref FROM embedding_changes": [("task", "part")],
            "DELETE FROM tasks WHERE id = 'whole'": [],
            "SELECT count(*) FROM tasks": [(0,)],
        },
    ),
    "workspaces": (
        [
            "INSERT INTO messages (id, agent_id, position, role, content, workspace, created_at) VALUES"
            " ('msg_8', 'agt_ada', printf('%019d', 8), 'user', 'tea', 'shop', :later),"
            " ('msg_9', 'agt_ada', printf('%019d', 9), 'user', 'tea', '', :later)",
            "INSERT INTO archival_entries (id, agent_id, content, workspace, created_at) VALUES"
            " ('arch_8', 'agt_ada', 'tea', 'shop', :now), ('arch_9', 'agt_ada', 'tea', 'garden', :now)",
            "INSERT INTO memory_blocks (id, agent_id, label, description, block_type, metadata, created_at, updated_at,"
            " loro_snapshot) VALUES ('blk_8', 'agt_ada', 'b', '', 'core', :shop, :now, :now, x'')",
        ],
        {
            "SELECT name, created_at, length(id) FROM workspaces ORDER BY name": [
                ("garden", NOW, 29),
                ("shop", NOW, 29),
            ],
            WORKSPACE_OF.format("messages"): [("msg_8", "shop"), ("msg_9", None)],
            WORKSPACE_OF.format("archival_entries"): [("arch_8", "shop"), ("arch_9", "garden")],
            WORKSPACE_OF.format("memory_blocks"): [("blk_8", "shop")],
        },
    ),
    "word_codes": (
        [
            "INSERT INTO embedding_indexes (fingerprint, provider, model, dimension, state, suffix, created_at) VALUES"
            " ('f', 'local', 'm', 4, 'active', '', :now), ('g', 'openai', 'n', 4, 'building', '_2', :now)",
            "INSERT INTO embedding_cursors (kind, index_id, low, high) VALUES ('message', 1, 0, 7),"
            " ('message', 2, 2, 7), ('block', 1, 0, 3)",
            VECTOR.format("message", "msg_2"),
            VECTOR.format("block", "blk_1"),
            VECTOR.format("message", "msg_3"),
            "UPDATE embeddings SET index_id = 2 WHERE ref = 'msg_3'",
        ],
        {
            "SELECT ref, content_hash, length(vector), codes FROM embeddings ORDER BY ref": [
                ("blk_1", "h", 16, None),
                ("msg_2", "", 16, None),
                ("msg_3", "h", 16, None),
            ],
            "SELECT kind, index_id, low, high FROM embedding_cursors ORDER BY index_id, kind": [
                ("block", 1, 0, 3),
                ("message", 1, 7, 7),
                ("message", 2, 2, 7),
            ],
        },
    ),
}


@pytest.mark.parametrize("name", TAKEN_UP)
def test_a_migration_takes_up_what_is_there(tmp_path: Path, name: str) -> None:
    [change] = [migration for migration in SHIPPED.all if migration.name == name]
    for migration in SHIPPED.all[: change.version - 1]:
        (tmp_path / migration.file).write_text(migration.sql)
    before, after = TAKEN_UP[name]
    times = {"now": NOW, "later": LATER, "shop": '{"workspace": "shop"}'}
    with closing(template.in_memory(Migrations(tmp_path), now=NOW)) as db:
        turn = (
            "INSERT INTO turn (key, id, agent_id, sender, status, seed, created_at)"
            " VALUES (1, 'turn_1', 'agt_ada', 'user:u', 'completed', 1, :now)"
        )
        for sql in (ROWS[1].replace("?1", ":now"), turn, *before):
            db.execute(sql, times).fetchall()
        db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)  # as the runner does
        db.execute(change.sql)
        assert {sql: db.execute(sql, times).fetchall() for sql in after} == after


def test_vectors_are_there_after_a_migration(tmp_path: Path) -> None:
    path = tmp_path / "pattern.db"
    template.create(path, SHIPPED, now=NOW)
    with closing(open_connection(path)) as connection:
        make_index(connection)
    for migration in SHIPPED.all:
        (tmp_path / migration.file).write_text(migration.sql)
    (tmp_path / f"{SHIPPED.newest + 1:04d}_more.sql").write_text("DROP TABLE message_embeddings;")
    Migrations(tmp_path).migrate(path, backup_to=tmp_path / "b.db", now=NOW)
    with closing(open_connection(path)) as connection:
        assert fetch_all(connection, "SELECT count(*) FROM message_embeddings") == [(0,)]
        assert fetch_all(connection, "SELECT dimension FROM embedding_indexes") == [(4,)]


@pytest.mark.parametrize("now", [NOW, LATER])
def test_a_copy_is_what_the_migrations_make(tmp_path: Path, now: str) -> None:
    migrations = migrations_of("global")
    template.create(tmp_path / "copy.db", migrations, now=now)
    with closing(open_connection(tmp_path / "run.db", create=True)) as run:
        migrations.apply(run, now=now)
        with closing(open_connection(tmp_path / "copy.db")) as copy:
            for sql in ("SELECT type, name, sql FROM sqlite_schema ORDER BY 1, 2", "SELECT * FROM schema_migrations"):
                assert fetch_all(copy, sql) == fetch_all(run, sql)


def test_a_copy_is_in_wal_mode_and_alone(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "down" / "pattern.db"
    template.create(path, migrations_of("constellation"), now=NOW)
    before = path.read_bytes()
    assert list(path.parent.iterdir()) == [path]
    connection = open_connection(path)
    assert fetch_all(connection, "PRAGMA journal_mode") == [("wal",)]
    migrations_of("constellation").check(connection)
    fetch_all(connection, "SELECT count(*) FROM messages")
    connection.close()
    assert path.read_bytes() == before  # opening changed nothing: no fsync for a constellation that is only looked at


def test_an_existing_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    path.write_bytes(b"mine")
    with pytest.raises(RowConflict):
        template.create(path, migrations_of("global"), now=NOW)
    assert path.read_bytes() == b"mine"
    assert list(tmp_path.iterdir()) == [path]


def test_the_time_must_be_one_that_columns_hold() -> None:
    with pytest.raises(ValueError, match="yesterday"):
        template.in_memory(migrations_of("global"), now="yesterday")


def test_a_file_is_named_once(db: Connection) -> None:
    meta.initialise(db, "cst_1", NOW)
    meta.initialise(db, "cst_1", "2027-01-01T00:00:00.000Z")
    assert (meta.get(db, meta.CONSTELLATION_ID), meta.get(db, meta.CREATED_AT)) == ("cst_1", NOW)
    with pytest.raises(RowConflict, match="cst_1"):
        meta.initialise(db, "cst_2", NOW)


def test_epochs_rise(db: Connection) -> None:
    assert meta.get(db, meta.EPOCH) == "0"
    assert [meta.next_epoch(db) for _ in range(12)] == list(range(1, 13))
    assert meta.get(db, meta.EPOCH) == "12"
