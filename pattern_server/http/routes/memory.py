"""The memory blocks that an agent sees; with `_constellation_` instead of an agent, those that all agents see.

A block's version is its ETag. With `If-Match` a change needs this version, with `If-None-Match: *` the block must not
exist; otherwise the answer is 412 and nothing changes. Below a block: its versions, diff, blame, undo, redo, rollback
and repair, and the agents that it is shared with.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Response
from pydantic import BaseModel, Field

from pattern_core.errors import Conflict, InvalidInput, VersionMismatch
from pattern_core.memory import history as past
from pattern_core.memory.block import Attribution, BlockRow, Edited
from pattern_core.memory.damage import repair_block
from pattern_core.memory.history import Blamed, Version
from pattern_core.memory.sharing import Loan
from pattern_db.enums import HistoryKind, Permission
from pattern_server.http.blocks import (
    BLOCK,
    BlockPutRequest,
    BlockUpdateRequest,
    block_answer,
    content_edit,
    find,
    new_block,
    settings_of,
)
from pattern_server.http.bodies import (
    BY_VALUE,
    Conditions,
    Demanded,
    Items,
    Page,
    Paged,
    RequestModel,
    answer_of,
    fields_with,
    page_of,
    tagged,
)
from pattern_server.http.routing import OwnerAccess, Router, ToReadOwned, ToWriteOwned

router = Router(prefix="/constellations/{c}/agents/{a}/memory", tags=["memory"])

REVISED = answer_of(Edited, "block note undo_remaining redo_remaining", "BlockRevision", block=BLOCK)
# If not `is_exact`, its last changes may be lost.
REPAIRED = answer_of(Edited, "block note is_exact", "BlockRepair", block=BLOCK, is_exact=bool)


class BlockDiff(BaseModel):
    """The difference between two versions."""

    older: int = Field(alias="from")
    newer: int = Field(alias="to")
    diff: str


class BlockBlame(BaseModel):
    """The lines of a block with their authors."""

    lines: list[Blamed]


class UndoRequest(RequestModel):
    """The author of the edit. Without a body: the caller."""

    author: str | None = None


class RollbackRequest(RequestModel):
    """The version to roll back to."""

    version: int


class ShareRequest(RequestModel):
    """The agent to share the block with, and its permission: `read_only`, `append` or `read_write`."""

    agent: str
    permission: Annotated[Permission, BY_VALUE] = Permission.READ_ONLY


AtVersion = Annotated[int | None, Query(ge=0, description="Return the block as it was at this version.")]


@router.get("", response_model=page_of(BLOCK))
async def list_all(home: ToReadOwned, paging: Paged) -> object:
    """List the blocks that an agent sees, by label: its own, those shared with it, and the constellation's."""
    page = paging.of_all(await home.constellation.memory.list(home.owner), lambda block: (block.label, block.id))
    return {**page, "items": [await block_answer(home.constellation, block) for block in page["items"]]}


@router.get("/{label}", response_model=BLOCK)
async def get(label: str, home: ToReadOwned, response: Response, version: AtVersion = None) -> object:
    """Show a memory block; its `ETag` is its version."""
    view = await home.constellation.memory.view(home.owner, label)
    shown = await block_answer(home.constellation, view)
    if version is not None and version != view.version:
        content, value = await home.constellation.database.read_aside(past.content_at, view.id, version)
        shown |= {"content": content, "value": value, "version": version, "damaged": None}
    return tagged(response, shown["version"], shown)


@router.put("/{label}", response_model=BLOCK, responses={201: {"model": BLOCK}})
async def put(label: str, body: BlockPutRequest, home: ToWriteOwned, demanded: Demanded, response: Response) -> object:
    """Write a memory block.

    Replace the whole content of the block, or create it (201). With `base_version`, changes that others made since that
    version are merged.
    """
    found = await find(home.constellation, home.owner, label)
    demanded.check(f"the block {label!r}", None if found is None else found.version)
    if found is None:
        response.status_code = 201
        home.locate(response, "agents", home.owner, "memory", label)
        content_edit(body)  # refuses a request without content or with two
        made = await home.constellation.memory.create(home.owner, new_block(body, label), by=_by(home))
        return tagged(response, made.version, await block_answer(home.constellation, made))
    await _changed(home, found, body, demanded)
    view = await home.constellation.memory.view(home.owner, label)
    return tagged(response, view.version, await block_answer(home.constellation, view))


@router.patch("/{label}", response_model=BLOCK)
async def update(label: str, body: BlockUpdateRequest, home: ToWriteOwned, response: Response) -> object:
    """Update the settings of a memory block that are sent; the content stays."""
    view = await home.constellation.memory.view(home.owner, label)
    settings = settings_of(body, view)
    if settings is not None:
        view = await home.constellation.memory.set_metadata(home.owner, label, settings, by=_by(home))
    return tagged(response, view.version, await block_answer(home.constellation, view))


@router.delete("/{label}", status_code=204)
async def delete(label: str, home: ToWriteOwned, demanded: Demanded) -> None:
    """Delete a memory block: the agent no longer sees it, and its history stays in the file."""
    found = await find(home.constellation, home.owner, label)
    demanded.check(f"the block {label!r}", None if found is None else found.version)
    await home.constellation.memory.delete(home.owner, label, by=_by(home))


