from __future__ import annotations

import pytest

from pattern_core.events import Draft, Event
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.connection import Connection, open_in_memory

TOLD = Event(seq=1, name="a", turn_id=None, data={}, created_at="")


def test_functions_run_in_order_within_one_transaction() -> None:
    connection, work, seen = open_in_memory(), UnitOfWork(), []

    def note(given: Connection, word: str, *, times: int = 1) -> str:
        assert given is connection
        seen.append(word * times)
        return "ignored"

    def tell(given: Connection) -> list[Event]:
        note(given, "told")
        return [TOLD]

    work.store(note, "a")
    work.store_and_tell(tell)
    work.store(note, "b", times=2)
    assert seen == []  # nothing happens before the transaction
    assert work.run(connection) == [TOLD]
    assert seen == ["a", "told", "bb"]
    connection.close()


def test_what_raises_stops_the_rest() -> None:
    connection, work, seen = open_in_memory(), UnitOfWork(), []

    def fail(_connection: Connection) -> None:
        raise ValueError("no")

    work.store(lambda _connection: seen.append(1))
    work.store(fail)
    work.store(lambda _connection: seen.append(2))
    with pytest.raises(ValueError, match="no"):
        work.run(connection)
    assert seen == [1]
    connection.close()


def test_events_are_gathered() -> None:
    work = UnitOfWork()
    work.event("a", {"x": 1})
    work.event("b", {})
    assert work.drafts == [Draft("a", {"x": 1}), Draft("b", {})]


@pytest.mark.parametrize("committed", [True, False])
def test_everybody_who_asked_is_told_once_last_asker_first(committed: bool) -> None:
    work = UnitOfWork()
    told: list[tuple[str, bool]] = []
    work.when_settled(lambda committed: told.append(("first", committed)))
    work.when_settled(lambda committed: told.append(("second", committed)))
    work.settle(committed=committed)
    work.settle(committed=not committed)
    assert told == [("second", committed), ("first", committed)]


def test_an_empty_one_does_nothing() -> None:
    connection, work = open_in_memory(), UnitOfWork()
    assert work.run(connection) == []
    work.settle(committed=True)
    connection.close()
