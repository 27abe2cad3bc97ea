"""Guidance of workspaces, and the feedback on it, which its scores are computed from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pattern_db.connection import Connection, Table, fetch_all
from pattern_db.enums import GuidanceSource, GuidanceState, GuidanceVerdict
from pattern_db.errors import RowConflict

GUIDANCE_MAX = 10_000  # of one constellation
IMPORT = "import"  # the `turn` of what a file had counted


@dataclass(frozen=True, slots=True)
class GuidanceRow:
    """Advice on a kind of task. `helpful`, `harmful` and `used` are sums of its feedback; `last_used_at` is the time of
    the newest one, None if there is none. `changed_by` is the author of the newest change.
    """

    id: str
    workspace: str
    task_type: str
    section: str
    content: str
    source: GuidanceSource
    state: GuidanceState
    created_at: str
    updated_at: str
    changed_by: str
    source_task: str | None = None
    merged_into: str | None = None
    helpful: int = 0
    harmful: int = 0
    used: int = 0
    last_used_at: str | None = None

    @property
    def utility_score(self) -> float:
        """How far feedback says that it helps, from 0 to 1, by Delia's schema; without feedback 0."""
        return self.helpful / (self.helpful + self.harmful + 1)

    @property
    def rank(self) -> float:
        """How likely it is that it helps, from 0 to 1; without feedback one half, so that new guidance is shown."""
        return (self.helpful + 1) / (self.helpful + self.harmful + 2)


class GuidanceFeedback(NamedTuple):
    """What an author said of guidance in a turn, `weight` times. That it was used is noted once a day: the `turn` is
    the day then, and the `note` the first turn of it.
    """

    guidance_id: str
    verdict: GuidanceVerdict
    author: str
    turn: str
    weight: int
    note: str | None
    created_at: str


_GUIDANCE = Table("guidance", GuidanceRow, "guidance {}", types={"source": GuidanceSource, "state": GuidanceState})
_FEEDBACK = Table("guidance_feedback", GuidanceFeedback, types={"verdict": GuidanceVerdict})
_RANK, _USED = "(helpful + 1.0) / (helpful + harmful + 2)", "coalesce(last_used_at, '')"
get, change = _GUIDANCE.get, _GUIDANCE.change


def select(
    connection: Connection,
    workspace: str | None,
    states: Sequence[GuidanceState],
    *,
    task_types: Sequence[str] | None = None,
    limit: int = -1,
    after: str | None = None,
) -> list[GuidanceRow]:
    """Return the guidance of a workspace, or of all, in these states and of these types of task, the best first; only
    what follows the guidance `after` in this order, if given.
    """
    wanted = {"workspace": None if workspace is None else [workspace], "state": states, "task_type": task_types}
    named = {name: values for name, values in wanted.items() if values is not None}
    where = [f"{name} IN ({', '.join('?' * len(values))})" for name, values in named.items()]
    given: list[Any] = [value for values in named.values() for value in values]
    if after is not None:
        its = f"(SELECT {_RANK}, {_USED} FROM guidance WHERE id = ?)"
        where.append(f"(({_RANK}, {_USED}) < {its} OR (({_RANK}, {_USED}) = {its} AND id > ?))")
        given += [after] * 3
    order = f"ORDER BY {_RANK} DESC, {_USED} DESC, id LIMIT ?"
    return _GUIDANCE.select(connection, f"WHERE {' AND '.join(where)} {order}", (*given, limit))


def add(connection: Connection, rows: Sequence[GuidanceRow]) -> None:
    """Add guidance.

    Raises:
        RowConflict: there is too much.
        apsw.ConstraintError: one exists (translated to `RowConflict`).
    """
    _GUIDANCE.insert(connection, rows)
    if _GUIDANCE.count(connection) > GUIDANCE_MAX:
        raise RowConflict(f"a constellation has at most {GUIDANCE_MAX:,} pieces of guidance; use another one")


