from __future__ import annotations

import json

import pytest

from pattern_core.agents.active import Ending, Finished
from pattern_core.agents.history import make_message
from pattern_core.agents.rows import (
    call_finished,
    call_planned,
    effect_key,
    effect_rows,
    hash_call,
    message_row,
    said,
    step_row,
    step_started,
    step_superseded,
    turn_ended,
    turn_started,
    usage_row,
)
from pattern_core.events import TERMINAL
from pattern_core.messages import Message, Text, ToolCall, ToolResult
from pattern_core.models.model import Usage
from pattern_db.enums import EffectClass
from tests.pattern_core.agents.rig import ADA, Rig, accepted
from tests.support import START

MAIL = ToolCall(call_id="c1", tool="mail", arguments={"to": "böb"})


def spoken(*words: str) -> Message:
    return make_message("assistant", [Text(text=word) for word in words], position="7", created_at=START)


async def test_a_step_says_what_was_sent() -> None:
    async with accepted() as rig:
        rig.turn.step, rig.turn.attempt = 2, 3
        prompt = rig.prompt()
        row = step_row(rig.turn, prompt, START)
    assert (row.turn, row.no, row.attempt, row.status) == (1, 2, 3, "open")
    assert (row.provider, row.model, row.started_at) == ("scripted", "script-1", START)
    assert (row.cursor, row.prefix_hash, row.request_hash) == (prompt.cursor, prompt.prefix_hash, prompt.request_hash)
    assert step_started(row).data == step_superseded(row).data == {"step": 2, "attempt": 3}


async def test_messages_belong_to_their_turn_in_order() -> None:
    async with accepted() as rig:
        rig.turn.batch_id = "5"
        origin = {"content": "x", "source": "mail", "source_metadata": {"from": "bob"}}
        first = message_row(rig.turn, spoken("a"), origin=origin)
        second = message_row(rig.turn, spoken("b"), origin={"source": 3, "source_metadata": "odd"})
        third = message_row(rig.turn, spoken("c"))
    assert [row.sequence_in_batch for row in (first, second, third)] == [0, 1, 2]
    assert {(row.batch_id, row.agent_id) for row in (first, second, third)} == {("5", ADA.id)}
    assert (first.source, first.source_metadata) == ("mail", {"from": "bob"})
    assert (second.source, second.source_metadata) == (third.source, third.source_metadata) == (None, None)


async def planned(rig: Rig, *calls: ToolCall, constellation: str = "cst_test") -> list[str]:
    classes = [EffectClass.UNSAFE] * len(calls)
    return [row.idempotency_key for row in effect_rows(rig.turn, calls, classes, constellation)]


async def test_every_call_has_a_key_of_its_own_and_the_same_again() -> None:
    async with accepted() as rig:
        keys = await planned(rig, MAIL, MAIL)
        assert keys == await planned(rig, MAIL, MAIL)
        others = await planned(rig, MAIL, constellation="cst_other")
        rig.turn.step = 2
        others += await planned(rig, MAIL)
        rig.turn.step, rig.turn.id = 1, "turn_2"
        others += await planned(rig, MAIL)
    assert len({*keys, *others}) == 5
    assert all(len(key) == 32 for key in keys)


async def test_effects_stand_in_the_models_order() -> None:
    async with accepted() as rig:
        broken = ToolCall(call_id="c2", tool="note", invalid='{"text')
        one, two = effect_rows(rig.turn, [MAIL, broken], [EffectClass.UNSAFE, EffectClass.PURE], "cst_test")
    assert (one.call, one.call_id, one.tool, one.effect_class, one.status) == (0, "c1", "mail", "unsafe", "planned")
    assert (json.loads(one.args), json.loads(two.args)) == ({"to": "böb"}, '{"text')
    assert (effect_key(one), effect_key(two)) == ((1, 1, 0), (1, 1, 1))
    assert one.args_hash == hash_call("mail", one.args)
    assert len({one.args_hash, two.args_hash, hash_call("mai", "l" + one.args)}) == 3


async def test_each_call_has_a_class() -> None:
    async with accepted() as rig:
        with pytest.raises(ValueError, match="shorter"):
            effect_rows(rig.turn, [MAIL, MAIL], [EffectClass.PURE], "cst_test")


async def test_usage_is_the_current_calls() -> None:
    async with accepted() as rig:
        rig.turn.step, rig.turn.attempt = 2, 3
        row = usage_row(rig.turn, Usage(input_tokens=1, output_tokens=2, cached_tokens=3, is_estimate=True), at=START)
    assert (row.turn, row.step, row.attempt, row.provider, row.model) == (1, 2, 3, "scripted", "script-1")
    assert (row.input_tokens, row.output_tokens, row.cached_tokens, row.is_estimate) == (1, 2, 3, True)
    assert row.cost_microdollars is None


async def test_events_tell_more_than_they_store() -> None:
    async with accepted() as rig:
        [effect] = rig.planned(MAIL)
        started = turn_started(rig.turn, spoken("a"))
    result = make_message("tool", [ToolResult(call_id="c1", tool="mail", content="ok")], position="8", created_at="")
    finished = call_finished(Finished(row=effect, status="done", content="ok"), result)
    drafts = [said(spoken("a", "b")), call_planned(effect), finished, started]
    assert [draft.name for draft in drafts] == ["message", "tool.call", "tool.result", "turn.started"]
    told = [{**draft.data, **draft.told} for draft in drafts]
    assert told == [
        {"message_id": "msg_7", "role": "assistant", "content": "ab"},
        {"step": 1, "call": 0, "call_id": "c1", "tool": "mail", "arguments": {"to": "böb"}},
        {
            "step": 1,
            "call": 0,
            "call_id": "c1",
            "tool": "mail",
            "status": "done",
            "message_id": "msg_8",
            "content": "ok",
        },
        {"agent_id": ADA.id, "message_id": "msg_7"},
    ]
    assert not any("content" in draft.data or "arguments" in draft.data for draft in drafts)


def test_every_ending_is_a_terminal_event() -> None:
    for name in TERMINAL:
        ending = Ending(status=name.removeprefix("turn."), error={"code": "x", "message": "y"})
        draft = turn_ended(ending)
        assert draft.name == name
        assert {**draft.data, **draft.told} == {"status": ending.status, "error": {"code": "x", "message": "y"}}
    bare = turn_ended(Ending(status="completed"))
    assert {**bare.data, **bare.told} == {"status": "completed"}
