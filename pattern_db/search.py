"""Full-text search over messages, memory blocks, archive, files, summaries and tasks, filtered inside the query.

This module has the parts of a search: the rows with a term, those that match the filters, their bm25 rank, the
neighbours of a message. The caller decides how they are combined.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import apsw

from pattern_db.columns import Json, to_json
from pattern_db.connection import Connection
from pattern_db.enums import CONSTELLATION_OWNER, SPOKEN, Role, SearchKind, TrustLevel
from pattern_db.search_terms import Term
from pattern_db.vectors import SqlCondition

# Limits for similar words.
LIKE_CHARS_MIN, PART_CHARS_MIN, LONGER_CHARS_MAX = 4, 5, 4
LIKENESS_MIN = 0.75  # twice the number of common letters in the same order, divided by the letters of both
_TOKENIZER = ("porter", ["unicode61", "remove_diacritics", "2"])  # that of the indexes
BEGINNING_CHARS = 200  # of a message, in which the name of who says it may be
_CJK_INDEX = "cjk_fts"
_CJK_READ = 500  # positions of two characters that are read, in addition to two for each possible row
_LAST_CHARACTER = "\U0010ffff"


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """What a hit must satisfy; None: no restriction.

    `agents`: owners of messages, blocks and entries; blocks shared with them and files of folders attached to them are
    included. `roles`, `sessions` and `before` (a position, excluded) apply to messages; with `sessions` only messages
    are found. `shown_from` leaves out what a prompt shows: the messages of its session `shown_session` (None: of the
    main conversation) from a position on. `since` (included), `until` (excluded) and `now` are column times. `tags`:
    at least one of them; a file has its folder's name. `workspace` is the id of the row's. Superseded entries (no
    longer valid at `now`) are left out unless requested.
    """

    agents: Sequence[str] | None = None
    roles: Sequence[Role] | None = SPOKEN
    since: str | None = None
    until: str | None = None
    tags: Sequence[str] | None = None
    workspace: str | None = None
    sessions: Sequence[str] | None = None
    before: str | None = None
    shown_from: str | None = None
    shown_session: str | None = None
    include_superseded: bool = False
    now: str | None = None


class Row(NamedTuple):
    """A row that can be found; a tuple, since a search creates a hundred of them.

    `ref` is the id of its vector, `id` the one that users see: they differ for later chunks of an entry. `agent_id` is
    None for files; `label` is a block's label or a file's name. A summary has the time of its last message. `speaker`
    is the name of a message's sender, `trust` a message's; `metadata` is JSON text.
    """

    kind: SearchKind
    row: int
    ref: str
    id: str
    agent_id: str | None
    content: str
    created_at: str
    label: str | None = None
    role: Role | None = None
    position: str | None = None
    session_id: str | None = None
    speaker: str | None = None
    metadata: str | None = None
    trust: TrustLevel | None = None


class Surroundings(NamedTuple):
    """The messages of the same session next to one: rows, the nearest first."""

    before: Sequence[int]
    after: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """How one kind is searched: its index, its tables, and the meaning of its columns.

    `details` yields ref, id, agent, content, created_at, label, role, position, session, speaker, metadata, and
    of messages trust.
    `conditions` are by field of `Filters`; "" is the condition that always applies.
    """

    number: int | None  # in the index of Chinese, Japanese and Korean text; None: the texts are read
    index: str
    table: str
    tables: str
    row: str
    ref: str
    text: str
    details: str
    conditions: Mapping[str, str]


_AGENTS = "(SELECT value FROM json_each(:agents))"
_TAGS = "(SELECT value FROM json_each(:tags))"
# What nothing of a kind has, if its conditions do not say otherwise.
_ABSENT = dict.fromkeys(("tags", "workspace", "sessions"), "0")
_TRUSTS = {level.value: level for level in TrustLevel}
_ROLES = {role.value: role for role in Role}  # a search creates 150 rows, and looking up an enumeration is slow
_PLACES = {
    SearchKind.MESSAGE: _Place(
        number=0,
        index="message_fts",
        table="messages",
        tables="messages AS m",
        row="m.row",
        ref="m.id",
        text="m.content",
        details="m.id, m.id, m.agent_id, m.content, m.created_at, NULL, m.role, m.position, m.session_id,"
        " m.source_metadata ->> '$.name', m.source_metadata, m.trust",
        conditions={
            "": "m.is_deleted = 0 AND m.content IS NOT NULL",
            "agents": f"m.agent_id IN {_AGENTS}",
            "roles": "m.role IN (SELECT value FROM json_each(:roles))",
            "since": "m.created_at >= :since",
            "until": "m.created_at < :until",
            "tags": f"EXISTS (SELECT 1 FROM json_each(m.source_metadata, '$.tags') WHERE value IN {_TAGS})",
            "workspace": "m.workspace = :workspace",
            "sessions": "m.session_id IN (SELECT value FROM json_each(:sessions))",
            "before": "m.position < :before",
            "shown_from": "(m.position < :shown_from OR m.session_id IS NOT :shown_session"
            " AND (m.is_archived = 1 OR :shown_session IS NOT NULL))",
        },
    ),
    SearchKind.BLOCK: _Place(
        number=1,
        index="memory_fts",
        table="memory_blocks",
        tables="memory_blocks AS b",
        row="b.row",
        ref="b.id",
        text="b.label || ' ' || coalesce(b.content_preview, '')",
        details="b.id, b.id, b.agent_id, coalesce(b.content_preview, ''), b.updated_at, b.label, NULL, NULL, NULL,"
        " NULL, b.metadata",
        conditions={
            "": "b.is_active = 1",
            "agents": f"(b.agent_id IN {_AGENTS} OR b.id IN (SELECT block_id FROM shared_block_agents"
            f" WHERE agent_id IN {_AGENTS}))",
            "since": "b.updated_at >= :since",
            "until": "b.updated_at < :until",
            "tags": f"EXISTS (SELECT 1 FROM json_each(b.metadata, '$.tags') WHERE value IN {_TAGS})",
            "workspace": "b.workspace = :workspace",
        },
    ),
    SearchKind.ARCHIVAL: _Place(
        number=2,
        index="archival_fts",
        table="archival_entries",
        tables="archival_entries AS a",
        row="a.row",
        ref="a.id",
        text="a.content",
        details="a.id, coalesce(a.parent_entry_id, a.id), a.agent_id, a.content, a.created_at, NULL, NULL, NULL, NULL,"
        " NULL, a.metadata",
        conditions={
            "": "1",
            "agents": f"a.agent_id IN {_AGENTS}",
            "since": "a.created_at >= :since",
            "until": "a.created_at < :until",
            "tags": f"EXISTS (SELECT 1 FROM json_each(a.tags) WHERE value IN {_TAGS})",
            "workspace": "a.workspace = :workspace",
            "superseded": "(a.valid_to IS NULL OR a.valid_to > :now)",
        },
    ),
    SearchKind.FILE: _Place(
        number=3,
        index="file_passage_fts",
        table="file_passages",
        tables="(file_passages AS p JOIN folder_files AS f ON f.id = p.file_id)",
        row="p.row",
        ref="p.id",
        text="p.heading || ' ' || p.content",
        details="p.id, p.id, NULL, p.content, p.created_at, f.name, NULL, NULL, NULL, NULL,"
        " json_object('file_id', p.file_id, 'folder_id', f.folder_id, 'start_line', p.start_line,"
        " 'end_line', p.end_line, 'page', p.page, 'heading', p.heading)",
        conditions={
            "": "1",
            "agents": f"f.folder_id IN (SELECT folder_id FROM folder_attachments WHERE agent_id IN {_AGENTS})",
            "since": "p.created_at >= :since",
            "until": "p.created_at < :until",
            "tags": f"f.folder_id IN (SELECT id FROM folders WHERE name IN {_TAGS})",
        },
    ),
    SearchKind.SUMMARY: _Place(
        number=None,
        index="summary_fts",
        table="archive_summaries",
        tables="archive_summaries AS s",
        row="s.row",
        ref="s.id",
        text="s.summary",
        details="s.id, s.id, s.agent_id, s.summary, s.ended_at, NULL, NULL, NULL, NULL, NULL,"
        " json_object('start_position', s.start_position, 'end_position', s.end_position,"
        " 'message_count', s.message_count, 'started_at', s.started_at, 'depth', s.depth)",
        conditions={
            "": "1",
            "agents": f"s.agent_id IN {_AGENTS}",
            "since": "s.ended_at >= :since",
            "until": "s.started_at < :until",
        },
    ),
    SearchKind.TASK: _Place(
        number=None,
        index="task_fts",
        table="tasks",
        tables="tasks AS t",
        row="t.row",
        ref="t.id",
        text="t.content",
        details="t.id, t.id, t.agent_id, t.content, t.updated_at, NULL, NULL, NULL, NULL, NULL,"
        " json_object('status', t.status, 'due_at', t.due_at, 'parent_task_id', t.parent_task_id)",
        conditions={
            "": "1",
            "agents": f"coalesce(t.agent_id, '{CONSTELLATION_OWNER}') IN {_AGENTS}",
            "since": "t.updated_at >= :since",
            "until": "t.updated_at < :until",
            "tags": f"EXISTS (SELECT 1 FROM json_each(t.tags) WHERE value IN {_TAGS})",
            "workspace": "t.workspace = :workspace",
        },
    ),
}


def size(connection: Connection, kind: SearchKind) -> int:
    """Return the approximate number of rows of `kind`, in constant time."""
    found = _query(connection, f"SELECT coalesce(max(row), 0) FROM {_PLACES[kind].table}", {})
    return int(found[0][0])


def words_like(connection: Connection, kind: SearchKind, word: str, count: int, *, anywhere: bool = True) -> list[str]:
    """Return up to `count` words of the index (without their endings) that are similar to an unknown one: a few letters
    differ, or one word is a part of the other. Reads all words of the index, or, unless `anywhere`, only those with the
    same first letter.
    """
    tokenizer = connection.fts5_tokenizer(*_TOKENIZER)
    tokens = tokenizer(word.encode(), apsw.FTS5_TOKENIZE_QUERY, None, include_offsets=False, include_colocated=False)
    stem = "".join(str(token) for token in tokens)
    if len(stem) < LIKE_CHARS_MIN:
        return []
    third = len(stem) // 3
    found = _query(
        connection,
        f"SELECT term FROM {_PLACES[kind].index}_words"
        f" WHERE {'1' if anywhere else 'term >= :initial AND term < :initial || :last'}"
        " AND ((substr(term, 1, 1) = :initial AND abs(length(term) - length(:stem)) <= :longer"
        " AND (instr(term, :first) OR instr(term, :second) OR instr(term, :third)))"
        " OR (min(length(term), length(:stem)) >= :part AND (instr(term, :stem) OR instr(:stem, term))))",
        {
            "stem": stem,
            "initial": stem[0],
            "last": _LAST_CHARACTER,
            "part": PART_CHARS_MIN,
            "longer": LONGER_CHARS_MAX,
            # With two wrong letters, one third of the word is correct.
            "first": stem[:third],
            "second": stem[third : 2 * third],
            "third": stem[2 * third :],
        },
    )
    terms = [str(term) for (term,) in found]
    near = difflib.get_close_matches(stem, terms, count, LIKENESS_MIN)
    parts = [term for term in terms if min(len(term), len(stem)) >= PART_CHARS_MIN and (term in stem or stem in term)]
    return list(dict.fromkeys([*near, *parts]))[:count]


def spread(connection: Connection, kind: SearchKind, term: Term, limit: int) -> int:
    """Return how many rows hold the term, without filters; at most `limit` are counted."""
    source, values = _source(kind, term)
    if not source:
        return 0
    found = _query(
        connection, f"SELECT count(*) FROM (SELECT 1 FROM {source} LIMIT :limit)", {**values, "limit": limit}
    )
    return int(found[0][0])


def rows_of(
    connection: Connection, kind: SearchKind, term: Term, limit: int, *, filters: Filters | None = None
) -> list[int]:
    """Return the newest `limit` rows that hold the term and match the filters, newest first. They may include
    tombstones unless there are filters; `rows` skips these.
    """
    return list(json.loads(posted(connection, kind, term, limit, filters=filters)))


def posted(connection: Connection, kind: SearchKind, term: Term, limit: int, *, filters: Filters | None = None) -> str:
    """Return the result of `rows_of` as a JSON array: one text with all numbers is several times faster than one row
    each.
    """
    source, values = _source(kind, term)
    if not source:
        return "[]"
    place = _PLACES[kind]
    literal = "" if term.literal is None else f" AND instr(lower({place.text}), :literal) > 0"
    if filters is None and not literal:
        sql = f"SELECT found FROM {source} ORDER BY found DESC LIMIT :limit"
    else:
        allowed, more = _allowed(kind, filters or Filters(roles=None, include_superseded=True))
        values = {**values, **more, "literal": term.literal}
        sql = (
            f"SELECT found FROM {source} CROSS JOIN {place.tables} ON {place.row} = found WHERE {allowed}{literal}"
            " ORDER BY found DESC LIMIT :limit"
        )
    found_all = _query(connection, f"SELECT json_group_array(found) FROM ({sql})", {**values, "limit": limit})
    return str(found_all[0][0])


def newest(connection: Connection, kind: SearchKind, terms: Sequence[Term], limit: int) -> list[str]:
    """Return the result of `posted` without filters for each term. One statement reads all plain terms."""
    plain = [term.match for term in terms if term.match and term.literal is None and term.cjk is None]
    index = _PLACES[kind].index
    found: dict[str, str] = dict(
        _query(
            connection,
            "SELECT value, (SELECT json_group_array(found) FROM (SELECT rowid AS found FROM"
            f" {index} WHERE {index} MATCH value ORDER BY rowid DESC LIMIT :limit)) FROM json_each(:terms)",
            {"terms": to_json(plain), "limit": limit},
        )
        if plain
        else ()
    )
    return [found.get(term.match) or posted(connection, kind, term, limit) for term in terms]


def count_posted(posted: str) -> int:
    """Return how many rows a text of `posted` names."""
    return posted.count(",") + 1 if len(posted) > 2 else 0


def newest_posted(posted: str, limit: int) -> str:
    """Return the first `limit` rows of a text of `posted`."""
    return posted if count_posted(posted) <= limit else f"[{','.join(posted[1:-1].split(',', limit)[:limit])}]"


def best(
    connection: Connection, kind: SearchKind, terms: Sequence[Term], limit: int, filters: Filters
) -> list[tuple[int, float]]:
    """Return the `limit` matching rows with some of the terms, by bm25: (row, score above 0), best first.

    Terms that must be compared with the text itself are ignored here.
    """
    match = " OR ".join(term.match for term in terms if term.match and term.literal is None)
    if not match:
        return []
    place = _PLACES[kind]
    allowed, values = _allowed(kind, filters)
    return _query(
        connection,
        f"SELECT {place.row}, -bm25({place.index}) AS goodness FROM {place.index} CROSS JOIN {place.tables}"
        f" ON {place.row} = {place.index}.rowid WHERE {place.index} MATCH :match AND {allowed}"
        " ORDER BY goodness DESC LIMIT :limit",
        {**values, "match": match, "limit": limit},
    )


def rows(
    connection: Connection,
    kind: SearchKind,
    among: Sequence[int] | Sequence[str],
    filters: Filters,
    limit: int = -1,
) -> dict[int, Row]:
    """Return the first `limit` of the rows `among` (numbers, or refs) that match the filters (-1: all), by number;
    later ones are not read. Tombstones and inactive blocks never match.
    """
    if not among:
        return {}
    # A cross join reads the values in their order. An ORDER BY would sort all of them first.
    place = _PLACES[kind]
    column = place.ref if isinstance(among[0], str) else place.row
    allowed, values = _allowed(kind, filters)
    found = _query(
        connection,
        f"SELECT {place.row}, {place.details} FROM json_each(:among) CROSS JOIN {place.tables} ON {column} = value"
        f" WHERE {allowed} LIMIT :limit",
        {**values, "among": to_json(list(among)), "limit": limit},
    )
    return {values[0]: _row(kind, values) for values in found}


def sample(connection: Connection, count: int) -> list[tuple[str | None, str]]:
    """Return the stored speakers and the beginnings of up to `count` messages, spread evenly over all, in constant
    time.
    """
    last = size(connection, SearchKind.MESSAGE)
    numbers = [1 + at * last // count for at in range(count)] if last > count else list(range(1, last + 1))
    found = _query(
        connection,
        "SELECT m.source_metadata ->> '$.name', substr(m.content, 1, :chars) FROM json_each(:among) CROSS JOIN messages"
        " AS m ON m.row = value WHERE m.is_deleted = 0 AND m.content IS NOT NULL AND m.role IN ('user', 'assistant')",
        {"among": to_json(numbers), "chars": BEGINNING_CHARS},
    )
    return [(name if isinstance(name, str) else None, beginning) for name, beginning in found]


def surroundings(connection: Connection, numbers: Sequence[int], reach: int) -> dict[int, Surroundings]:
    """Return for each message up to `reach` messages with text of its session on each side, by position."""
    # The session is compared afterwards: at a session's border the search for another one would read to the end.
    side = (
        "json((SELECT json_group_array(row) FROM (SELECT n.row, n.session_id FROM messages AS n"
        " WHERE n.agent_id = m.agent_id AND n.position {0} m.position AND n.role <> 'tool' AND n.is_deleted = 0"
        " AND n.content IS NOT NULL ORDER BY n.position {1} LIMIT :reach) WHERE session_id IS m.session_id))"
    )
    found = _query(
        connection,
        f"SELECT json_group_array(json_array(m.row, {side.format('<', 'DESC')}, {side.format('>', 'ASC')}))"
        " FROM json_each(:among) CROSS JOIN messages AS m ON m.row = value",
        {"among": to_json(list(numbers)), "reach": reach},
    )
    return {row: Surroundings(before, after) for row, before, after in json.loads(found[0][0])}


def condition(kind: SearchKind, filters: Filters) -> SqlCondition:
    """Return the filters for a search among vectors."""
    place = _PLACES[kind]
    allowed, values = _allowed(kind, filters)
    return SqlCondition(
        sql=f"EXISTS (SELECT 1 FROM {place.tables} WHERE {place.ref} = e.ref AND {allowed})", values=values
    )


def is_narrow(filters: Filters) -> bool:
    """Return True if the filters may exclude most rows."""
    return any(
        value is not None
        for value in (filters.agents, filters.since, filters.until, filters.tags, filters.workspace, filters.sessions)
    ) or set(filters.roles or SPOKEN) != set(SPOKEN)


def rebuild(connection: Connection) -> None:
    """Rebuild all full-text indexes from their tables."""
    for index in indexes():
        connection.execute(f"INSERT INTO {index}({index}) VALUES ('rebuild')")


def optimize(connection: Connection) -> None:
    """Merge the segments of all full-text indexes: smaller and faster, at the cost of writing them once."""
    for index in indexes():
        connection.execute(f"INSERT INTO {index}({index}) VALUES ('optimize')")


def indexes() -> list[str]:
    """Return names of the full-text tables."""
    return [*(place.index for place in _PLACES.values()), _CJK_INDEX]


def _source(kind: SearchKind, term: Term) -> tuple[str, dict[str, Json]]:
    """Return a table expression with the column `found`: the rows that hold the term."""
    place = _PLACES[kind]
    if term.cjk is not None and place.number is None:
        return (
            f"(SELECT {place.row} AS found FROM {place.tables} WHERE instr({place.text}, :cjk) > 0)",
            {"cjk": term.cjk},
        )
    if term.cjk is not None:
        return (
            "(SELECT DISTINCT doc / 4 AS found FROM (SELECT doc FROM cjk_vocab WHERE term >= :cjk AND term < :beyond"
            f" AND doc % 4 = {place.number} LIMIT 2 * :limit + {_CJK_READ}))",
            {"cjk": term.cjk, "beyond": term.cjk + _LAST_CHARACTER},
        )
    if not term.match and term.literal is not None:  # a character that no index has
        return (
            f"(SELECT {place.row} AS found FROM {place.tables} WHERE instr({place.text}, :literal) > 0)",
            {"literal": term.literal},
        )
    if not term.match:
        return "", {}
    return (f"(SELECT rowid AS found FROM {place.index} WHERE {place.index} MATCH :match)", {"match": term.match})


def _allowed(kind: SearchKind, filters: Filters) -> tuple[str, dict[str, Json]]:
    """Return the condition for the filters on the place's tables, and its values."""
    conditions = {**_ABSENT, **_PLACES[kind].conditions}
    values: dict[str, Json] = {
        "agents": _array(filters.agents),
        "roles": _array(filters.roles),
        "since": filters.since,
        "until": filters.until,
        "tags": _array(filters.tags),
        "workspace": filters.workspace,
        "sessions": _array(filters.sessions),
        "before": filters.before,
        "shown_from": filters.shown_from,
        "shown_session": filters.shown_session,
    }
    names = ["", *(name for name, value in values.items() if value is not None)]
    if not filters.include_superseded:
        names.append("superseded")
        values["now"] = filters.now
    return " AND ".join(conditions[name] for name in names if name in conditions), values


def _query(connection: Connection, sql: str, values: Mapping[str, Json]) -> list[tuple[Json, ...]]:
    return connection.execute(sql, values).fetchall()


def _array(values: Sequence[str] | None) -> str | None:
    return None if values is None else to_json(list(values))


def _row(kind: SearchKind, values: tuple[Json, ...]) -> Row:
    row, ref, found, agent_id, content, created_at, label, role, position, session_id, speaker, metadata, *rest = values
    speaker = speaker if isinstance(speaker, str) else None
    role, about = _ROLES.get(role), (metadata, *map(_TRUSTS.get, rest))
    return Row(kind, row, ref, found, agent_id, content, created_at, label, role, position, session_id, speaker, *about)
