"""Decisions of workspaces, which of them supersede or contradict others, and the lines of files that they came from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple

from pattern_db.columns import from_json, to_json
from pattern_db.connection import Connection, Table, fetch_all
from pattern_db.enums import DecisionLinkKind, DecisionSource
from pattern_db.errors import RowConflict
from pattern_db.tables import meta

DECISIONS_MAX = 10_000  # of one constellation
LINES_MAX = 20_000
LINKS_MAX = 50_000


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """A decision. The times are None if its file does not say them; `cwd` and `project` are those of the program that
    wrote it. `changed_by` is the author of the newest change. Links are read with it: of several that supersede it, the
    last id.
    """

    id: str
    workspace: str
    title: str
    text: str
    created_at: str | None
    updated_at: str | None
    changed_by: str
    source: DecisionSource = DecisionSource.MANUAL
    cwd: str = ""
    project: str = ""
    project_id: str | None = None
    tags: Sequence[str] = ()
    scope: str | None = None
    decision_key: str | None = None
    summary: str | None = None
    details: Sequence[str] = ()
    confidence: str | None = None
    freshness: str | None = None
    important: bool = False
    archived: bool = False
    kb_path: str | None = None
    source_turn_id: str | None = None
    retrieval_count: int = 0
    injection_count: int = 0
    last_retrieved_at: str | None = None
    last_injected_at: str | None = None
    supersedes: Sequence[str] = ()
    superseded_by: str | None = None
    conflicts_with: Sequence[str] = ()


class DecisionWords(NamedTuple):
    """What a decision is found by; `tags` and `details` are JSON."""

    id: str
    is_shown: bool  # neither archived nor superseded
    archived: bool
    title: str
    tags: str
    text: str
    summary: str
    details: str


class DecisionLink(NamedTuple):
    """One decision supersedes another one; or the two are in conflict, which is stored with the smaller id first."""

    from_id: str
    to_id: str
    kind: DecisionLinkKind


class DecisionLine(NamedTuple):
    """A line of a file with its line end. `decision_id` is None if it could not be read."""

    id: str
    workspace: str
    position: int
    decision_id: str | None
    is_trusted: bool
    line: bytes


_LINKED = "FROM decision_links WHERE {} = id AND kind = '{}'"
_DECISIONS = Table(
    "decisions",
    DecisionRow,
    "decision {}",
    json=("tags", "details"),
    computed={
        "supersedes": f"(SELECT json_group_array(to_id) {_LINKED.format('from_id', 'supersedes')})",
        "superseded_by": f"(SELECT max(from_id) {_LINKED.format('to_id', 'supersedes')})",
        "conflicts_with": f"(SELECT json_group_array(to_id) FROM (SELECT to_id {_LINKED.format('from_id', 'conflicts')}"
        f" UNION SELECT from_id {_LINKED.format('to_id', 'conflicts')} ORDER BY 1))",
    },
    types={
        "source": DecisionSource,
        "important": bool,
        "archived": bool,
        **dict.fromkeys(("supersedes", "conflicts_with"), lambda text: tuple(from_json(text))),
    },
)
_WORDS = Table(
    "decisions",
    DecisionWords,
    columns={
        "is_shown": f"archived = 0 AND NOT EXISTS (SELECT 1 {_LINKED.format('to_id', 'supersedes')})",
        "summary": "coalesce(summary, '')",
    },
)
_LINKS = Table("decision_links", DecisionLink, types={"kind": DecisionLinkKind})
_LINES = Table("decision_lines", DecisionLine, types={"is_trusted": bool})


def of_workspace(
    connection: Connection, workspace: str | None, limit: int = -1, *, archived: bool = True, after: str | None = None
) -> list[DecisionRow]:
    """Return the decisions of a workspace, or of all, in the order in which they were stored: with `archived` ones, at
    most `limit`, those behind an id, if given.
    """
    return _DECISIONS.select(
        connection,
        "WHERE (?1 IS NULL OR workspace = ?1) AND archived <= ?2 AND rowid > coalesce((SELECT rowid FROM decisions"
        " WHERE id = ?3), 0) ORDER BY rowid LIMIT ?4",
        (workspace, archived, after, limit),
    )


def words(connection: Connection, workspace: str | None) -> list[DecisionWords]:
    """Return what the decisions of a workspace, or of all, are found by, in the order in which they were stored."""
    return _WORDS.select(connection, "WHERE ?1 IS NULL OR workspace = ?1 ORDER BY rowid", (workspace,))


def some(connection: Connection, ids: Sequence[str]) -> list[DecisionRow]:
    """Return the decisions with these ids, in the order in which they were stored."""
    return _DECISIONS.select(
        connection, "WHERE id IN (SELECT value FROM json_each(?)) ORDER BY rowid", (to_json([*ids]),)
    )


def made_between(connection: Connection, start: str, end: str, limit: int) -> list[DecisionRow]:
    """Return the newest decisions that were made from `start` on and before `end`, the oldest first, without archived
    ones.
    """
    where = "WHERE archived = 0 AND created_at >= ? AND created_at < ? ORDER BY created_at DESC, rowid DESC LIMIT ?"
    return _DECISIONS.select(connection, where, (start, end, limit))[::-1]


def count_shown(connection: Connection, ids: Sequence[str], at: str) -> None:
    """Count that a prompt shows decisions."""
    connection.execute(
        "UPDATE decisions SET injection_count = injection_count + 1, last_injected_at = ? WHERE id IN"
        " (SELECT value FROM json_each(?))",
        (at, to_json([*ids])),
    )


def add(connection: Connection, rows: Sequence[DecisionRow]) -> None:
    """Add decisions.

    Raises:
        RowConflict: there are too many.
        apsw.ConstraintError: one exists (translated to `RowConflict`).
    """
    _DECISIONS.insert(connection, rows)
    meta.count_up(connection, meta.DECISIONS)
    if _DECISIONS.count(connection) > DECISIONS_MAX:
        raise RowConflict(f"a constellation has at most {DECISIONS_MAX:,} decisions; use another one")


def replace(connection: Connection, row: DecisionRow) -> None:
    """Store all fields of a decision.

    Raises:
        RowNotFound: there is none.
    """
    _DECISIONS.update(connection, row)
    _DECISIONS.change(connection, row.id, {"created_at": row.created_at})
    meta.count_up(connection, meta.DECISIONS)


def change(connection: Connection, decision_id: str, changes: dict[str, Any]) -> None:
    """Store values, by field.

    Raises:
        RowNotFound: there is no such decision.
    """
    stored = {name: to_json(list(value)) if name in ("tags", "details") else value for name, value in changes.items()}
    _DECISIONS.change(connection, decision_id, stored)
    meta.count_up(connection, meta.DECISIONS)


def elsewhere(connection: Connection, workspace: str) -> list[str]:
    """Return the ids of the decisions of other workspaces."""
    return [one for (one,) in fetch_all(connection, "SELECT id FROM decisions WHERE workspace <> ?", (workspace,))]


def links(connection: Connection, workspace: str) -> list[DecisionLink]:
    """Return the links of the decisions of a workspace."""
    where = "WHERE from_id IN (SELECT id FROM decisions WHERE workspace = ?) ORDER BY from_id, to_id, kind"
    return _LINKS.select(connection, where, (workspace,))


def set_links(connection: Connection, workspace: str, given: Iterable[DecisionLink]) -> None:
    """Let the decisions of a workspace have these links and no others; a conflict may be given in either order.

    Raises:
        RowConflict: a decision would supersede or contradict itself, or there are too many links.
        apsw.ConstraintError: a decision does not exist (translated to `RowConflict`).
    """
    kinds, below = DecisionLinkKind, defaultdict[str, set[str]](set)
    wanted = set[DecisionLink]()
    for one in given:
        low, high = (min(one[:2]), max(one[:2])) if one.kind is kinds.CONFLICTS else one[:2]
        wanted.add(DecisionLink(low, high, one.kind))
        if one.kind is kinds.SUPERSEDES or low == high:
            below[low].add(high)
    try:
        TopologicalSorter(below).prepare()
    except CycleError as error:
        said = f"{error.args[1][0]} would supersede or contradict itself"
        raise RowConflict(f"{said}; name other decisions, or first remove the link between them") from None
    before = {*links(connection, workspace)}
    where = "from_id = ? AND to_id = ? AND kind = ?"
    connection.executemany(f"DELETE FROM decision_links WHERE {where}", before - wanted)
    _LINKS.insert(connection, wanted - before)
    meta.count_up(connection, meta.DECISIONS)
    if _LINKS.count(connection) > LINKS_MAX:
        raise RowConflict(f"a constellation has at most {LINKS_MAX:,} links between decisions; remove some")


def lines(connection: Connection, workspace: str) -> list[DecisionLine]:
    """Return the lines of imported files in their order."""
    return _LINES.select(connection, "WHERE workspace = ? ORDER BY position, id", (workspace,))


def add_lines(connection: Connection, rows: Sequence[DecisionLine]) -> None:
    """Add lines of a file.

    Raises:
        RowConflict: there are too many.
    """
    _LINES.insert(connection, rows)
    if _LINES.count(connection) > LINES_MAX:
        raise RowConflict(f"a constellation keeps at most {LINES_MAX:,} lines of imported files; import into another")


def set_line(connection: Connection, line_id: str, line: bytes) -> None:
    """Store another line in place of one."""
    _LINES.change(connection, line_id, {"line": line})
