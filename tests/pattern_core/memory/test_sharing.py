"""Loans: who may lend what to whom, and what the borrower then sees and may do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pattern_core.errors import InvalidInput, NotFound, PermissionDenied
from pattern_core.memory.block import Attribution, NewBlock, agent_author
from pattern_core.memory.edits import AppendText, SetText
from pattern_core.memory.sharing import Loan
from pattern_db.enums import BlockType, Permission
from tests.pattern_core.memory.rig import prompt_blocks
from tests.support import BY_USER, Running, running

READ, APPEND, WRITE = Permission.READ_ONLY, Permission.APPEND, Permission.READ_WRITE


@asynccontextmanager
async def two() -> AsyncIterator[tuple[Running, str, str]]:
    """A constellation with ada, who has a block `notes`, and bob, who has none of that label."""
    async with running() as here:
        ada, bob = await here.agent("ada"), await here.agent("bob")
        new = NewBlock(label="notes", content="one", block_type=BlockType.WORKING)
        await here.constellation.memory.create(ada.id, new, by=BY_USER)
        yield here, ada.id, bob.id


def by_agent(agent_id: str) -> Attribution:
    return Attribution(author=agent_author(agent_id))


async def lend(here: Running, permission: Permission = APPEND, *, to: str = "bob", by: Attribution = BY_USER) -> Loan:
    ada = await here.constellation.roster.get("ada")
    return await here.constellation.sharing.share(ada.id, "notes", to, permission, by=by)


async def test_a_borrower_sees_and_edits_the_very_block() -> None:
    async with two() as (here, ada, bob):
        memory = here.constellation.memory
        with pytest.raises(NotFound):
            await memory.view(bob, "notes")
        loan = await lend(here)
        assert (loan.agent, loan.permission) == ("bob", APPEND)
        seen = await memory.view(bob, "notes")
        assert (seen.agent_id, seen.permission, seen.content) == (ada, APPEND, "one")
        assert any("one" in block for block in await prompt_blocks(memory, bob))
        await memory.edit(bob, "notes", AppendText(text=" two"), by=by_agent(bob))
        assert (await memory.view(ada, "notes")).content == "one two"
        with pytest.raises(PermissionDenied, match="append"):
            await memory.edit(bob, "notes", SetText(text="mine"), by=by_agent(bob))


async def test_loans_of_one_block_do_not_affect_another() -> None:
    async with two() as (here, ada, bob):
        sharing, memory = here.constellation.sharing, here.constellation.memory
        cyd = await here.agent("cyd")
        await memory.create(bob, NewBlock(label="diary", content="secret"), by=BY_USER)
        await lend(here)
        await sharing.share(bob, "diary", "cyd", READ, by=BY_USER)
        assert [loan.agent for loan in await sharing.loans(ada, "notes")] == ["bob"]
        assert [loan.agent for loan in await sharing.loans(bob, "diary")] == ["cyd"]
        with pytest.raises(NotFound, match="is not shared with cyd"):
            await sharing.unshare(ada, "notes", "cyd", by=BY_USER)
        assert (await memory.view(cyd.id, "diary")).content == "secret"


async def test_agents_lend_their_own_and_at_most_what_they_may_do() -> None:
    async with two() as (here, ada, bob):
        sharing, memory = here.constellation.sharing, here.constellation.memory
        await lend(here, WRITE, by=by_agent(ada))
        carl = await here.agent("carl")
        with pytest.raises(PermissionDenied, match="only its owner"):
            await sharing.share(bob, "notes", "carl", READ, by=by_agent(bob))
        shy = NewBlock(label="shy", content="x", permission=Permission.APPEND)
        await memory.create(ada, shy, by=BY_USER)
        with pytest.raises(PermissionDenied, match="more rights than you have"):
            await sharing.share(ada, "shy", "carl", WRITE, by=by_agent(ada))
        await sharing.share(ada, "shy", "carl", APPEND, by=by_agent(ada))
        with pytest.raises(PermissionDenied, match="its sharing with yourself"):
            await sharing.unshare(carl.id, "shy", "bob", by=by_agent(carl.id))
        await sharing.unshare(carl.id, "shy", "carl", by=by_agent(carl.id))
        with pytest.raises(InvalidInput, match="not admin"):
            await lend(here, Permission.ADMIN)
        with pytest.raises(InvalidInput, match="owns the block"):
            await lend(here, to="ada")
        with pytest.raises(NotFound, match="no agent 'none'"):
            await lend(here, to="none")
