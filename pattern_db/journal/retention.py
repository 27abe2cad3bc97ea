"""What the journal gives up with time: events, steps, tool calls and lists of what prompts showed, of turns that ended
long ago.

Messages, memory, the archive, usage and the turns themselves stay. Turns are given up in the order of their acceptance,
so one that has not ended keeps what came after it; so are events, so what is left of them is everything from one on.
"""

from __future__ import annotations

from dataclasses import dataclass

from pattern_db.columns import to_json
from pattern_db.connection import Connection, fetch_all
from pattern_db.tables import meta

TURNS_AT_ONCE = 200  # in one transaction
EVENTS_AT_ONCE = 2_000
_TURN = "pruned_turn"  # key of the newest turn that was given up
_EVENT = "pruned_event"  # number of the newest event that was


@dataclass(frozen=True, slots=True)
class Pruned:
    """How many rows were deleted; of prompts the lists of parts that no step names any more."""

    turns: int = 0
    events: int = 0
    steps: int = 0
    calls: int = 0
    prompts: int = 0

    def __add__(self, other: Pruned) -> Pruned:
        """Return both together."""
        return Pruned(
            self.turns + other.turns,
            self.events + other.events,
            self.steps + other.steps,
            self.calls + other.calls,
            self.prompts + other.prompts,
        )


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


def prune_all(connection: Connection, before: str, *, dry_run: bool = False) -> Pruned:
    """Delete all that `prune` finds, each portion in a transaction of its own, and return how much; in a `dry_run` undo
    it. The connection has no lane.
    """
    total = Pruned()
    if dry_run:
        connection.execute("BEGIN IMMEDIATE")
    while True:
        if not dry_run:
            connection.execute("BEGIN IMMEDIATE")
        gone = prune(connection, before)
        total += gone
        if gone == Pruned():
            connection.execute("ROLLBACK")
            return total
        if not dry_run:
            connection.execute("COMMIT")


def _turns(connection: Connection, before: str) -> tuple[int, int, int]:
    """Return the key after which turns can be given up now, that of the last one, and how many there are."""
    first = last = min(_noted(connection, _TURN), connection.execute("SELECT coalesce(max(key), 0) FROM turn").get)
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
        "SELECT seq, created_at FROM event WHERE seq < coalesce((SELECT first_event FROM turn WHERE key > ?"
        " ORDER BY key LIMIT 1), (SELECT max(seq) FROM event)) ORDER BY seq LIMIT ?",
        (last_turn, EVENTS_AT_ONCE),
    )
    old = next((at for at, (_seq, created_at) in enumerate(found) if created_at >= before), len(found))
    if old:
        connection.execute("DELETE FROM event WHERE seq <= ?", (found[old - 1][0],))
        meta.put(connection, _EVENT, str(found[old - 1][0]))
    return old


def pruned_event(connection: Connection) -> int:
    """Return the number of the newest event that was given up; 0 if none was."""
    return _noted(connection, _EVENT)


def _noted(connection: Connection, key: str) -> int:
    return int(meta.get(connection, key) or 0)
