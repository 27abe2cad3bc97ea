from __future__ import annotations

from dataclasses import astuple, replace
from hashlib import sha256

import apsw
import pytest

from pattern_db.columns import to_json
from pattern_db.connection import Connection
from pattern_db.tables import audit_log
from pattern_db.tables.audit_log import AuditRow, AuditState
from tests.pattern_db.conftest import NOW

ROW = AuditRow(NOW, "tokens.create", "/tokens/tok_1", 201, "usr_root", None, "127.0.0.1")


@pytest.fixture
def log(global_db: Connection) -> Connection:
    """A log of ten rows."""
    for number in range(10):
        audit_log.append(global_db, replace(ROW, object=f"/tokens/{number}"))
    return global_db


def whole(log: Connection, limit: int = 100) -> AuditState:
    return audit_log.follow(log, AuditState(), limit)


def test_rows_are_numbered_and_read_from_the_newest(log: Connection) -> None:
    rows = audit_log.page(log, before=None, limit=3)
    assert [row.seq for row in rows] == [10, 9, 8]
    assert rows[0] == replace(ROW, object="/tokens/9", seq=10)
    assert [row.seq for row in audit_log.page(log, before=3, limit=5)] == [2, 1]


def test_a_whole_chain_is_followed_in_pieces(log: Connection) -> None:
    found = whole(log)
    assert (found.entries, found.broken_at) == (10, None)
    piece = audit_log.follow(log, whole(log, 4), 4)
    assert piece.entries == 8
    assert audit_log.follow(log, piece, 4) == found == audit_log.follow(log, found, 4)


def test_rows_are_not_changed_or_deleted_by_accident(log: Connection) -> None:
    for statement in (
        "UPDATE audit_log SET status = 1",
        "DELETE FROM audit_log",
        "DELETE FROM audit_log WHERE seq = 3",
    ):
        with pytest.raises(apsw.ConstraintError, match="audit log are never"):
            log.execute(statement)


def test_a_row_that_is_forged_with_its_own_hash_breaks_the_next_one(log: Connection) -> None:
    log.execute("DROP TRIGGER audit_log_no_update")
    before = whole(log, 3).head
    forged = replace(audit_log.page(log, before=5, limit=1)[0], address="192.0.2.1")
    digest = sha256(before + to_json(astuple(forged)).encode()).digest()
    log.execute("UPDATE audit_log SET address = ?, hash = ? WHERE seq = 4", (forged.address, digest))
    assert whole(log).broken_at == 5


@pytest.mark.parametrize(
    ("statement", "broken_at"),
    [
        ("UPDATE audit_log SET object = '/tokens/other' WHERE seq = 4", 4),
        ("UPDATE audit_log SET user_id = NULL WHERE seq = 1", 1),
        ("UPDATE audit_log SET created_at = replace(created_at, '2026', '2025') WHERE seq = 10", 10),
        ("UPDATE audit_log SET hash = zeroblob(32) WHERE seq = 7", 7),
        ("DELETE FROM audit_log WHERE seq = 5", 5),
        ("DELETE FROM audit_log WHERE seq <= 2", 1),
        ("UPDATE audit_log SET seq = -seq WHERE seq IN (2, 3)", 2),
    ],
)
def test_every_change_shows(log: Connection, statement: str, broken_at: int) -> None:
    log.execute("DROP TRIGGER audit_log_no_update")
    log.execute("DROP TRIGGER audit_log_no_delete")
    log.execute(statement)
    assert whole(log).broken_at == broken_at
