"""Full-text search over messages, memory blocks, archive and files, filtered inside the query.

Any text of a person or a model is a legal query: `to_match` writes the FTS5 expression, user text never does.

Source of the query syntax: "SQLite FTS5 Extension", sqlite.org/fts5.html, section 3.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from pattern_db.columns import Json, from_json, to_json
from pattern_db.connection import Connection
from pattern_db.enums import Role, SearchKind

TERMS_MAX = 64  # beyond this a query is a document; its first words say enough
SNIPPET_TOKENS = 24
_ELLIPSIS = "…"

# Frequent English words that would match nearly everything; left out of an any-word search if other words remain.
_FREQUENT_WORDS = (
    "a about an and are as at be been but by can could did do does for from had has have he her his how i if in is it"
    " its me my not of on or our she should so than that the their them then there they this to us was we were what"
    " when where which who whom why will with would you your"
)
_FREQUENT = frozenset(_FREQUENT_WORDS.split())
# A phrase in quotes, or a word; each may have a minus before and a star after it.
_TERM = re.compile(r'(?P<minus>-)?(?:"(?P<phrase>[^"]*)"|(?P<word>[^\s"]+))(?P<star>\*)?')


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """What a hit must satisfy.

    `agents`: owners of messages, blocks and entries; blocks lent to them and files of folders attached to them count
    too; None for everybody's. `roles` holds for messages. `since` (included) and `until` (excluded) are column times.
    """

    agents: Sequence[str] | None = None
    roles: Sequence[Role] | None = None
    since: str | None = None
    until: str | None = None
    include_archived: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One find. `score` is 1.0 for the best of its kind and falls towards 0; `words` is the raw bm25, negative, the
    smaller the better. `agent_id` is the owner (None for files), `label` a block's label, `role`, `position` and
    `session_id` are a message's, `metadata` a JSON value.
    """

    kind: SearchKind
    id: str
    agent_id: str | None
    content: str
    snippet: str
    score: float
    words: float
    created_at: str
    label: str | None = None
    role: Role | None = None
    position: str | None = None
    session_id: str | None = None
    metadata: Json = None
    is_archived: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where one kind is found: its index, the tables that hold its rows, and their key.

    `details` yields id, agent, content, created_at, label, role, position, session, metadata, archived. `allowed` is
    the condition on the same tables.
    """

    index: str
    tables: str
    details: str
    allowed: str
    row: str


_TIME = "({0} >= :since OR :since IS NULL) AND ({0} < :until OR :until IS NULL)"
_OWNER = "(:agents IS NULL OR {0} IN (SELECT value FROM json_each(:agents)))"
_PLACES = {
    SearchKind.MESSAGE: _Place(
        index="message_fts",
        tables="messages AS m",
        row="m.row",
        details="m.id, m.agent_id, m.content, m.created_at, NULL, m.role, m.position, m.session_id,"
        " m.source_metadata, m.is_archived",
        allowed=f"m.is_deleted = 0 AND m.is_archived <= :archived AND {_OWNER.format('m.agent_id')}"
        f" AND {_TIME.format('m.created_at')}"
        " AND (:roles IS NULL OR m.role IN (SELECT value FROM json_each(:roles)))",
    ),
    SearchKind.BLOCK: _Place(
        index="memory_fts",
        tables="memory_blocks AS b",
        row="b.row",
        details="b.id, b.agent_id, coalesce(b.content_preview, ''), b.updated_at, b.label, NULL, NULL, NULL,"
        " b.metadata, 0",
        allowed=f"b.is_active = 1 AND ({_OWNER.format('b.agent_id')} OR b.id IN (SELECT block_id"
        " FROM shared_block_agents WHERE agent_id IN (SELECT value FROM json_each(:agents))))"
        f" AND {_TIME.format('b.updated_at')}",
    ),
    SearchKind.ARCHIVAL: _Place(
        index="archival_fts",
        tables="archival_entries AS e",
        row="e.row",
        details="e.id, e.agent_id, e.content, e.created_at, NULL, NULL, NULL, NULL, e.metadata, 0",
        allowed=f"{_OWNER.format('e.agent_id')} AND {_TIME.format('e.created_at')}",
    ),
    SearchKind.FILE: _Place(
        index="file_passage_fts",
        tables="(file_passages AS p JOIN folder_files AS f ON f.id = p.file_id)",
        row="p.row",
        details="p.id, NULL, p.content, p.created_at, f.name, NULL, NULL, NULL, NULL, 0",
        allowed="(:agents IS NULL OR f.folder_id IN (SELECT folder_id FROM folder_attachments WHERE agent_id IN"
        f" (SELECT value FROM json_each(:agents)))) AND {_TIME.format('p.created_at')}",
    ),
}


def to_match(text: str, *, any_word: bool = False) -> str:
    """The FTS5 expression for any user text; empty if there is nothing to look for.

    Words must all occur, in any order and form (stems); with `any_word`, at least one of them, and English filler
    words count only if there is nothing else. "Words in quotes" are a phrase, a star after a word or phrase matches
    its beginnings, a minus before it excludes, and OR in capitals between two terms means either. Everything else is
    text: no input is a syntax error.
    """
    groups, excluded = _terms(text)
    if any_word and len(groups) > 1:
        telling = [group for group in groups if not (len(group) == 1 and group[0].strip('"').lower() in _FREQUENT)]
        groups = telling or groups
    if not groups:
        return ""
    wanted = ["(" + " OR ".join(group) + ")" if len(group) > 1 else group[0] for group in groups]
    match = (" OR " if any_word else " AND ").join(wanted)
    if not excluded:
        return match
    return f"({match}) NOT ({' OR '.join(excluded)})"


def search(
    connection: Connection,
    query: str,
    limit: int,
    *,
    kinds: Sequence[SearchKind] = (SearchKind.MESSAGE, SearchKind.BLOCK, SearchKind.ARCHIVAL),
    filters: Filters | None = None,
    any_word: bool = True,
) -> list[Hit]:
    """The best `limit` hits over all `kinds`, best first; empty if the query holds no words.

    By default one of the words is enough: a question in plain language rarely recurs word for word, and what holds
    more of its words, and rarer ones, comes first. With `any_word` False all words must occur.

    bm25 depends on the statistics of one index, so each kind is scored against its own best hit. Tombstones and
    deleted blocks are never found; archived messages are, unless `filters` says not: they are the searchable past.
    """
    match = to_match(query, any_word=any_word)
    if not match:
        return []
    hits: list[Hit] = []
    for kind in dict.fromkeys(kinds):
        hits += _search_kind(connection, kind, match, limit, filters or Filters())
    hits.sort(key=lambda hit: (-hit.score, hit.words))
    return hits[:limit]


def rebuild(connection: Connection) -> None:
    """Fill all full-text indexes anew from their tables."""
    for place in _PLACES.values():
        connection.execute(f"INSERT INTO {place.index}({place.index}) VALUES ('rebuild')")


def optimize(connection: Connection) -> None:
    """Merge the segments of all full-text indexes: smaller and faster, at the cost of writing them once."""
    for place in _PLACES.values():
        connection.execute(f"INSERT INTO {place.index}({place.index}) VALUES ('optimize')")


def indexes() -> list[str]:
    """Names of the full-text tables."""
    return [place.index for place in _PLACES.values()]


def _search_kind(connection: Connection, kind: SearchKind, match: str, limit: int, filters: Filters) -> list[Hit]:
    place = _PLACES[kind]
    values = {
        "match": match,
        "limit": limit,
        "agents": None if filters.agents is None else to_json(list(filters.agents)),
        "roles": None if filters.roles is None else to_json(list(filters.roles)),
        "since": filters.since,
        "until": filters.until,
        "archived": int(filters.include_archived),
    }
    ranked: list[tuple[int, float]] = connection.execute(
        f"SELECT {place.row}, bm25({place.index}) AS words FROM {place.index} JOIN {place.tables}"
        f" ON {place.row} = {place.index}.rowid WHERE {place.index} MATCH :match AND {place.allowed}"
        " ORDER BY words LIMIT :limit",
        values,
    ).fetchall()  # type: ignore[assignment]  # the columns' types are the statement's business
    if not ranked:
        return []
    words = dict(ranked)
    best = ranked[0][1]
    # Snippets only for what is shown: making one reads the whole text again.
    found: list[tuple[Json, ...]] = connection.execute(
        f"SELECT {place.row}, snippet({place.index}, -1, '', '', '{_ELLIPSIS}', {SNIPPET_TOKENS}), {place.details}"
        f" FROM {place.index} JOIN {place.tables} ON {place.row} = {place.index}.rowid"
        f" WHERE {place.index} MATCH :match AND {place.index}.rowid IN (SELECT value FROM json_each(:rows))",
        {"match": match, "rows": to_json(list(words))},
    ).fetchall()
    return [_hit(kind, row, words[row[0]], best) for row in found]


def _hit(kind: SearchKind, row: tuple[Json, ...], words: float, best: float) -> Hit:
    return Hit(
        kind=kind,
        snippet=row[1],
        id=row[2],
        agent_id=row[3],
        content=row[4],
        created_at=row[5],
        label=row[6],
        role=None if row[7] is None else Role(row[7]),
        position=row[8],
        session_id=row[9],
        metadata=from_json(row[10]),
        is_archived=bool(row[11]),
        # A word that most texts hold weighs nothing; then all hits are equally good.
        score=words / best if best else 1.0,
        words=words,
    )


def _terms(text: str) -> tuple[list[list[str]], list[str]]:
    """The wanted terms, in groups of alternatives, and the unwanted ones; all quoted."""
    groups: list[list[str]] = []
    excluded: list[str] = []
    either = False
    for found in list(_TERM.finditer(_clean(text)))[:TERMS_MAX]:
        word = found["word"]
        if word == "OR" and groups:
            either = True
            continue
        quoted = _quoted(found["phrase"] if word is None else word, starred=found["star"] is not None)
        if quoted is None:
            continue
        if found["minus"]:
            excluded.append(quoted)
        elif either:
            groups[-1].append(quoted)
        else:
            groups.append([quoted])
        either = False
    return groups, excluded


def _quoted(words: str, *, starred: bool) -> str | None:
    """A term as an FTS5 string; None if the tokenizer would find no word in it, for that would match nothing."""
    prefix = starred or words.endswith("*")
    words = words.rstrip("*")
    if not any(unicodedata.category(character)[0] in "LN" for character in words):
        return None
    return f'"{words}"' + ("*" if prefix else "")


def _clean(text: str) -> str:
    # FTS5 reads a query up to the first NUL, and half of a surrogate pair is no text to SQLite.
    return text.replace("\0", " ").encode("utf-8", "replace").decode("utf-8")
