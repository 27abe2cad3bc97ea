"""What blocks may be called and who may do what to them; edits that need a person's consent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from pattern_core.approvals import Approval, ApprovalAnswer
from pattern_core.errors import Conflict, InvalidInput, NotFound, PermissionDenied
from pattern_core.limits import Limits
from pattern_core.memory.block import (
    DESCRIPTION_CHARS_MAX,
    Attribution,
    Edited,
    NewBlock,
    Operation,
    agent_author,
    check_description,
    check_label,
    check_limit,
    check_metadata,
    is_agent,
    require,
    schema_of,
    short_name,
    shown_schema,
    with_schema,
)
from pattern_core.memory.edits import BlockEdit, ReplaceText, SetText
from pattern_core.memory.history import versions
from pattern_core.memory.schema import ListSchema, TextSchema
from pattern_core.testing.model import Answer, calls, says
from pattern_core.tools.builtin.block_edit import block_edit
from pattern_db.enums import ApprovalStatus, Permission
from tests.support import BY_USER, USER, Running, running


@pytest.mark.parametrize(
    "label", ["x", "human", "process:1f", "to do", "übersicht", "日記", "a.b@c#d+e-f_g", "x" * 128]
)
def test_labels(label: str) -> None:
    assert check_label(label) == label


@pytest.mark.parametrize(
    "label", ["", " ", " x", "x ", "a/b", "a\\b", "<b>", 'a"b', "a\nb", "a\x00", "x" * 129, "\ud800"]
)
def test_labels_that_cannot_be(label: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be a label"):
        check_label(label)


def test_descriptions_at_the_bound_and_past_it() -> None:
    assert check_description("x" * DESCRIPTION_CHARS_MAX)
    for description in ("x" * (DESCRIPTION_CHARS_MAX + 1), "\ud800"):
        with pytest.raises(InvalidInput):
            check_description(description)


def test_limits() -> None:
    limits = Limits(block_chars_default=50, block_chars_max=100)
    assert [check_limit(limit, limits) for limit in (0, 1, 100)] == [50, 1, 100]
    for limit in (-1, 101):
        with pytest.raises(InvalidInput, match="between 1 and 100"):
            check_limit(limit, limits)


def test_metadata() -> None:
    assert check_metadata(None) == TextSchema()
    assert check_metadata({"schema": "Text", "colour": "red"}) == TextSchema()
    assert check_metadata({"schema": "List"}) == ListSchema()
    for metadata, words in (
        ({"x": object()}, "not JSON"),
        ({"x": float("nan")}, "not JSON"),
        ({"x": "\ud800"}, "surrogate"),
        ({"x": "y" * 10_000}, "limit of 10000"),
        ({"schema": "Table"}, "there are: Text, Map, List, Log, Composite"),
    ):
        with pytest.raises(InvalidInput, match=words):
            check_metadata(metadata)


def test_the_schema_that_metadata_holds() -> None:
    stored = with_schema({"colour": "red"}, ListSchema())
    assert stored == {"colour": "red", "schema": {"List": {}}}
    assert schema_of(stored) == shown_schema(stored) == ListSchema()
    assert shown_schema({"schema": "Table"}) == schema_of(None) == TextSchema()


def test_agents_differ_from_people_and_the_system() -> None:
    assert agent_author("agt_1") == "agent:agt_1"
    authors = "agent:agt_1", "user:usr_1", "system"
    assert [is_agent(author) for author in authors] == [True, False, False]
    assert [short_name(author) for author in authors] == ["agt_1", "user:usr_1", "system"]


# The table of permissions, compared cell by cell with the one in the memory design.

READ, APPEND, OVERWRITE, DELETE = Operation


@pytest.mark.parametrize(
    ("permission", "allowed", "consent_of"),
    [
        (Permission.READ_ONLY, {READ}, None),
        (Permission.PARTNER, {READ}, "your partner"),
        (Permission.HUMAN, {READ}, "a person"),
        (Permission.APPEND, {READ, APPEND}, None),
        (Permission.READ_WRITE, {READ, APPEND, OVERWRITE}, None),
        (Permission.ADMIN, {READ, APPEND, OVERWRITE, DELETE}, None),
    ],
)
def test_every_cell(permission: Permission, allowed: set[Operation], consent_of: str | None) -> None:
    for operation in allowed:
        require(permission, operation, "notes")
    for operation in set(Operation) - allowed:
        with pytest.raises(PermissionDenied) as refused:
            require(permission, operation, "notes")
        needs_consent = consent_of is not None and operation is not DELETE
        assert refused.value.details.get("consent") == (permission.value if needs_consent else None)
        assert (f"needs the consent of {consent_of}" in refused.value.message) == needs_consent


@asynccontextmanager
async def guarded(
    permission: Permission = Permission.PARTNER, script: Sequence[Answer] = ()
) -> AsyncIterator[tuple[Running, str]]:
    """A constellation with ada, whose block `us` is changed only with consent."""
    async with running(script, tools=[block_edit]) as here:
        ada = await here.agent("ada")
        await here.constellation.memory.create(
            ada.id, NewBlock(label="us", content="We met in May.", permission=permission), by=BY_USER
        )
        yield here, ada.id


async def try_to(here: Running, ada: str, edit: BlockEdit) -> Edited:
    memory = here.constellation.memory
    return await memory.edit(
        ada, "us", edit, by=Attribution(author=f"agent:{ada}", cause={"message": "msg_1", "call": "call_1"})
    )


async def answer(here: Running, *, approve: bool) -> Approval:
    """Answer the one question that is open."""
    [question] = await here.constellation.approvals.list(10)
    return await here.constellation.approvals.decide(question.id, ApprovalAnswer(approve=approve, by=USER))


async def test_an_edit_waits_for_a_yes_and_is_then_made_once() -> None:
    async with guarded() as (here, ada):
        edited = await try_to(here, ada, ReplaceText(old="May", new="June"))
        assert edited.block.version == 0
        assert "a person has been asked" in edited.note
        assert edited.block.content == "We met in May."
        [question] = await here.constellation.approvals.list(10)
        assert (question.audience, question.request["label"]) == ("partner", "us")
        assert question.request["edit"] == {"edit": "ReplaceText", "old": "May", "new": "June"}
        assert (await answer(here, approve=True)).status is ApprovalStatus.APPROVED
        view = await here.constellation.memory.view(ada, "us")
        assert (view.content, view.version) == ("We met in June.", 1)
        [line, _first] = await here.database.read(versions, view.id, limit=5)
        assert line.author == f"agent:{ada}"
        assert line.cause == {"message": "msg_1", "call": "call_1", "approval": question.id, "approved_by": USER}
        with pytest.raises(Conflict):
            await here.constellation.approvals.decide(question.id, ApprovalAnswer(approve=True, by=USER))
        assert (await here.constellation.memory.view(ada, "us")).version == 1


async def test_what_does_not_fit_is_not_asked() -> None:
    async with guarded() as (here, ada):
        with pytest.raises(InvalidInput, match="is not in the block"):
            await try_to(here, ada, ReplaceText(old="December", new="June"))
        edited = await try_to(here, ada, SetText(text="We met in May."))
        assert edited.block.version == 0
        assert await here.constellation.approvals.list(10) == []
        with pytest.raises(PermissionDenied):
            await here.constellation.memory.delete(ada, "us", by=Attribution(author=f"agent:{ada}"))


async def test_what_does_not_fit_any_more_stays_open() -> None:
    async with guarded() as (here, ada):
        await try_to(here, ada, ReplaceText(old="May", new="June"))
        memory = here.constellation.memory
        await memory.edit(ada, "us", SetText(text="We met long ago."), by=BY_USER)
        with pytest.raises(InvalidInput, match="is not in the block"):
            await answer(here, approve=True)
        await memory.delete(ada, "us", by=BY_USER)
        await memory.create(ada, NewBlock(label="us", content="May"), by=BY_USER)
        with pytest.raises(NotFound, match="no longer exists"):
            await answer(here, approve=True)
        assert (await answer(here, approve=False)).status is ApprovalStatus.DENIED
        assert (await memory.view(ada, "us")).content == "May"


async def test_a_turn_continues_while_a_person_is_asked() -> None:
    call = calls("block_edit", {"op": "append", "label": "us", "content": " It rained."})
    async with guarded(script=[call, says("I have asked.")]) as (here, ada):
        turn = await here.say("Note the rain.")
        assert turn.status == "completed"
        assert (await answer(here, approve=True)).turn is not None
        assert (await here.constellation.memory.view(ada, "us")).content == "We met in May. It rained."
