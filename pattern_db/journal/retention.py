"""Deletion of old rows of the journal: events, steps, tool calls and prompt logs of turns that ended long ago.

Messages, memory, the archive, usage and the turns themselves stay. Turns are processed in the order of their
acceptance, so an open turn keeps everything after it; so are events, so the remaining ones are a gapless range.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from pattern_db.columns import to_json
from pattern_db.connection import Connection, fetch_all
from pattern_db.tables import meta

TURNS_AT_ONCE = 200  # in one transaction
EVENTS_AT_ONCE = 2_000
_TURN = "pruned_turn"  # key of the newest pruned turn
_EVENT = "pruned_event"  # number of the newest pruned event
_KEY_MAX = 2**63 - 1
# The first event of a turn after `?`, else the newest event: it is kept.
_KEPT_EVENT = (
    "coalesce((SELECT first_event FROM turn WHERE key > ? ORDER BY key LIMIT 1), (SELECT max(seq) FROM event))"
)


@dataclass(frozen=True, slots=True)
class Pruned:
    """How many rows were deleted; `prompts` are lists of parts without a step."""

    turns: int = 0
    events: int = 0
    steps: int = 0
    calls: int = 0
    prompts: int = 0


def prune(connection: Connection, before: str) -> Pruned:
    """Delete, within the caller's transaction, a bounded number of rows of turns that ended before a stored time, and
    of events; call it until it finds none.
    """
    first, last, turns = _turns(connection, before)
    steps = calls = prompts = 0
    if turns:
        used = fetch_all(
            connection,
            "DELETE FROM step WHERE turn > ? AND turn <= ? RETURNING turn, prompt_stable, prompt_volatile",
            (first, last),
        )
        connection.execute("DELETE FROM effect WHERE turn > ? AND turn <= ?", (first, last))
        steps, calls = len(used), connection.changes()
        connection.execute(
            "DELETE FROM prompt_log WHERE (agent_id, digest) IN (SELECT turn.agent_id, unhex(value ->> 1)"
            " FROM json_each(?) JOIN turn ON turn.key = value ->> 0)"
            " AND digest NOT IN (SELECT prompt_stable FROM step WHERE prompt_stable IS NOT NULL)"
            " AND digest NOT IN (SELECT prompt_volatile FROM step WHERE prompt_volatile IS NOT NULL)",
            (to_json([[turn, one.hex()] for turn, *both in used for one in both if one is not None]),),
        )
        prompts = connection.changes()
        meta.put(connection, _TURN, str(last))
    return Pruned(turns, _events(connection, before, last), steps, calls, prompts)


def prunable(connection: Connection, before: str) -> Pruned:
    """Return how much `prune` would delete in all. Reads the whole journal."""
    count = partial(_count, connection)
    first = _first(connection)
    last = count(
        "SELECT coalesce(max(key), ?1) FROM turn WHERE key > ?1 AND key < coalesce((SELECT min(key) FROM turn"
        " WHERE key > ?1 AND (ended_at IS NULL OR ended_at >= ?2)), ?3)",
        first, before, _KEY_MAX,
    )  # fmt: skip
    return Pruned(
        turns=count("SELECT count(*) FROM turn WHERE key > ? AND key <= ?", first, last),
        events=count(
            f"SELECT count(*) FROM event WHERE seq < min({_KEPT_EVENT},"
            " coalesce((SELECT min(seq) FROM event WHERE created_at >= ?), ?))",
            last, before, _KEY_MAX,
        ),
        steps=count("SELECT count(*) FROM step WHERE turn > ? AND turn <= ?", first, last),
        calls=count("SELECT count(*) FROM effect WHERE turn > ? AND turn <= ?", first, last),
        prompts=count(
            "SELECT count(*) FROM prompt_log WHERE digest NOT IN"
            " (SELECT prompt_stable FROM step WHERE turn > ?1 AND prompt_stable IS NOT NULL)"
            " AND digest NOT IN (SELECT prompt_volatile FROM step WHERE turn > ?1 AND prompt_volatile IS NOT NULL)",
            last,
        ),
    )  # fmt: skip


def _count(connection: Connection, sql: str, *bindings: object) -> int:
    return int(connection.execute(sql, bindings).get)


def _first(connection: Connection) -> int:
    """Return the key after which turns can be pruned now. A restored file may have fewer turns than before."""
    return min(_noted(connection, _TURN), _count(connection, "SELECT coalesce(max(key), 0) FROM turn"))


def _turns(connection: Connection, before: str) -> tuple[int, int, int]:
    """Return the key after which turns can be pruned now, that of the last one, and how many there are."""
    first = last = _first(connection)
    turns = 0
    for key, ended_at in fetch_all(
        connection, "SELECT key, ended_at FROM turn WHERE key > ? ORDER BY key LIMIT ?", (first, TURNS_AT_ONCE)
    ):
        if ended_at is None or ended_at >= before:
            break
        last, turns = key, turns + 1
    return first, last, turns


def _events(connection: Connection, before: str, last_turn: int) -> int:
    """Delete the oldest events, up to the first one of a turn that is kept; never the newest."""
    found = fetch_all(
        connection,
        f"SELECT seq, created_at FROM event WHERE seq < {_KEPT_EVENT} ORDER BY seq LIMIT ?",
        (last_turn, EVENTS_AT_ONCE),
    )
    old = next((at for at, (_seq, created_at) in enumerate(found) if created_at >= before), len(found))
    if old:
        connection.execute("DELETE FROM event WHERE seq <= ?", (found[old - 1][0],))
        meta.put(connection, _EVENT, str(found[old - 1][0]))
    return old


def pruned_event(connection: Connection) -> int:
    """Return the number of the newest pruned event; 0 without one."""
    return _noted(connection, _EVENT)


def _noted(connection: Connection, key: str) -> int:
    return int(meta.get(connection, key) or 0)
