"""The memory blocks that an agent sees; with `_constellation_` in an agent's place, those that all agents see.

A block's version is its ETag. `If-Match` makes a change conditional on it, `If-None-Match: *` on there being no block;
a condition that does not hold is answered with 412 and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated
from urllib.parse import quote

from fastapi import Depends, Header, Query, Response

from pattern_core.constellation import Constellation
from pattern_core.errors import Conflict, InvalidInput
from pattern_core.memory.block import Attribution, BlockRow
from pattern_server.http.blocks import At, content_edit, find, new_block, settings_of, tagged, told
from pattern_server.http.bodies import BlockPatched, BlockPut, BlockTold, Cursor, Page, PageLimit, page_of
from pattern_server.http.errors import VersionMismatch
from pattern_server.http.owners import owner_of
from pattern_server.http.routing import MayRead, MayWrite, Router, Server

router = Router(prefix="/constellations/{c}/agents/{a}/memory", tags=["memory"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What a request demands of the block as it is; `version` None demands none."""

    must_exist: bool = False
    must_be_new: bool = False
    version: int | None = None

    def check(self, found: BlockRow | None, label: str) -> None:
        """Pass if the block is as demanded.

        Raises:
            VersionMismatch: it is not.
        """
        if found is None and self.must_exist:
            raise VersionMismatch(f"there is no block {label!r} any more")
        if found is not None and self.must_be_new:
            raise VersionMismatch(f"there is a block {label!r} already", version=found.version)
        if found is not None and self.version not in (None, found.version):
            raise VersionMismatch(
                f"the block {label!r} is at version {found.version}, not {self.version}; read it again",
                version=found.version,
            )


async def _conditions(
    if_match: Annotated[str | None, Header(description='the version that is expected, such as `"3"`')] = None,
    if_none_match: Annotated[str | None, Header(description="`*`: only if there is no such block")] = None,
) -> Conditions:
    if if_none_match not in (None, "*"):
        raise InvalidInput("If-None-Match takes `*` here: only if there is no such block")
    version = None if if_match in (None, "*") else _version(str(if_match))
    return Conditions(must_exist=if_match is not None, must_be_new=if_none_match is not None, version=version)


def _version(tag: str) -> int:
    text = tag.strip().removeprefix("W/").strip('"')
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise InvalidInput('If-Match takes the block\'s version as GET gives it in `ETag`, such as "3"')
    return int(text)


Demanded = Annotated[Conditions, Depends(_conditions)]
AtVersion = Annotated[int | None, Query(ge=0, description="the block as it was at that version")]


@router.get("", response_model=Page[BlockTold])
async def list_all(
    c: str, a: str, server: Server, caller: MayRead, limit: PageLimit = 100, cursor: Cursor = None
) -> object:
    """The blocks that the agent sees, by label: its own, those lent to it, the constellation's."""
    async with server.constellations.use(caller, c) as constellation:
        owner = await owner_of(constellation, a)
        page = page_of(await constellation.memory.list(owner), _place, limit, cursor)
        return {**page, "items": [await told(constellation, block) for block in page["items"]]}


@router.get("/{label}", response_model=BlockTold)
async def show(at: At, server: Server, caller: MayRead, response: Response, version: AtVersion = None) -> object:
    """One block; its `ETag` is its version."""
    async with server.constellations.use(caller, at.c) as constellation:
        view = await constellation.memory.view(await owner_of(constellation, at.a), at.label)
        shown = await told(constellation, view)
        if version is not None and version != view.version:
            past = await constellation.history.content_at(view.id, version)
            shown |= {"content": past.content, "value": past.value, "version": version, "damaged": None}
        return tagged(response, shown)


@router.put("/{label}", response_model=BlockTold)
async def put(
    at: At, body: BlockPut, server: Server, caller: MayWrite, demanded: Demanded, response: Response
) -> object:
    """Write a block's whole content; a block that is not there is made (201).

    With `base_version` what others changed since that version is kept: both changes are merged.
    """
    async with server.constellations.use(caller, at.c) as constellation:
        owner = await owner_of(constellation, at.a)
        found = await find(constellation, owner, at.label)
        demanded.check(found, at.label)
        if found is None:
            response.status_code = 201
            response.headers["location"] = (
                f"/api/v1/constellations/{constellation.id}/agents/{owner}/memory/{quote(at.label)}"
            )
            content_edit(body)  # refuses what says nothing or two things
            made = await constellation.memory.create(owner, new_block(body, at.label), author=caller.author)
            return tagged(response, await told(constellation, made))
        await _changed(constellation, found, owner, body, caller.author, demanded)
        return tagged(response, await told(constellation, await constellation.memory.view(owner, at.label)))


@router.patch("/{label}", response_model=BlockTold)
async def patch(at: At, body: BlockPatched, server: Server, caller: MayWrite, response: Response) -> object:
    """Change a block's settings; its content stays."""
    async with server.constellations.use(caller, at.c) as constellation:
        owner = await owner_of(constellation, at.a)
        view = await constellation.memory.view(owner, at.label)
        settings = settings_of(body, view)
        if settings is not None:
            view = await constellation.memory.set_metadata(owner, at.label, settings, author=caller.author)
        return tagged(response, await told(constellation, view))


@router.delete("/{label}", status_code=204)
async def delete(at: At, server: Server, caller: MayWrite, demanded: Demanded) -> None:
    """Take a block out of the agent's mind. Its bytes stay in the file."""
    async with server.constellations.use(caller, at.c) as constellation:
        owner = await owner_of(constellation, at.a)
        demanded.check(await find(constellation, owner, at.label), at.label)
        await constellation.memory.delete(owner, at.label, author=caller.author)


async def _changed(
    constellation: Constellation, found: BlockRow, owner: str, body: BlockPut, author: str, demanded: Conditions
) -> None:
    """Set settings and content in one transaction; settings first: a new limit or schema may hold for the rest."""
    settings, edit = settings_of(body, found), content_edit(body)
    if edit is None and settings is None and body.template is not None:
        raise InvalidInput(f"there is a block {found.label!r} already; a template is for making one")
    try:
        async with constellation.transaction() as work:
            if settings is not None:
                await constellation.memory.set_metadata(owner, found.label, settings, author=author, work=work)
            if edit is not None and body.base_version is not None:
                by = Attribution(author=author)
                merge = constellation.revisions.merge
                await merge(owner, found.label, by, edit, base=body.base_version, work=work)
            elif edit is not None:
                expected = demanded.version
                await constellation.memory.edit(
                    owner, found.label, edit, author=author, expected_version=expected, work=work
                )
    except Conflict as error:
        if body.base_version is not None:
            raise
        raise VersionMismatch(error.message, **error.details) from None


def _place(block: BlockRow) -> tuple[str, str]:
    return block.label, block.id
