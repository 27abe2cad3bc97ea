from __future__ import annotations

from pattern_db.columns import iso, to_json, unix_ms
from pattern_db.connection import Connection
from pattern_db.journal import turns
from pattern_db.journal.turns import Started
from pattern_db.tables import activity
from pattern_db.tables.activity import (
    HIGH,
    LOW,
    NOTED_DAYS,
    NOTED_KEPT,
    TRIM_EVERY,
    TURNS_REACH,
    WORDS_CHARS,
    ActivityEvent,
)
from tests.pattern_db.conftest import LATER, NOW, MakeTurn, Say


def note(db: Connection, event_id: str, timestamp: str, agent: str | None = None) -> None:
    db.execute(
        "INSERT INTO activity_events (id, timestamp, agent_id, event_type, details) VALUES (?, ?, ?, 'system', ?)",
        (event_id, timestamp, agent, to_json({"summary": "x"})),
    )


def test_turns_come_with_the_beginning_of_what_they_answered(db: Connection, make_turn: MakeTurn, say: Say) -> None:
    for name, agent, words in (("one", "ada", "a" * (WORDS_CHARS + 5)), ("two", "bob", None)):
        key = make_turn(name, agent=agent)
        turns.start(db, key, Started(batch_id=f"{key:019d}", epoch=1, started_at=NOW, deadline_at=None))
        if words:
            say(key, words, agent=agent)
    make_turn("queued")
    one, two = activity.newest_turns(db, 10)
    assert (one.id, one.agent_name, one.words) == ("one", "ada", "a" * WORDS_CHARS)
    assert (two.id, two.agent_name, two.words, two.sender) == ("two", "bob", "", "user:usr_root")
    assert activity.newest_turns(db, 1) == [two]
    assert [activity.turn(db, name) for name in ("one", "queued", "none")] == [one, None, None]
    for number in range(TURNS_REACH - 1):
        make_turn(f"turn_{number}")
    assert activity.newest_turns(db, 10) == [], "only the newest are looked at"


def test_noted_events_come_newest_first(db: Connection) -> None:
    note(db, "old", "2026-11-20T00:00:00.000Z")
    note(db, "one", NOW, "agt_bob")
    note(db, "two", LATER)
    found = activity.noted_since(db, "agt_bob", NOW, limit=10)
    assert [(one.id, one.agent_name, one.details) for one in found] == [
        ("two", None, {"summary": "x"}),
        ("one", "bob", {"summary": "x"}),
    ]
    assert len(activity.noted_since(db, "agt_bob", NOW, limit=1)) == 1
    assert activity.noted(db, "one") == found[1]
    assert activity.noted(db, "none") is None


def test_the_most_important_events_are_shown_and_old_ones_deleted(db: Connection) -> None:
    for event_id, importance in (("a", HIGH), ("b", LOW), ("c", LOW), ("d", HIGH)):
        activity.note(db, ActivityEvent(event_id, NOW, "agt_bob", "noted", {}, importance))
    assert [one.id for one in activity.noted_since(db, "agt_bob", NOW, limit=3)] == ["d", "c", "a"]
    later = iso(unix_ms(NOW) + NOTED_DAYS * 86_400_000 + 1)
    activity.note(db, ActivityEvent("e", later, None, "noted", {}))
    assert [one.id for one in activity.noted_since(db, "agt_bob", NOW, limit=9)] == ["e"]


def test_events_are_bounded_by_their_number(db: Connection) -> None:
    start = unix_ms(NOW)
    db.execute(
        "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < ?) INSERT INTO activity_events"
        " SELECT 'n' || i, strftime('%Y-%m-%dT%H:%M:%fZ', ? + i, 'unixepoch'), NULL, 'noted', '{}', 1 FROM n",
        (NOTED_KEPT, start // 1000),
    )
    counts: list[int] = []
    for number in range(TRIM_EVERY):
        activity.note(db, ActivityEvent(f"e{number}", iso(start + (NOTED_KEPT + number) * 1000), None, "noted", {}))
        counts.append(db.execute("SELECT count(*) FROM activity_events").get)
    assert min(counts) == NOTED_KEPT
    assert max(counts) <= NOTED_KEPT + TRIM_EVERY
