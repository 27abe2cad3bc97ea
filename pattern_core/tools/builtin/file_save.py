"""The tool `file_save`: write a file into an attached directory of the machine.

A tool of its own, because its effect lies outside the database, and not enabled by default, because it changes what
belongs to a person. Idempotent: the same call puts the same words in the same place, whole or not at all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import trio

from pattern_core.files import disk
from pattern_core.files.access import AgentFiles
from pattern_core.files.passages import store
from pattern_core.messages import check_text
from pattern_core.tools.builtin.file import prepared
from pattern_core.tools.tool import ToolContext, done, tool
from pattern_db.enums import EffectClass, PathType


@tool(effect=EffectClass.IDEMPOTENT)
async def file_save(
    context: ToolContext,
    path: Annotated[str, "`folder/path` in a folder that is attached to you for writing."],
    content: Annotated[str, "The whole text of the file; what it held before is replaced."],
) -> dict[str, object]:
    """Write a text file into a directory of the machine that is attached to you for writing."""
    place = await AgentFiles(context.storage.database, context.agent_id).for_writing(path, PathType.LOCAL)
    data = check_text(content).encode()
    new = await prepared(context, place, data)
    root = Path(place.attached.folder.path_value or "")
    # Not abandoned when cancelled: a half-known outcome would be worse than waiting for the disk.
    await trio.to_thread.run_sync(disk.write_file, root, place.name, data)
    context.work.store(store, new)
    return done(f"Wrote {place.path}", bytes=len(data), passages=len(new.pieces))
