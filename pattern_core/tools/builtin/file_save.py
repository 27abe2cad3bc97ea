"""The tool `file_save`: write a file into an attached directory of the machine.

A tool of its own, because its effect lies outside the database, and not enabled by default, because it changes what
belongs to a person. Idempotent: the same call puts the same words in the same place, whole or not at all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import trio

from pattern_core.errors import InvalidInput
from pattern_core.files import disk
from pattern_core.files.access import AgentFiles
from pattern_core.files.disk import UnreadableFile
from pattern_core.files.passages import prepare, store
from pattern_core.messages import check_text
from pattern_core.tools.builtin.file import FILE_CHARS_MAX
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
    if len(data) > FILE_CHARS_MAX:
        raise InvalidInput(f"a file that you write has at most {FILE_CHARS_MAX} bytes, this one {len(data)}; split it")
    prepared = await prepare(context.storage, place.attached.folder.id, place.name, data)
    if prepared.row.error is not None:
        raise UnreadableFile(f"{place.path} was not written: {prepared.row.error}")
    root = Path(place.attached.folder.path_value or "")
    # Not abandoned when cancelled: a half-known outcome would be worse than waiting for the disk.
    await trio.to_thread.run_sync(disk.write_file, root, place.name, data)
    context.work.store(store, prepared)
    return done(f"Wrote {place.path}", bytes=len(data), passages=len(prepared.pieces))
