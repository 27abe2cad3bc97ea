"""Moments between the steps of a turn: stored whole, told as events, or not at all."""

from __future__ import annotations

from functools import partial

import pytest

from pattern_core import admission
from pattern_core.admission import Incoming
from pattern_core.agents import pauses
from pattern_core.events import Event, read
from pattern_core.limits import Limits
from pattern_core.messages import ToolCall
from pattern_core.models.model import ModelReply
from pattern_core.testing.model import NO_USAGE
from pattern_db.connection import Connection
from pattern_db.enums import ApprovalKind
from pattern_db.errors import Conflict
from pattern_db.journal import effects, inbox, turns
from pattern_db.journal.approvals import ApprovalRow
from pattern_db.journal.effects import EffectRow
from tests.pattern_core.agents.rig import ADA, DEADLINE, Rig, accepted
from tests.support import START, USER

LATER = "2026-01-01T01:00:00.000Z"
MAIL = ToolCall(call_id="c1", tool="mail", arguments={"to": "bob"})


def question(row: EffectRow) -> ApprovalRow:
    return ApprovalRow(
        id="apr_1",
        kind=ApprovalKind.TOOL,
        request={"tool": row.tool},
        args_hash=b"q",
        created_at=START,
        audience="human",
        expires_at=LATER,
        turn=row.turn,
        step=row.step,
        call=row.call,
    )


async def decided(rig: Rig, *parts: ToolCall) -> list[EffectRow]:
    """The rows of a turn whose first step decided on calls."""
    await rig.begin()
    planned = rig.planned(*parts)
    reply = ModelReply(parts=parts, finish_reason="tool_calls", usage=NO_USAGE)
    await rig.journal.decide(rig.turn, reply, planned)
    return planned


async def events(rig: Rig) -> list[Event]:
    return await rig.database.read(read, 0)


async def test_a_question_is_stored_with_the_call_that_waits() -> None:
    async with accepted() as rig:
        [row] = await decided(rig, MAIL)
        await pauses.ask(rig.journal, rig.turn, [(row, question(row))])
        assert await rig.rows("SELECT status FROM effect") == [("awaiting_approval",)]
        assert await rig.rows("SELECT id, turn, step, call, status FROM approval") == [("apr_1", 1, 1, 0, "pending")]
        told = (await events(rig))[-1]
        assert (told.name, told.turn_id) == ("approval.requested", "turn_1")
        assert told.data["approval_id"] == "apr_1"
        # The call waits already: nothing of a second question is stored.
        with pytest.raises(Conflict):
            await pauses.ask(rig.journal, rig.turn, [(row, question(row))])
        assert len(await rig.rows("SELECT id FROM approval")) == 1


async def test_a_turn_rests_and_goes_on() -> None:
    async with accepted() as rig:
        [row] = await decided(rig, MAIL)
        await pauses.ask(rig.journal, rig.turn, [(row, question(row))])
        await pauses.wait(rig.journal, rig.turn, left_s=12.5)
        assert rig.turn.is_waiting
        assert await rig.rows("SELECT status, deadline_at, time_left_ms FROM turn") == [("waiting", None, 12_500)]
        told = (await events(rig))[-1]
        assert (told.name, told.data["approvals"]) == ("turn.waiting", ["apr_1"])
        await pauses.resume(rig.journal, rig.turn, waited=True)
        assert await rig.rows("SELECT status, deadline_at, time_left_ms FROM turn") == [("running", DEADLINE, None)]
        assert (await rig.names())[-1] == "turn.resumed"
        with pytest.raises(Conflict):
            await pauses.resume(rig.journal, rig.turn, waited=True)


async def test_time_that_is_over_is_none_left() -> None:
    async with accepted() as rig:
        await decided(rig, MAIL)
        await pauses.wait(rig.journal, rig.turn, left_s=-3.0)
        assert await rig.rows("SELECT time_left_ms FROM turn") == [(0,)]


async def test_taking_up_a_dead_process_turn_is_counted_and_not_told() -> None:
    async with accepted() as rig:
        await decided(rig, MAIL)
        before = await rig.names()
        await pauses.resume(rig.journal, rig.turn, waited=False)
        await pauses.resume(rig.journal, rig.turn, waited=False)
        assert await rig.rows("SELECT status, resumes, epoch FROM turn") == [("running", 2, 3)]
        assert await rig.names() == before


async def test_a_rules_call_is_a_message_with_planned_effects() -> None:
    async with accepted() as rig:
        await decided(rig, MAIL)
        rig.turn.log.clear()
        made = ToolCall(call_id="rule_1_1_1", tool="note", arguments={"text": "x"})
        [row] = rig.planned(made)
        row = EffectRow(row.turn, row.step, 1, *[getattr(row, name) for name in row.__slots__[3:]])
        await pauses.force(rig.journal, rig.turn, [made], [row])
        assert rig.turn.history.messages[-1].parts == (made,)
        assert [(one.call_id, one.status) for one in await rig.database.read(effects.of_turn, 1)] == [
            ("c1", "planned"),
            ("rule_1_1_1", "planned"),
        ]
        assert (await events(rig))[-1].data["call_id"] == "rule_1_1_1"


def steer(connection: Connection, turn_id: str, words: str) -> tuple[None, list[Event]]:
    incoming = Incoming(agent_id=ADA.id, content=words, sender=USER, policy="steer")
    return None, admission.accept(connection, incoming, turn_id=turn_id, seed=7, now=START, limits=Limits())[1]


async def test_messages_join_the_turn_and_their_own_turns_end() -> None:
    async with accepted() as rig:
        await decided(rig, MAIL)
        for number, words in ((2, "and this"), (3, "and that")):
            await rig.journal.commit(partial(steer, turn_id=f"turn_{number}", words=words))
        joining = await rig.database.read(inbox.steering, ADA.id)
        await pauses.join(rig.journal, rig.turn, joining)
        assert [message.text for message in rig.turn.history.messages[-2:]] == ["and this", "and that"]
        assert await rig.rows("SELECT id, status, joined_turn FROM turn WHERE key > 1 ORDER BY key") == [
            ("turn_2", "completed", 1),
            ("turn_3", "completed", 1),
        ]
        assert await rig.rows("SELECT turn FROM inbox") == []
        assert (await rig.names())[-4:] == ["turn.completed", "message.joined"] * 2
        batches = await rig.rows("SELECT DISTINCT batch_id FROM messages")
        assert batches == [(rig.turn.batch_id,)]


async def test_nobody_joins_if_one_was_cancelled_in_this_moment() -> None:
    async with accepted() as rig:
        await decided(rig, MAIL)
        for number in (2, 3):
            await rig.journal.commit(partial(steer, turn_id=f"turn_{number}", words="more"))
        joining = await rig.database.read(inbox.steering, ADA.id)
        await rig.database.write(inbox.take, joining[1].turn)
        await rig.database.write(turns.end, joining[1].turn, status="cancelled", ended_at=START)
        before = len(rig.turn.history.messages)
        with pytest.raises(Conflict):
            await pauses.join(rig.journal, rig.turn, joining)
        assert len(rig.turn.history.messages) == before
        assert await rig.rows("SELECT status FROM turn WHERE id = 'turn_2'") == [("queued",)]
