from __future__ import annotations

from collections.abc import Callable

import apsw
import pytest

from pattern_db.connection import Connection
from pattern_db.tables import agents, history_imports
from pattern_db.tables.history_imports import ImportRow
from pattern_db.tables.messages import MessageRow

KEY, PRINT = b"k" * 16, b"f" * 16


def row(now: str, **fields: object) -> ImportRow:
    values: dict[str, object] = {"agent_id": "agt_ada", "positions": (3, 1, 2**63 - 1), **fields}
    return ImportRow(idempotency=KEY, fingerprint=PRINT, created_at=now, **values)  # type: ignore[arg-type]  # as named


def test_an_import_is_found_by_its_key(db: Connection, now: str) -> None:
    history_imports.insert(db, row(now))
    assert history_imports.find(db, KEY) == row(now)
    assert history_imports.find(db, PRINT) is None
    with pytest.raises(apsw.ConstraintError):
        history_imports.insert(db, row(now, positions=()))
    agents.delete(db, "agt_ada")
    assert history_imports.find(db, KEY) is None


def test_an_import_belongs_to_an_agent(db: Connection, now: str) -> None:
    with pytest.raises(apsw.ConstraintError):
        history_imports.insert(db, row(now, agent_id="agt_nobody"))


def test_the_newest_position_that_is_taken(db: Connection, say: Callable[..., MessageRow]) -> None:
    def newest(first: int, last: int, agent: str = "agt_ada") -> str | None:
        return history_imports.newest_between(db, agent, f"{first:019d}", f"{last:019d}")

    assert newest(0, 9) is None
    say(3)
    say(5, agent="bob")
    assert newest(0, 9) == f"{5:019d}"  # another agent's message has the id that belongs to the position
    assert newest(0, 4) == newest(3, 3) == f"{3:019d}"
    assert newest(6, 9) is None
    db.execute("UPDATE messages SET id = 'msg_elsewhere' WHERE agent_id = 'agt_ada'")
    assert newest(0, 4) == f"{3:019d}"
    assert newest(0, 4, "agt_bob") is None


def test_looking_for_room_scans_nothing(db: Connection) -> None:
    plan = " ".join(
        str(detail)
        for *_, detail in db.execute(
            "EXPLAIN QUERY PLAN SELECT max(id) FROM messages WHERE id BETWEEN 'msg_1' AND 'msg_2'"
        )
    )
    assert "SEARCH messages USING" in plan
