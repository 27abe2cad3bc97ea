"""Sources as rows: what arrived is known for ever, and what belongs to a source goes with it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pattern_db.connection import Connection
from pattern_db.enums import ApprovalKind, DeliveryStatus, PersonStatus, SourceDelivery
from pattern_db.errors import RowNotFound
from pattern_db.journal import approvals, turns
from pattern_db.journal.approvals import ApprovalRow
from pattern_db.journal.turns import NewTurn
from pattern_db.tables import agents, outbox, sessions, sources
from pattern_db.tables.agents import AgentRow
from pattern_db.tables.outbox import OutboxRow
from pattern_db.tables.sessions import SessionRow
from pattern_db.tables.sources import PersonRow, ReceiverRow, SourceChatRow, SourceRow
from tests.pattern_db.conftest import NOW

LATER = "2099-01-01T00:00:00.000Z"
FEED = SourceRow("src_1", "news", "rss", {"url": "https://example.org/"}, NOW, NOW)


def made(db: Connection) -> None:
    """A source, an agent that receives it, and a chat of it."""
    agents.create(db, AgentRow("agent_1", "eve", "p", "m", "", created_at=NOW, updated_at=NOW))
    sources.create(db, FEED)
    sources.put_receiver(db, ReceiverRow("agent_1", "src_1"))
    sessions.create(db, "agent_1", SessionRow("ses_1", NOW, NOW))
    sources.create_chat(db, SourceChatRow("chat_1", "src_1", "7", "Anna", False, "agent_1", "ses_1", NOW))


def row(row_id: str, target: str, **fields: object) -> OutboxRow:
    return OutboxRow(**{"id": row_id, "target": target, "payload": "{}", "next_at": NOW, "created_at": NOW, **fields})  # type: ignore[arg-type]  # fields by name


def test_an_event_is_new_once(db: Connection) -> None:
    made(db)
    assert sources.see(db, "src_1", b"x" * 16)
    assert not sources.see(db, "src_1", b"x" * 16)
    assert sources.see(db, "src_1", b"y" * 16)


def test_what_agents_receive_is_set_and_dropped(db: Connection) -> None:
    made(db)
    changed = ReceiverRow("agent_1", "src_1", None, SourceDelivery.ARCHIVE, {"words": ["a"]}, 60.0)
    sources.put_receiver(db, changed)
    assert sources.receivers(db, "src_1") == [changed]
    sources.delete_receiver(db, "src_1", "agent_1")
    with pytest.raises(RowNotFound, match="gets nothing"):
        sources.delete_receiver(db, "src_1", "agent_1")


def test_people_are_kept_by_their_ids(db: Connection) -> None:
    made(db)
    anna = PersonRow("src_1", "7", "Anna", PersonStatus.PENDING, NOW, "CODE", LATER)
    sources.put_person(db, anna)
    sources.put_person(db, allowed := replace(anna, status=PersonStatus.ALLOWED, code=None, expires_at=None))
    assert sources.person(db, "src_1", "7") == allowed
    assert (sources.person(db, "src_1", "8"), sources.people(db, "src_1")) == (None, [allowed])


def test_the_address_of_a_turn(db: Connection) -> None:
    made(db)
    turns.insert(db, NewTurn("agent_1", "turn_1", "conversant:x", 1, NOW))
    sources.address(db, "turn_1", "chat_1", "7", "m/1")
    assert sources.chat(db, "src_1", "7") == sources.get_chat(db, "chat_1")
    assert sources.addressed(db, "turn_1") == (sources.get_chat(db, "chat_1"), "7", "m/1")
    assert sources.addressed(db, "turn_2") is None
    for number, turn_id in enumerate(("turn_1", None)):
        asked = ApprovalRow(f"apr_{number}", ApprovalKind.TOOL, {}, b"x", NOW)
        approvals.insert(db, asked, turn_id=turn_id)
    assert [sources.asks(db, "src_1", one) for one in ("apr_0", "apr_1")] == [True, False]
    assert not sources.asks(db, "src_2", "apr_0")
    assert (sources.turns_since(db, "chat_1", NOW), sources.turns_since(db, "chat_1", LATER)) == (1, 0)


def test_rows_of_one_chat_keep_their_order_and_others_do_not_wait(db: Connection) -> None:
    made(db)
    for number in (1, 2):
        for target in ("chat:chat_1", "agent:agent_1", "source:src_1:x"):
            outbox.add(db, row(f"{target}{number}", target))
            if number == 1:
                outbox.failed(db, outbox.get(db, f"{target}1"), 1, "no", LATER)
    assert [one.id for one in outbox.due(db, NOW, (), 9)[0]] == ["agent:agent_12"]
    first = outbox.get(db, "chat:chat_11")
    assert [one.id for one in outbox.next_of(db, first, 9)] == ["chat:chat_12"]
    assert sources.waiting(db, "src_1") == 2
    assert len(sources.newest_of(db, "src_1", 9, None)) == 4
    outbox.set_unclear(db, first.id, 1)
    assert outbox.get(db, first.id).unclear == 1
    outbox.delivered(db, [first], NOW)
    assert (outbox.get(db, first.id).unclear, outbox.get(db, first.id).status) == (0, DeliveryStatus.DELIVERED)


def test_all_of_a_source_goes_with_it(db: Connection) -> None:
    made(db)
    sources.see(db, "src_1", b"x" * 16)
    for target in ("chat:chat_1", "agent:agent_1", "source:src_1:x", "source:src_10:x"):
        outbox.add(db, row(target, target))
    outbox.add(db, row("said", "chat:src_1:5", status=DeliveryStatus.DEAD, unclear=1))  # before there was a chat
    outbox.add(db, row("refused", "chat:src_1:5", status=DeliveryStatus.DEAD))
    assert (sources.in_doubt(db, "src_1"), sources.in_doubt(db, "src_10")) == (1, 0)
    assert "said" in [one.id for one in sources.newest_of(db, "src_1", 9, None)]
    sources.pause_all(db)
    assert not sources.find(db, "news").enabled
    sources.delete(db, "src_1")
    assert sorted(one.id for one in outbox.newest(db, "*", 9)) == ["agent:agent_1", "source:src_10:x"]
    assert db.execute("SELECT count(*) FROM source_seen").get == 0
    with pytest.raises(RowNotFound, match="source 'src_1'"):
        sources.delete(db, "src_1")
