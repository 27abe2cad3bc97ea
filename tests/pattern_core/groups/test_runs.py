"""Groups at work: accepted, run, cancelled, resumed; what members are shown; limits and budgets."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
import trio.testing

from pattern_core.approvals import ApprovalAnswer
from pattern_core.budgets.budget import Budget
from pattern_core.errors import Conflict, IdempotencyMismatch, InvalidInput, NotFound, Overloaded
from pattern_core.groups.coordination import SHOWN_CHARS
from pattern_core.groups.group import MemberSpec
from pattern_core.halt import Halted
from pattern_core.images import image_of_bytes
from pattern_core.limits import Limits
from pattern_core.memory.block import NewBlock
from pattern_core.messages import Text
from pattern_core.models.errors import ModelRejected
from pattern_core.models.model import ModelReply, ModelRequest
from pattern_core.testing import StoppedClock
from pattern_core.testing.model import Answer, Paced, calls, says
from pattern_core.tools.builtin.emergency_halt import emergency_halt
from pattern_core.tools.builtin.send_message import send_message
from pattern_db.connection import Connection
from pattern_db.enums import AgentStatus
from pattern_db.journal import turns
from pattern_db.journal.budgets import BudgetScope, Period, Unit
from pattern_db.tables.memory_blocks import Via
from tests.pattern_core.groups.rig import NAMES, answer_of, asked, group, say, speak, submit
from tests.support import BY_USER, USER, in_memory, note, rows, running


def refuses(*names: str) -> Any:
    """A model that fails for these agents."""

    def answer(request: ModelRequest) -> ModelReply | Exception:
        return ModelRejected("no", provider="scripted") if request.system[0] in names else speak(request)

    return answer


async def test_members_answer_in_turn_and_see_what_they_missed() -> None:
    async with running(otherwise=speak) as world:
        await group(world, "round_robin", roles={"cleo": "observer"})
        views = [await say(world, words) for words in ("one", "two", "three")]
        assert [await answer_of(world, view.id) for view in views] == ["ada answers", "bob answers", "ada answers"]
        shown = world.provider.requests[-1].messages[-1].text
        assert shown == (
            "Group desk: you are ada, with bob.\n\nSaid since you last spoke:\nuser: two\nbob: bob answers\n\n"
            "Now answer:\nthree"
        )
        view = views[0]
        assert (view.status, view.steps, view.usage.input_tokens) == ("completed", 1, 10)
        assert [message.content for message in view.messages] == ["ada answers"]
        await world.constellation.roster.update("bob", {"status": "hibernated"})
        assert await answer_of(world, (await say(world, "four")).id) == "ada answers"  # bob is passed over
        await world.constellation.roster.update("ada", {"status": "archived"})
        failed = await say(world, "five")
        assert (failed.status, failed.error and failed.error["code"]) == ("failed", "no_member")


async def test_members_that_hibernate_are_asked_if_they_do_so_by_themselves_or_are_addressed() -> None:
    async with running(otherwise=speak) as world:
        roster = world.constellation.roster
        await group(world, "dynamic", {"selector": "round_robin"}, names=NAMES[:2])
        for name in NAMES[:2]:
            await roster.update(name, {"status": "hibernated"})
        assert (await say(world)).status == "failed"
        assert await answer_of(world, (await say(world, "@bob look")).id) == "bob answers"
        assert [one.is_active for one in (await world.constellation.groups.get("desk")).members] == [False, True]
        await roster.update("ada", {"config": {"hibernate_after_s": 60}})
        assert await answer_of(world, (await say(world)).id) == "ada answers"
        assert (await roster.get("ada")).status is AgentStatus.ACTIVE
        await roster.update("bob", {"status": "archived"})
        refused = await say(world, "@bob look")
        assert (refused.status, "bob" in str(refused.error)) == ("failed", True)


async def test_a_member_that_answered_last_is_shown_what_others_answered_before() -> None:
    gate = trio.Event()

    def answer(request: ModelRequest) -> ModelReply | Paced:
        reply = speak(request)
        return Paced(answer=reply, gate=gate) if request.system[0] == "ada" else reply

    stages = [{"name": "both", "agents": ["ada", "bob"], "mode": "all"}, {"name": "ada"}]
    async with running(otherwise=answer) as world:
        await group(world, "pipeline", {"stages": stages, "context": "shared"}, names=NAMES[:2])
        turn = await submit(world)
        await trio.testing.wait_all_tasks_blocked()
        gate.set()
        await world.constellation.wait(turn)
        shown = world.provider.requests[-1].messages[-1].text
        assert "Said since you last spoke:\nbob: bob answers\n" in shown


async def test_a_message_is_accepted_once_and_a_busy_group_follows_the_policy() -> None:
    gate = trio.Event()
    async with running([Paced(answer=says("first"), gate=gate)], otherwise=speak) as world:
        await group(world, "round_robin")
        first = await submit(world, "one", key="k")
        assert await submit(world, "one", key="k") == first
        with pytest.raises(IdempotencyMismatch):
            await submit(world, "other", key="k")
        with pytest.raises(Conflict, match="busy"):
            await submit(world, "two", policy="reject")
        with pytest.raises(InvalidInput, match="policy"):
            await submit(world, "two", policy="steer")
        second = await submit(world, "two")
        third = await submit(world, "three", policy="interrupt")
        views = [await world.constellation.wait(turn) for turn in (first, second, third)]
        assert [view.status for view in views] == ["cancelled", "completed", "completed"]


async def test_a_cancelled_group_turn_ends_with_its_members_turns() -> None:
    async with running(otherwise=Paced(answer=says("late"), gate=trio.Event())) as world:
        await group(world, "parallel")
        turn, queued = await submit(world), await submit(world)
        while world.provider.running < 3:
            await trio.sleep(0.01)
        assert await world.constellation.cancel(queued)
        assert await world.constellation.cancel(turn)
        assert (await world.constellation.wait(turn)).status == "cancelled"
        assert (await world.constellation.wait(queued)).status == "cancelled"
        assert world.provider.running == 0
        assert await world.database.read(rows, "SELECT count(*) FROM turn WHERE ended_at IS NULL") == [(0,)]
        assert not await world.constellation.cancel(turn)


@pytest.mark.parametrize("is_busy", [False, True])
async def test_a_request_to_stop_that_comes_as_soon_as_a_turn_is_known_is_not_missed(is_busy: bool) -> None:
    async with running(otherwise=speak) as world:
        await group(world, "round_robin")
        stopped = []

        async def stop(turn: str) -> None:
            stopped.append(turn)
            assert await world.constellation.cancel(turn)

        async with trio.open_nursery() as nursery:
            if is_busy:
                await submit(world)

            async def watch() -> None:
                async for event in world.constellation.events.subscribe(after=world.constellation.events.latest):
                    if event.name == "turn.queued" and "group_id" in event.data:
                        await stop(str(event.turn_id))
                        return

            nursery.start_soon(watch)
            await trio.testing.wait_all_tasks_blocked()
            turn = await submit(world)
        assert stopped == [turn]
        assert (await world.constellation.wait(turn)).status == "cancelled"
        assert await world.database.read(rows, "SELECT count(*) FROM turn WHERE ended_at IS NULL") == [(0,)]


async def test_what_a_drain_interrupts_is_finished_by_the_next_start() -> None:
    gate = trio.Event()
    async with in_memory() as database:
        async with running([Paced(answer=says("late"), gate=gate)], otherwise=speak, database=database) as world:
            await group(world, "debate", {"rounds": 2})
            turn = await submit(world)
            while not world.provider.running:
                await trio.sleep(0.01)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(world.constellation.drain)
                await trio.sleep(0.01)
                gate.set()
            assert world.constellation.is_idle
        async with running(otherwise=speak, database=database) as world:
            assert (await world.constellation.wait(turn)).status == "completed"
            asked = await world.database.read(rows, "SELECT place FROM group_ask")
            assert len(asked) == 6


async def test_a_group_refuses_more_than_may_wait() -> None:
    late = Paced(answer=says("late"), gate=trio.Event())
    async with running(otherwise=late, limits=Limits(inbox_per_agent_max=1)) as world:
        await group(world, "round_robin")
        await submit(world)
        with pytest.raises(Overloaded, match="wait for this group"):
            await submit(world)


async def test_a_turn_that_ran_out_of_time_while_the_server_was_down_is_interrupted() -> None:
    clock = StoppedClock()
    async with in_memory() as database:
        async with running(otherwise=Paced(answer=says("late"), gate=trio.Event()), database=database) as world:
            await group(world, "parallel", {"deadline_s": 60})
            turn = await submit(world)
            while not world.provider.running:
                await trio.sleep(0.01)
        clock.advance(61_000)
        async with running(otherwise=speak, database=database, clock=clock) as world:
            view = await world.constellation.wait(turn)
            assert (view.status, view.error and view.error["code"]) == ("interrupted", "deadline_passed")


async def test_a_member_is_shown_the_newest_of_long_messages() -> None:
    numbers = " ".join(map(str, range(SHOWN_CHARS // 6)))
    async with running(otherwise=says(numbers)) as world:
        await group(world, "debate", {"rounds": 1})
        await say(world)
        shown = world.provider.requests[-1].messages[-1].text
        assert f"(earlier messages are left out)\nbob: {numbers}\n" in shown


async def test_messages_that_wait_at_a_restart_are_answered_in_order() -> None:
    async with in_memory() as database:
        async with running(otherwise=Paced(answer=says("late"), gate=trio.Event()), database=database) as world:
            await group(world, "round_robin")
            waiting = [await submit(world, words) for words in ("one", "two", "three")]
        async with running(otherwise=speak, database=database) as world:
            views = [await world.constellation.wait(turn) for turn in waiting]
            assert [view.messages[-1].content for view in views] == ["ada answers", "bob answers", "cleo answers"]
            await trio.testing.wait_all_tasks_blocked()
            assert world.constellation.is_idle


async def test_a_request_to_stop_outlives_the_process() -> None:
    async with in_memory() as database:
        async with running(otherwise=Paced(answer=says("late"), gate=trio.Event()), database=database) as world:
            await group(world, "parallel")
            turn = await submit(world)
            while world.provider.running < 3:
                await trio.sleep(0.01)
        key = (await database.read(turns.by_id, turn)).key
        assert await database.write(turns.request_cancel, key, "user")  # the process died before it acted on it
        async with running(otherwise=speak, database=database) as world:
            assert (await world.constellation.wait(turn)).status == "cancelled"
            assert await database.read(rows, "SELECT DISTINCT status FROM turn") == [("cancelled",)]


async def test_members_see_after_a_restart_what_was_said_before() -> None:
    async with in_memory() as database:
        async with running(otherwise=speak, database=database) as world:
            await group(world, "round_robin", names=NAMES[:2])
            await say(world, "one")
        async with running(otherwise=speak, database=database) as world:
            await say(world, "two")
            shown = world.provider.requests[-1].messages[-1].text
            assert "Said since you last spoke:\nuser: one\nada: ada answers\n\nNow answer:\ntwo" in shown


async def test_events_before_a_question_are_stored_once_where_a_member_stays_unavailable() -> None:
    stage = {"name": "all", "agents": ["ada", "bob"], "mode": "all"}
    async with in_memory() as database:
        late = Paced(answer=says("late"), gate=trio.Event())
        async with running([late], otherwise=speak, database=database) as world:
            await group(world, "pipeline", {"stages": [stage]})
            await world.constellation.roster.update("bob", {"status": "archived"})
            turn = await submit(world)
            while not world.provider.running:
                await trio.sleep(0.01)
        async with running(otherwise=speak, database=database) as world:
            assert await answer_of(world, (await world.constellation.wait(turn)).id) == "ada: ada answers"
            assert [one.name for one in await world.events(turn)].count("group.round") == 1


async def test_a_member_that_fails_ends_the_turn_or_is_left_out_or_replaced() -> None:
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({}, "failed", ""),
        ({"on_member_error": "skip"}, "completed", "ada: ada answers\n\ncleo: cleo answers"),
        ({"fallback": "cleo"}, "completed", "ada: ada answers\n\ncleo: cleo answers\n\ncleo: cleo answers"),
        ({"on_member_error": "skip", "retries": 2}, "completed", "ada: ada answers\n\ncleo: cleo answers"),
    ]
    for config, status, answer in cases:
        async with running(otherwise=refuses("bob")) as world:
            await group(world, "parallel", config)
            view = await say(world)
            assert (view.status, await answer_of(world, view.id)) == (status, answer)
            [(asked,)] = await world.database.read(rows, "SELECT count(*) FROM group_ask")
            assert asked == 3 + config.get("retries", 0) + ("fallback" in config)


async def test_a_group_has_limits_of_its_own() -> None:
    async with running(otherwise=speak) as world:
        await group(world, "debate", {"max_turns": 4, "rounds": 5})
        view = await say(world)
        assert (view.status, len(view.messages)) == ("limit", 4)
        await world.constellation.groups.update("desk", {"pattern_config": {"deadline_s": 0.05}})
    async with running(otherwise=Paced(answer=says("late"), gate=trio.Event())) as world:
        await group(world, "parallel", {"deadline_s": 0.05})
        view = await say(world)
        assert view.status == "limit"
        assert view.error is not None
        assert view.error["code"] == "deadline"
        assert await world.database.read(rows, "SELECT DISTINCT status FROM turn WHERE agent_id IS NOT NULL") == [
            ("cancelled",)
        ]


async def test_members_together_cannot_pass_the_groups_budget() -> None:
    async with running(otherwise=speak) as world:
        desk = await group(world, "parallel", {"on_member_error": "skip"})
        budget = Budget(BudgetScope.GROUP, desk.id, Period.TOTAL, Unit.TOKENS, 3_000)
        await world.constellation.budgets.put(budget)
        await say(world)
        [(spent,)] = await world.database.read(
            rows, "SELECT sum(input_tokens + output_tokens) FROM usage WHERE group_id = ?", desk.id
        )
        assert isinstance(spent, int)
        assert 0 < spent <= 3_000
        statuses = await world.database.read(rows, "SELECT status FROM turn WHERE agent_id IS NOT NULL ORDER BY status")
        assert ("limit",) in statuses


async def test_a_group_is_deleted_with_its_turns_and_its_members_keep_theirs() -> None:
    async with running(otherwise=speak) as world:
        await group(world, "parallel")
        await say(world)
        await world.constellation.delete_group("desk")
        assert await world.database.read(rows, "SELECT count(*) FROM turn WHERE group_id IS NOT NULL") == [(0,)]
        assert await world.database.read(rows, "SELECT count(*) FROM turn") == [(3,)]
        with pytest.raises(NotFound):
            await world.constellation.groups.get("desk")


async def test_a_group_is_checked_when_it_is_made_and_changed() -> None:
    async with running(otherwise=speak) as world:
        await group(world, "round_robin", names=NAMES[:2])
        groups = world.constellation.groups
        for pattern, config, words in (
            ("circle", {}, "there is no pattern"),
            ("round_robin", {"skip": True}, "is not known"),
            ("supervisor", {"leader": "zoe"}, "not a member of the group"),
            ("pipeline", {"stages": [{"name": "ada"}, {"name": "ada"}]}, "used twice"),
            ("pipeline", {"stages": [{"name": "ada", "on_failure": "fallback"}]}, "no fallback_agent"),
            ("pipeline", {"parallel_stages": True, "stages": [{"name": "ada", "mode": "race"}]}, "is a race"),
            ("debate", {"judge": "ada"}, "needs 2 members in addition"),
            ("voting", {"quorum": 9}, "lower it"),
            ("voting", {"voting_rules": {"tie_breaker": "specific_agent"}}, "tie_agent"),
        ):
            with pytest.raises(InvalidInput, match=words):
                await groups.update("desk", {"pattern_type": pattern, "pattern_config": config})
        with pytest.raises(InvalidInput, match="twice"):
            await groups.update("desk", {}, members=[MemberSpec("ada"), MemberSpec("ada")])
        with pytest.raises(InvalidInput, match="role"):
            await groups.update("desk", {}, members=[MemberSpec("ada", "king")])
        with pytest.raises(Conflict, match="taken"):
            await groups.create(name="desk", pattern_type="parallel", members=[])
        changed = await groups.update("desk", {"name": " office "}, members=[MemberSpec("bob")])
        assert (changed.name, [one.name for one in changed.members]) == ("office", ["bob"])
        assert [one.name for one in await groups.all()] == ["office"]


async def test_the_events_of_a_group_are_the_same_live_and_read_again() -> None:
    async with running(otherwise=speak) as world:
        await group(world, "voting")
        seen = world.constellation.events.latest
        turn = await submit(world)
        events = world.constellation.events
        streamed = [event async for event in events.subscribe(after=seen, turn_id=turn)]
        live = [event for event in streamed if event.name != "text.delta"]  # those are not kept
        stored = await world.events(turn)
        assert [(one.seq, one.name, dict(one.data)) for one in live] == [
            (one.seq, one.name, dict(one.data)) for one in stored
        ]
        told = [*["group.selected"] * 3, *["group.ballot"] * 3, "group.tally"]
        own = [one.name for one in stored if one.turn_id == turn]
        assert own == ["turn.queued", "turn.started", *told, "turn.completed"]
        members = [one.name for one in stored if one.turn_id != turn]
        assert sorted(set(members)) == ["message", "step.started"]
        middle = stored[len(stored) // 2].seq
        resumed = [event async for event in events.subscribe(after=middle, turn_id=turn)]
        again = [event.seq for event in resumed if event.name != "text.delta"]
        assert again == [one.seq for one in stored if one.seq > middle]


async def test_observers_see_a_turn_once_that_ended_before_a_crash_and_in_order() -> None:
    seen = "Group desk, which you observe. Nothing is asked of you.\n\nuser: {0}\ncleo: cleo answers"
    async with in_memory() as database:
        async with running(otherwise=speak, database=database) as world:
            await group(world, "parallel", names=NAMES[:3], roles={"ada": "observer", "bob": "observer"})
            await world.say("before", "ada")
            await say(world, "tea?")
            await world.say("between", "ada")
            shown = [message.text for message in world.provider.requests[-1].messages]
            assert shown == ["before", "ada answers", seen.format("tea?"), "between"]
            await world.constellation.delete_agent("bob")
        async with running(otherwise=speak, database=database, seed=2) as world:
            await say(world, "more tea?")
            await world.say("after", "ada")
            shown = [message.text for message in world.provider.requests[-1].messages]
            assert shown[2:] == [seen.format("tea?"), "between", "ada answers", seen.format("more tea?"), "after"]


async def test_members_that_are_deleted_in_mid_turn_are_left_out() -> None:
    async with running(otherwise=Paced(answer=says("late"), gate=trio.Event())) as world:
        await group(world, "parallel", {"on_member_error": "skip"})
        turn = await submit(world)
        while world.provider.running < 3:
            await trio.sleep(0.01)
        for name in ("ada", "bob", "cleo"):
            await world.constellation.delete_agent(name)
        view = await world.constellation.wait(turn)
        assert (view.status, view.messages) == ("completed", [])
        assert (await say(world)).status == "failed"


async def test_an_agent_sends_a_group_a_message_with_the_result_of_its_call() -> None:
    script = [calls("send_message", {"content": "tea?", "to": "Desk"}), says("Sent.")]
    async with running(script, otherwise=speak, tools=[send_message]) as world:
        await group(world, "round_robin", names=["bob", "cleo"])
        await world.agent("zoe", prompt="zoe")
        await world.say("ask the desk", "zoe")
        [(turn, sender)] = await world.database.read(rows, "SELECT id, sender FROM turn WHERE group_id IS NOT NULL")
        view = await world.constellation.wait(str(turn))
        assert (view.status, str(sender).partition(":")[0]) == ("completed", "agent")
        assert await answer_of(world, str(turn)) == "bob answers"


async def test_a_member_that_waits_for_a_person_holds_the_group_until_the_answer() -> None:
    rule = {"tool": "note", "type": "requires_consent"}
    script = [calls("note", {"text": "x"}), says("Noted.")]
    async with running(script, tools=[note]) as world:
        await world.agent("ada", prompt="ada", tool_rules=[rule])
        await world.constellation.groups.create(name="desk", pattern_type="parallel", members=[MemberSpec("ada")])
        turn = await submit(world)
        asked: list[Any] = []
        while not asked:
            await trio.sleep(0.01)
            asked = await world.database.read(rows, "SELECT id FROM approval")
        assert not world.constellation.is_idle
        await world.constellation.approvals.decide(str(asked[0][0]), ApprovalAnswer(approve=True, by=USER))
        assert await answer_of(world, (await world.constellation.wait(turn)).id) == "ada: Noted."


async def test_members_are_shown_the_images_of_a_message() -> None:
    pixel = image_of_bytes(b"\x89PNG\r\n\x1a\n" + bytes(8), None)
    async with running(otherwise=speak) as world:
        await group(world, "parallel", names=["ada"])
        await world.constellation.wait(await submit(world, parts=(Text(text="Is it time?"), pixel)))
        [(parts,)] = await world.database.read(rows, "SELECT parts FROM messages WHERE role = 'user'")
        assert pixel.digest is not None
        assert pixel.digest in str(parts)


async def test_a_halt_cancels_groups_and_a_person_lets_them_continue() -> None:
    gate = trio.Event()
    script: list[Answer] = [
        Paced(answer=says("late"), gate=gate),
        calls("emergency_halt", {"reason": "fire"}),
        says("no"),
    ]
    async with running(script, otherwise=speak, tools=[emergency_halt]) as world:
        await group(world, "parallel", names=["ada"])
        await world.agent("zoe", prompt="zoe")
        turn = await submit(world)
        queued = await submit(world)
        while not world.provider.running:
            await trio.sleep(0.01)
        await world.say("stop", "zoe")
        assert (await world.constellation.wait(turn)).status == "cancelled"
        with pytest.raises(Halted):
            await submit(world)
        await world.constellation.resume(by=USER)
        assert (await world.constellation.wait(queued)).status == "completed"


async def test_members_see_the_blocks_of_their_group() -> None:
    async with running(otherwise=speak) as world:
        desk = await group(world, "parallel", names=["ada", "bob"])
        memory = world.constellation.memory
        for owner, text in ((desk.id, "Tea at four."), ("_constellation_", "No tea.")):
            await memory.create(owner, NewBlock(label="plan", description="", content=text), by=BY_USER)
        await say(world)
        assert all("Tea at four." in "".join(request.memory) for request in world.provider.requests)
        [seen] = [
            block
            for block in await memory.list((await world.constellation.roster.get("ada")).id)
            if block.label == "plan"
        ]
        assert seen.via is Via.GROUP
        ada = await world.constellation.roster.get("ada")
        assert await memory.owners(ada.id) == [ada.id, "_constellation_", desk.id]
        await world.constellation.groups.update("desk", {}, members=[MemberSpec("bob")])
        await world.say("hello", "ada")
        assert "No tea." in "".join(world.provider.requests[-1].memory)
        await world.constellation.delete_group("desk")
        await world.say("hello", "bob")
        assert "Tea at four." not in "".join(world.provider.requests[-1].memory)


async def test_a_plan_that_an_older_version_stored_is_run_to_its_end() -> None:
    def older(connection: Connection) -> None:
        """Leave of the plan what the first version stored, with a setting that no version knows any more."""
        [(turn, plan)] = list(connection.execute("SELECT turn, plan FROM group_run"))
        kept = {name: json.loads(plan)[name] for name in ("name", "pattern_type", "members")}
        kept["members"] = [{name: one[name] for name in ("id", "name", "is_active")} for one in kept["members"]]
        kept["pattern_config"] = {"rounds": 2, "moderator": "eve"}
        connection.execute("UPDATE group_run SET plan = ? WHERE turn = ?", (json.dumps(kept), turn))

    async with in_memory() as database:
        async with running(
            [Paced(answer=says("late"), gate=trio.Event())], otherwise=speak, database=database
        ) as world:
            await group(world, "debate", {"rounds": 2})
            turn = await submit(world)
            while not world.provider.running:
                await trio.sleep(0.01)
        await database.write(older)
        async with running(otherwise=speak, database=database, seed=2) as world:
            view = await world.constellation.wait(turn)
            assert (view.status, view.error) == ("completed", None)
            assert await asked(database) == ["ada", "bob", "cleo"] * 2
            assert await answer_of(world, turn) == "ada: ada answers\n\nbob: bob answers\n\ncleo: cleo answers"
