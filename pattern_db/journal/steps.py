"""Steps: one model call each, opened before it (T2) and closed with its decision (T3), and the tool calls decided on.

A call is planned with the decision (T3), started (T5) and ended (T6); its row is an *effect*.
"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import blake2b
from typing import NamedTuple

from pattern_db.columns import to_json
from pattern_db.connection import Connection, Table, Values
from pattern_db.enums import EffectStatus
from pattern_db.errors import RowConflict
from pattern_db.tables import prompts
from pattern_db.tables.prompts import ShownRow

_WAITS = "status = 'awaiting_approval'"
# The arguments of an ended call are in the message with its result; 'null' here marks this.
_ARGS = (
    "CASE effect.args WHEN 'null' THEN coalesce((SELECT tool_args FROM messages WHERE id = effect.message_id), 'null')"
    " ELSE effect.args END"
)

Key = tuple[int, int, int]  # of a step: turn, number, attempt; of a call: turn, step, call


class StepRow(NamedTuple):
    """A step as stored. The hashes are 16-byte digests, `cursor` the position of the newest message shown."""

    turn: int
    no: int
    attempt: int
    status: str
    provider: str
    model: str
    cursor: str
    prefix_hash: bytes
    request_hash: bytes
    finish_reason: str | None
    started_at: str


_STEPS = Table("step", StepRow)


class EffectRow(NamedTuple):
    """A tool call as stored. `effect_class` and `status` are values of `pattern_db.enums`; `args` is JSON text."""

    turn: int
    step: int
    call: int
    call_id: str
    tool: str
    args: str
    args_hash: bytes
    effect_class: str
    idempotency_key: str
    status: str = "planned"
    attempts: int = 0
    message_id: str | None = None
    deadline_at: str | None = None

    @property
    def key(self) -> Key:
        """The key of the call."""
        return self.turn, self.step, self.call


_PLANNED = Table("effect", EffectRow, columns={"effect_class": "class"})
plan_calls = _PLANNED.insert
_EFFECTS = Table("effect", EffectRow, columns={"effect_class": "class", "args": _ARGS})


def hash_call(tool: str, arguments: str) -> bytes:
    """Return a 16-byte digest of a tool and its arguments: equal calls have equal digests."""
    return blake2b(f"{tool}\0{arguments}".encode(), digest_size=16).digest()


def open_step(connection: Connection, row: StepRow, shown: ShownRow, known: Collection[bytes] = ()) -> None:
    """Store a step before its model call, with its prompt log; `tables.prompts` reads that.

    `known` are digests of the prompt parts that are already stored.
    """
    connection.execute(
        f"INSERT INTO step ({_STEPS.columns}, prompt_tokens, prompt_stable, prompt_volatile, history_from,"
        " history_count, history_tokens) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(*_STEPS.values(row), shown.tokens, shown.stable.digest, shown.volatile.digest),
            *(shown.history_from, shown.history_count, shown.history_tokens),
        ),
    )
    for logged in (shown.stable, shown.volatile):
        if logged.digest not in known:
            prompts.remember(connection, row.turn, logged)


def close(
    connection: Connection,
    key: Key,
    *,
    status: str,
    ended_at: str,
    finish_reason: str | None = None,
    request_id: str | None = None,
    answered: tuple[str, str] | None = None,
) -> None:
    """Close the open step `(turn, no, attempt)` as done, superseded or failed. `answered` is the provider and model
    that answered, if others were called first.

    Raises:
        RowConflict: it is not open.
    """
    connection.execute(
        "UPDATE step SET status = ?, ended_at = ?, finish_reason = ?, provider_request_id = ?,"
        " provider = coalesce(?, provider), model = coalesce(?, model)"
        " WHERE turn = ? AND no = ? AND attempt = ? AND status = 'open'",
        (status, ended_at, finish_reason, request_id, *(answered or (None, None)), *key),
    )
    if connection.changes() != 1:
        raise RowConflict(f"step {key} is not open")


def latest(connection: Connection, turn: int) -> StepRow | None:
    """Return the newest attempt of the turn's newest step, if it has any."""
    return _STEPS.first(connection, "WHERE turn = ? ORDER BY no DESC, attempt DESC LIMIT 1", (turn,))


def start_call(connection: Connection, key: Key, *, epoch: int, started_at: str, deadline_at: str) -> None:
    """Store the intent to run the call `(turn, step, call)` now: before this is durable, it must not run.

    Raises:
        RowConflict: it is neither planned nor a started one that may be repeated.
    """
    changes = "status = 'started', epoch = ?, attempts = attempts + 1, started_at = ?, deadline_at = ?"
    may_run = "(status = 'planned' OR (status = 'started' AND class IN ('idempotent', 'verifiable')))"
    _change_call(connection, key, may_run, changes, (epoch, started_at, deadline_at))


def approve_call(connection: Connection, key: Key, *, args: str, args_hash: bytes) -> None:
    """Plan a call that waited for approval, with these arguments.

    Raises:
        RowConflict: it no longer waits.
    """
    _change_call(connection, key, _WAITS, "status = 'planned', args = ?, args_hash = ?", (args, args_hash))


def deny_call(connection: Connection, key: Key) -> None:
    """Deny a call that waited for approval; its result is stored later.

    Raises:
        RowConflict: it no longer waits.
    """
    _change_call(connection, key, _WAITS, "status = 'denied'")


