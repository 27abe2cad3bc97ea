"""The tool `recall`: the agent's long-term archive."""

from __future__ import annotations

from typing import Annotated, Literal, assert_never

from pattern_core.clock import now_text
from pattern_core.errors import InvalidInput
from pattern_core.memory.schema import check_text
from pattern_core.search import SearchRequest, search
from pattern_core.tools.calling import done, needed
from pattern_core.tools.hits import clamp, found
from pattern_core.tools.tool import ToolContext, tool
from pattern_db.enums import CONSTELLATION_OWNER, EffectClass, SearchKind
from pattern_db.tables import archival
from pattern_db.tables.archival import ArchivalRow

ENTRY_CHARS_MAX = 50_000
LIMIT_DEFAULT = 10


@tool(effect=EffectClass.LOCAL)
async def recall(
    context: ToolContext,
    op: Annotated[Literal["insert", "search"], "insert: store `content` for good. search: find entries by `query`."],
    content: Annotated[str | None, "For insert: one entry that can be understood by itself later."] = None,
    query: Annotated[str | None, "For search: words that the entry may hold."] = None,
    limit: Annotated[int, "For search: at most so many entries, 1 to 100."] = LIMIT_DEFAULT,
) -> dict[str, object]:
    """Your archive: keep what is too much for your memory blocks, and find it again. Entries are never changed."""
    match op:
        case "insert":
            return _insert(context, needed(content, "content", op))
        case "search":
            request = SearchRequest(
                query=needed(query, "query", op),
                kinds=[SearchKind.ARCHIVAL],
                agents=[context.agent_id, CONSTELLATION_OWNER],
                limit=clamp(limit),
            )
            return found(await search(context.database, request), "entry", "entries")
        case _:
            assert_never(op)


def _insert(context: ToolContext, content: str) -> dict[str, object]:
    if not content.strip():
        raise InvalidInput("there is nothing to store: `content` is empty")
    if len(check_text(content)) > ENTRY_CHARS_MAX:
        raise InvalidInput(f"an entry has at most {ENTRY_CHARS_MAX} characters, this one {len(content)}; split it")
    row = ArchivalRow(
        id=context.ids.new("arch"),
        agent_id=context.agent_id,
        content=content,
        created_at=now_text(context.clock),
    )
    context.work.store(archival.insert, row)
    return done("Stored in your archive", entry_id=row.id)
