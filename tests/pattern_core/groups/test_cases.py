"""What the original's coordination promises, one test for each of its cases 140 to 153; and selectors that answer
nonsense.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
import trio
import trio.testing

from pattern_core.errors import PatternError
from pattern_core.groups.coordination import Answer, Asks, Member, NoMember, Question, Room
from pattern_core.groups.coordinations.dynamic import ATTEMPTS, Dynamic, SelectorConfig, named_in
from pattern_core.ids import seeded_randomness
from pattern_core.models.model import ModelReply, ModelRequest
from pattern_core.testing import StoppedClock
from pattern_core.testing.model import Answer as Scripted
from pattern_core.testing.model import Paced, calls, says
from pattern_core.tools.builtin.send_message import send_message
from pattern_db.tables import schedules
from tests.pattern_core.groups.rig import NAMES, answer_of, asked, group, say, speak
from tests.pattern_core.schedule.rig import HOUR_S, Scheduled
from tests.support import Running, in_memory, rows, running


async def said(world: Running, message: str = "Is it time?") -> str:
    """What the group answers."""
    return await answer_of(world, (await say(world, message)).id)


async def test_140_round_robin_asks_in_order_across_restarts_and_skips_the_inactive() -> None:
    async with in_memory() as database:
        async with running(otherwise=speak, database=database) as world:
            await group(world, "round_robin", {"skip_unavailable": True})
            assert await said(world) == "ada answers"
        async with running(otherwise=speak, database=database, seed=2) as world:
            assert await said(world) == "bob answers"
            await world.constellation.roster.update("cleo", {"status": "hibernated"})
            assert await said(world) == "ada answers"


async def test_141_round_robin_wraps_and_a_group_without_active_members_fails() -> None:
    async with running(otherwise=speak) as world:
        await group(world, "round_robin")
        assert [await said(world) for _ in range(4)] == [f"{name} answers" for name in ("ada", "bob", "cleo", "ada")]
        for name in NAMES[:3]:
            await world.constellation.roster.update(name, {"status": "archived"})
        view = await say(world)
        assert [one.name for one in await world.events(view.id)][-1] == "turn.failed"
        assert (view.error or {})["code"] == "no_member"


async def test_142_the_random_selector_never_selects_the_inactive_and_notes_whom_it_selected() -> None:
    async with running(otherwise=speak) as world:
        desk = await group(world, "dynamic", {"selector": "random"})
        await world.constellation.roster.update("bob", {"status": "hibernated"})
        for _ in range(12):
            await say(world)
        found = await asked(world.database)
        assert set(found) == {"ada", "cleo"}
        recent = (await world.constellation.groups.get(desk.id)).state["recent"]
        assert recent == [(await world.constellation.roster.get(name)).id for name in found]


@pytest.mark.parametrize(
    ("message", "whom"),
    [
        ("@all look", ["Entropy", "Flux"]),  # Archive is not active
        ("Entropy, help", ["Entropy"]),
        ("hey entropy", ["Entropy"]),
        ("@entropy please", ["Entropy"]),
    ],
)
async def test_143_names_address_their_member_and_all_every_active_one(message: str, whom: list[str]) -> None:
    async with running(otherwise=speak) as world:
        await group(world, "dynamic", {"selector": "round_robin"}, names=["Flux", "Entropy", "Archive"])
        await world.constellation.roster.update("Archive", {"status": "hibernated"})
        await say(world, message)
        assert sorted(await asked(world.database)) == whom


async def test_144_the_lines_of_a_choice_are_names_and_prose_is_the_answer() -> None:
    team = [Member(name.lower(), name) for name in ("Pattern", "Archive", "Anchor")]
    assert named_in("- Pattern\n* Archive\n1. Anchor", team) == team
    assert named_in("# note\n# Pattern", team) == []
    prose = "I am glad to answer this one myself: archives are my work."
    async with running([says(prose)]) as world:
        await group(world, "dynamic", {"selector": "supervisor"})
        assert await said(world) == prose


async def test_145_capabilities_are_all_needed_where_the_config_says_so_and_a_maximum_holds() -> None:
    skills: dict[str, Any] = {"ada": {"capabilities": ("soup", "tea")}, "bob": {"capabilities": ("tea",)}}
    wanted: dict[str, Any] = {"capabilities": "soup, bread", "require_all": "true"}
    config: dict[str, Any] = {"selector": "capability", "selector_config": wanted, "otherwise": "none"}
    async with running(otherwise=speak) as world:
        await group(world, "dynamic", config, names=["ada", "bob", "cleo"], **skills)
        view = await say(world)
        assert ((view.error or {})["code"], await asked(world.database)) == ("no_member", [])
        for most, whom in ((1, ["ada"]), (2, ["ada", "bob"])):
            wanted = {"capabilities": ["tea", "soup"], "max_agents": most}
            await world.constellation.groups.update("desk", {"pattern_config": {**config, "selector_config": wanted}})
            before = len(await asked(world.database))
            await say(world)
            assert sorted((await asked(world.database))[before:]) == whom


async def test_146_load_balancing_chooses_who_was_chosen_least_in_the_recent_past() -> None:
    async with running(otherwise=speak) as world:
        await group(world, "dynamic", {"selector": "load_balancing"})
        await say(world, "@ada go")
        await say(world, "@ada go")
        assert [await said(world) for _ in range(4)] == ["bob answers", "cleo answers", "bob answers", "cleo answers"]
    team = [Member("1", "old"), Member("2", "new")]
    long_ago: list[str] = ["2"] * 5 + ["1"] * 100
    state: dict[str, Any] = {"recent": long_ago}
    played(team, lambda question: "yes", Dynamic(selector="load_balancing"), state)
    assert state["recent"][-1] == "2"
    assert len(state["recent"]) == 100


async def test_147_a_pipelines_stages_hand_on_skip_retry_fall_back_abort_and_run_beside_each_other() -> None:
    def answer(request: ModelRequest) -> ModelReply | Exception | Paced:
        words = request.messages[-1].text
        if request.system[0] == "bob":
            return Paced(answer=says("late"), gate=trio.Event())  # a time-out counts as a failure
        return says(f"{request.system[0]} had: {words.rpartition(chr(10))[2]}")

    first = {"name": "ada"}
    cases: list[tuple[dict[str, Any], str, list[str]]] = [
        ({"on_failure": "skip"}, "cleo had: ada had: go", ["ada", "bob", "cleo"]),
        ({"on_failure": "retry", "max_attempts": 2}, "", ["ada", "bob", "bob"]),
        (
            {"on_failure": "fallback", "fallback_agent": "ada"},
            "cleo had: ada had: ada had: go",
            ["ada", "bob", "ada", "cleo"],
        ),
        ({"on_failure": "abort"}, "", ["ada", "bob"]),
    ]
    for failure, wanted, whom in cases:
        async with running(otherwise=answer) as world:
            stages = [first, {"name": "bob", "timeout_s": 0.01, **failure}, {"name": "cleo"}]
            await group(world, "pipeline", {"stages": stages})
            assert (await said(world, "go"), await asked(world.database)) == (wanted, whom)
            if failure["on_failure"] == "retry":
                whys = await world.database.read(rows, "SELECT why FROM group_ask ORDER BY asked")
                assert whys == [("stage ada",), ("stage bob",), ("stage bob, attempt 2",)]
    async with running(otherwise=speak) as world:
        await group(world, "pipeline", {"stages": [{"name": "ada"}, {"name": "cleo"}], "parallel_stages": True})
        assert await said(world) == "ada: ada answers\n\ncleo: cleo answers"


async def test_148_delegations_follow_the_strategy_and_the_leader_keeps_what_is_over_the_limit() -> None:
    rules = {"max_delegations_per_agent": 1, "delegation_strategy": "least_busy"}
    script = [says("@any: dig\n@any: plant\n@any: water")]
    async with running(script, otherwise=speak) as world:
        await group(world, "supervisor", {"leader": "ada", "delegation_rules": rules})
        await say(world)
        assert await asked(world.database) == ["ada", "bob", "cleo", "ada"]
        shown = world.provider.requests[-1].messages[-1].text
        assert "No member was free for these, do them yourself:\n- water" in shown


async def test_149_votes_come_from_the_members_and_ties_time_outs_and_weights_count_as_configured() -> None:
    votes = {"ada": "Tea", "bob": "Coffee", "cleo": "Abstain"}

    def answer(request: ModelRequest) -> ModelReply | Paced:
        vote = votes[request.system[0]]
        return says(f"VOTE: {vote}") if vote else Paced(answer=says("late"), gate=trio.Event())

    async with running(otherwise=answer) as world:
        config: dict[str, Any] = {"options": ["Tea", "Coffee"], "quorum": 2}
        await group(world, "voting", config)
        assert (await said(world)).startswith("No decision: Tea and Coffee are equal (Tea 1, Coffee 1).")
        assert sorted(await asked(world.database)) == ["ada", "bob", "cleo"]
        cases: list[tuple[dict[str, Any], str]] = [
            ({"tie_breaker": "first"}, "Decision: Tea"),
            ({"tie_breaker": "specific_agent", "tie_agent": "bob"}, "Decision: Coffee"),
            ({"weights": {"bob": 1.5}}, "Decision: Coffee (Tea 1, Coffee 1.5)."),
        ]
        for rules, wanted in cases:
            await world.constellation.groups.update("desk", {"pattern_config": {**config, "voting_rules": rules}})
            assert (await said(world)).startswith(wanted)
        votes["bob"] = ""
        late = {**config, "voting_rules": {"voting_timeout": 10}}
        await world.constellation.groups.update("desk", {"pattern_config": late})
        assert await said(world) == "No decision: 1 of the 2 ballots of the quorum were cast."


async def test_150_sleeptime_works_when_it_is_time_and_says_why_in_rotation() -> None:
    clock = StoppedClock()
    async with running(otherwise=speak, clock=clock) as world:
        here = Scheduled(world, clock)
        trigger = {"name": "quiet", "condition": {"type": "time_elapsed", "duration": HOUR_S}}
        await group(world, "sleeptime", {"check_interval": HOUR_S, "triggers": [trigger]})
        await here.pass_time(HOUR_S - 1)
        [(_row, due_at)] = await world.constellation.schedules.all()
        assert (due_at, await asked(world.database)) == ("2026-01-01T01:00:00.000Z", [])
        await here.pass_time(1)
        assert world.provider.requests[-1].messages[-1].text.endswith("Why now: quiet: 3600 seconds have passed")
        for _ in range(3):
            await here.pass_time(HOUR_S)
        assert await asked(world.database) == ["ada", "bob", "cleo", "ada"]
    assert schedules.OCCURRENCES_KEPT == 1_000  # tests/pattern_db holds that no more are kept


async def test_151_observers_see_what_is_said_and_are_never_asked() -> None:
    for pattern, config in (
        ("round_robin", {}),
        ("dynamic", {"selector": "random", "selector_config": {"count": 9}}),
        ("dynamic", {"selector": "capability", "otherwise": "all"}),
        ("supervisor", {}),
        ("pipeline", {}),
        ("voting", {}),
        ("parallel", {}),
        ("debate", {}),
        ("swarm", {}),
        ("sleeptime", {}),
    ):
        async with running(otherwise=speak) as world:
            await group(world, pattern, config, names=NAMES[:4], roles={"ada": "observer"})
            for message in ("Is it time?", "@ada look", "@all look"):
                assert (await say(world, message)).status == "completed"
            assert "ada" not in await asked(world.database)
            assert all(request.system[0] != "ada" for request in world.provider.requests)
            await world.say("What did they say?", "ada")
            seen = [message.text for message in world.provider.requests[-1].messages]
            assert sum("which you observe" in text for text in seen) == 3
            assert "user: @ada look\n" in "".join(seen)
            assert re.search(r"^(bob|cleo|dan): ", "".join(seen), re.MULTILINE)


async def test_152_a_second_message_to_an_agent_within_30_seconds_is_refused_with_the_time_that_is_left() -> None:
    clock = StoppedClock()

    def answer(request: ModelRequest) -> ModelReply:
        is_told = request.system[0] == "ada" and request.messages[-1].text == "go"
        return calls("send_message", {"to": "bob", "content": "look"}) if is_told else says("done")

    async with running(otherwise=answer, tools=[send_message], clock=clock) as world:
        for name in ("ada", "bob"):
            await world.agent(name, prompt=name)
        failed = "SELECT content FROM messages WHERE tool_result ->> '$.is_error'"
        await world.say("go")
        await trio.testing.wait_all_tasks_blocked()
        clock.advance(12_000)
        await world.say("go")
        [(words,)] = await world.database.read(rows, failed)
        assert "in 18 seconds" in str(words)
        assert [request.system[0] for request in world.provider.requests].count("bob") == 1


async def test_153_a_message_of_an_agent_to_a_group_waits_in_the_inbox_of_every_member() -> None:
    gate = trio.Event()
    busy: list[Scripted] = [Paced(answer=says("busy"), gate=gate)] * 3
    script: list[Scripted] = [*busy, calls("send_message", {"to": "desk", "content": "tea?"}), says("Sent.")]
    async with running(script, otherwise=speak, tools=[send_message]) as world:
        await group(world, "parallel")
        await world.agent("zoe", prompt="zoe")
        for name in NAMES[:3]:
            await world.submit("work", name)
        await trio.testing.wait_all_tasks_blocked()
        await world.say("ask the desk", "zoe")
        await trio.testing.wait_all_tasks_blocked()
        waiting = "SELECT name, payload ->> '$.content' FROM inbox JOIN agents ON agents.id = agent_id ORDER BY name"
        found = await world.database.read(rows, waiting)
        assert [name for name, _words in found] == ["ada", "bob", "cleo"]
        assert all(str(words).endswith("tea?") for _name, words in found)
        gate.set()


# Selectors that answer nonsense

PIECES = (
    *("bob", "cleo", "dan", "ada", "eve", "zoe", "BOB", "bobby", "ob", "@cleo", "**bob**", "- cleo", "1. bob", "# bob"),
    *('{"name": "bob"}', '{"name": "bob"}{"name": "bob"}', "```json\nbob\n```", '["cleo", "bob"]', "next: bob", "bob,"),
    *("None", "all", "", " ", "\n", "\r", "\x00", "\u200b", "\U0001f600", "bob" * 30, "\u202ebob", "I", "would"),
    *("<|im_start|>bob<|im_end|>", "bob\tcleo", "0", "-", "***", "'''", "\ud7ff", "The answer is bob.", "bob and cleo"),
)  # fmt: skip


def played(team: Sequence[Member], reply: Any, config: Dynamic, state: dict[str, Any] | None = None) -> None:
    """Have these members asked, where `reply` answers a question."""
    room = Room(
        message="who?",
        members=team,
        state={} if state is None else state,
        random=seeded_randomness(1),
        config=config,
        tell=lambda _name, _data: None,
    )
    running, answers = config.run(room), None
    with suppress(StopIteration):
        while True:
            asks: Asks = running.send(answers)
            answers = [Answer(member=one.member, status="completed", text=reply(one)) for one in asks.questions]


def malformed(chance: random.Random) -> str:
    """An answer of a selector, of pieces that are names, nearly names, and none."""
    return "".join(chance.choice(PIECES) + chance.choice(("", " ", "\n", ",")) for _ in range(chance.randint(0, 6)))


async def test_no_answer_of_a_selector_breaks_it_or_chooses_whom_it_may_not() -> None:
    chance = random.Random(5)
    team = [
        *(Member(name, name) for name in ("ada", "bob", "cleo")),  # ada chooses, and so is none of the candidates
        Member("dan", "dan", is_active=False),
    ]
    for number in range(5_000):
        said, whom = list[str](), list[str]()

        def reply(question: Question, said: list[str] = said, whom: list[str] = whom) -> str:
            if question.why == "chooses who answers":
                said.append(malformed(chance))
                return said[-1]
            whom.append(question.member.name)
            return "done"

        count, otherwise = chance.randint(1, 3), chance.choice(("first", "all", "none"))
        config = Dynamic(
            selector="supervisor",
            selector_config=SelectorConfig(count=count, chooser="ada"),
            otherwise=otherwise,  # type: ignore[arg-type]  # one of the three
        )
        try:
            played(team, reply, config)
        except NoMember:
            assert otherwise == "none", (number, said)
        except PatternError as error:
            raise AssertionError((number, said)) from error
        assert len(said) <= ATTEMPTS, (number, said)
        assert set(whom) <= {"bob", "cleo"}, (number, said, whom)
        assert len(whom) <= max(count, 2 if otherwise == "all" else 1), (number, said, whom)
