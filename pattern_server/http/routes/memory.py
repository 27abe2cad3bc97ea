"""The memory blocks that an agent sees.

A block's version is its ETag. `If-Match` makes a change conditional on it, `If-None-Match: *` on there being no block;
a condition that does not hold is answered with 412 and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Depends, Header, Response

from pattern_core.constellation import Constellation
from pattern_core.errors import Conflict, InvalidInput, NotFound
from pattern_core.memory.block import BlockSettings, BlockView, NewBlock
from pattern_core.memory.edit import SetText
from pattern_server.http.auth import demand
from pattern_server.http.bodies import BlockPatched, BlockPut, BlockTold, Cursor, Page, PageLimit, page_of
from pattern_server.http.errors import VersionMismatch
from pattern_server.http.request_body import StrictRoute
from pattern_server.http.state import Caller, Server

router = APIRouter(prefix="/constellations/{c}/agents/{a}/memory", tags=["memory"], route_class=StrictRoute)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What a request demands of the block as it is; `version` None demands none."""

    must_exist: bool = False
    must_be_new: bool = False
    version: int | None = None

    def check(self, found: BlockView | None, label: str) -> None:
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


def _conditions(
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


@dataclass(frozen=True, slots=True)
class Place:
    """Which block of which agent: as ids or names, and a label."""

    c: str
    a: str
    label: str


def _place_of(c: str, a: str, label: str) -> Place:
    return Place(c, a, label)


Demanded = Annotated[Conditions, Depends(_conditions)]
At = Annotated[Place, Depends(_place_of)]


@router.get("", dependencies=[demand("read")], response_model=Page[BlockTold])
async def list_all(
    c: str, a: str, server: Server, caller: Caller, limit: PageLimit = 100, cursor: Cursor = None
) -> object:
    """The blocks that the agent sees, by label: its own, those lent to it, the constellation's."""
    async with server.constellations.use(caller, c) as constellation:
        agent = await constellation.roster.get(a)
        return page_of(await constellation.memory.list(agent.id), _place, limit, cursor)


@router.get("/{label}", dependencies=[demand("read")], response_model=BlockTold)
async def show(at: At, server: Server, caller: Caller, response: Response) -> object:
    """One block; its `ETag` is its version."""
    async with server.constellations.use(caller, at.c) as constellation:
        agent = await constellation.roster.get(at.a)
        return _tagged(response, await constellation.memory.view(agent.id, at.label))


@router.put("/{label}", dependencies=[demand("write")], response_model=BlockTold)
async def put(at: At, body: BlockPut, server: Server, caller: Caller, demanded: Demanded, response: Response) -> object:
    """Write a block's whole text; a block that is not there is made (201)."""
    async with server.constellations.use(caller, at.c) as constellation:
        agent = await constellation.roster.get(at.a)
        found = await _find(constellation, agent.id, at.label)
        demanded.check(found, at.label)
        if found is None:
            response.status_code = 201
            response.headers["location"] = (
                f"/api/v1/constellations/{constellation.id}/agents/{agent.id}/memory/{quote(at.label)}"
            )
            made = NewBlock(label=at.label, **body.model_dump(exclude_none=True))
            return _tagged(response, await constellation.memory.create(agent.id, made, author=caller.author))
        return _tagged(response, await _changed(constellation, found, agent.id, body, caller.author, demanded))


@router.patch("/{label}", dependencies=[demand("write")], response_model=BlockTold)
async def patch(at: At, body: BlockPatched, server: Server, caller: Caller, response: Response) -> object:
    """Change a block's settings; its text stays."""
    async with server.constellations.use(caller, at.c) as constellation:
        agent = await constellation.roster.get(at.a)
        settings = BlockSettings(**body.model_dump(exclude_none=True))
        changed = await constellation.memory.set_metadata(agent.id, at.label, settings, author=caller.author)
        return _tagged(response, changed)


@router.delete("/{label}", dependencies=[demand("write")], status_code=204)
async def delete(at: At, server: Server, caller: Caller, demanded: Demanded) -> None:
    """Take a block out of the agent's mind. Its bytes stay in the file."""
    async with server.constellations.use(caller, at.c) as constellation:
        agent = await constellation.roster.get(at.a)
        demanded.check(await _find(constellation, agent.id, at.label), at.label)
        await constellation.memory.delete(agent.id, at.label, author=caller.author)


async def _find(constellation: Constellation, agent_id: str, label: str) -> BlockView | None:
    try:
        return await constellation.memory.view(agent_id, label)
    except NotFound:
        return None


async def _changed(
    constellation: Constellation, found: BlockView, agent_id: str, body: BlockPut, author: str, demanded: Conditions
) -> BlockView:
    """The block after its settings, then its text were set; settings first, since a new limit may hold for the text."""
    settings: dict[str, Any] = body.model_dump(exclude={"content"}, exclude_none=True)
    if any(getattr(found, name) != value for name, value in settings.items()):
        await constellation.memory.set_metadata(agent_id, found.label, BlockSettings(**settings), author=author)
    try:
        edited = await constellation.memory.edit(
            agent_id, found.label, SetText(text=body.content), author=author, expected_version=demanded.version
        )
    except Conflict as error:
        raise VersionMismatch(error.message, **error.details) from None
    return edited.block


def _place(block: BlockView) -> tuple[str, str]:
    return block.label, block.id


def _tagged(response: Response, block: BlockView) -> BlockView:
    response.headers["etag"] = f'"{block.version}"'
    return block
