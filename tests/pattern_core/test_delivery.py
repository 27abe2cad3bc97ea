"""Messages between agents: questions and answers, circles, and the cool-down of a pair."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from pattern_core.delivery import is_needed
from pattern_core.errors import InvalidInput
from pattern_core.groups.group import MemberSpec
from pattern_core.limits import Limits
from pattern_core.models.model import ModelReply, ModelRequest
from pattern_core.testing import StoppedClock
from pattern_core.testing.model import Answer, Paced, calls, says, together
from pattern_core.tools.builtin.send_message import send_message
from pattern_db.journal.asks import Waiting
from tests.support import USER, Running, in_memory, note, rows, running, until


class Talkers:
    """Agents that do with each message what `script` says for their name and its last line: send another to an agent.

    Of a message that it does not know an agent says so to no one.
    """

    def __init__(self, script: Mapping[tuple[str, str], tuple[str, str]], **more: object) -> None:
        self._script = script
        self._more = more

    def __call__(self, request: ModelRequest) -> ModelReply:
        newest, name = request.messages[-1], request.system[0]
        to, content = self._script.get((name, newest.text.rpartition("\n")[2]), ("", ""))
        if newest.role != "user" or not to:
            return says("done")
        return calls("send_message", {"to": to, "content": content, **self._more})


@asynccontextmanager
async def talking(
    script: Mapping[tuple[str, str], tuple[str, str]], *, limits: Limits | None = None, **more: object
) -> AsyncIterator[tuple[Running, StoppedClock]]:
    """Start ada, bob and cleo."""
    clock = StoppedClock()
    async with running(otherwise=Talkers(script, **more), tools=[send_message], clock=clock, limits=limits) as world:
        for name in ("ada", "bob", "cleo"):
            await world.agent(name, prompt=name)
        yield world, clock


async def said(world: Running) -> list[str]:
    """What was sent to agents by agents, as `from>to: words`, in order."""
    found = await world.database.read(
        rows,
        "SELECT s.name || '>' || a.name || ': ' || m.content FROM messages AS m JOIN agents AS a ON a.id = m.agent_id"
        " JOIN agents AS s ON s.id = m.source_metadata ->> '$.agent_id' WHERE m.source = 'agent' ORDER BY m.position",
    )
    return [str(words) for (words,) in found]


async def results(world: Running) -> list[str]:
    """What calls that failed answered."""
    await trio.testing.wait_all_tasks_blocked()
    found = await world.database.read(
        rows, "SELECT content FROM messages WHERE role = 'tool' AND tool_result ->> '$.is_error' ORDER BY position"
    )
    return [str(words) for (words,) in found]


async def test_an_answer_goes_back_to_who_asked_and_needs_none() -> None:
    script = {("ada", "go"): ("bob", "how much?"), ("bob", "how much?"): ("ada", "five")}
    async with talking(script) as (world, _clock):
        await world.say("go")
        assert await results(world) == []
        assert await said(world) == [
            "ada>bob: From ada, who needs an answer:\n\nhow much?",
            "bob>ada: From bob, who needs no answer:\n\nfive",
        ]


async def test_thanks_for_an_answer_are_refused_and_a_new_question_is_not() -> None:
    script = {
        ("ada", "go"): ("bob", "how much?"),
        ("bob", "how much?"): ("ada", "five"),
        ("ada", "five"): ("bob", "thank you"),
    }
    async with talking(script) as (world, _clock):
        await world.say("go")
        [refused] = await results(world)
        assert "bob needs no answer; if you have a new question, send it with `needs_response` true" in refused
        assert len(await said(world)) == 2


async def test_a_question_that_closes_a_circle_is_refused_with_the_circle_named() -> None:
    script = {
        ("ada", "go"): ("bob", "how much?"),
        ("bob", "how much?"): ("cleo", "do you know?"),
        ("cleo", "do you know?"): ("ada", "do you?"),
    }
    async with talking(script) as (world, _clock):
        await world.say("go")
        [refused] = await results(world)
        assert "ada waits for an answer of this request (ada → bob → cleo → ada)" in refused
        assert len(await said(world)) == 2


async def test_a_member_cannot_ask_who_waits_for_its_group_nor_the_group() -> None:
    script = {
        ("ada", "go"): ("desk", "tea?"),
        ("bob", "tea?"): ("ada", "which?"),
        ("cleo", "tea?"): ("desk", "what do you think?"),
    }
    async with talking(script) as (world, _clock):
        members = [MemberSpec("bob"), MemberSpec("cleo")]
        await world.constellation.groups.create(name="desk", pattern_type="parallel", members=members)
        await world.say("go")
        circles = sorted(one.partition("(")[2].partition(")")[0] for one in await results(world))
        assert circles == ["ada → desk → bob → ada", "desk → cleo → desk"]


@pytest.mark.parametrize(("seconds", "count"), [(0, 1), (29.9, 1), (30, 2)])
async def test_a_second_message_of_a_pair_waits_for_the_cool_down(seconds: float, count: int) -> None:
    async with talking({("ada", "go"): ("bob", "look")}, needs_response=False) as (world, clock):
        await world.say("go")
        await trio.testing.wait_all_tasks_blocked()
        clock.advance(round(seconds * 1000))
        await world.say("go")
        found = await results(world)
        assert len(await said(world)) == count
        assert len(found) == 2 - count
        left = {0.0: "30", 29.9: "1"}.get(seconds)
        assert all(f"bob got a message from you just now; send the next one in {left} seconds" in one for one in found)


async def test_two_messages_of_one_answer_are_one_too_many_and_other_pairs_do_not_count() -> None:
    sent = [calls("send_message", {"to": to, "content": "look"}) for to in ("bob", "cleo", "bob")]
    async with running([together(*sent)], otherwise=says("done"), tools=[send_message]) as world:
        for name in ("ada", "bob", "cleo"):
            await world.agent(name)
        await world.say("go")
        [refused] = await results(world)
        assert "send the next one in 30 seconds, and all that you have to say in one message" in refused
        assert len(await said(world)) == 2


async def test_an_operator_can_switch_the_cool_down_off() -> None:
    async with talking({("ada", "go"): ("bob", "look")}, limits=Limits(pair_cooldown_s=0)) as (world, _clock):
        await world.say("go")
        await world.say("go")
        assert await results(world) == []


def test_what_needs_an_answer_follows_from_who_waits() -> None:
    ada, bob = Waiting("a", "ada", "user:u"), Waiting("b", "bob", "agent:a")
    assert is_needed([ada], "b", "bob", None)
    assert not is_needed([ada], "b", "bob", False)
    assert not is_needed([bob, ada], "a", "ada", False)
    assert is_needed([bob, ada], "c", "cleo", None)
    for chain, asked_for in (([bob, ada], True), ([bob, ada], None), ([bob], None)):
        with pytest.raises(InvalidInput):
            is_needed(chain, "a", "ada", asked_for)
    assert is_needed([bob], "a", "ada", True)


@pytest.mark.parametrize(
    ("sender", "trust", "outcome"),
    [
        (USER, "agent", "noted the price"),
        ("conversant:mia", "conversant", "Not run: it needs the trust level agent, and this turn has conversant."),
    ],
)
async def test_whom_a_question_is_for_is_known_from_its_rows_after_a_restart(
    sender: str, trust: str, outcome: str
) -> None:
    """Of both, an agent sent the message that is answered: what counts is who made it do so."""
    never = Paced(answer=says("too late"), gate=trio.Event())
    asking = calls("send_message", {"to": "bob", "content": "Note the price."})
    async with in_memory() as database:
        async with running([asking], otherwise=never, tools=[note, send_message], database=database) as world:
            await world.agent("ada")
            rules = [{"tool": "note", "type": "requires_trust", "levels": ["agent"]}]
            await world.agent("bob", tool_rules=rules)
            await world.submit("Ask bob.", sender=sender)
            await until(lambda: world.provider.running == 2)
        decided = calls("note", {"text": "the price"})
        async with running(
            otherwise=lambda r: decided if "Note" in r.messages[-1].text else says("done"),
            tools=[note, send_message],
            database=database,
            seed=2,
        ) as world:
            found = await database.read(rows, "SELECT id FROM turn WHERE sender LIKE 'agent:%'")
            view = await world.wait(str(found[0][0]))
            assert view.trust == trust
            assert [one.content for one in view.messages if one.role == "tool"] == [outcome]


async def test_each_message_keeps_how_far_it_is_trusted() -> None:
    """What joins a turn lowers it from there on; what led to a message counts also when its sender is deleted."""
    gate = trio.Event()
    asking = calls("send_message", {"to": "bob", "content": "Look."})
    script: list[Answer] = [Paced(answer=asking, gate=gate), says("seen"), says("done")]
    async with running(script, tools=[send_message]) as world:
        await world.agent("ada")
        await world.agent("bob")
        turn = await world.submit("Ask bob.", sender=USER)
        await trio.testing.wait_all_tasks_blocked()
        joined = await world.submit("Me too.", sender="conversant:mia", policy="steer")
        gate.set()
        view = await world.wait(turn)
        assert [(one.role, one.trust) for one in view.messages] == [
            ("user", "partner"),
            ("assistant", "partner"),
            ("tool", "partner"),
            ("user", "conversant"),
            ("assistant", "conversant"),
        ]
        assert view.trust == "conversant"
        assert (await world.wait(joined)).trust == "conversant"
        await until(lambda: world.constellation.is_idle)
        [(asked,)] = await world.database.read(rows, "SELECT id FROM turn WHERE sender LIKE 'agent:%'")
        before = await world.wait(str(asked))
        await world.constellation.delete_agent("ada")
        after = await world.wait(str(asked))
        assert after.trust == before.trust in ("agent", "conversant")  # whether it began before the other joined
        assert {one.trust for one in after.messages} == {before.trust}
