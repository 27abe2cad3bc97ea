"""The tool `search`: everything that was ever said to the agent, or that it said or stored.

A query may end in an age, as models like to write it: `> 5 days` means older, `< 3 hours` newer, `1-2 weeks` between,
`5 days old` about that. Within quotes it is words.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pattern_core import search as core
from pattern_core.search import SPOKEN, GroupBy, SearchRequest
from pattern_core.tools.hits import clamp, found
from pattern_core.tools.tool import ToolContext, tool
from pattern_db.columns import iso
from pattern_db.enums import EffectClass, Role, SearchKind

Domain = Literal["all", "conversations", "archival_memory", "blocks", "files", "tasks"]
BRIEF = "Find what was said or stored before, as for `When did I visit Rome?`"
LIMIT_DEFAULT = 20
_KINDS: dict[Domain, tuple[SearchKind, ...]] = {
    "all": core.KINDS,
    "conversations": (SearchKind.MESSAGE, SearchKind.SUMMARY),
    "archival_memory": (SearchKind.ARCHIVAL,),
    "blocks": (SearchKind.BLOCK,),
    "files": (SearchKind.FILE,),
    "tasks": (SearchKind.TASK,),
}
_TALK = ("all", "conversations")  # domains that hold messages; roles and sessions narrow them to those


@tool(effect=EffectClass.PURE, enabled_by_default=True, brief=BRIEF, for_strangers=True)
async def search(
    context: ToolContext,
    query: Annotated[str, 'Words; "a phrase", -without; may end in an age: > 5 days (older), < 3 hours, 1-2 weeks.'],
    domain: Domain = "all",
    role: Literal["user", "assistant", "system", "tool"] | None = None,
    start_time: Annotated[str | None, "As 2026-01-31."] = None,
    end_time: str | None = None,
    tags: list[str] | None = None,
    by_session: bool = False,
    limit: int = LIMIT_DEFAULT,
) -> dict[str, object]:
    """Search conversations, archive, blocks, files and tasks by words and meaning.

    A file's tag is its folder. `by_session`: one hit per conversation.
    """
    words, since_ms, until_ms = read_age(query, context.storage.clock.now_ms())
    request = SearchRequest(
        query=words,
        kinds=(SearchKind.MESSAGE,) if (role is not None or by_session) and domain in _TALK else _KINDS[domain],
        agents=await context.toolbox.memory.owners(context.agent_id),
        roles=SPOKEN if role is None else [Role(role)],
        since=start_time if since_ms is None else iso(since_ms),
        until=end_time if until_ms is None else iso(until_ms),
        # This turn's own messages are in the prompt; they would only be found first.
        before=context.batch_id,
        tags=tags,
        group_by=GroupBy.SESSION if by_session else None,
        now=context.storage.now(),
        limit=clamp(limit),
    )
    return found(await context.search(request), "hit", "hits")


_UNIT_MS = {"hour": 3_600_000, "day": 86_400_000, "week": 7 * 86_400_000, "month": 30 * 86_400_000}
_AGE = re.compile(  # a sign, the other number of two, the number, its unit, and whether `old` follows
    r"(?:([<>])\s*|(?:^|\s)(?:(\d{1,4})\s*[-–]\s*)?)(\d{1,4})\s*(hour|day|week|month)s?(\s+old)?\s*$", re.IGNORECASE
)


def read_age(query: str, now_ms: int) -> tuple[str, int | None, int | None]:
    """Return `query` without the age at its end, if there is one and words are left; and the times that the age
    means, since and until when (unix ms, None where there is none).
    """
    found = _AGE.search(query)
    words = "" if found is None else query[: found.start()].strip()
    if found is None or not words or not (found[1] or found[2] or found[5]):
        return query, None, None
    sign, other, count, unit, _old = found.groups()
    unit_ms = _UNIT_MS[unit.lower()]
    moment = now_ms - int(count) * unit_ms
    if sign == ">":
        return words, None, moment
    if sign == "<":
        return words, moment, None
    if other is None:
        return words, moment - unit_ms // 2, moment + unit_ms // 2
    since, until = sorted((moment, now_ms - int(other) * unit_ms))
    return words, since, until