@router.get("/{label}/history", response_model=Page[Version])
async def history(label: str, home: ToReadOwned, paging: Paged) -> object:
    """List the versions of a memory block, newest first; version 0 is the block as it was created."""
    view = await home.constellation.memory.view(home.owner, label)
    found = await home.constellation.database.read(past.versions, view.id, limit=paging.one_more, before=paging.before)
    return paging.cut(found, lambda version: str(version.version))


@router.get("/{label}/diff", response_model=BlockDiff)
async def diff(
    label: str,
    home: ToReadOwned,
    older: Annotated[
        int | None, Query(alias="from", ge=0, description="The older version. Default: the one before `to`.")
    ] = None,
    newer: Annotated[int | None, Query(alias="to", ge=0, description="The newer version. Default: the newest.")] = None,
) -> object:
    """Compare two versions of a memory block; by default the newest and the one before it, as a unified diff."""
    view = await home.constellation.memory.view(home.owner, label)
    last = view.version if newer is None else newer
    first = max(last - 1, 0) if older is None else older
    changed = await home.constellation.database.read_aside(past.diff, view.id, first, last)
    return {"from": first, "to": last, "diff": changed}


@router.get("/{label}/blame", response_model=BlockBlame)
async def blame(label: str, home: ToReadOwned) -> object:
    """Show who wrote each line of a memory block; also when, and what caused it."""
    view = await home.constellation.memory.view(home.owner, label)
    return {"lines": await home.constellation.database.read_aside(past.blame, view.id)}


@router.post("/{label}/undo", response_model=REVISED)
async def undo(label: str, home: ToWriteOwned, body: UndoRequest | None = None) -> object:
    """Undo the newest edit of a memory block by one author; edits of other authors stay."""
    return await _revised(home, HistoryKind.UNDO, label, body)


@router.post("/{label}/redo", response_model=REVISED)
async def redo(label: str, home: ToWriteOwned, body: UndoRequest | None = None) -> object:
    """Redo the last undone edit of a memory block; refused if its author has edited the block since."""
    return await _revised(home, HistoryKind.REDO, label, body)


@router.post("/{label}/rollback", response_model=BLOCK)
async def rollback(label: str, body: RollbackRequest, home: ToWriteOwned) -> object:
    """Roll a memory block back to a version; this is a new edit, and the history stays complete."""
    revised = await home.constellation.revisions.rollback(home.owner, label, _by(home), version=body.version)
    return await block_answer(home.constellation, revised.block)


@router.post("/{label}/repair", response_model=REPAIRED)
async def repair(label: str, home: ToWriteOwned) -> object:
    """Repair a damaged memory block: restore what can still be read; one without damage is refused."""
    done = await repair_block(home.constellation.memory.blocks, home.owner, label, _by(home))
    block = await block_answer(home.constellation, await home.constellation.memory.view(home.owner, label))
    return fields_with(done, block=block)


@router.get("/{label}/share", response_model=Items[Loan])
async def list_shares(label: str, home: ToReadOwned) -> object:
    """List agents that a block is shared with; with their permissions, in the order of sharing."""
    return {"items": await home.constellation.sharing.loans(home.owner, label)}


@router.post("/{label}/share", response_model=Loan)
async def share(label: str, body: ShareRequest, home: ToWriteOwned) -> object:
    """Share a memory block with an agent; if it is shared already, the permission is changed."""
    return await home.constellation.sharing.share(home.owner, label, body.agent, body.permission, by=_by(home))


@router.delete("/{label}/share/{borrower}", status_code=204)
async def unshare(label: str, borrower: str, home: ToWriteOwned) -> None:
    """Stop sharing a memory block with an agent; what the agent wrote in it stays."""
    await home.constellation.sharing.unshare(home.owner, label, borrower, by=_by(home))


def _by(home: OwnerAccess) -> Attribution:
    """Return who makes a change: the caller."""
    return Attribution(author=home.caller.author)


async def _changed(home: OwnerAccess, found: BlockRow, body: BlockPutRequest, demanded: Conditions) -> None:
    """Set settings and content in one transaction; settings first: a new limit or schema may hold for the rest."""
    constellation, owner, by = home.constellation, home.owner, _by(home)
    settings, edit = settings_of(body, found), content_edit(body)
    if edit is None and settings is None and body.template is not None:
        raise InvalidInput(f"the block {found.label!r} already exists; a template is only for a new block")
    try:
        async with constellation.transaction() as work:
            if settings is not None:
                await constellation.memory.set_metadata(owner, found.label, settings, by=by, work=work)
            if edit is not None and body.base_version is not None:
                merge = constellation.revisions.merge
                await merge(owner, found.label, by, edit, base=body.base_version, work=work)
            elif edit is not None:
                expected = demanded.version
                await constellation.memory.edit(owner, found.label, edit, by=by, expected_version=expected, work=work)
    except Conflict as error:
        if body.base_version is not None:
            raise
        raise VersionMismatch(error.message, **error.details) from None


async def _revised(home: OwnerAccess, kind: HistoryKind, label: str, body: UndoRequest | None) -> dict[str, Any]:
    of = None if body is None else body.author
    if of is not None and ":" not in of and of != "system":
        of = f"agent:{(await home.constellation.roster.get(of)).id}"
    revised = await home.constellation.revisions.revert(home.owner, label, _by(home), kind, of=of)
    return fields_with(revised, block=await block_answer(home.constellation, revised.block))
