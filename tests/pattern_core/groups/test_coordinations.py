"""What coordinations decide by: pure functions of answers, members and messages; and each of them at work."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import permutations
from typing import Any, get_args

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from pattern_core.agents import AgentSpec
from pattern_core.errors import InvalidInput
from pattern_core.groups.coordination import SHOWN_CHARS, Answer, Context, Line, Member, asking, missed, strangers
from pattern_core.groups.coordinations.debate import have_agreed
from pattern_core.groups.coordinations.dynamic import SelectorConfig, addressed, by_capability, by_count, named_in
from pattern_core.groups.coordinations.round_robin import order
from pattern_core.groups.coordinations.supervisor import DelegationRules, assigned, tasks_of
from pattern_core.groups.coordinations.swarm import handoff_of, reachable
from pattern_core.groups.coordinations.voting import Ballot, Method, VotingRules, ballot_of, leaders, tally, winner_of
from pattern_core.groups.group import MemberSpec, coordination_of
from pattern_core.models.model import ModelReply, ModelRequest
from pattern_core.models.providers.embedded import EmbeddedProvider
from pattern_core.models.providers.settings import ProviderSettings
from pattern_core.testing.model import Paced, says
from pattern_core.tools.builtin import BUILTIN
from tests.pattern_core.groups.rig import NAMES, answer_of, asked, group, say, speak
from tests.support import USER, rows, running

TEAM = [Member(id=f"agent_{name}", name=name) for name in NAMES[:3]]
ADA, BOB, CLEO = TEAM
OPTIONS = ("Tea", "Coffee", "Water")


def test_the_order_continues_behind_who_was_last() -> None:
    assert order(TEAM, None, 1) == [BOB, CLEO, ADA]
    assert order(TEAM, CLEO.id, 1) == [ADA, BOB, CLEO]
    assert order(TEAM, "agent_gone", 5) == [CLEO, ADA, BOB]


@pytest.mark.parametrize(
    ("message", "found"),
    [
        ("hello", []),
        ("@bob look", [BOB]),
        ("Bob: look", [BOB]),
        ("mail ada@bob.org", []),
        ("@bobby", []),
        ("@ALL look", TEAM),
        ("all: look", []),
        ("@cleo and @ada", [ADA, CLEO]),
        ("note: ada is here", []),
        ("Ada, help", [ADA]),
        ("hey bob", [BOB]),
        ("heyday bob", []),
    ],
)
def test_members_are_addressed_by_whole_names(message: str, found: list[Member]) -> None:
    assert addressed(message, TEAM) == found


def test_selectors_choose_among_the_living() -> None:
    cook = Member(id="1", name="cook", capabilities=("soup", "bread"), domain="kitchen")
    baker = Member(id="2", name="baker", capabilities=("bread",))
    assert by_capability("make bread and soup", [baker, cook], SelectorConfig()) == [cook, baker]
    assert by_capability("anything", [baker, cook], SelectorConfig(capabilities=("soup",))) == [cook]
    both = SelectorConfig(capabilities=("soup", "bread"), require_all=True)
    assert by_capability("anything", [baker, cook], both) == [cook]
    assert by_capability("steel", [baker, cook], SelectorConfig()) == []
    assert by_count(TEAM, {ADA.id: 2, CLEO.id: 1}) == [BOB, CLEO, ADA]


@given(st.text())
def test_a_malformed_choice_never_chooses_and_never_fails(answer: str) -> None:
    assert set(named_in(answer, TEAM)) <= set(TEAM)
    assert set(tasks_of(answer, TEAM)) <= {
        (name, task) for name in (*NAMES[:3], "any") for _n, task in tasks_of(answer, TEAM)
    }


def test_a_choice_is_a_line_with_a_name() -> None:
    assert named_in("- **bob**\n2. Cleo.", TEAM) == [BOB, CLEO]
    assert named_in("# bob", TEAM) == []
    assert named_in("I think bob should do it.", TEAM) == []


def test_tasks_are_lines_that_address_a_member() -> None:
    text = "Plan:\n- @bob: dig here\n@ANY: water\n@zoe: sing\nmail@cleo: no"
    assert tasks_of(text, TEAM) == [("bob", "dig here"), ("any", "water")]


def test_tasks_go_to_whom_they_name_or_to_whom_the_strategy_chooses() -> None:
    def given(*tasks: str, done: Counter[str] | None = None, **rules: Any) -> list[str]:
        named = [(name, f"{name}: cook") for name in tasks]
        team = [ADA, BOB, replace(CLEO, capabilities=("cook",))]
        found = assigned(named, team, DelegationRules(**rules), random.Random(1), Counter() if done is None else done)
        return [member.name for member, _task in found]

    assert given("bob", "any", "any") == ["bob", "ada", "cleo"]
    assert given("any", delegation_strategy="capability") == ["cleo"]
    assert given("any", delegation_strategy="random")[0] in NAMES[:3]
    assert given("bob", "bob", max_delegations_per_agent=1) == ["bob", "ada"]
    assert given("bob", "bob", max_parallel=1) == ["bob"]
    assert given("any", done=Counter({ADA.id: 3, BOB.id: 3, CLEO.id: 3})) == []


@pytest.mark.parametrize(
    ("method", "vote", "choices"),
    [
        ("plurality", "tea", {"Tea": 1}),
        ("plurality", "**Coffee**", {"Coffee": 1}),
        ("plurality", "Tea, Coffee", None),
        ("plurality", "Beer", None),
        ("plurality", "Abstain", {}),
        ("approval", "Tea; water", {"Tea": 1, "Water": 1}),
        ("ranked", "Water > Tea", {"Water": 3, "Tea": 2}),
        ("ranked", "Water > Water", None),
        ("score", "Tea=7, Coffee = 0", {"Tea": 7, "Coffee": 0}),
        ("score", "Tea=11", None),
        ("score", "Tea=" + "9" * 5000, None),
    ],
)
def test_a_ballot_is_read_whole_or_not_at_all(method: Method, vote: str, choices: dict[str, int] | None) -> None:
    ballot = ballot_of(f"Well.\nVOTE: {vote}\nREASON: because", OPTIONS, method)
    assert ballot.is_valid is (choices is not None)
    assert dict(ballot.choices) == (choices or {})
    assert not ballot.is_valid or ballot.reason == "because"
    assert not ballot_of("Tea!", OPTIONS, "plurality").is_valid


def test_an_option_may_hold_a_comma() -> None:
    assert dict(ballot_of("VOTE: Tea, hot", ("Tea, hot", "Tea"), "plurality").choices) == {"Tea, hot": 1}


def test_an_expert_counts_double_and_a_weight_is_by_name_or_id() -> None:
    cook = Member("1", "cook", domain="Soup")
    assert VotingRules(weight_by_expertise=True).weight(cook, "more soup?") == 2
    assert VotingRules(weight_by_expertise=True).weight(cook, "more tea?") == 1
    assert VotingRules().weight(cook, "more soup?") == 1
    assert VotingRules(weights={"cook": 0.5}).weight(cook, "") == VotingRules(weights={"1": 0.5}).weight(cook, "")


@given(st.lists(st.tuples(st.sampled_from(OPTIONS), st.integers(0, 10), st.integers(1, 5)), max_size=5))
def test_a_tally_is_a_sum_that_no_order_changes(votes: list[tuple[str, int, int]]) -> None:
    ballots = [
        Ballot(voter=str(place), choices={one: points}, weight=Fraction(w))
        for place, (one, points, w) in enumerate(votes)
    ]
    naive = {option: sum(points * w for one, points, w in votes if one == option) for option in OPTIONS}
    assert tally(ballots, OPTIONS) == naive
    assert all(
        tally(each, OPTIONS) == naive
        for each in permutations(ballots[:4] if len(ballots) > 4 else ballots)
        if len(each) == len(ballots)
    )
    assert all(naive[option] == max(naive.values()) for option in leaders(tally(ballots, OPTIONS)))


def test_ties_are_broken_by_the_rule() -> None:
    ballots = [Ballot(voter="ada", choices={"Coffee": 1}), Ballot(voter="bob", choices={"Tea": 1})]
    tied = ["Tea", "Coffee"]
    found = {
        rule: winner_of(tied, ballots, VotingRules(tie_breaker=rule, tie_agent="bob"), random.Random(1))
        for rule in ("none", "no_decision", "first", "first_vote", "specific_agent")
    }
    assert found == {"none": None, "no_decision": None, "first": "Tea", "first_vote": "Coffee", "specific_agent": "Tea"}
    assert winner_of(tied, ballots, VotingRules(tie_breaker="random"), random.Random(1)) in tied


def test_a_debate_is_over_when_all_say_so() -> None:
    said = [
        Answer(member=ADA, status="completed", text="Yes.\n**AGREED**"),
        Answer(member=BOB, status="completed", text="agreed."),
    ]
    assert have_agreed(said)
    assert not have_agreed([*said, Answer(member=CLEO, status="completed", text="AGREED? No.")])
    assert not have_agreed([])


LINES = [
    Line(1, "", "user", "one\n" + "x" * 300),
    Line(2, ADA.id, "ada", "two"),
    Line(3, BOB.id, "bob", "three"),
    Line(4, "", "user", "four"),
    Line(5, CLEO.id, "cleo", "five"),
]


@pytest.mark.parametrize(
    ("config", "to_ada", "to_dan"),
    [
        ({}, [3, 4, 5], [1, 2, 3, 4, 5]),
        ({"context": "task_only"}, [], []),
        ({"context": "summary"}, [3, 4, 5], [1, 2, 3, 4, 5]),
        ({"context": "last_n", "context_n": 2}, [4, 5], [4, 5]),
        ({"context": "last_n", "context_n": 4}, [3, 4, 5], [2, 3, 4, 5]),
        ({"context": "filter", "context_from": ["bob"]}, [3, 4], [1, 3, 4]),
        ({"context": "filter", "context_from": [CLEO.id]}, [4, 5], [1, 4, 5]),
    ],
)
def test_a_member_is_shown_what_the_context_says_of_what_it_missed(
    config: dict[str, Any], to_ada: list[int], to_dan: list[int]
) -> None:
    settings, dan = coordination_of("parallel", config, is_new=True), Member("agent_dan", "dan")
    for member, keys in ((ADA, to_ada), (dan, to_dan)):
        shown = missed(LINES, member, settings)
        assert [line.key for line in shown] == keys
        if settings.context != "summary":
            assert set(shown) <= set(LINES)


def test_a_summary_is_the_beginning_of_each_message() -> None:
    [first, *others] = missed(LINES, Member("agent_dan", "dan"), coordination_of("parallel", {"context": "summary"}))
    assert (first.text, others) == ("one…", LINES[1:])


@given(
    st.lists(st.tuples(st.sampled_from([*(one.id for one in TEAM), ""]), st.text(max_size=20)), max_size=30),
    st.sampled_from(get_args(Context)),
    st.integers(1, 50),
)
def test_no_context_shows_a_member_what_it_said_or_heard(
    said: list[tuple[str, str]], context: Context, count: int
) -> None:
    lines = [Line(key, speaker, speaker or "user", text) for key, (speaker, text) in enumerate(said, 1)]
    more = {"context_from": [BOB.id]} if context == "filter" else {}
    settings = coordination_of("parallel", {"context": context, "context_n": count, **more})
    for member in TEAM:
        heard = max((line.key for line in lines if line.speaker == member.id), default=0)
        naive = [line.key for line in lines if line.key > heard]
        found = [line.key for line in missed(lines, member, settings)]
        wanted = {
            "shared": naive,
            "summary": naive,
            "task_only": [],
            "last_n": naive[-count:],
            "filter": [key for key in naive if lines[key - 1].speaker in ("", BOB.id)],
        }
        assert found == wanted[context]
        assert len(asking("desk", member, [], missed(lines, member, settings), "now")) < SHOWN_CHARS + 200


DONE: dict[str, Any] = {"text": "done"}
MANY: dict[str, Any] = {"rounds": 3}


@pytest.mark.parametrize(
    ("termination", "rounds", "answers", "holds"),
    [
        (DONE, 1, ["no", "it is DONE."], True),
        (DONE, 9, ["no"], False),
        (DONE, 9, [], False),
        (MANY, 2, ["done"], False),
        (MANY, 3, [], True),
        ({"regex": r"^score: \d+$"}, 1, ["well\nscore: 12"], True),
        ({"regex": r"^score: \d+$"}, 1, ["my score: 12"], False),
        ({"any": [DONE, MANY]}, 1, ["done"], True),
        ({"any": [DONE, MANY]}, 3, ["no"], True),
        ({"any": [DONE, MANY]}, 2, ["no"], False),
        ({"all": [DONE, MANY]}, 3, ["done"], True),
        ({"all": [DONE, MANY]}, 3, ["no"], False),
        ({"all": [MANY, {"any": [DONE, {"text": "stop"}]}]}, 4, ["Stop!"], True),
    ],
)
async def test_a_termination_holds_by_what_was_said_and_how_often(
    termination: dict[str, Any], rounds: int, answers: list[str], holds: bool
) -> None:
    found = coordination_of("parallel", {"termination": termination}, is_new=True).termination
    assert found is not None
    assert await found.holds(rounds, answers) is holds


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"termination": {}}, "`pattern_config.termination`: give one of `text`, `regex`, `rounds`, `any` and `all`"),
        ({"termination": {"text": "x", "rounds": 1}}, "give one of"),
        ({"termination": {"any": [{"regex": "("}]}}, r"`pattern_config.termination.any.0`: .* is malformed"),
        ({"termination": {"rounds": 0}}, "at least 1"),
        ({"termination": {"none": []}}, "`none` is not known|`pattern_config.termination.none` is not known"),
        ({"termination": {"any": [{"all": [{"any": [{"any": [DONE]}]}]}]}}, "nested deeper than 4"),
        ({"context": "filter"}, "need each other"),
        ({"context_from": ["ada"]}, "need each other"),
        ({"context": "last_n", "context_n": 0}, "at least 1"),
        ({"context": "some"}, "`pattern_config.context` must be"),
    ],
)
def test_terminations_and_contexts_that_mean_nothing_are_refused(config: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        coordination_of("round_robin", config, is_new=True)


@pytest.mark.parametrize(
    ("pattern", "config", "answer", "asked_last"),
    [
        ("debate", {"rounds": 5, "termination": {"text": "bob answers"}}, "bob answers", ["ada", "bob"]),
        ("debate", {"rounds": 5, "termination": {"rounds": 4}}, "ada answers", ["ada", "bob", "cleo", "ada"]),
        ("parallel", {"aggregator": "cleo", "termination": {"rounds": 1}}, None, ["ada", "bob"]),
        ("pipeline", {"loop": {"until": "x"}, "termination": {"regex": "^cleo"}}, "cleo answers", NAMES[:3]),
        ("swarm", {"termination": {"text": "passes"}}, "ada passes.\n@bob: yours", ["ada"]),
    ],
)
async def test_a_turn_is_complete_when_its_termination_holds(
    pattern: str, config: dict[str, Any], answer: str | None, asked_last: list[str]
) -> None:
    async with running(otherwise=speak) as world:
        await group(world, pattern, config)
        view = await say(world)
        assert (view.status, await asked(world.database)) == ("completed", [*asked_last])
        assert await answer_of(world, view.id) == (answer or "ada: ada answers\n\nbob: bob answers")
        assert "group.terminated" in [event.name for event in await world.events(view.id)]


async def test_a_termination_keeps_whose_turn_is_next() -> None:
    async with running(otherwise=speak) as world:
        await group(world, "round_robin", {"termination": {"rounds": 1}})
        assert [await answer_of(world, (await say(world)).id) for _ in range(3)] == [
            f"{name} answers" for name in NAMES[:3]
        ]


@pytest.mark.parametrize(
    ("pattern", "config", "place"),
    [
        ("parallel", {"aggregator": "zoe"}, "aggregator"),
        ("parallel", {"fallback": "zoe"}, "fallback"),
        ("parallel", {"context": "filter", "context_from": ["ada", "zoe"]}, "context_from"),
        ("supervisor", {"leader_id": "zoe"}, "leader"),
        ("debate", {"judge": "zoe"}, "judge"),
        ("dynamic", {"selector_config": {"chooser": "zoe"}}, "selector_config.chooser"),
        ("pipeline", {"stages": [{"name": "ada"}, {"name": "zoe"}]}, "stages.1.agents"),
        ("pipeline", {"stages": [{"name": "x", "agent_ids": ["ada", "zoe"]}]}, "stages.0.agents"),
        ("pipeline", {"stages": [{"name": "ada", "fallback_agent": "zoe"}]}, "stages.0.fallback_agent"),
        ("swarm", {"start": "zoe"}, "start"),
        ("swarm", {"edges": {"zoe": ["ada"]}}, "edges"),
        ("swarm", {"edges": {"ada": ["zoe"]}}, "edges.ada"),
        ("voting", {"voting_rules": {"weights": {"zoe": 2}}}, "voting_rules.weights"),
        ("voting", {"voting_rules": {"tie_agent": "zoe"}}, "voting_rules.tie_agent"),
        ("sleeptime", {"intervention_agent_id": "zoe"}, "intervention_agent"),
    ],
)
def test_a_config_names_only_members(pattern: str, config: dict[str, Any], place: str) -> None:
    coordination = coordination_of(pattern, config, is_new=True)
    found = [*strangers(coordination, TEAM), *coordination.trouble(TEAM)]
    assert found == [f"`{place}` names 'zoe', which is not a member of the group; add it first"]
    zoe = Member("agent_zoe", "zoe")
    assert not strangers(coordination, [*TEAM, zoe])
    assert not strangers(coordination, [*TEAM, replace(zoe, id="zoe", name="z")])


def test_the_originals_names_of_settings_are_read() -> None:
    both: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("round_robin", {"start_at": 2}, {"current_index": 2}),
        ("supervisor", {"leader": "ada"}, {"leader_id": "ada"}),
        ("sleeptime", {"intervention_agent": "ada"}, {"intervention_agent_id": "ada"}),
        ("pipeline", {"stages": [{"name": "x", "agents": ["a"]}]}, {"stages": [{"name": "x", "agent_ids": ["a"]}]}),
        (
            "dynamic",
            {
                "selector": "capability",
                "selector_config": {"count": 2, "capabilities": ["a", "b"], "require_all": True},
            },
            {
                "selector_name": "capability",
                "selector_config": {"max_agents": "2", "capabilities": "a, b,", "require_all": "true"},
            },
        ),
    ]
    for pattern, ours, original in both:
        assert coordination_of(pattern, ours, is_new=True) == coordination_of(pattern, original, is_new=True)
    with pytest.raises(InvalidInput, match=r"`pattern_config.selector_config.max_agents` must be a whole number"):
        coordination_of("dynamic", {"selector_config": {"max_agents": "many"}})


async def test_votes_are_counted_with_quorum_weights_and_reasons() -> None:
    async with running(otherwise=speak) as world:
        await group(world, "voting", {"quorum": 4}, names=NAMES)
        answer = await answer_of(world, (await say(world)).id)
        assert answer.startswith("Decision: Approve (Approve 3, Reject 2).\n- ada: Approve. ada thinks so\n")
        weights = {"voting_rules": {"weights": {"eve": 5.5}}}
        await world.constellation.groups.update("desk", {"pattern_config": weights})
        assert "Decision: Reject (Approve 3, Reject 6.5)" in await answer_of(world, (await say(world)).id)
        for name in NAMES[:4]:
            await world.constellation.roster.update(name, {"status": "hibernated"})
        await world.constellation.groups.update("desk", {"pattern_config": {"quorum": 2}})
        assert "No decision: 1 of the 2" in await answer_of(world, (await say(world)).id)


async def test_equals_are_voted_on_again_by_a_runoff() -> None:
    def answer(request: ModelRequest) -> ModelReply:
        first = {"ada": "Tea", "bob": "Tea", "cleo": "Coffee", "dan": "Coffee", "eve": "Water"}[request.system[0]]
        is_there = f"- {first}\n" in request.messages[-1].text
        return says(f"VOTE: {first if is_there else 'Coffee'}\nREASON: taste")

    async with running(otherwise=answer) as world:
        await group(world, "voting", {"options": OPTIONS, "voting_rules": {"tie_breaker": "runoff"}}, names=NAMES)
        assert (await answer_of(world, (await say(world)).id)).startswith("Decision: Coffee (Tea 2, Coffee 3).")


async def test_a_member_that_is_not_active_is_passed_over_or_ends_the_turn() -> None:
    async with running(otherwise=speak) as world:
        await group(world, "round_robin", {"skip_unavailable": False})
        await world.constellation.roster.update("ada", {"status": "archived"})
        view = await say(world)
        assert (view.status, "turn of ada" in str(view.error)) == ("failed", True)
        await world.constellation.groups.update("desk", {"pattern_config": {}})
        assert await answer_of(world, (await say(world)).id) == "bob answers"
        for member in (await world.constellation.groups.get("desk")).members:
            await world.constellation.roster.update(member.id, {"status": "archived"})
        view = await say(world)
        assert (view.status, "no member of the group could be asked" in str(view.error)) == ("failed", True)


async def test_selectors_count_who_was_chosen_and_may_find_no_one() -> None:
    async with running(otherwise=speak) as world:
        await group(world, "dynamic", {"selector": "least_busy", "addressing": False}, names=NAMES[:2])
        said = [await answer_of(world, (await say(world, "@bob")).id) for _ in range(3)]
        assert said == ["ada answers", "bob answers", "ada answers"]
        config = {"selector": "capability", "otherwise": "all"}
        await world.constellation.groups.update("desk", {"pattern_config": config})
        assert await answer_of(world, (await say(world, "steel")).id) == "ada: ada answers\n\nbob: bob answers"


async def test_who_does_not_vote_is_asked_again_once() -> None:
    async with running([says("hm"), says("VOTE: Reject\nREASON: cold")], otherwise=says("hm")) as world:
        await group(world, "voting", names=["ada"])
        answer = await answer_of(world, (await say(world)).id)
        assert answer == "Decision: Reject (Approve 0, Reject 1).\n- ada: Reject. cold"
        assert "No decision: 0 of the 1" in await answer_of(world, (await say(world)).id)
        assert world.provider.asked == 4


async def test_a_supervisor_hands_out_tasks_and_answers_with_what_comes_back() -> None:
    async with running(otherwise=speak) as world:
        await group(
            world, "supervisor", {"delegation_rules": {"max_delegations_per_agent": 1}}, roles={"bob": "supervisor"}
        )
        view = await say(world)
        asked = await world.database.read(
            rows,
            "SELECT n.name, a.why FROM group_ask AS a JOIN turn AS t ON t.key = a.asked JOIN agents AS n"
            " ON n.id = t.agent_id ORDER BY a.asked",
        )
        # It cannot give itself a task, and a member has one at most.
        assert asked == [("bob", "leads"), ("cleo", "a task"), ("ada", "a task"), ("bob", "has results")]
        assert await answer_of(world, view.id) == "bob answers"
        assert "ada: ada answers" in world.provider.requests[-1].messages[-1].text


async def test_a_stage_gets_what_the_one_before_it_made() -> None:
    config = {"stages": [{"name": "ada"}, {"name": "bob", "when": "xyz"}, {"name": "cleo", "instructions": "Shorten."}]}
    async with running(otherwise=speak) as world:
        await group(world, "pipeline", config)
        assert await answer_of(world, (await say(world)).id) == "cleo answers"
        assert world.provider.requests[-1].messages[-1].text.endswith("Shorten.\n\nada answers")


async def test_a_race_is_won_by_the_fastest_and_the_others_are_quiet() -> None:
    def answer(request: ModelRequest) -> ModelReply | Paced:
        name = request.system[0]
        return says("bob wins") if name == "bob" else Paced(answer=says("late"), gate=trio.Event())

    config = {"stages": [{"name": "all", "agents": ["ada", "bob", "cleo"], "mode": "race"}]}
    async with running(otherwise=answer) as world:
        await group(world, "pipeline", config)
        assert await answer_of(world, (await say(world)).id) == "bob wins"
        assert world.provider.running == 0


async def test_a_stage_that_takes_too_long_is_cancelled_and_its_fallback_asked() -> None:
    def answer(request: ModelRequest) -> ModelReply | Paced:
        return Paced(answer=says("late"), gate=trio.Event()) if request.system[0] == "ada" else speak(request)

    for failure, wanted in (("fallback", "bob answers"), ("skip", "Is it time?"), ("abort", ""), ("retry", "")):
        stage = {"name": "ada", "timeout_s": 0.02, "on_failure": failure, "fallback_agent": "bob"}
        async with running(otherwise=answer) as world:
            await group(world, "pipeline", {"stages": [stage]})
            assert await answer_of(world, (await say(world)).id) == wanted
            assert world.provider.running == 0
            statuses = await world.database.read(rows, "SELECT count(*) FROM turn WHERE status = 'cancelled'")
            assert statuses == [(2 if failure == "retry" else 1,)]


async def test_a_message_goes_to_whom_it_addresses_or_to_whom_the_selector_chooses() -> None:
    async with running(otherwise=speak) as world:
        await group(world, "dynamic", {"selector": "supervisor"}, roles={"ada": "supervisor"})
        assert await answer_of(world, (await say(world, "@cleo hello")).id) == "cleo answers"
        assert await answer_of(world, (await say(world, "hello")).id) == "bob answers"
        assert await answer_of(world, (await say(world, "@all hello")).id) == (
            "ada: ada answers\n\nbob: bob answers\n\ncleo: cleo answers"
        )
    async with running(otherwise=says("whoever wants to")) as world:
        await group(world, "dynamic", {"selector": "llm", "otherwise": "none"})
        view = await say(world, "hello")
        assert (view.status, world.provider.asked) == ("failed", 3)


async def test_a_chooser_that_speaks_at_length_answers_by_itself() -> None:
    words = "I would rather answer this myself, because it is about my own work."
    async with running([says(words)]) as world:
        await group(world, "dynamic", {"selector_name": "supervisor", "selector_config": {"max_agents": "2"}})
        assert await answer_of(world, (await say(world, "hello")).id) == words


async def test_who_does_not_vote_in_time_is_left_out() -> None:
    def answer(request: ModelRequest) -> ModelReply | Paced:
        return Paced(answer=says("late"), gate=trio.Event()) if request.system[0] == "ada" else speak(request)

    async with running(otherwise=answer) as world:
        await group(world, "voting", {"quorum": 2, "voting_rules": {"voting_timeout": 50}})
        assert "Decision: Approve (Approve 2, Reject 0)" in await answer_of(world, (await say(world)).id)


async def test_a_swarm_hands_over_keeps_its_holder_and_stops_circles() -> None:
    def answer(request: ModelRequest) -> ModelReply:
        words = request.messages[-1].text
        to = {"ada": "bob", "bob": "ada"}[request.system[0]]
        return says("Here I am." if "stay" in words else f"Not mine.\n@{to}: yours")

    async with running(otherwise=answer) as world:
        await group(world, "swarm", {"repeat_window": 4}, names=["ada", "bob"])
        assert await answer_of(world, (await say(world, "go")).id) == "Not mine.\n@bob: yours"
        assert world.provider.asked == 3
        assert await answer_of(world, (await say(world, "stay")).id) == "Here I am."
        holders = await world.database.read(
            rows,
            "SELECT n.name FROM group_ask AS a JOIN turn AS t ON t.key = a.asked"
            " JOIN agents AS n ON n.id = t.agent_id ORDER BY a.asked",
        )
        assert holders == [("ada",), ("bob",), ("ada",), ("ada",)]
        config = {"max_handoffs": 1, "return_to_start": True, "context": "task_only"}
        await world.constellation.groups.update("desk", {"pattern_config": config})
        assert await answer_of(world, (await say(world, "go")).id) == "Not mine.\n@ada: yours"


def test_a_handoff_is_the_last_line() -> None:
    assert handoff_of("Well.\n@Bob: it is yours", TEAM) == (BOB, "it is yours")
    assert handoff_of("@bob: look\nNo.", TEAM) is None
    assert handoff_of("@zoe: look", TEAM) is None
    assert reachable(ADA, TEAM, {"ada": ("cleo",)}) == [CLEO]
    assert reachable(BOB, TEAM, {"ada": ("cleo",)}) == [ADA, CLEO]


@pytest.mark.parametrize(
    ("pattern", "message", "answer"),
    [
        (
            "parallel",
            "Remember that Ruth is in Lisbon.",
            "ada: I will remember that, in my memory block human: Ruth is in",
        ),
        ("voting", "Tea?", "Decision: Approve (Approve 2, Reject 0)."),
        ("dynamic", "Remember that Ruth is in Lisbon.", "I will remember that"),
        ("round_robin", "Hello", "Hello"),
    ],
)
async def test_the_embedded_rules_take_part(pattern: str, message: str, answer: str) -> None:
    provider = EmbeddedProvider("embedded", ProviderSettings(kind="embedded"))
    async with running(others=[provider], tools=BUILTIN) as world:
        for name in ("ada", "bob"):
            spec = AgentSpec(name=name, model_provider="embedded", model_name="rules-1")
            await world.constellation.roster.create(spec, author=USER)
        members = [MemberSpec("ada"), MemberSpec("bob")]
        config = {"selector": "supervisor"} if pattern == "dynamic" else {}
        await world.constellation.groups.create(
            name="desk", pattern_type=pattern, pattern_config=config, members=members
        )
        said = [await answer_of(world, (await say(world, words)).id) for words in ("Good morning", message)]
        assert said[1].startswith(answer), said
