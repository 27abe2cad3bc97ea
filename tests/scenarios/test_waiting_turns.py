"""Turns that wait for people, and turns that a crash cut off, with everything that may come in between."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated

import pytest
import trio
import trio.testing

from pattern_core.approvals import ApprovalAnswer
from pattern_core.errors import Conflict, InvalidInput, NotFound
from pattern_core.events import TERMINAL
from pattern_core.limits import Limits, PromptLimits
from pattern_core.messages import ToolResult
from pattern_core.models.model import ModelReply, ModelRequest
from pattern_core.testing.model import Answer, Paced, calls, says, together
from pattern_core.tools.tool import Probe, ProbeFunction, Tool, ToolContext, tool
from pattern_db.columns import Json
from pattern_db.database import Database
from pattern_db.enums import EffectClass
from tests.scenarios.cancelled import CutDatabase, rest
from tests.support import (
    PATIENCE_S,
    USER,
    Outside,
    Running,
    acting,
    crashed,
    empty_constellation,
    in_memory,
    note,
    rows,
    running,
    shout,
    statuses,
)

MAIL = calls("mail", {"to": "bob"})
TIMEOUT_S = 10.0  # of a tool, in stopped time
ASKS = [{"tool": "mail", "type": "requires_consent"}]


@asynccontextmanager
async def waiting(
    *script: Answer, tools: Sequence[Tool], config: Json = None, limits: Limits | None = None
) -> AsyncIterator[tuple[Running, str]]:
    """A turn of ada's that waits for a person to agree to `mail`."""
    async with running(script, tools=tools, limits=limits) as one:
        await one.agent(tool_rules=ASKS, config=config or {})
        view = await one.say("go")
        assert view.status == "waiting"
        yield one, view.id


@pytest.mark.parametrize("later", [3, 9])
async def test_a_turn_continues_with_its_own_messages_however_many_came_after_it(later: int) -> None:
    outside = Outside()
    script = [MAIL, *(says(f"hello {number}") for number in range(later)), says("sent"), says("at last")]
    limits = Limits(prompt=PromptLimits(history_messages_max=6))
    async with waiting(*script, tools=outside.tools, limits=limits) as (one, turn_id):
        for number in range(later):
            assert (await one.say(f"and {number}?")).status == "completed"
        one.constellation._actors.forget((await one.constellation.roster.get("ada")).id)
        await one.answer()
        assert (await one.wait(turn_id)).status == "completed"
        assert outside.done == [("mail", "bob")]
        shown = one.provider.requests[-1].messages
        assert [message.role for message in shown[-3:]] == ["user", "assistant", "tool"]
        assert (shown[-3].text, shown[-2].tool_calls[0].tool) == ("go", "mail")
        assert isinstance(shown[-1].parts[0], ToolResult)
        # What was not read at once left the conversation; what the turn needs did not.
        batch = "SELECT is_archived FROM messages WHERE batch_id = (SELECT min(batch_id) FROM messages)"
        assert await one.database.read(rows, batch) == [(0,)] * 4
        assert (await one.say("and now?")).status == "completed"


async def test_siblings_of_a_call_that_waited_count() -> None:
    both = together(calls("shout", {"text": "x"}), MAIL)
    config: Json = {"limits": {"tool_calls": 2}}
    tools = [shout, *Outside().tools]
    async with waiting(both, calls("shout", {"text": "y"}), says("no"), tools=tools, config=config) as (one, turn_id):
        await one.answer()
        view = await one.wait(turn_id)
        assert view.status == "limit"
        assert await statuses(one.database) == ["done", "done", "cancelled"]


async def test_who_was_to_join_a_turn_joins_it_after_a_crash() -> None:
    async with in_memory() as database:
        script = [Paced(answer=says("late"), gate=trio.Event())]
        async with acting(script, tools=[shout], database=database) as first:
            turn_id = await first.submit("go")
            await trio.testing.wait_all_tasks_blocked()
            joining = await first.submit("and this", policy="steer")
        async with running([says("again"), says("both")], tools=[shout], database=database) as second:
            assert (await second.wait(turn_id)).status == "completed"
            assert "message.joined" in await second.names(turn_id)
            assert (await second.wait(joining)).status == "completed"
            assert second.provider.asked == 2


