"""The blocks of a constellation through the API, as the mirror needs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pattern_db.enums import CONSTELLATION_OWNER as EVERYONE
from pattern_server.cli.client import Json, ServerFailed
from pattern_server.cli.command import Home
from pattern_server.cli.mirror.content import Form, body_of, form_of, text_of
from pattern_server.cli.mirror.plan import Remote

_ALL: Json = {"id": EVERYONE, "name": EVERYONE}
PAST_MAX = 50  # versions searched for a file without a state
_KEPT_BY_SYSTEM = "a log is kept by the system and cannot be edited; what you wrote is kept in a file next to it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """An owner of blocks: an agent, or the constellation with the id and name `_constellation_`."""

    id: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block of an owner, as it is on the server; `damaged` says what is wrong with it, if it cannot be opened."""

    id: str
    owner: Owner
    label: str
    remote: Remote
    damaged: str | None = None


class Memory:
    """The memory of one constellation.

    Raises (all methods):
        ServerFailed: the server refused.
        ServerUnreachable: there is no answer; whether a change was made is not known then.
    """

    def __init__(self, home: Home) -> None:
        self._home = home

    async def owners(self, names: Sequence[str]) -> list[Owner]:
        """Return the agents with these names or ids; all active ones, and the constellation, if none are given."""
        if names:
            found = [_ALL if name == EVERYONE else await self._home.get("agents", name) for name in names]
        else:
            found = [row for row in await self._home.pages("agents") if row["status"] != "archived"] + [_ALL]
        return [Owner(id=row["id"], name=row["name"]) for row in found]

    async def blocks(self, owner: Owner) -> list[Block]:
        """Return the blocks that belong to the owner itself; those that it only sees are in their owners' folders."""
        rows = await self._home.pages("agents", owner.id, "memory")
        return [_block(owner, row) for row in rows if row["agent_id"] == owner.id]

    async def block(self, block: Block) -> Block:
        """Return the block as it is now."""
        row = await self._home.get(*_place(block.owner, block.label))
        return _block(block.owner, row)

    async def put(self, block: Block, text: str) -> Block:
        """Write the block's content if it still is at the version shown; else the server refuses with 412."""
        headers = {"If-Match": f'"{block.remote.version}"'}
        body = body_of(block.remote.form, text)
        row = await self._home.call("PUT", *_place(block.owner, block.label), body=body, headers=headers)
        return _block(block.owner, row)

    async def create(self, owner: Owner, label: str, text: str) -> Block:
        """Make a text block; refused with 412 if the owner sees one of that label already."""
        body = body_of(Form.TEXT, text)
        row = await self._home.call("PUT", *_place(owner, label), body=body, headers={"If-None-Match": "*"})
        return _block(owner, row)

    async def delete(self, block: Block) -> None:
        """Delete the block if it still is at the version shown."""
        headers = {"If-Match": f'"{block.remote.version}"'}
        await self._home.call("DELETE", *_place(block.owner, block.label), headers=headers)

    async def text_at(self, block: Block, version: int) -> str | None:
        """Return the block's text as it was at a version; None if that is not kept."""
        try:
            row = await self._home.get(*_place(block.owner, block.label), version=version)
        except ServerFailed as error:
            if error.status >= 500:
                raise
            return None
        return text_of(row) if row["version"] == version else None

    async def past(self, block: Block) -> tuple[tuple[int, str], ...]:
        """Earlier versions with their texts, newest first, as far as they are kept; at most `PAST_MAX`."""
        found = []
        for version in range(block.remote.version - 1, max(-1, block.remote.version - 1 - PAST_MAX), -1):
            text = await self.text_at(block, version)
            if text is None:
                break
            found.append((version, text))
        return tuple(found)


def _place(owner: Owner, label: str) -> tuple[str, ...]:
    return "agents", owner.id, "memory", label


def _block(owner: Owner, row: Json) -> Block:
    form = form_of(row)
    remote = Remote(
        form=form,
        version=int(row["version"]),
        text=text_of(row),
        locked=_KEPT_BY_SYSTEM if form is Form.LOG else None,
    )
    return Block(id=row["id"], owner=owner, label=row["label"], remote=remote, damaged=row.get("damaged"))