def ask_about_call(connection: Connection, key: Key) -> None:
    """Let a call wait for a person: a planned one, or a started one with unknown outcome.

    Raises:
        RowConflict: it has ended, or already waits.
    """
    _change_call(connection, key, "status IN ('planned', 'started')", "status = 'awaiting_approval'")


def finish_call(connection: Connection, key: Key, *, status: str, message_id: str, ended_at: str) -> None:
    """Store the result of the call, once. Store the message with the result first: equal arguments are not stored
    twice.

    Raises:
        RowConflict: it has already ended.
    """
    used = connection.execute(
        "UPDATE effect SET status = ?1, message_id = ?2, ended_at = ?3,"
        " args = CASE WHEN args = (SELECT tool_args FROM messages WHERE id = ?2) THEN 'null' ELSE args END"
        " WHERE turn = ?4 AND step = ?5 AND call = ?6"
        " AND (status IN ('planned', 'started', 'awaiting_approval') OR (status = 'denied' AND message_id IS NULL))"
        " RETURNING tool, coalesce(started_at, ended_at)",
        (status, message_id, ended_at, *key),
    ).fetchone()
    if used is None:
        raise _not_allowed(key)
    if status == EffectStatus.DONE:
        connection.execute(
            "INSERT INTO tool_use (agent_id, tool, last_at) SELECT agent_id, ?2, ?3 FROM turn WHERE key = ?1"
            " ON CONFLICT (agent_id, tool) DO UPDATE SET last_at = max(last_at, excluded.last_at)",
            (key[0], *used),
        )


def waiting_calls(connection: Connection, agent_id: str) -> set[str]:
    """Return the call ids of the agent's calls that wait for a person."""
    rows = connection.execute(
        "SELECT effect.call_id FROM turn JOIN effect ON effect.turn = turn.key AND effect.status = 'awaiting_approval'"
        " WHERE turn.agent_id = ? AND turn.ended_at IS NULL AND turn.status = 'waiting'",
        (agent_id,),
    )
    return {call_id for (call_id,) in rows}


def calls_of_step(connection: Connection, turn: int, step: int) -> list[EffectRow]:
    """Return the calls of one step in the model's order."""
    return _EFFECTS.select(connection, "WHERE turn = ? AND step = ? ORDER BY call", (turn, step))


def calls_of_turn(connection: Connection, turn: int) -> list[EffectRow]:
    """Return all calls of a turn in order."""
    return _EFFECTS.select(connection, "WHERE turn = ? ORDER BY step, call", (turn,))


def last_used(connection: Connection, agent_id: str, tools: Collection[str]) -> dict[str, str]:
    """Return when the agent last started each of `tools` successfully, as column texts; unused ones are left out."""
    rows = connection.execute(
        "SELECT tool, last_at FROM tool_use WHERE agent_id = ? AND tool IN (SELECT value FROM json_each(?))",
        (agent_id, to_json(list(tools))),
    )
    return {str(tool): str(last_at) for tool, last_at in rows}


def calls_with_results(
    connection: Connection, turn: int, *, chars_max: int
) -> list[tuple[EffectRow, str | None, str | None]]:
    """Return all calls of a turn in order, each with its start and at most `chars_max` characters of its result.

    A call that changes only this file has no separate start time: it starts as it ends.
    """
    rows = connection.execute(
        f"SELECT {_EFFECTS.columns}, coalesce(started_at, ended_at),"
        " (SELECT substr(content, 1, ?) FROM messages WHERE id = effect.message_id)"
        " FROM effect WHERE turn = ? ORDER BY step, call",
        (chars_max, turn),
    )
    return [(_EFFECTS.make(row), *row[-2:]) for row in rows]


def ended_steps(connection: Connection, turn: int) -> list[tuple[StepRow, str]]:
    """Return the steps of a turn that have ended, in order, each with its end."""
    sql = f"SELECT {_STEPS.columns}, ended_at FROM step WHERE turn = ? AND ended_at IS NOT NULL ORDER BY no, attempt"
    return [(_STEPS.make(row[:-1]), row[-1]) for row in connection.execute(sql, (turn,))]


def ended_calls(connection: Connection, turn: int) -> list[tuple[EffectRow, str, int]]:
    """Return the calls of a turn that have ended, in order, each with its end and the milliseconds that it ran."""
    rows = connection.execute(
        f"SELECT {_PLANNED.columns}, ended_at, coalesce(lasted_ms, 0) FROM effect JOIN"
        " (SELECT data ->> '$.step' AS of_step, data ->> '$.call' AS of_call, data ->> '$.duration_ms' AS lasted_ms"
        " FROM event WHERE turn = ?1 AND name = 'tool.result') ON step = of_step AND call = of_call"
        " WHERE effect.turn = ?1 ORDER BY step, call",
        (turn,),
    )
    return [(_PLANNED.make(row[:-2]), *row[-2:]) for row in rows]


def _change_call(connection: Connection, key: Key, condition: str, changes: str, values: Values = ()) -> None:
    connection.execute(
        f"UPDATE effect SET {changes} WHERE turn = ? AND step = ? AND call = ? AND {condition}", (*values, *key)
    )
    if connection.changes() != 1:
        raise _not_allowed(key)


def _not_allowed(key: Key) -> RowConflict:
    return RowConflict(f"the tool call {key} is in another state")