def merge(connection: Connection, old: str, new: str, now: str, author: str) -> None:
    """Let guidance be replaced by another one, which gets its feedback; of two equal verdicts one counts.

    Raises:
        RowNotFound: one of them does not exist.
        RowConflict: they are the same, or the other one is replaced itself.
    """
    if old == new or get(connection, new).merged_into is not None:
        raise RowConflict(f"{old} cannot be merged into {new}; choose guidance that is not merged itself")
    replaced: Mapping[str, Any] = {"state": GuidanceState.MERGED, "merged_into": new}
    _GUIDANCE.change(connection, old, {**replaced, "updated_at": now, "changed_by": author})
    connection.execute("UPDATE guidance SET merged_into = ?2 WHERE merged_into = ?1", (old, new))
    connection.execute(
        "INSERT INTO guidance_feedback SELECT ?2, verdict, author, turn, weight, note, created_at FROM"
        " guidance_feedback WHERE guidance_id = ?1 ON CONFLICT DO UPDATE SET weight = weight + CASE turn WHEN"
        f" '{IMPORT}' THEN excluded.weight ELSE 0 END",
        (old, new),
    )
    connection.execute("DELETE FROM guidance_feedback WHERE guidance_id = ?", (old,))
    _count(connection, old, new)


def delete(connection: Connection, guidance_id: str) -> None:
    """Delete guidance with the feedback on it, and what it has replaced.

    Raises:
        RowNotFound: there is none.
    """
    connection.execute("DELETE FROM guidance WHERE merged_into = ?", (guidance_id,))
    _GUIDANCE.delete(connection, guidance_id)


def feedback_on(connection: Connection, guidance_id: str) -> list[GuidanceFeedback]:
    """Return the feedback on guidance, in the order of time."""
    return _FEEDBACK.select(connection, "WHERE guidance_id = ? ORDER BY created_at, author, turn", (guidance_id,))


def rate(connection: Connection, rows: Sequence[GuidanceFeedback]) -> None:
    """Add feedback, each verdict of an author in a turn once. That it helped replaces that it did harm, and the other
    way round.

    Raises:
        apsw.ConstraintError: there is no such guidance (translated to `RowConflict`).
    """
    for row in rows:
        if row.verdict is not GuidanceVerdict.USED:
            [other] = {GuidanceVerdict.HELPFUL, GuidanceVerdict.HARMFUL} - {row.verdict}
            unrate(connection, row.guidance_id, other, row.author, row.turn)
    _FEEDBACK.insert(connection, rows, "ON CONFLICT DO NOTHING")
    _count(connection, *{row.guidance_id for row in rows})


def unrate(connection: Connection, guidance_id: str, verdict: GuidanceVerdict, author: str, turn: str) -> bool:
    """Take feedback back; return whether there was some."""
    where = "WHERE guidance_id = ? AND verdict = ? AND author = ? AND turn = ?"
    found = fetch_all(
        connection, f"DELETE FROM guidance_feedback {where} RETURNING 1", (guidance_id, verdict, author, turn)
    )
    _count(connection, guidance_id)
    return bool(found)


def recount(
    connection: Connection,
    guidance_id: str,
    counts: Mapping[GuidanceVerdict, int],
    author: str,
    now: str,
    used_at: str | None,
) -> None:
    """Let the sums of guidance be those of a file: what was not said here was imported; it was last used at `used_at`,
    or later.
    """
    connection.execute("DELETE FROM guidance_feedback WHERE guidance_id = ? AND turn = ?", (guidance_id, IMPORT))
    _count(connection, guidance_id)
    row = get(connection, guidance_id)
    here = {GuidanceVerdict.HELPFUL: row.helpful, GuidanceVerdict.HARMFUL: row.harmful}
    rest = [(verdict, count - here[verdict], now) for verdict, count in counts.items()]
    rest += [(GuidanceVerdict.USED, 1, used_at)] if used_at is not None else []
    _FEEDBACK.insert(
        connection,
        [GuidanceFeedback(guidance_id, verdict, author, IMPORT, n, None, at) for verdict, n, at in rest if n > 0],
    )
    _count(connection, guidance_id)


_SUM = "(SELECT coalesce(sum(weight), 0) FROM guidance_feedback WHERE guidance_id = guidance.id AND verdict = '{0}')"


def _count(connection: Connection, *ids: str) -> None:
    """Store the sums of feedback. What a file had counted does not say when it was used."""
    sums = ", ".join(f"{verdict} = {_SUM.format(verdict)}" for verdict in GuidanceVerdict)
    connection.executemany(
        f"UPDATE guidance SET {sums}, last_used_at = (SELECT max(created_at) FROM guidance_feedback WHERE guidance_id"
        f" = guidance.id AND (turn <> '{IMPORT}' OR verdict = 'used')) WHERE id = ?",
        [(one,) for one in ids],
    )
