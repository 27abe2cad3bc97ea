"""The toolset for the archive: entries that an agent keeps outside its prompt."""

from __future__ import annotations

from typing import Annotated

from pattern_core.archive.entries import ArchiveEntry, NewEntry
from pattern_core.tools.tool import tool
from pattern_server.http.toolsets.toolset import AgentName, ServedCall, Toolset

_SHOWN = ("id", "content", "tags", "valid_from", "valid_to", "superseded_by", "created_at")


@tool()
async def archive_add(
    call: ServedCall,
    content: str,
    tags: list[str] | None = None,
    supersedes: Annotated[str | None, "Id of the entry that is no longer true."] = None,
    force: Annotated[bool, "Store it although there is an entry with nearly the same text."] = False,
    agent: AgentName = None,
) -> object:
    """Store a text in the archive of an agent, where `search` finds it."""
    new, author = NewEntry(content=content, tags=tuple(tags or ())), call.caller.author
    archive, owner = call.constellation.archive, await call.owner(agent)
    entry, is_new = await archive.add(owner, new, author=author, supersedes=supersedes, force=force)
    return {**_shown(entry), "is_new": is_new}


@tool()
async def archive_read(call: ServedCall, entry: Annotated[str, "Its id."], agent: AgentName = None) -> object:
    """Read a whole entry that `search` found in the archive."""
    return _shown(await call.constellation.archive.get(await call.owner(agent), entry))


def _shown(entry: ArchiveEntry) -> dict[str, object]:
    return {name: getattr(entry, name) for name in _SHOWN}


TOOLS: Toolset = {"read": (archive_read,), "write": (archive_add,)}
