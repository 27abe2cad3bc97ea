"""Gaps that mutations of a turn's code once passed through: what stays behind, who is paid, when it is given up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import trio
import trio.testing

from pattern_core.limits import TurnLimits
from pattern_core.memory.block import NewBlock
from pattern_core.messages import Message, Text, ToolResult
from pattern_core.models.catalogue import Catalogue
from pattern_core.models.errors import ModelServerError
from pattern_core.models.model import ModelFacts, Usage
from pattern_core.runtime import Meters
from pattern_core.testing.model import Answer as Scripted
from pattern_core.testing.model import Paced, ScriptedProvider, calls, says, together
from pattern_core.tools.builtin.block_edit import block_edit
from pattern_core.tools.builtin.emergency_halt import emergency_halt
from pattern_core.tools.builtin.send_message import send_message
from pattern_core.tools.tool import ToolContext, tool
from pattern_db.connection import Connection
from pattern_db.enums import EffectClass
from pattern_db.errors import Conflict
from tests.support import USER, Outside, Running, in_memory, note, rows, running, shout

MAIL = calls("mail", {"to": "bob"})


class Counting(Meters):
    """Notes whom each step's answer is from as well."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[str] = []

    def step_done(self, provider: str, model: str, seconds: float) -> None:
        """A decision more."""
        self.steps.append(f"{provider}/{model}")


async def statuses(one: Running) -> list[tuple[object, ...]]:
    return await one.database.read(rows, "SELECT tool, status FROM effect ORDER BY turn, step, call")


def last_results(one: Running) -> list[str]:
    messages: Sequence[Message] = one.provider.requests[-1].messages
    return [part.content for message in messages for part in message.parts if isinstance(part, ToolResult)]


@pytest.mark.parametrize(
    ("words", "status"), [([], "limit"), ([""], "limit"), (["Still looking."], "completed"), (["", "Hm."], "completed")]
)
async def test_who_says_something_beside_its_calls_makes_progress(words: list[str], status: str) -> None:
    look = calls("shout", {"text": "x"})
    look = replace(look, parts=(*(Text(text=one) for one in words), *look.parts))
    detectors = {"identical": None, "ping_pong": None, "no_progress": 2}
    async with running([*[look] * 6, says("over")], tools=[shout]) as one:
        await one.agent()
        await one.constellation.roster.update("ada", {"config": {"detectors": detectors}})
        assert (await one.say("go")).status == status


async def test_a_call_that_failed_leaves_nothing_behind() -> None:
    @tool(effect=EffectClass.LOCAL, returns_untrusted_text=False)
    async def half(context: ToolContext) -> str:
        """Edit a block, send a message, halt everything, and then fail."""
        edit = {"op": "append", "label": "notes", "content": "wrong"}
        await block_edit.call(context, edit)
        await send_message.call(context, {"target_type": "agent", "target": "bob", "content": "wrong"})
        await emergency_halt.call(context, {"reason": "wrong"})
        raise LookupError("no")

    right = [
        calls("block_edit", {"op": "append", "label": "notes", "content": " right"}),
        calls("send_message", {"target_type": "agent", "target": "bob", "content": "right"}),
    ]
    script = [calls("half"), *right, says("over")]
    tools = [half, block_edit, send_message]
    async with running(script, otherwise=says("well"), tools=tools) as one:
        agent, memory = await one.agent(), one.constellation.memory
        await one.agent("bob")
        await one.constellation.roster.update("ada", {"config": {"limits": {"children": 1}}})
        await memory.create(agent.id, NewBlock(label="notes", content="all"), author=USER)
        assert (await one.say("go")).status == "completed"
        assert await statuses(one) == [("half", "error"), ("block_edit", "done"), ("send_message", "done")]
        assert (await memory.view(agent.id, "notes")).content == "all right"
        assert one.constellation.halt.current is None
        asked = "SELECT count(*) FROM turn WHERE parent_turn IS NOT NULL"
        assert await one.database.read(rows, asked) == [(1,)]