@pytest.mark.parametrize("cut", range(3, 9))
async def test_who_joined_a_turn_is_answered_whichever_commit_is_the_last(
    cut: int, autojump_clock: trio.testing.MockClock
) -> None:
    shown: list[str] = []

    def answer(request: ModelRequest) -> ModelReply:
        shown.extend(message.text for message in request.messages)
        return says("well")

    async with CutDatabase.in_memory(empty_constellation()) as database:
        gate = trio.Event()
        async with acting([Paced(answer=says("done"), gate=gate)], otherwise=answer, database=database) as first:
            database.cut_at(cut, "after", first)
            with trio.move_on_after(PATIENCE_S):
                turn_id = await first.submit("go")
                await trio.testing.wait_all_tasks_blocked()
                await first.submit("and this", policy="steer")
                gate.set()
                await first.wait(turn_id)
        database.cut = None
        async with running(otherwise=answer, database=database) as second:
            await rest(second)
        assert "and this" in shown
        ends = await database.read(rows, "SELECT status FROM turn ORDER BY key")
        assert ends == [("completed",), ("completed",)], second


async def test_an_agent_in_circles_is_stopped_at_the_same_step_whatever_dies() -> None:
    circle: ModelReply = calls("shout", {"text": "x"})
    asked = []
    for dies in (False, True):
        async with in_memory() as database:
            held = Paced(answer=circle, gate=trio.Event())
            async with running([circle, circle, held if dies else circle], otherwise=circle, tools=[shout],
                               database=database) as first:  # fmt: skip
                await first.agent()
                turn_id = await first.submit("go")
                if dies:
                    await trio.testing.wait_all_tasks_blocked()
                else:
                    assert (await first.wait(turn_id)).status == "limit"
            if dies:
                async with running(otherwise=circle, tools=[shout], database=database) as second:
                    assert (await second.wait(turn_id)).status == "limit"
            asked.append(await database.read(rows, "SELECT max(no) FROM step"))
    assert asked[0] == asked[1]


async def test_rules_that_changed_while_a_turn_waited_hold() -> None:
    outside = Outside()
    async with waiting(MAIL, says("well"), tools=[note, *outside.tools]) as (one, turn_id):
        rules = [{"tool": "mail", "type": "requires_preceding", "tools": ["note"]}]
        await one.constellation.roster.update("ada", {"tool_rules": rules})
        await one.answer()
        assert (await one.wait(turn_id)).status == "completed"
        assert (outside.done, await statuses(one.database)) == ([], ["denied"])


async def test_deleting_an_agent_deletes_its_questions() -> None:
    async with waiting(MAIL, tools=Outside().tools) as (one, turn_id):
        [question] = await one.constellation.approvals.list(9)
        await one.constellation.delete_agent("ada")
        assert await one.constellation.approvals.list(9, status=None) == []
        with pytest.raises(NotFound):
            await one.constellation.approvals.decide(question.id, ApprovalAnswer(approve=True, by=USER))
        with pytest.raises(NotFound):
            await one.constellation.turn(turn_id)
        await one.agent("bob")


@pytest.mark.parametrize("others", ["yes", "no", "cancel", "agent"])
async def test_of_answers_and_cancellations_at_once_one_counts(others: str) -> None:
    outside = Outside()
    async with waiting(MAIL, says("well"), tools=outside.tools) as (one, turn_id):
        [question] = await one.constellation.approvals.list(9)
        refused: list[Exception] = []

        async def decide(approve: bool) -> None:
            try:
                await one.constellation.approvals.decide(question.id, ApprovalAnswer(approve=approve, by=USER))
            except (Conflict, NotFound) as error:
                refused.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(decide, True)
            if others == "cancel":
                nursery.start_soon(one.constellation.cancel, turn_id)
            elif others == "agent":
                nursery.start_soon(one.constellation.delete_agent, "ada")
            else:
                nursery.start_soon(decide, others == "yes")
        if others == "agent":
            assert await statuses(one.database) == []
            return
        view = await one.wait(turn_id)
        assert await one.constellation.approvals.list(9) == []
        [status] = await statuses(one.database)
        assert (status == "done") == (outside.done == [("mail", "bob")])
        assert len(refused) == 1 if others in ("yes", "no") else view.status in ("cancelled", "completed")
        ends = [name for name in await one.names(turn_id) if name in TERMINAL]
        assert ends == [f"turn.{view.status}"]


# Calls that were cut off, unsafe or of a tool that cannot tell what became of them.


async def _unknown(_key: str) -> Probe:
    return "unknown"


async def _broken(_key: str) -> Probe:
    raise OSError("the line is down")


