"""Edits that need a person's consent: asked once, made once, exactly as asked, or not at all."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from pattern_core.approvals import ApprovalAnswer
from pattern_core.errors import Conflict, InvalidInput, NotFound, PermissionDenied
from pattern_core.memory.block import Edited, NewBlock
from pattern_core.memory.edits import AppendText, BlockEdit, ReplaceText, SetText
from pattern_core.testing.model import Answer, calls, says
from pattern_core.tools.builtin.block_edit import block_edit
from pattern_db.enums import ApprovalStatus, Permission
from tests.support import USER, Running, running


@asynccontextmanager
async def guarded(
    permission: Permission = Permission.PARTNER, script: Sequence[Answer] = ()
) -> AsyncIterator[tuple[Running, str]]:
    """A constellation with ada, whose block `us` is changed only with consent."""
    async with running(script, tools=[block_edit]) as here:
        ada = await here.agent("ada")
        await here.constellation.memory.create(
            ada.id, NewBlock(label="us", content="We met in May.", permission=permission), author=USER
        )
        yield here, ada.id


async def try_to(here: Running, ada: str, edit: BlockEdit) -> Edited:
    memory = here.constellation.memory
    return await memory.edit(ada, "us", edit, author=f"agent:{ada}", cause={"message": "msg_1", "call": "call_1"})


async def test_an_edit_waits_for_a_yes_and_is_then_made_once() -> None:
    async with guarded() as (here, ada):
        edited = await try_to(here, ada, ReplaceText(old="May", new="June"))
        assert edited.block.version == 0
        assert "a person has been asked" in edited.note
        assert edited.block.content == "We met in May."
        [question] = await here.constellation.approvals.list(10)
        assert (question.audience, question.request["label"]) == ("partner", "us")
        assert question.request["edit"] == {"edit": "ReplaceText", "old": "May", "new": "June"}
        decided = await here.constellation.approvals.decide(question.id, ApprovalAnswer(approve=True, by=USER))
        assert decided.approval.status is ApprovalStatus.APPROVED
        view = await here.constellation.memory.view(ada, "us")
        assert (view.content, view.version) == ("We met in June.", 1)
        [line, _first] = await here.constellation.history.versions(view.id, limit=5)
        assert line.author == f"agent:{ada}"
        assert line.cause == {
            "message": "msg_1",
            "call": "call_1",
            "approval": question.id,
            "approved_by": USER,
        }
        with pytest.raises(Conflict):
            await here.constellation.approvals.decide(question.id, ApprovalAnswer(approve=True, by=USER))
        assert (await here.constellation.memory.view(ada, "us")).version == 1


async def test_the_same_edit_is_asked_once() -> None:
    async with guarded(Permission.HUMAN) as (here, ada):
        for _ in range(2):
            await try_to(here, ada, AppendText(text=" And again."))
        assert [one.audience for one in await here.constellation.approvals.list(10)] == ["human"]


async def test_a_no_leaves_everything() -> None:
    async with guarded() as (here, ada):
        await try_to(here, ada, SetText(text="I am the only one."))
        [question] = await here.constellation.approvals.list(10)
        await here.constellation.approvals.decide(question.id, ApprovalAnswer(approve=False, by=USER))
        assert (await here.constellation.memory.view(ada, "us")).content == "We met in May."


async def test_what_does_not_fit_is_not_asked() -> None:
    async with guarded() as (here, ada):
        with pytest.raises(InvalidInput, match="is not in the block"):
            await try_to(here, ada, ReplaceText(old="December", new="June"))
        edited = await try_to(here, ada, SetText(text="We met in May."))
        assert edited.block.version == 0
        assert await here.constellation.approvals.list(10) == []
        with pytest.raises(PermissionDenied):
            await here.constellation.memory.delete(ada, "us", author=f"agent:{ada}")


async def test_what_does_not_fit_any_more_stays_open() -> None:
    async with guarded() as (here, ada):
        await try_to(here, ada, ReplaceText(old="May", new="June"))
        [question] = await here.constellation.approvals.list(10)
        memory, approvals = here.constellation.memory, here.constellation.approvals
        await memory.edit(ada, "us", SetText(text="We met long ago."), author=USER)
        with pytest.raises(InvalidInput, match="is not in the block"):
            await approvals.decide(question.id, ApprovalAnswer(approve=True, by=USER))
        await memory.delete(ada, "us", author=USER)
        await memory.create(ada, NewBlock(label="us", content="May"), author=USER)
        with pytest.raises(NotFound, match="is gone"):
            await approvals.decide(question.id, ApprovalAnswer(approve=True, by=USER))
        assert [one.id for one in await approvals.list(10)] == [question.id]
        await approvals.decide(question.id, ApprovalAnswer(approve=False, by=USER))


async def test_a_turn_goes_on_while_a_person_is_asked() -> None:
    call = calls("block_edit", {"op": "append", "label": "us", "content": " It rained."})
    async with guarded(script=[call, says("I have asked.")]) as (here, ada):
        turn = await here.say("Note the rain.")
        assert turn.status == "completed"
        [question] = await here.constellation.approvals.list(10)
        assert question.turn is not None
        await here.constellation.approvals.decide(question.id, ApprovalAnswer(approve=True, by=USER))
        assert (await here.constellation.memory.view(ada, "us")).content == "We met in May. It rained."
