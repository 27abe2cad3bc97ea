"""Data sources and channels: what agents get of them, which events arrived, who may talk, and where answers go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pattern_db.columns import Json
from pattern_db.connection import Connection, Table, fetch_all
from pattern_db.enums import PersonStatus, SourceDelivery
from pattern_db.errors import RowNotFound
from pattern_db.tables import outbox

_PENDING = "target GLOB 'source:' || ? || ':*' AND status = 'pending'"
# What is said in a channel; before there is a chat, the row itself has the address.
_SAID = "(target GLOB 'chat:' || ?1 || ':*' OR target IN (SELECT 'chat:' || id FROM source_chat WHERE source_id = ?1))"


@dataclass(frozen=True, slots=True)
class SourceRow:
    """Where data comes from by itself. `config` names secrets, and holds none; `sync_cursor` is the place up to which
    everything is stored. `error` is why it fails, None while it does not.
    """

    id: str
    name: str
    source_type: str
    config: Mapping[str, Json]
    created_at: str
    updated_at: str
    enabled: bool = True
    sync_cursor: Mapping[str, Json] | None = None
    last_sync_at: str | None = None
    last_event_at: str | None = None
    error: str | None = None
    failing_since: str | None = None


@dataclass(frozen=True, slots=True)
class ReceiverRow:
    """What an agent gets of a source, and as what; at most one delivery in `batch_s` seconds."""

    agent_id: str
    source_id: str
    notification_template: str | None = None
    delivery: SourceDelivery = SourceDelivery.MESSAGE
    filters: Mapping[str, Json] = field(default_factory=dict)
    batch_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PersonRow:
    """A person or a room of a channel (`native` is the id there), and what it may do. The pairing `code` of a pending
    one is valid until `expires_at`.
    """

    source_id: str
    native: str
    name: str
    status: PersonStatus
    created_at: str
    code: str | None = None
    expires_at: str | None = None
    decided_by: str | None = None


@dataclass(frozen=True, slots=True)
class SourceChatRow:
    """A conversation in a channel: a chat, a topic or a thread."""

    id: str
    source_id: str
    native: str
    name: str
    is_room: bool
    agent_id: str
    session_id: str
    created_at: str


_SOURCES = Table(
    "data_sources",
    SourceRow,
    "source {!r}",
    order="name, id",
    json=("config", "sync_cursor"),
    types={"enabled": bool},
)
create, find, list_all, change = _SOURCES.create, _SOURCES.find, _SOURCES.list_all, _SOURCES.change
_RECEIVERS = Table("agent_data_sources", ReceiverRow, json=("filters",), types={"delivery": SourceDelivery})
_PEOPLE = Table("source_person", PersonRow, types={"status": PersonStatus})
_CHATS = Table("source_chat", SourceChatRow, "chat {!r}", types={"is_room": bool})
create_chat, get_chat = _CHATS.create, _CHATS.get


def delete(connection: Connection, source_id: str) -> None:
    """Delete a source with all that is known of it, and what was to be delivered for it.

    Raises:
        RowNotFound: there is no such source.
    """
    connection.execute(f"DELETE FROM outbox WHERE target GLOB 'source:' || ?1 || ':*' OR {_SAID}", (source_id,))
    _SOURCES.delete(connection, source_id)


def pause_all(connection: Connection) -> None:
    """Pause every source: two servers must not read one account."""
    connection.execute("UPDATE data_sources SET enabled = 0")


def put_receiver(connection: Connection, row: ReceiverRow) -> None:
    """Set what an agent gets of a source."""
    changed = ", ".join(f"{name} = excluded.{name}" for name in ("notification_template", "delivery", "filters"))
    rest = f"ON CONFLICT (agent_id, source_id) DO UPDATE SET {changed}, batch_s = excluded.batch_s"
    _RECEIVERS.insert(connection, [row], rest)


def receivers(connection: Connection, source_id: str) -> list[ReceiverRow]:
    """Return what agents get of a source, by their ids."""
    return _RECEIVERS.select(connection, "WHERE source_id = ? ORDER BY agent_id", (source_id,))


def delete_receiver(connection: Connection, source_id: str, agent_id: str) -> None:
    """Have an agent get nothing of a source any more.

    Raises:
        RowNotFound: it gets nothing of it.
    """
    connection.execute("DELETE FROM agent_data_sources WHERE source_id = ? AND agent_id = ?", (source_id, agent_id))
    if connection.changes() == 0:
        raise RowNotFound(f"the agent {agent_id!r} gets nothing of this source")


def see(connection: Connection, source_id: str, digest: bytes) -> bool:
    """Note that an event arrived; return False if it had arrived before."""
    connection.execute("INSERT OR IGNORE INTO source_seen VALUES (?, ?)", (source_id, digest))
    return connection.changes() == 1


def waiting(connection: Connection, source_id: str) -> int:
    """Return how many events of a source were not delivered yet."""
    found: int = connection.execute(f"SELECT count(*) FROM outbox WHERE {_PENDING}", (source_id,)).get
    return found


def in_doubt(connection: Connection, source_id: str) -> int:
    """Return how many answers were perhaps sent and perhaps not, so that a person must decide."""
    found: int = connection.execute(
        f"SELECT count(*) FROM outbox WHERE {_SAID} AND status = 'dead' AND unclear > 0", (source_id,)
    ).get
    return found


def newest_of(connection: Connection, source_id: str, limit: int, before: str | None) -> list[outbox.OutboxRow]:
    """Return what was and is to be delivered for a source, in both directions, newest first; those older than the id
    `before`.
    """
    return outbox.select(
        connection,
        f"WHERE (target GLOB 'source:' || ?1 || ':*' OR {_SAID}) AND (?2 IS NULL OR id < ?2) ORDER BY id DESC LIMIT ?3",
        (source_id, before, limit),
    )


def person(connection: Connection, source_id: str, native: str) -> PersonRow | None:
    """Return what is known of a person or a room of a channel."""
    return _PEOPLE.first(connection, "WHERE source_id = ? AND native = ?", (source_id, native))


def people(connection: Connection, source_id: str) -> list[PersonRow]:
    """Return the people and rooms of a channel, in the order in which they came."""
    return _PEOPLE.select(connection, "WHERE source_id = ? ORDER BY created_at, native", (source_id,))


def put_person(connection: Connection, row: PersonRow) -> None:
    """Store what is known of a person or a room."""
    connection.execute("DELETE FROM source_person WHERE source_id = ? AND native = ?", (row.source_id, row.native))
    _PEOPLE.insert(connection, [row])


def chat(connection: Connection, source_id: str, native: str) -> SourceChatRow | None:
    """Return a conversation of a channel by its id there; None if it is new."""
    return _CHATS.first(connection, "WHERE source_id = ? AND native = ?", (source_id, native))


def address(connection: Connection, turn_id: str, chat_id: str, person_id: str, reply_to: str) -> None:
    """Store where the answer of a turn goes, once and for all."""
    connection.execute(
        "INSERT INTO source_turn (turn, chat_id, person, reply_to) SELECT key, ?, ?, ? FROM turn WHERE id = ?",
        (chat_id, person_id, reply_to, turn_id),
    )


def addressed(connection: Connection, turn_id: str) -> tuple[SourceChatRow, str, str] | None:
    """Return where the answer of a turn goes: the chat, who asked, and the message that is answered; None if the turn
    came from no chat.
    """
    found = fetch_all(
        connection,
        "SELECT chat_id, person, reply_to FROM source_turn WHERE turn = (SELECT key FROM turn WHERE id = ?)",
        (turn_id,),
    )
    return None if not found else (get_chat(connection, found[0][0]), found[0][1], found[0][2])


def asks(connection: Connection, source_id: str, approval_id: str) -> bool:
    """Return whether a question is one of a turn that came from this channel."""
    return bool(
        connection.execute(
            "SELECT EXISTS (SELECT 1 FROM approval JOIN source_turn USING (turn) JOIN source_chat ON source_chat.id ="
            " chat_id WHERE approval.id = ? AND source_id = ?)",
            (approval_id, source_id),
        ).get
    )


def turns_since(connection: Connection, chat_id: str, since: str) -> int:
    """Return how many turns a conversation began since a time."""
    found: int = connection.execute(
        "SELECT count(*) FROM source_turn JOIN turn ON turn.key = source_turn.turn"
        " WHERE chat_id = ? AND created_at >= ?",
        (chat_id, since),
    ).get
    return found
