from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import apsw
import pytest

from pattern_db import maintenance, template
from pattern_db.connection import Connection, fetch_all, open_connection
from pattern_db.enums import SearchKind
from pattern_db.journal import usage
from pattern_db.journal.usage import UsageRow
from pattern_db.migrate import Migrations, migrations_of
from pattern_db.tables import agents, messages
from tests.pattern_db import vector_rows
from tests.pattern_db.conftest import NOW, Say, make_agent, make_message
from tests.pattern_db.vector_rows import VectorRow

VECTOR = VectorRow(kind=SearchKind.MESSAGE, ref="msg_1", scope="agt_ada")


def test_status_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    shipped = migrations_of("constellation")
    template.create(path, shipped, now=NOW)
    connection = open_connection(path)
    connection.execute("INSERT INTO coordination_state (key, value, updated_at) VALUES ('k', '1', ?)", (NOW,))
    status = maintenance.status(connection, shipped)
    assert (status.version, status.newest, status.pending) == (shipped.newest, shipped.newest, ())
    assert status.file_bytes >= path.stat().st_size
    assert status.wal_bytes > 0
    assert (status.rows["coordination_state"], status.rows["messages"]) == (1, 0)
    connection.close()


def test_status_names_what_is_pending(tmp_path: Path, db: Connection) -> None:
    for migration in migrations_of("constellation").all:
        (tmp_path / migration.file).write_text(migration.sql)
    newest = migrations_of("constellation").newest
    (tmp_path / f"{newest + 1:04d}_more.sql").write_text("SELECT 1;")
    status = maintenance.status(db, Migrations(tmp_path))
    assert (status.version, status.newest, status.pending) == (newest, newest + 1, (f"{newest + 1:04d}_more.sql",))
    assert status.wal_bytes == 0


def test_damage_of_what_is_derived_is_found_and_repaired(db: Connection, global_db: Connection, say: Say) -> None:
    say(1, "words")
    say(2, "more words")
    for ref in ("msg_1", "msg_2", "msg_3"):
        vector_rows.insert(db, replace(VECTOR, ref=ref))
    assert maintenance.check(db) == maintenance.check(global_db) == []
    db.execute("DROP TRIGGER message_fts_update")
    db.execute("UPDATE messages SET content = 'something else'")
    db.execute("DELETE FROM message_embeddings WHERE message_id IN ('msg_1', 'msg_2')")
    db.execute("DELETE FROM embeddings WHERE ref = 'msg_3'")
    db.execute("DROP TABLE memory_embeddings")
    problems = maintenance.check(db)
    assert len(problems) == 3
    assert "message_fts" in problems[0]
    assert "memory_embeddings cannot be read" in " ".join(problems)
    assert "message_embeddings lacks 2 vectors and has 1 too many" in " ".join(problems)
    maintenance.repair(db)
    assert maintenance.check(db) == []
    assert len(fetch_all(db, "SELECT rowid FROM message_fts('something')")) == 2


TURN = (
    "INSERT INTO turn (id, agent_id, sender, status, seed, created_at, ended_at)"
    " VALUES ('turn_' || ?1, 'agt_ada', 'user:ann', ?2, 1, ?3, iif(?2 = 'running', NULL, ?3))"
)
EVENT = "INSERT INTO event (turn, name, data, created_at) VALUES (?1, ?2, '{}', ?3)"
EFFECT = (
    "INSERT INTO effect (turn, step, call, call_id, tool, args, args_hash, class, idempotency_key, status)"
    " VALUES (?1, 1, 0, 'c', 'note', '{}', x'', 'local', 'k' || ?1, ?2)"
)
RESERVATION = (
    "INSERT INTO reservation (turn, step, attempt, purpose, no, agent_id, provider, model, tokens, prompt_tokens)"
    " VALUES (?1, 1, 1, 'step', 0, 'agt_ada', 'p', 'm', 1, 1)"
)


