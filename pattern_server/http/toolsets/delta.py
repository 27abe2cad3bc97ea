"""The toolset of Delta, for programs that know its sixteen tools: methods of `pattern_core.delta.Delta`. It is served
alone, with texts as results. The address names the workspace, by id, name or folder:
`/mcp/home?toolset=delta&workspace=/srv/shop`.
"""

from __future__ import annotations

from functools import wraps

import trio

from pattern_core.delta import Delta
from pattern_core.tools.tool import Tool, tool
from pattern_core.workspaces import locate
from pattern_server.http.toolsets.toolset import ServedCall, Toolset

READ = ("get", "recall", "task_list", "task_get", "note_list", "note_get", "info")
CREATE = ("set", "log", "task_create", "note_create")  # these make a workspace that does not exist
CHANGE = ("delete", "task_update", "task_delete", "note_update", "note_delete")


async def opened(call: ServedCall, *, is_written: bool) -> Delta:
    """Return the memory of the call's workspace, which is made for what `is_written` to it.

    Raises:
        InvalidInput: the address names no workspace.
    """
    workspace, is_folder = await call.project(is_written=is_written), call.workspace.startswith("/")
    return Delta(
        constellation=call.constellation,
        workspace=workspace,
        author=call.caller.author,
        session=call.session,
        branch=(await trio.to_thread.run_sync(locate, call.workspace)).branch if is_folder else None,
    )


def _served(name: str) -> Tool:
    method = getattr(Delta, name)

    @wraps(method)
    async def run(call: ServedCall, **arguments: object) -> object:
        return await method(await opened(call, is_written=name in CREATE), **arguments)

    return tool(name=f"delta_{name}")(run)


TOOLS: Toolset = {"read": [*map(_served, READ)], "write": [*map(_served, (*CREATE, *CHANGE))]}