async def test_a_call_whose_writes_storage_refuses_has_not_run() -> None:
    @tool(effect=EffectClass.LOCAL, returns_untrusted_text=False)
    async def save(context: ToolContext) -> str:
        """Store something under a name that is taken."""

        def refuse(_connection: Connection) -> None:
            raise Conflict("the name is taken")

        context.work.store(refuse)
        return "saved"

    rule = {"tool": "mail", "type": "requires_preceding", "tools": ["save"]}
    async with running([calls("save"), MAIL, says("over")], tools=[save, *Outside().tools]) as one:
        await one.agent()
        await one.constellation.roster.update("ada", {"tool_rules": [rule]})
        assert (await one.say("go")).status == "completed"
        assert await statuses(one) == [("save", "error"), ("mail", "denied")]
        assert last_results(one)[0] == "Nothing was changed: the name is taken"


async def test_only_arguments_that_fit_are_shown_to_a_tool_that_asks_for_consent() -> None:
    shown: list[object] = []

    def consent(arguments: Mapping[str, Any]) -> str:
        shown.append(arguments["to"])
        return "mail is for ever"

    outside = Outside()
    mail = replace(outside.tools[0], consent=consent)
    script = [calls("mail", {}), calls("mail", {"to": 7}), calls("mail", {"to": "bob"})]
    async with running([*script, says("over")], tools=[mail]) as one:
        await one.agent()
        assert (await one.say("go")).status == "waiting"
        assert (await statuses(one), shown, outside.done) == (
            [("mail", "error"), ("mail", "error"), ("mail", "awaiting_approval")],
            ["bob"],
            [],
        )


async def test_an_answer_in_many_pieces_is_stored_a_few_times_a_second(
    autojump_clock: trio.testing.MockClock,
) -> None:
    meters = Counting()
    answer = Paced(answer=says("word " * 100), between_s=0.02)  # 2 seconds
    async with running(provider=ScriptedProvider([answer], slice_chars=5), meters=meters) as world:
        await world.agent()
        before = meters.commits
        assert (await world.say("go on")).status == "completed"
        assert 5 <= meters.commits - before <= 30


async def test_who_answers_the_second_attempt_is_paid() -> None:
    down = ModelServerError("out of order", provider="scripted")
    broken = Paced(answer=says("wrong answer"), shown=2, breaks=ModelServerError("it broke", provider="spare"))
    spare = ScriptedProvider([broken], name="spare", slice_chars=3)
    took = Usage(input_tokens=1_000, output_tokens=100)
    prices = {
        provider: {model: ModelFacts(provider=provider, model=model, window=8_192, output_max=1_000, input_price=price,
                                     output_price=price)}
        for provider, model, price in (("scripted", "script-1", 1_000_000), ("spare", "m", 5_000_000))
    }  # fmt: skip
    meters = Counting()
    async with running(
        [down, says("right", usage=took)], others=[spare], catalogue=Catalogue(prices), meters=meters
    ) as world:
        await world.agent()
        config = {"routing": {"fallback_models": [{"provider": "spare", "model": "m"}]}}
        await world.constellation.roster.update("ada", {"config": config})
        view = await world.say("hi")
        assert [message.content for message in view.messages] == ["hi", "right"]
        [moved] = [event for event in await world.events(view.id) if event.name == "model.fallback"]
        assert moved.data["to"] == "spare/m"
        answered = "SELECT provider, model FROM step WHERE status = 'done'"
        assert await world.database.read(rows, answered) == [("scripted", "script-1")]
        paid = "SELECT provider, model, cost_microdollars FROM usage WHERE attempt = 2"
        assert await world.database.read(rows, paid) == [("scripted", "script-1", 1_100)]
        assert meters.steps == ["scripted/script-1"]