def test_a_journal_that_no_moment_may_have_is_found(db: Connection) -> None:
    for key, status in ((1, "running"), (2, "completed"), (3, "failed")):
        db.execute(TURN, (key, status, NOW))
        db.execute(EFFECT, (key, "started" if key == 1 else "done"))
        db.execute(EVENT, (key, f"turn.{status}", NOW))
    db.execute(RESERVATION, (1,))
    assert maintenance.check(db) == [], "a turn may be under way"
    db.execute(EVENT, (2, "turn.failed", NOW))
    db.execute("UPDATE event SET name = 'turn.started' WHERE turn = 3")
    db.execute("UPDATE effect SET status = 'planned' WHERE turn = 3")
    for key in (2, 3):
        db.execute(RESERVATION, (key,))
    assert maintenance.check(db) == [
        "the journal has turns without exactly one end: 2",
        "the journal has calls without a result in turns that ended: 1",
        "the journal has reservations of turns that do not run; `pattern db check --repair` releases them: 2",
    ]
    db.execute(EVENT, (1, "turn.limit", NOW))
    assert maintenance.check(db)[0].endswith("one end: 3"), "an open turn has none"
    maintenance.repair(db)
    assert fetch_all(db, "SELECT turn FROM reservation") == [(1,)]
    assert len(maintenance.check(db)) == 2


def test_old_turns_of_which_retention_deleted_events_are_no_defect(db: Connection) -> None:
    for key in (1, 2):
        db.execute(TURN, (key, "completed", NOW))
        for name in ("turn.started", "turn.completed"):
            db.execute(EVENT, (key, name, NOW))
    db.execute("DELETE FROM event WHERE seq <= 3")
    assert maintenance.check(db) == []


DAYS = "SELECT day, model, calls, input_tokens, cost_microdollars FROM usage_day ORDER BY 1, 2"


def used(db: Connection, day: str, model: str, tokens: int) -> None:
    call = UsageRow(None, 0, 0, "agt_ada", "p", model, f"{day}T10:00:00.000Z", tokens, 1, cost_microdollars=tokens)
    usage.add(db, call._replace(purpose="summary"))


def test_sums_of_days_that_differ_from_their_calls_are_found_and_summed_again(db: Connection) -> None:
    for day, model, tokens in (("2026-01-01", "a", 5), ("2026-01-01", "a", 7), ("2026-01-02", "b", 9)):
        used(db, day, model, tokens)
    right = fetch_all(db, DAYS)
    assert right == [("2026-01-01", "a", 2, 12, 12), ("2026-01-02", "b", 1, 9, 9)]
    for change, days in (
        ("UPDATE usage_day SET input_tokens = 13 WHERE model = 'a'", 1),
        ("UPDATE usage_day SET calls = 0", 2),
        ("DELETE FROM usage_day WHERE model = 'b'", 1),
        ("UPDATE usage_day SET model = 'c' WHERE model = 'b'", 1),
    ):
        db.execute(change)
        [problem] = maintenance.check(db)
        assert problem.startswith(f"days with other sums of usage than their calls: {days};")
        maintenance.repair(db)
        assert (maintenance.check(db), fetch_all(db, DAYS)) == ([], right)


def test_vacuum_gives_space_back_and_search_still_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.db"
    template.create(path, migrations_of("constellation"), now=NOW)
    connection = open_connection(path)
    agents.create(connection, make_agent("ada"))
    with connection:
        messages.append(connection, [make_message(number, f"unique{number} " * 30) for number in range(1_000)])
    connection.execute("DELETE FROM messages WHERE position < printf('%019d', 900)")
    free = maintenance.status(connection, migrations_of("constellation")).free_bytes
    assert free > 0
    assert maintenance.much_free(connection) == 0
    monkeypatch.setattr(maintenance, "MUCH_FREE_BYTES", free)
    assert maintenance.much_free(connection) == free
    monkeypatch.setattr(maintenance, "MUCH_FREE_SHARE", 0.9)
    assert maintenance.much_free(connection) == 0
    assert maintenance.vacuum(connection) > 0
    assert maintenance.much_free(connection) == 0
    status = maintenance.status(connection, migrations_of("constellation"))
    assert (status.free_bytes, status.wal_bytes) == (0, 0)
    assert fetch_all(connection, "SELECT message_id FROM message_fts('unique950')") == [(f"msg_{950:019d}",)]
    assert maintenance.check(connection) == []
    connection.execute("BEGIN")
    with pytest.raises(apsw.SQLError):
        maintenance.vacuum(connection)
    connection.execute("ROLLBACK")
    connection.close()


def test_a_database_before_its_first_migration(tmp_path: Path) -> None:
    with closing(open_connection(tmp_path / "a.db", create=True)) as connection:
        assert maintenance.check(connection) == []
        maintenance.vacuum(connection)
        assert fetch_all(connection, "PRAGMA integrity_check") == [("ok",)]
