"""Prompt logs: lists of references, each stored once, the steps that use them, and vendors' token counts."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pattern_db.connection import Connection, fetch_all
from pattern_db.enums import CONSTELLATION_OWNER, SearchKind
from pattern_db.tables.activity import IS_NEWS


@dataclass(frozen=True, slots=True)
class LoggedParts:
    """Parts of a prompt: JSON text (opaque here) and its 16-byte digest."""

    digest: bytes
    parts: str


@dataclass(frozen=True, slots=True)
class ShownRow:
    """The prompt of a step. `tokens` is an estimate of all of it.

    `stable` is the part that stays from turn to turn, `volatile` the rest. `history_from` is the position
    of the first message shown (empty for none), `history_tokens` an estimate.
    """

    tokens: int
    stable: LoggedParts
    volatile: LoggedParts
    history_from: str
    history_count: int
    history_tokens: int


@dataclass(frozen=True, slots=True)
class StepPrompt:
    """A step with its prompt; None for steps before prompts were logged.

    `counted` are the input tokens that its vendor counted, `cached` those from its cache; None if not reported (yet).
    """

    no: int
    attempt: int
    status: str
    provider: str
    model: str
    started_at: str
    cursor: str
    counted: int | None
    cached: int | None
    shown: ShownRow | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Beyond:
    """What a prompt could show in addition to memory and conversation: kinds to search, open tasks, noted events, notes
    that were handed to the agent.
    """

    findable: Sequence[SearchKind]
    tasks: bool
    noted: bool
    handed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedRow:
    """A prompt that its vendor counted: `counted` input tokens. The prompt as it was logged: `stable` and
    `volatile` are JSON text (opaque here), `history_tokens` an estimate.
    """

    counted: int
    history_tokens: int
    stable: str
    volatile: str


def remember(connection: Connection, turn: int, logged: LoggedParts) -> None:
    """Store the parts for the agent of the turn with the key `turn`, unless they are already stored."""
    packer = zlib.compressobj(wbits=12, memLevel=4)  # 4 KiB of window: clearing the usual 256 KiB would be slower
    packed = packer.compress(logged.parts.encode()) + packer.flush()
    connection.execute(
        "INSERT INTO prompt_log (agent_id, digest, parts) SELECT agent_id, ?, ? FROM turn WHERE key = ?"
        " ON CONFLICT (agent_id, digest) DO NOTHING",
        (logged.digest, packed, turn),
    )


def unpacked(parts: bytes) -> str:
    """Return the JSON text of a stored list; older ones are not packed."""
    return (parts if parts[:1] == b"{" else zlib.decompress(parts)).decode()


def of_turn(connection: Connection, turn: int) -> list[StepPrompt]:
    """Return the steps of the turn with the key `turn`, every attempt, in order."""
    rows = fetch_all(
        connection,
        "SELECT s.no, s.attempt, s.status, s.provider, s.model, s.started_at, s.cursor, u.input_tokens,"
        " u.cached_tokens, s.prompt_tokens, s.prompt_stable, stable.parts, s.prompt_volatile, volatile.parts,"
        " s.history_from, s.history_count, s.history_tokens FROM step AS s JOIN turn AS t ON t.key = s.turn"
        " LEFT JOIN prompt_log AS stable ON stable.agent_id = t.agent_id AND stable.digest = s.prompt_stable"
        " LEFT JOIN prompt_log AS volatile ON volatile.agent_id = t.agent_id AND volatile.digest = s.prompt_volatile"
        " LEFT JOIN usage AS u ON u.turn = s.turn AND u.step = s.no AND u.attempt = s.attempt AND u.purpose = 'step'"
        " AND u.no = 0 AND u.is_estimate = 0 WHERE s.turn = ? ORDER BY s.no, s.attempt",
        (turn,),
    )
    return [
        StepPrompt(no, attempt, status, provider, model, started_at, cursor, counted, cached, _shown(*shown))
        for no, attempt, status, provider, model, started_at, cursor, counted, cached, *shown in rows
    ]


def _shown(
    tokens: int, stable: bytes, stable_parts: bytes | None, volatile: bytes, volatile_parts: bytes | None, *history: Any
) -> ShownRow | None:
    if stable_parts is None or volatile_parts is None:
        return None
    logged = LoggedParts(stable, unpacked(stable_parts)), LoggedParts(volatile, unpacked(volatile_parts))
    return ShownRow(tokens, *logged, *history)


def counted(connection: Connection, agent_id: str, model: str, limit: int, *, among: int) -> list[CountedRow]:
    """Return the agent's last `limit` prompts that this model's vendor counted, oldest first, if they are among the
    file's last `among` calls of any agent: at most these are read.
    """
    rows = fetch_all(
        connection,
        "SELECT u.input_tokens, s.history_tokens, stable.parts, volatile.parts FROM"
        " (SELECT key, turn, step, attempt, purpose, agent_id, model, input_tokens, is_estimate FROM usage"
        " ORDER BY key DESC LIMIT ?3) AS u"
        " JOIN step AS s ON s.turn = u.turn AND s.no = u.step AND s.attempt = u.attempt"
        " JOIN prompt_log AS stable ON stable.agent_id = u.agent_id AND stable.digest = s.prompt_stable"
        " JOIN prompt_log AS volatile ON volatile.agent_id = u.agent_id AND volatile.digest = s.prompt_volatile"
        " WHERE u.agent_id = ?1 AND u.model = ?2 AND u.purpose = 'step' AND u.is_estimate = 0"
        " AND s.history_tokens IS NOT NULL ORDER BY u.key DESC LIMIT ?4",
        (agent_id, model, among, limit),
    )
    return [
        CountedRow(counted=counted, history_tokens=history, stable=unpacked(stable), volatile=unpacked(volatile))
        for counted, history, stable, volatile in reversed(rows)
    ]


def text_of(connection: Connection, ref: str) -> str | None:
    """Return the text of the message, archive entry or passage with this id; None if it no longer exists."""
    row = connection.execute(
        "SELECT content FROM messages WHERE id = ?1 AND is_deleted = 0 UNION ALL SELECT content FROM archival_entries"
        " WHERE id = ?1 UNION ALL SELECT content FROM file_passages WHERE id = ?1",
        (ref,),
    ).fetchone()
    return None if row is None else row[0]


def beyond(connection: Connection, agent_id: str, before: str, since: str) -> Beyond:
    """Return what the agent has beyond its prompt: messages at positions smaller than `before` (empty: the
    prompt shows none), or perhaps in other sessions, archive entries, passages of attached files, open tasks, events
    noted from `since` on, unread notes for it. Reads one row of each.
    """
    [(*found, has_tasks, has_noted, has_handed)] = connection.execute(
        "SELECT EXISTS (SELECT 1 FROM messages WHERE agent_id = ?1 AND position < ?2)"
        " OR EXISTS (SELECT 1 FROM sessions WHERE coalesce(agent_id, group_id) = ?1),"
        " EXISTS (SELECT 1 FROM archival_entries WHERE agent_id IN (?1, ?3)),"
        " EXISTS (SELECT 1 FROM folder_attachments AS a JOIN folder_files AS f ON f.folder_id = a.folder_id"
        " WHERE a.agent_id = ?1),"
        " EXISTS (SELECT 1 FROM tasks WHERE agent_id = ?1 AND status IN ('pending', 'in_progress', 'blocked'))"
        " OR EXISTS (SELECT 1 FROM tasks WHERE agent_id IS NULL AND status IN ('pending', 'in_progress', 'blocked')),"
        f" EXISTS (SELECT 1 FROM activity_events AS e WHERE timestamp >= ?4 AND {IS_NEWS}),"
        " EXISTS (SELECT 1 FROM handoff_notes WHERE to_agent = ?1 AND read_at IS NULL) OR EXISTS (SELECT 1"
        " FROM handoff_notes WHERE to_agent IS NULL AND read_at IS NULL AND from_agent IS NOT ?1)",
        (agent_id, before or "~", CONSTELLATION_OWNER, since),  # '~' is greater than all digits
    )
    kinds = (SearchKind.MESSAGE, SearchKind.ARCHIVAL, SearchKind.FILE)
    return Beyond(
        findable=tuple(kind for kind, is_there in zip(kinds, found, strict=True) if is_there),
        tasks=bool(has_tasks),
        noted=bool(has_noted),
        handed=bool(has_handed),
    )