async def test_who_answers_in_the_place_of_another_is_named_and_paid() -> None:
    down = ModelServerError("out of order", provider="scripted")
    spare = ScriptedProvider([says("here", usage=Usage(input_tokens=1, output_tokens=1))], name="spare")
    meters = Counting()
    async with running([down], others=[spare], meters=meters) as world:
        await world.agent()
        config = {"routing": {"fallback_models": [{"provider": "spare", "model": "m"}]}}
        await world.constellation.roster.update("ada", {"config": config})
        assert [message.content for message in (await world.say("hi")).messages] == ["hi", "here"]
        for table in ("step", "usage"):
            named = await world.database.read(rows, f"SELECT provider, model FROM {table}")
            assert named == [("spare", "m")]
        assert meters.steps == ["spare/m"]


async def test_a_turn_that_kills_the_process_before_its_first_step_is_given_up() -> None:
    async with in_memory() as database:
        async with running(otherwise=says("tea " * 1_500), database=database) as chatty:
            await chatty.agent()
            for number in range(6):
                await chatty.say(f"{number}: more")
            small = {"context_window": 4_000, "max_output_tokens": 100}
            await chatty.constellation.roster.update("ada", {"config": small})
        turn_id = ""
        for attempt in range(TurnLimits().resumes_max + 1):
            async with running([Paced(answer=says("late"), gate=trio.Event())], database=database) as deadly:
                if attempt == 0:
                    turn_id = await deadly.submit("poison")
                await trio.testing.wait_all_tasks_blocked()
                assert deadly.provider.running == 1, "it dies while room is made"
            own = "SELECT count(*) FROM step WHERE turn = (SELECT key FROM turn WHERE id = ?)"
            assert await database.read(rows, own, turn_id) == [(0,)]
        async with running(otherwise=says("fine"), database=database, seed=2) as last:
            view = await last.constellation.wait(turn_id)
            assert (view.status, (view.error or {})["code"]) == ("interrupted", "gave_up")
            assert (await last.say("harmless")).status == "completed"


async def test_a_turn_that_shall_fail_on_doubt_runs_no_sibling_again() -> None:
    outside = Outside(gate=trio.Event())
    async with in_memory() as database:
        script = [together(calls("put", {"text": "x"}), calls("mail", {"to": "bob"}))]
        async with running(script, tools=outside.tools, database=database) as first:
            await first.agent()
            await first.constellation.roster.update("ada", {"config": {"on_doubt": "fail_turn"}})
            turn_id = await first.submit("go")
            await trio.testing.wait_all_tasks_blocked()
            assert sorted(what for what, _to in outside.done) == ["mail", "put"]
        again = Outside()
        async with running(tools=again.tools, database=database) as second:
            view = await second.constellation.wait(turn_id)
            assert (view.status, (view.error or {})["code"]) == ("failed", "in_doubt")
            assert again.done == []
            assert await database.read(rows, "SELECT status FROM effect") == [("in_doubt",), ("in_doubt",)]


async def test_a_turn_that_shall_fail_on_doubt_goes_on_where_there_is_none() -> None:
    async with in_memory() as database:
        script: list[Scripted] = [says("one"), Paced(answer=says("late"), gate=trio.Event())]
        async with running(script, tools=[note], database=database) as first:
            await first.agent()
            rules = [{"tool": "note", "type": "required_before_exit"}]
            changes = {"config": {"on_doubt": "fail_turn"}, "tool_rules": rules}
            await first.constellation.roster.update("ada", changes)
            turn_id = await first.submit("go")
            await trio.testing.wait_all_tasks_blocked()
        await database.write(_forget_open_step)  # as if it had died before the second step was opened
        async with running([calls("note", {"text": "n"}), says("two")], tools=[note], database=database) as second:
            view = await second.constellation.wait(turn_id)
            assert (view.status, [message.content for message in view.messages][-1]) == ("completed", "two")


def _forget_open_step(connection: Connection) -> None:
    connection.execute("DELETE FROM step WHERE status = 'open'")
