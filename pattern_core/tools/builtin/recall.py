"""The tool `recall`: the agent's long-term archive."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Literal

from pattern_core.archive import entries
from pattern_core.archive.entries import ArchiveEntry, NewEntry, SimilarEntry, StoredEntry, Terms, changed
from pattern_core.errors import PatternError, PermissionDenied
from pattern_core.search import SearchRequest
from pattern_core.tools.hits import clamp, found
from pattern_core.tools.tool import ToolContext, done, needed, tool
from pattern_db.connection import Connection
from pattern_db.enums import CONSTELLATION_OWNER, EffectClass, SearchKind
from pattern_db.errors import RowConflict, RowNotFound

LIMIT_DEFAULT = 10
SHOWN_CHARS_MAX = 12_000  # of one entry in one answer


@tool(effect=EffectClass.LOCAL, enabled_by_default=True, for_strangers=True)
async def recall(
    context: ToolContext,
    op: Literal["insert", "search", "get"],
    content: str | None = None,
    query: str | None = None,
    entry_id: str | None = None,
    tags: list[str] | None = None,
    supersedes: str | None = None,
    force: bool = False,
    include_old: bool = False,
    limit: int = LIMIT_DEFAULT,
    start: int = 0,
) -> dict[str, object]:
    """Your archive, for what is too much for memory blocks.

    insert: `content`; `supersedes`: the id of an entry no longer true; `force`: although
    one is similar. search: `query`; `include_old`: superseded ones too. get: `entry_id` from character `start`.
    """
    owners, is_for_one = [context.agent_id, CONSTELLATION_OWNER], context.sees_only is not None
    if is_for_one and (op != "insert" or supersedes is not None):
        raise PermissionDenied("the archive holds what others said, so in this conversation entries can only be added")
    match op:
        case "insert":
            # A similar entry would be shown.
            terms = Terms(now=context.storage.now(), supersedes=supersedes, force=force or is_for_one)
            return await insert(context, needed(content, "content", op), tags or (), terms)
        case "search":
            request = SearchRequest(
                query=needed(query, "query", op),
                kinds=[SearchKind.ARCHIVAL],
                agents=owners,
                tags=tags or None,
                include_superseded=include_old,
                now=context.storage.now(),
                limit=clamp(limit),
            )
            return found(await context.toolbox.search(request), "entry", "entries")
        case "get":
            entry = await context.storage.database.read(_find, owners, needed(entry_id, "entry_id", op))
            return _shown(entry, max(start, 0))


async def insert(context: ToolContext, content: str, tags: Sequence[str], terms: Terms) -> dict[str, object]:
    """Judge the entry now, so that the answer can say how it is stored, and again in the transaction."""
    cause = {name: value for name, value in context.by.cause.items() if name in ("message", "turn")}
    new = entries.checked(NewEntry(content=content, tags=tags, source={**cause, "author": context.by.author}))
    entry_id = context.storage.ids.new("arch")
    try:
        expected = await context.storage.database.read(entries.foresee, context.agent_id, new, entry_id, terms)
    except SimilarEntry as error:
        return {"success": False, "message": error.message, "data": error.details}
    if not expected.is_new and terms.supersedes is None:
        return done("Your archive holds this already, word for word", entry_id=expected.entry_id)
    context.work.store(_store, context.agent_id, new, terms, expected)
    context.work.drafts.append(changed(context.agent_id, expected.entry_id, terms.supersedes))
    place = "" if terms.supersedes is None else f" in the place of {terms.supersedes}"
    return done(f"Stored in your archive{place}", entry_id=expected.entry_id)


def _store(connection: Connection, owner: str, new: NewEntry, terms: Terms, expected: StoredEntry) -> None:
    try:
        stored = entries.store(connection, owner, new, expected.entry_id, terms)
    except PatternError as error:  # the model reads why a transaction was refused; any other error would end its turn
        raise RowConflict(error.message) from None
    if stored != expected:
        raise RowConflict(f"the archive has changed, and {stored.entry_id} says this; read it first")


def _find(connection: Connection, owners: Sequence[str], entry_id: str) -> ArchiveEntry:
    for owner in owners:
        with suppress(PatternError, RowNotFound):
            return entries.find(connection, owner, entry_id)
    raise RowNotFound(f"you have no archival entry {entry_id}; search finds those that you have")


def _shown(entry: ArchiveEntry, start: int) -> dict[str, object]:
    content = entry.content[start : start + SHOWN_CHARS_MAX]
    known: dict[str, object] = {"content": content, "created_at": entry.created_at, "tags": list(entry.tags)}
    for name in ("valid_from", "valid_to", "superseded_by", "source", "metadata"):
        if getattr(entry, name) is not None:
            known[name] = getattr(entry, name)
    left = len(entry.content) - start - len(content)
    more = f"; {left} characters follow, read on with start={start + len(content)}" if left > 0 else ""
    return done(f"The entry {entry.id}{more}", entry_id=entry.id, **known)
