from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from pattern_core.ids import seeded_randomness
from pattern_core.limits import TurnLimits
from pattern_core.messages import user
from pattern_core.models.catalogue import UNKNOWN_WINDOW
from pattern_core.models.client import Account, ModelClient
from pattern_core.models.errors import (
    ModelError,
    ModelLoading,
    ModelNotConfigured,
    ModelOverloaded,
    ModelServerError,
    ModelTimeout,
    ToolsUnsupported,
    WindowExceeded,
    was_shown,
)
from pattern_core.models.model import (
    Allowance,
    Delta,
    ModelReply,
    ModelRequest,
    OnDelta,
    Provider,
    RateStatus,
    TextDelta,
    ToolSpec,
)
from pattern_core.models.routing import Link, ModelChain
from pattern_core.models.throttle import ClientLimits, RetryPolicy
from pattern_core.testing import Paced, ScriptedProvider, says
from pattern_core.testing.model import Answer

BOUNDS = ClientLimits()
LIMITS = TurnLimits(model_timeout_s=100, model_idle_timeout_s=10)
REQUEST = ModelRequest(model="any", system=(), messages=[user("hello")])
SERVER_ERROR = ModelServerError("500", provider="scripted", status=500)


@dataclass
class Asker:
    """A client of one provider, and all that it reported."""

    provider: ScriptedProvider
    bounds: ClientLimits = BOUNDS
    jitter: float = 0.0
    shown: list[str] = field(default_factory=list)
    retries: list[tuple[int, str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.client = ModelClient(
            {"scripted": self.provider},
            RetryPolicy(jitter=self.jitter),
            LIMITS,
            seeded_randomness(1),
            accounts={"scripted": Account(key="scripted", limits=self.bounds)},
        )

    async def on_delta(self, delta: Delta) -> None:
        self.shown.append(delta.text)

    async def on_retry(self, attempt: int, error: ModelError, delay_s: float) -> None:
        self.retries.append((attempt, error.code, delay_s))

    async def ask(self, deadline: float = math.inf) -> ModelReply:
        return await self.client.ask(REQUEST, ModelChain.of("scripted", "any"), self.on_delta, deadline, self.on_retry)


def asker(*script: Answer, slice_chars: int | None = None, bounds: ClientLimits = BOUNDS) -> Asker:
    return Asker(ScriptedProvider(script, slice_chars=slice_chars), bounds)


async def test_an_unknown_provider_is_named_with_advice() -> None:
    one = asker()
    with pytest.raises(ModelNotConfigured, match=r"ANTHROPIC_API_KEY.*Configured: scripted"):
        await one.client.ask(REQUEST, ModelChain.of("anthropic", "any"), one.on_delta)


async def test_asks_again_after_growing_waits(autojump_clock: MockClock) -> None:
    one = asker(SERVER_ERROR, ModelOverloaded("429", provider="s", retry_after_s=9), SERVER_ERROR, says("at last"))
    assert await one.ask() == says("at last")
    assert one.retries == [(1, "model_server_error", 1), (2, "model_overloaded", 9), (3, "model_server_error", 4)]
    assert trio.current_time() == 14


async def test_gives_up_after_the_last_attempt_and_says_how_many(autojump_clock: MockClock) -> None:
    one = Asker(ScriptedProvider(otherwise=SERVER_ERROR), jitter=0.25)
    with pytest.raises(ModelServerError) as caught:
        await one.ask()
    assert one.provider.asked == caught.value.details["attempts"] == 4
    assert not was_shown(caught.value)
    assert 7 < trio.current_time() < 7 * 1.25


async def test_nothing_is_asked_again_once_words_were_shown() -> None:
    one = asker(Paced(answer=says("hello"), breaks=SERVER_ERROR, shown=1), says("never"), slice_chars=2)
    with pytest.raises(ModelServerError) as caught:
        await one.ask()
    assert was_shown(caught.value)
    assert (one.shown, one.provider.asked) == (["he"], 1)


async def test_an_answer_that_has_begun_may_take_as_long_as_the_deadline_allows(autojump_clock: MockClock) -> None:
    words = says("x" * 50)
    assert await asker(Paced(answer=words, delay_s=90, between_s=9), slice_chars=1).ask() == words
    assert trio.current_time() == 90 + 50 * 9
    one = asker(Paced(answer=words, between_s=9), slice_chars=1)
    with pytest.raises(ModelTimeout, match="time limit was reached") as caught:
        await one.ask(deadline=trio.current_time() + 100)
    assert (was_shown(caught.value), len(one.shown)) == (True, 12)


async def test_local_servers_have_more_time(autojump_clock: MockClock) -> None:
    words = Paced(answer=says("late"), delay_s=599)
    one = asker(words)
    one.provider.is_local = True  # as providers that speak HTTP say it
    assert await one.ask() == says("late")
    limits = one.client.limits("scripted")
    assert (limits.model_timeout_s, limits.model_idle_timeout_s, limits.turn_timeout_s) == (600, 120, 3600)
    assert one.client.limits("nobody") == LIMITS


LOADING = ModelLoading("503: Loading model", provider="scripted", status=503)


async def test_a_server_that_loads_its_model_is_waited_for_and_none_of_that_counts(autojump_clock: MockClock) -> None:
    one = asker(*[LOADING] * 40, SERVER_ERROR, *[LOADING] * 20, says("loaded"))
    assert await one.ask() == says("loaded")
    assert one.retries == [
        *[(1, "model_loading", 3)] * 40,
        (1, "model_server_error", 1),
        *[(2, "model_loading", 3)] * 20,
    ]
    gate = one.client.gate_figures()["scripted"]
    assert (gate["state"], gate["concurrency"], gate["failures_total"], gate["overloads_total"]) == ("closed", 16, 1, 0)
    started, endless = trio.current_time(), Asker(ScriptedProvider(otherwise=LOADING))
    with pytest.raises(ModelLoading):
        await endless.ask()
    assert trio.current_time() - started == 300
    with pytest.raises(ModelLoading):
        await endless.ask(deadline=trio.current_time() + 10)
    assert trio.current_time() - started == 309


async def test_a_model_that_loads_is_left_for_one_that_is_there(autojump_clock: MockClock) -> None:
    client, _ = two(LOADING, says("b"))
    links = tuple(Link(provider=name, model="any") for name in "ab")
    assert await client.ask(REQUEST, ModelChain(links=links), ignore) == says("b")
    assert trio.current_time() == 0


TOOLS = replace(REQUEST, tools=(ToolSpec(name="search", description="Finds.", parameters={}),), force_tool="search")


@pytest.mark.parametrize(("as_text", "tool_calls", "names"), [(False, "none", ()), (True, "text", ("search",))])
async def test_a_model_without_tools_is_asked_without_them_from_then_on(
    as_text: bool, tool_calls: str, names: tuple[str, ...], autojump_clock: MockClock
) -> None:
    refused = ToolsUnsupported("400: m does not support tools", provider="scripted", status=400)
    refused.details["as_text"] = as_text
    one = asker(refused, says("a"), says("b"))
    for _ in range(2):
        await one.client.ask(TOOLS, ModelChain.of("scripted", "any"), one.on_delta, math.inf, one.on_retry)
    assert one.retries == [(1, "model_without_tools", 0)]
    asked = [(request.tool_calls, tuple(tool.name for tool in request.tools)) for request in one.provider.requests]
    assert asked == [("auto", ("search",)), (tool_calls, names), (tool_calls, names)]
    assert one.provider.requests[2].force_tool == ("search" if as_text else None)
    assert one.client.facts("scripted", "any").tools is as_text
    assert one.client.facts("scripted", "another").tool_calls == "auto"
    with pytest.raises(ToolsUnsupported):  # which needs another remedy
        await asker(refused).ask()


async def test_a_window_that_a_refusal_states_is_known_from_then_on() -> None:
    refused = WindowExceeded("400: n_ctx 2048", provider="scripted", status=400)
    refused.details["window"] = 2_048
    one = asker(refused)
    with pytest.raises(WindowExceeded):
        await one.ask()
    facts = one.client.facts("scripted", "any")
    assert (facts.window, facts.window_source, facts.output_max) == (2_048, "server", 512)


async def test_an_attempt_has_a_time_limit_and_counts_as_retryable(autojump_clock: MockClock) -> None:
    one = asker(Paced(answer=says("late"), delay_s=101), says("in time"))
    assert await one.ask() == says("in time")
    assert one.retries == [(1, "model_timeout", 1)]
    assert trio.current_time() == 101
    assert one.provider.cancelled == 1
    with pytest.raises(ModelTimeout, match=r"has not begun to answer within 100 s \(limits\.turn\.model_timeout_s\)"):
        await Asker(ScriptedProvider(otherwise=Paced(answer=says("late"), delay_s=101))).ask()


async def test_silence_counts_from_the_first_words_and_afresh_after_each(autojump_clock: MockClock) -> None:
    slow = Paced(answer=says("abcd"), delay_s=60, between_s=9)
    assert await asker(slow, slice_chars=1).ask() == says("abcd")
    one = asker(Paced(answer=says("abcd"), between_s=11), slice_chars=1)
    started, words = trio.current_time(), r"fell silent for 10 s in the middle .*limits\.turn\.model_idle_timeout_s"
    with pytest.raises(ModelTimeout, match=words) as caught:
        await one.ask()
    assert was_shown(caught.value)
    assert (one.shown, trio.current_time() - started) == (["a"], 10)


class Whispering(Provider):
    """A provider that gives signs of life (empty deltas) every 9 s for a while before it answers."""

    name = "whispering"

    async def ask(self, request: ModelRequest, on_delta: OnDelta) -> ModelReply:
        for _ in range(5):
            await on_delta(TextDelta(text=""))
            await trio.sleep(9)
        raise SERVER_ERROR


async def test_signs_of_life_hold_the_silence_off_and_are_not_shown(autojump_clock: MockClock) -> None:
    one = asker()
    client = ModelClient({"w": Whispering()}, RetryPolicy(attempts_max=1), LIMITS, seeded_randomness(1))
    with pytest.raises(ModelServerError) as caught:
        await client.ask(REQUEST, ModelChain.of("w", "any"), one.on_delta)
    assert not was_shown(caught.value)
    assert (one.shown, trio.current_time()) == ([], 45)


async def test_the_time_of_showing_is_not_the_providers_silence(autojump_clock: MockClock) -> None:
    async def slow_screen(delta: Delta) -> None:
        await trio.sleep(30)

    one = asker(says("ab"), slice_chars=1)
    assert await one.client.ask(REQUEST, ModelChain.of("scripted", "any"), slow_screen) == says("ab")


async def test_calls_at_once_and_waiting_are_bounded() -> None:
    gate = trio.Event()
    bounds = ClientLimits(calls_max=2, waiting_max=1)
    one = Asker(ScriptedProvider(otherwise=Paced(answer=says("x"), gate=gate)), bounds)
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(one.ask)
        await wait_all_tasks_blocked()
        assert one.provider.running == 2
        with pytest.raises(ModelOverloaded, match="1 calls are already waiting"):
            await one.ask()
        gate.set()
    assert (one.provider.asked, one.provider.running) == (3, 0)


async def test_cancelling_gives_the_slot_back() -> None:
    one = Asker(ScriptedProvider(otherwise=Paced(answer=says("x"), gate=trio.Event())), ClientLimits(calls_max=1))
    for _ in range(3):
        with trio.move_on_after(0.01) as scope:
            await one.ask()
        assert scope.cancelled_caught
    assert one.provider.cancelled == 3


@pytest.mark.parametrize(
    ("wish_s", "deadline", "words"),
    [
        (86_400, math.inf, "a delay of 86400 s, and the longest delay is 300 s"),
        (50, 20, "a delay of 50 s, and the turn's time limit ends before that"),
    ],
)
async def test_a_vendor_that_wants_too_long_a_pause_is_given_up_at_once(
    wish_s: float, deadline: float, words: str, autojump_clock: MockClock
) -> None:
    one = asker(ModelOverloaded("429: quota.", provider="s", retry_after_s=wish_s), says("never"))
    with pytest.raises(ModelOverloaded, match=words) as caught:
        await one.ask(deadline=deadline)
    assert (caught.value.retry_after_s, caught.value.details["attempts"], trio.current_time()) == (wish_s, 1, 0)


async def test_an_outage_is_not_asked_by_every_agent(autojump_clock: MockClock) -> None:
    one = Asker(ScriptedProvider(otherwise=SERVER_ERROR))
    for _ in range(10):
        with pytest.raises(ModelError):
            await one.ask()
    # Five failures, then a probe after 5, 10 and 20 s; from 40 s on nobody waits for it.
    assert one.provider.asked == 8
    gate = one.client.gate_figures()["scripted"]
    assert (gate["state"], gate["is_closed"], gate["failures_total"], gate["refused_total"]) == ("open", True, 8, 8)


async def test_the_limits_that_an_answer_tells_hold_the_next_call_back(autojump_clock: MockClock) -> None:
    told = replace(says("a"), rate=RateStatus(tokens=Allowance(limit=60_000, remaining=0)))
    one = asker(told, says("b"))
    await one.ask()
    assert one.client.gate_figures()["scripted"]["tokens_limit"] == 60_000
    await one.ask()
    # The prompt's estimate and the longest answer, 4,096 tokens, at a thousand a second.
    assert 4.096 < trio.current_time() < 4.2


def two(first: Answer, second: Answer, **more: Account) -> tuple[ModelClient, list[ScriptedProvider]]:
    providers = [ScriptedProvider(otherwise=first), ScriptedProvider(otherwise=second)]
    client = ModelClient(
        dict(zip("ab", providers, strict=True)), RetryPolicy(jitter=0), LIMITS, seeded_randomness(1), accounts=more
    )
    return client, providers


async def test_providers_of_one_key_share_a_gate(autojump_clock: MockClock) -> None:
    account = Account(key="k", limits=ClientLimits(calls_max=3))
    busy = ModelOverloaded("429", provider="a", retry_after_s=20)
    client, _ = two(busy, says("b"), a=account, b=account)
    assert client.gate_figures().keys() == {"a+b"}
    figures = client.gate_figures()["a+b"]
    assert (figures["concurrency_max"], figures["concurrency"]) == (3, 3)
    assert (figures["is_closed"], figures["tokens_limit"]) == (False, None)
    with pytest.raises(ModelOverloaded):
        await client.ask(REQUEST, ModelChain.of("a", "any"), ignore, 10)
    with pytest.raises(ModelOverloaded, match="for longer than the available time"):
        await client.ask(REQUEST, ModelChain.of("b", "any"), ignore, 10)


async def ignore(delta: Delta) -> None:
    """Show nothing."""


OWN, NEXT = Link(provider="a", model="m-a"), Link(provider="b", model="m-b")
CHAIN = ModelChain(links=(OWN, NEXT))


async def test_a_busy_model_is_left_for_the_next_one_without_waiting(autojump_clock: MockClock) -> None:
    client, (first, second) = two(ModelOverloaded("429", provider="a", retry_after_s=20), says("b"))
    moves: list[tuple[int, ModelError]] = []

    async def on_move(index: int, error: ModelError) -> None:
        moves.append((index, error))

    assert await client.ask(REQUEST, CHAIN, ignore, on_move=on_move) == says("b")
    assert (trio.current_time(), first.asked, second.requests[0].model) == (0, 1, "m-b")
    assert [(index, error.details["attempts"]) for index, error in moves] == [(1, 1)]
    assert "another model can be called now" in moves[0][1].message
    # The first one's pause is known now: it is not even asked.
    assert await client.ask(REQUEST, CHAIN, ignore, on_move=on_move) == says("b")
    assert (first.asked, moves[1][1].details["attempts"], trio.current_time()) == (1, 0, 0)


async def test_a_model_that_is_busy_for_a_moment_is_waited_for_all_the_same(autojump_clock: MockClock) -> None:
    account = Account(key="k", limits=ClientLimits(calls_max=1))
    client, (first, second) = two(Paced(answer=says("a"), delay_s=1.5), says("b"), a=account)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.ask, REQUEST, CHAIN, ignore)
        await wait_all_tasks_blocked()
        assert await client.ask(REQUEST, CHAIN, ignore) == says("a")
    assert (first.asked, second.asked, trio.current_time()) == (2, 0, 3)


async def test_a_silent_model_is_waited_for_once_where_another_can_be_asked(autojump_clock: MockClock) -> None:
    client, (first, _) = two(Paced(answer=says("late"), delay_s=1_000), says("b"))
    assert await client.ask(REQUEST, CHAIN, ignore) == says("b")
    assert (first.asked, trio.current_time()) == (1, 100)


async def test_no_other_model_is_asked_once_the_time_of_the_turn_is_up(autojump_clock: MockClock) -> None:
    client, (_, second) = two(Paced(answer=says("late"), delay_s=1_000), says("b"))
    with pytest.raises(ModelTimeout, match="time limit"):
        await client.ask(REQUEST, CHAIN, ignore, 50)
    assert (second.asked, trio.current_time()) == (0, 50)


async def test_flows_take_turns_at_the_gate() -> None:
    hold = trio.Event()
    provider = ScriptedProvider([Paced(answer=says("x"), gate=hold)], otherwise=says("y"))
    account = Account(key="k", limits=ClientLimits(calls_max=1))
    client = ModelClient({"p": provider}, RetryPolicy(), LIMITS, seeded_randomness(1), accounts={"p": account})

    async def ask(flow: str, words: str) -> None:
        request = replace(REQUEST, messages=[user(words)])
        await client.ask(request, ModelChain.of("p", "any"), ignore, flow=flow)

    async with trio.open_nursery() as nursery:
        for flow, words in [("a", "first"), ("a", "a1"), ("a", "a2"), ("b", "b1")]:
            nursery.start_soon(ask, flow, words)
            await wait_all_tasks_blocked()
        gate = client.gate_figures()["p"]
        assert (gate["waiting"], gate["flows_waiting"]) == (3, 2)
        hold.set()
    assert [request.messages[0].text for request in provider.requests] == ["first", "a1", "b1", "a2"]


async def test_facts_come_from_the_catalogue() -> None:
    client = asker().client
    assert client.facts("anthropic", "claude-sonnet-4-5").window == 200_000
    assert (client.facts("scripted", "any").window, client.facts("scripted", "any").is_known) == (UNKNOWN_WINDOW, False)


def configured(script: list[Answer], bounds: ClientLimits = BOUNDS) -> ModelClient:
    return asker(*script, bounds=bounds).client


async def ask(client: ModelClient) -> ModelReply:
    one = asker()
    return await client.ask(REQUEST, ModelChain.of("scripted", "any"), one.on_delta)


async def test_what_is_adopted_answers_from_now_on_and_what_is_pinned_or_under_way_stays() -> None:
    gate = trio.Event()
    client = configured([Paced(answer=says("old, under way"), gate=gate), says("old, pinned")])
    pinned, answers = client.pinned(), list[ModelReply]()

    async def under_way() -> None:
        answers.append(await ask(client))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(under_way)
        await wait_all_tasks_blocked()
        client.adopt(configured([says("new")]))
        assert await ask(client) == says("new")
        gate.set()
    assert answers == [says("old, under way")]
    assert await ask(pinned) == says("old, pinned")


async def test_what_a_turn_learns_the_next_one_knows_until_something_is_adopted() -> None:
    window = WindowExceeded("too long", provider="scripted", status=400)
    window.details["window"] = 700
    client = configured([window])
    with pytest.raises(WindowExceeded):
        await ask(client.pinned())
    assert client.facts("scripted", "any").window == 700
    client.adopt(configured([]))
    assert client.facts("scripted", "any").window == UNKNOWN_WINDOW


async def test_a_gate_stays_with_its_provider_and_account() -> None:
    provider = ScriptedProvider([says("hello")])
    client = Asker(provider).client
    await ask(client)
    for other, calls in ((Asker(provider), 1), (Asker(provider, ClientLimits(calls_max=3)), 0), (asker(), 0)):
        before = client.gate_figures()["scripted"]["calls_total"]
        client.adopt(other.client)
        assert client.gate_figures()["scripted"]["calls_total"] == (before if calls else 0)


async def test_the_models_of_a_provider(autojump_clock: MockClock) -> None:
    class Listing(ScriptedProvider):
        async def models(self) -> list[str]:
            await trio.sleep(0 if self.asked else math.inf)
            return ["a"]

    client = configured([])
    assert await client.models("scripted") == [], "it lists none"
    with pytest.raises(ModelNotConfigured):
        await client.models("absent")
    client.adopt(Asker(Listing()).client)
    with pytest.raises(ModelTimeout, match="within 3 s"):
        await client.models("scripted")
