"""A block's past: its versions, what changed between them and who wrote what, the ways back, and repair."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from pydantic import Field

from pattern_core.constellation import Constellation
from pattern_core.memory.block import Attribution, Edited
from pattern_core.memory.history import Version
from pattern_server.http.blocks import At, told
from pattern_server.http.bodies import Asked, BlockTold, Cursor, Page, PageLimit, Told, decode_cursor, encode_cursor
from pattern_server.http.owners import owner_of
from pattern_server.http.routing import MayRead, MayWrite, Router, Server

router = Router(prefix="/constellations/{c}/agents/{a}/memory/{label}", tags=["memory"])


class VersionTold(Told):
    """One version of a block. `kind` is create, edit, undo, redo, rollback, merge or repair; `cause` names the message,
    turn and call that led to it; `undone` tells that it was taken back.
    """

    version: int
    kind: str
    author: str
    cause: dict[str, str]
    summary: str
    undone: bool
    created_at: str


class DiffTold(Told):
    """What differs between two versions, as a unified diff; empty if nothing does."""

    older: int = Field(alias="from")
    newer: int = Field(alias="to")
    diff: str


class LineTold(Told):
    """A line of the block and the version that made it; `author` is empty where nobody knows any more."""

    line: int
    text: str
    version: int
    author: str
    cause: dict[str, str]
    created_at: str


class BlameTold(Told):
    """Every line of the block with its origin."""

    lines: list[LineTold]


class UndoAsked(Asked):
    """Whose newest edit to take back or bring again: an agent's name or id, or an author such as `user:…`; by default
    the caller's own.
    """

    author: str | None = None


class RollbackAsked(Asked):
    """The version to go back to."""

    version: int


class RevisedTold(Told):
    """The block after it, words about it, and what that author can still undo and redo."""

    block: BlockTold
    note: str
    undo_remaining: int
    redo_remaining: int


class RepairedTold(Told):
    """The block after its repair, and words about it; not `is_exact`: its last changes may be lost."""

    block: BlockTold
    note: str
    is_exact: bool


@router.get("/history", response_model=Page[VersionTold])
async def versions(at: At, server: Server, caller: MayRead, limit: PageLimit = 100, cursor: Cursor = None) -> object:
    """The block's versions, newest first; number 0 is the block as it was made."""
    place = decode_cursor(cursor, 1)
    before = int(place[0]) if place and place[0].isdigit() else None
    async with server.constellations.use(caller, at.c) as constellation:
        view = await constellation.memory.view(await owner_of(constellation, at.a), at.label)
        found = await constellation.history.versions(view.id, limit=limit + 1, before=before)
    shown: list[Version] = list(found[:limit])
    more = encode_cursor(str(shown[-1].version)) if len(found) > limit else None
    return {"items": shown, "next_cursor": more}


@router.get("/diff", response_model=DiffTold)
async def diff(
    at: At,
    server: Server,
    caller: MayRead,
    older: Annotated[int | None, Query(alias="from", ge=0, description="by default the one before")] = None,
    newer: Annotated[int | None, Query(alias="to", ge=0, description="by default the newest")] = None,
) -> object:
    """What changed between two versions."""
    async with server.constellations.use(caller, at.c) as constellation:
        view = await constellation.memory.view(await owner_of(constellation, at.a), at.label)
        last = view.version if newer is None else newer
        first = max(last - 1, 0) if older is None else older
        return {"from": first, "to": last, "diff": await constellation.history.diff(view.id, first, last)}


@router.get("/blame", response_model=BlameTold)
async def blame(at: At, server: Server, caller: MayRead) -> object:
    """Who wrote which line, when, and what led to it."""
    async with server.constellations.use(caller, at.c) as constellation:
        view = await constellation.memory.view(await owner_of(constellation, at.a), at.label)
        return {"lines": await constellation.history.blame(view.id)}


@router.post("/undo", response_model=RevisedTold)
async def undo(at: At, server: Server, caller: MayWrite, body: UndoAsked | None = None) -> object:
    """Take back one author's newest edit; what others wrote stays."""
    async with server.constellations.use(caller, at.c) as constellation:
        owner = await owner_of(constellation, at.a)
        of = await _author(constellation, body)
        by = Attribution(author=caller.author)
        return await _revised(constellation, await constellation.revisions.undo(owner, at.label, by, of=of))


@router.post("/redo", response_model=RevisedTold)
async def redo(at: At, server: Server, caller: MayWrite, body: UndoAsked | None = None) -> object:
    """Bring the edit again that was taken back last, unless its author has edited since."""
    async with server.constellations.use(caller, at.c) as constellation:
        owner = await owner_of(constellation, at.a)
        of = await _author(constellation, body)
        by = Attribution(author=caller.author)
        return await _revised(constellation, await constellation.revisions.redo(owner, at.label, by, of=of))


@router.post("/rollback", response_model=BlockTold)
async def rollback(at: At, body: RollbackAsked, server: Server, caller: MayWrite) -> object:
    """Make the block what it was at a version, by a new change; nothing of its history goes."""
    async with server.constellations.use(caller, at.c) as constellation:
        owner = await owner_of(constellation, at.a)
        by = Attribution(author=caller.author)
        revised = await constellation.revisions.rollback(owner, at.label, by, version=body.version)
        return await told(constellation, revised.block)


@router.post("/repair", response_model=RepairedTold)
async def repair(at: At, server: Server, caller: MayWrite) -> object:
    """Bring back a block that is damaged, from what is known of it; a sound one is refused."""
    async with server.constellations.use(caller, at.c) as constellation:
        owner = await owner_of(constellation, at.a)
        done = await constellation.repairs.repair(owner, at.label, Attribution(author=caller.author))
        block = await told(constellation, await constellation.memory.view(owner, at.label))
        return {"block": block, "note": done.note, "is_exact": done.is_exact}


async def _author(constellation: Constellation, body: UndoAsked | None) -> str | None:
    named = None if body is None else body.author
    if named is None or ":" in named or named == "system":
        return named
    return f"agent:{(await constellation.roster.get(named)).id}"


async def _revised(constellation: Constellation, revised: Edited) -> dict[str, Any]:
    return {
        "block": await told(constellation, revised.block),
        "note": revised.note,
        "undo_remaining": revised.undo_remaining,
        "redo_remaining": revised.redo_remaining,
    }