async def _silent(_key: str) -> Probe:
    await trio.sleep_forever()
    raise AssertionError("never")


def booking(probe: ProbeFunction | None, done: list[str], gate: trio.Event | None = None) -> Tool:
    """A tool that books; without a `probe` its calls are unsafe."""

    @tool(effect=EffectClass.VERIFIABLE if probe else EffectClass.UNSAFE, probe=probe, timeout_s=TIMEOUT_S)
    async def book(_context: ToolContext, what: Annotated[str, "What to book."]) -> str:
        """Book something."""
        done.append(what)
        if gate is not None:
            await gate.wait()
        return "booked"

    return book


@asynccontextmanager
async def cut_off(
    done: list[str], probe: ProbeFunction | None = _unknown, **config: Json
) -> AsyncIterator[tuple[Database, str]]:
    """A turn whose booking was under way when the process died."""
    book, tools = calls("book", {"what": "a table"}), [booking(probe, done, trio.Event())]
    async with crashed(book, tools=tools, config=config) as (database, turn_id):
        assert done == ["a table"]
        yield database, turn_id


@pytest.mark.parametrize("probe", [_unknown, _broken, _silent])
async def test_a_call_of_unknown_outcome_is_reported_to_the_model_and_not_repeated_unasked(
    probe: ProbeFunction, autojump_clock: trio.testing.MockClock
) -> None:
    done: list[str] = []
    async with cut_off(done) as (database, turn_id):
        again = [calls("book", {"what": "a table"}), calls("book", {"what": "a room"}), says("over")]
        async with running(again, tools=[booking(probe, done)], database=database) as second:
            assert (await second.wait(turn_id)).status == "waiting"
            assert await statuses(database) == ["in_doubt", "awaiting_approval"]
            await second.answer(approve=False)
            assert (await second.wait(turn_id)).status == "completed"
        assert done == ["a table", "a room"]


@pytest.mark.parametrize("probe", [_unknown, None], ids=["unknown", "unsafe"])
@pytest.mark.parametrize(("approve", "times", "status"), [(True, 2, "done"), (False, 1, "in_doubt")])
async def test_a_person_may_be_asked_about_doubt(
    probe: ProbeFunction | None, approve: bool, times: int, status: str
) -> None:
    done: list[str] = []
    async with cut_off(done, probe, on_doubt="ask_human") as (database, turn_id):
        async with running([says("over")], tools=[booking(probe, done)], database=database) as second:
            assert (await second.wait(turn_id)).status == "waiting"
            [question] = await second.constellation.approvals.list(9)
            assert question.request["needs_attention"] == "in_doubt"
            edited = ApprovalAnswer(approve=True, by=USER, arguments={"what": "a room"})
            with pytest.raises(InvalidInput, match="as it is"):  # its key names the call that was made
                await second.constellation.approvals.decide(question.id, edited)
        async with running([says("over")], tools=[booking(probe, done)], database=database) as third:
            await third.answer(approve=approve)
            assert (await third.wait(turn_id)).status == "completed"
        assert (len(done), await statuses(database)) == (times, [status])


@pytest.mark.parametrize(("on_doubt", "status"), [("fail_turn", "failed"), ("ask_human", "waiting")])
async def test_a_doubtful_call_stays_doubtful_when_its_turn_fails_or_is_cancelled(on_doubt: str, status: str) -> None:
    done: list[str] = []
    async with cut_off(done, on_doubt=on_doubt) as (database, turn_id):
        async with running([], tools=[booking(_unknown, done)], database=database) as second:
            view = await second.wait(turn_id)
            assert (view.status, (view.error or {}).get("code")) == (status, "in_doubt" if view.error else None)
            assert await second.constellation.cancel(turn_id) is not view.has_ended
        assert (done, await statuses(database)) == (["a table"], ["in_doubt"])


async def test_a_call_of_no_tool_is_an_error_after_a_crash_too() -> None:
    outside = Outside(gate=trio.Event())
    script = together(MAIL, calls("conjure", {}), calls("note", {"text": "x"}))
    async with crashed(script, tools=[note, *outside.tools]) as (database, turn_id):
        await database.write(rows, "UPDATE effect SET status = 'planned', message_id = NULL WHERE tool = 'conjure'")
        async with running([says("over")], tools=[note, *outside.tools], database=database) as second:
            assert (await second.wait(turn_id)).status == "completed"
        assert await statuses(database) == ["in_doubt", "error", "done"]
