"""The toolset for memory blocks, which a caller edits as a person does: permissions bind agents only."""

from __future__ import annotations

from typing import Annotated

from pattern_core.errors import NotFound
from pattern_core.memory.block import Attribution, BlockRow, NewBlock
from pattern_core.memory.edits import AppendText, BlockEdit, ReplaceText, SetText
from pattern_core.tools.tool import tool
from pattern_server.http.blocks import block_answer
from pattern_server.http.toolsets.toolset import ServedCall, Toolset

Owner = Annotated[str | None, "Name of the agent, or `_constellation_` for all; may be left out if there is only one."]

_LISTED = ("label", "description", "block_type", "via", "char_limit", "updated_at")
_SHOWN = ("label", "description", "content", "version", "damaged", "updated_at")


@tool()
async def memory_list(call: ServedCall, agent: Owner = None) -> object:
    """List the memory blocks of an agent, which it always has in mind."""
    blocks = await call.constellation.memory.list(await call.owner(agent))
    return {"blocks": [{name: getattr(block, name) for name in _LISTED} for block in blocks]}


@tool()
async def memory_read(call: ServedCall, label: str, agent: Owner = None) -> object:
    """Read a memory block."""
    return await _shown(call, await call.constellation.memory.view(await call.owner(agent), label))


@tool()
async def memory_write(
    call: ServedCall,
    label: str,
    content: str,
    agent: Owner = None,
    description: Annotated[str, "What a new block is for."] = "",
    version: Annotated[int | None, "Refuse if the block is no longer at this version."] = None,
) -> object:
    """Replace the whole content of a memory block, or create the block. Earlier versions are kept."""
    owner, memory = await call.owner(agent), call.constellation.memory
    try:
        return await _edited(call, owner, label, SetText(text=content), version)
    except NotFound:
        if version is not None:
            raise
    new = NewBlock(label=label, content=content, description=description)
    return await _shown(call, await memory.create(owner, new, by=_by(call)))


@tool()
async def memory_edit(
    call: ServedCall,
    label: str,
    new: str,
    old: Annotated[str | None, "The text that `new` replaces; left out, `new` is added at the end."] = None,
    agent: Owner = None,
) -> object:
    """Replace a piece of text in a memory block, or add to it."""
    edit = AppendText(text=new) if old is None else ReplaceText(old=old, new=new)
    return await _edited(call, await call.owner(agent), label, edit)


def _by(call: ServedCall) -> Attribution:
    return Attribution(author=call.caller.author)


async def _edited(call: ServedCall, owner: str, label: str, edit: BlockEdit, version: int | None = None) -> object:
    edited = await call.constellation.memory.edit(owner, label, edit, by=_by(call), expected_version=version)
    return await _shown(call, edited.block)


async def _shown(call: ServedCall, block: BlockRow) -> object:
    answer = await block_answer(call.constellation, block)
    return {name: answer[name] for name in _SHOWN}


TOOLS: Toolset = {"read": (memory_list, memory_read), "write": (memory_write, memory_edit)}
