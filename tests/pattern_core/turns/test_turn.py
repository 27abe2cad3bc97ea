"""One turn: the loop of steps, its prompts, the stream of an answer, and how a turn can end."""

from __future__ import annotations

import logging

import pytest
import trio
import trio.testing

from pattern_core.agents import AgentSpec
from pattern_core.limits import Limits, TurnLimits
from pattern_core.memory.block import NewBlock
from pattern_core.messages import Image, Text
from pattern_core.models.catalogue import Catalogue
from pattern_core.models.errors import ModelRejected, ModelServerError, WindowExceeded
from pattern_core.models.model import ModelFacts, ModelReply, ModelRequest, Usage
from pattern_core.models.tokens import estimate_request
from pattern_core.prompts.build import MEMORY_AND_DATA
from pattern_core.runtime import Meters
from pattern_core.testing.model import Paced, ScriptedProvider, calls, says
from pattern_core.turns.turn import OUTPUT_SHARE, SQUEEZES_MAX
from pattern_db.columns import Json
from pattern_db.journal import usage
from pattern_db.journal.budgets import BudgetRow, BudgetScope, Period, Unit
from pattern_db.journal.usage import UsageFilter
from tests.support import USER, acting, note, rows, running, shout


async def test_an_image_that_a_vendor_refuses_is_described_in_words_instead() -> None:
    facts = ModelFacts(provider="scripted", model="script-1", window=100_000, output_max=1_000, images=True)
    refused = ModelRejected("could not fetch the image", provider="scripted", status=400)
    async with running(
        [refused, says("no picture"), refused, refused], catalogue=Catalogue({"scripted": {"script-1": facts}})
    ) as world:
        await world.agent()
        picture = Image(media_type="image/png", url="https://example.org/gone.png")
        view = await world.wait(await world.submit("See?", parts=(Text(text="See?"), picture)))
        total = await world.constellation.database.read(usage.total, UsageFilter())
        assert (view.status, total.calls) == ("completed", 1)
        assert (await world.names(view.id)).count("step.superseded") == 1
        seeing, blind = world.provider.requests
        assert seeing.messages[-1].images
        assert not blind.messages[-1].images
        failed = await world.say("Is it still there?")  # without an image it was another reason
        assert (failed.status, failed.error) == ("failed", {"code": "model_rejected", "message": str(refused)})


async def test_too_many_steps_or_calls_end_in_a_limit() -> None:
    """Of steps or of calls."""
    for bounds, words in ((TurnLimits(steps_max=3), "3 steps"), (TurnLimits(tool_calls_max=2), "2 tool calls")):
        again = calls("note", {"text": "again"})
        async with acting(otherwise=again, tools=[note], limits=Limits(turn=bounds)) as world:
            view = await world.say("loop")
            assert (view.status, words in str((view.error or {})["message"])) == ("limit", True), view.error
            unanswered = await world.database.read(rows, "SELECT count(*) FROM effect WHERE message_id IS NULL")
            assert unanswered == [(0,)]


async def test_an_answer_in_pieces_is_stored_in_pieces_and_then_as_one() -> None:
    answer = Paced(answer=says("abcdefghij"), between_s=0.05)
    async with acting(provider=ScriptedProvider([answer], slice_chars=2)) as world:
        seen: list[tuple[str, str]] = []
        turn_id = await world.submit("spell")
        stream = world.constellation.events.subscribe(after=0, turn_id=turn_id)
        async for event in stream:
            if event.name in ("text.delta", "message"):
                seen.append((event.name, str(event.data.get("text", event.data.get("content")))))
        pieces = [text for name, text in seen if name == "text.delta"]
        assert len(pieces) >= 2
        assert "".join(pieces) == "abcdefghij"
        assert seen[-1] == ("message", "abcdefghij")
        assert "text.delta" not in await world.names(turn_id)  # the message says it all


@pytest.mark.parametrize("is_heard", [True, False])
async def test_the_first_piece_of_an_answer_is_stored_at_once_if_a_stream_waits_for_it_else_soon(
    is_heard: bool, autojump_clock: trio.testing.MockClock
) -> None:
    answer = Paced(answer=says("ab cd"), between_s=9.0)
    async with acting(provider=ScriptedProvider([answer], slice_chars=2)) as world, trio.open_nursery() as nursery:
        events = world.constellation.events

        async def listen() -> None:
            async for _event in events.subscribe(after=events.latest):
                pass

        if is_heard:
            nursery.start_soon(listen)
            await trio.testing.wait_all_tasks_blocked()
        turn_id = await world.submit("spell")
        await trio.sleep(0.01)
        assert ("text.delta" in await world.names(turn_id)) == is_heard
        await trio.sleep(0.05)
        assert "text.delta" in await world.names(turn_id)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("ending", ["cancelled", "failed", "limit"])
async def test_what_a_turn_had_said_stays_when_it_is_cut_off(
    ending: str, autojump_clock: trio.testing.MockClock
) -> None:
    answer = says("one two three four", reasoning="counting")
    halting = Paced(answer=answer, between_s=1.0)
    breaking = Paced(answer=answer, shown=4, breaks=ModelRejected("no", provider="scripted", status=400))
    limits = Limits(turn=TurnLimits(turn_timeout_s=3.5), delta_flush_s=0.0)
    provider = ScriptedProvider([breaking if ending == "failed" else halting, says("five")], slice_chars=5)
    async with acting(provider=provider, limits=limits) as world:
        turn_id = await world.submit("count")
        if ending == "cancelled":
            await trio.sleep(3.2)
            assert await world.constellation.cancel(turn_id)
        view = await world.constellation.wait(turn_id)
        assert view.status == ending
        _asked, said = view.messages
        assert (said.role, said.content, said.source_metadata) == ("assistant", "one two th", {"partial": ending})
        assert said.parts == [
            {"type": "reasoning", "text": "counting", "signature": None},
            {"type": "text", "text": "one two th"},
        ]
        *_before, message, _end = await world.events(turn_id)
        assert message.name == "message"
        assert message.data == {
            "message_id": said.id,
            "role": "assistant",
            "content": "one two th",
            "partial": ending,
        }
        assert not [name for name in await world.names(turn_id) if name.endswith(".delta")]
        await world.say("and then?")
        assert [message.text for message in world.provider.requests[-1].messages] == [
            "count",
            f"one two th\n\n[This answer is not complete: its turn ended as {ending}.]",
            "and then?",
        ]


async def test_the_end_of_each_turn_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Of ids and counts, never of what was said; also of turns that never ran by themselves."""
    caplog.set_level(logging.INFO, "pattern.turns")
    gate = trio.Event()
    waits = Paced(answer=calls("note", {"text": "secret note"}), gate=gate)
    refused = ModelRejected("no secret", provider="scripted", status=400)
    async with acting([says("secret"), refused, waits, says("secret")], tools=[note]) as world:
        agent = await world.constellation.roster.get("ada")
        turns = [(await world.say("secret one")).id, (await world.say("secret two")).id, await world.submit("three")]
        await trio.testing.wait_all_tasks_blocked()
        turns += [await world.submit("secret too", policy="steer"), await world.submit("secret five")]
        assert await world.constellation.cancel(turns[-1])
        gate.set()
        await world.constellation.wait(turns[2])
    lines = {line.args["turn"]: line.args for line in caplog.records if isinstance(line.args, dict)}
    assert len(caplog.records) == len(lines) == len(turns)
    assert "secret" not in caplog.text + str(lines)
    assert lines[turns[0]] == {
        "constellation": "cst_test",
        "agent": agent.id,
        "turn": turns[0],
        "status": "completed",
        "code": None,
        "steps": 1,
        "model": "scripted/script-1",
        "input_tokens": 10,
        "output_tokens": 5,
        "cached_tokens": 0,
        "cost_microdollars": None,
        "is_estimate": False,
        "ms": 0,
    }
    assert [(lines[one]["status"], lines[one]["code"], lines[one]["steps"]) for one in turns[1:]] == [
        ("failed", "model_rejected", 1),
        ("completed", None, 2),
        ("completed", None, 0),
        ("cancelled", "cancelled", 0),
    ]


async def test_an_answer_that_breaks_off_again_and_again_fails() -> None:
    broken = Paced(answer=says("wrong answer"), shown=1, breaks=ModelServerError("it broke", provider="scripted"))
    async with acting(provider=ScriptedProvider(otherwise=broken, slice_chars=3)) as world:
        view = await world.say("hi")
        assert view.status == "failed"
        assert world.provider.asked == Limits().turn.attempts_max
        statuses = await world.database.read(rows, "SELECT status FROM step ORDER BY attempt")
        assert statuses == [("superseded",), ("failed",)]
        assert [(one.content, one.source_metadata) for one in view.messages[1:]] == [("wro", {"partial": "failed"})]


async def test_a_turn_that_takes_too_long_ends_in_a_limit(autojump_clock: trio.testing.MockClock) -> None:
    limits = Limits(turn=TurnLimits(turn_timeout_s=30.0, model_timeout_s=1000.0))
    slow = Paced(answer=says("late"), delay_s=500.0)
    async with acting([slow], limits=limits) as world:
        view = await world.constellation.wait(await world.submit("hi"))
        assert (view.status, (view.error or {})["code"]) == ("limit", "deadline")


@pytest.mark.parametrize(("refusals", "status"), [(SQUEEZES_MAX, "completed"), (SQUEEZES_MAX + 1, "failed")])
async def test_a_prompt_that_a_vendor_finds_too_long_is_made_shorter_a_few_times(refusals: int, status: str) -> None:
    too_long = WindowExceeded("too long", provider="scripted")
    summary = says("So far: words.")
    async with acting(otherwise=summary) as one:
        for number in range(12):
            await one.say(f"{number} " + "word " * 50)
        refused: list[int] = []

        def answer(request: ModelRequest) -> ModelReply | WindowExceeded:
            if any("keep the memory" in text for text in request.system) or len(refused) == refusals:
                return summary
            refused.append(len(request.messages))
            return too_long

        one.provider._otherwise = answer
        assert (await one.say("and now?")).status == status
        assert refused == sorted(refused, reverse=True)
        assert len(set(refused)) > 1


async def test_a_prompt_shows_the_agent_its_memory_its_tools_and_its_past() -> None:
    limits = Limits(turn=TurnLimits(output_tokens_max=77))
    script = [calls("note", {"text": "x"}), says("hi"), says("again")]
    async with running(script, tools=[note, shout], limits=limits) as one:
        spec = AgentSpec(
            name="ada",
            model_provider="scripted",
            model_name="script-1",
            system_prompt="Be brief.",
            config={"temperature": 0.5},
            enabled_tools=["note"],
            memory=[NewBlock(label="human", content="Likes tea.")],
        )
        await one.constellation.roster.create(spec, author=USER)
        await one.say("one")
        await one.say("two")
    first, next_step, second = one.provider.requests
    (instructions, how), (_, block) = first.system, first.memory
    assert (instructions, how) == ("Be brief.", MEMORY_AND_DATA)
    assert "human" in block
    assert "Likes tea." in block
    assert [tool.name for tool in first.tools] == ["note"]
    assert (first.model, first.temperature, first.max_output_tokens) == ("script-1", 0.5, 77)
    assert (second.system, second.memory) == (first.system, first.memory)  # the prefix that vendors cache
    assert [message.text for message in second.messages] == ["one", "", "", "hi", "two"]
    assert first.seed == next_step.seed != second.seed


class Counting(Meters):
    """Notes whom each step's answer is from as well."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[str] = []

    def step_done(self, provider: str, model: str, seconds: float, prompt_s: float) -> None:
        """A decision more."""
        self.steps.append(f"{provider}/{model}")


async def test_an_answer_in_many_pieces_is_stored_a_few_times_a_second(
    autojump_clock: trio.testing.MockClock,
) -> None:
    meters = Counting()
    answer = Paced(answer=says("word " * 100), between_s=0.02)  # 2 seconds
    async with acting(provider=ScriptedProvider([answer], slice_chars=5), meters=meters) as world:
        before = meters.commits
        assert (await world.say("go on")).status == "completed"
        assert 5 <= meters.commits - before <= 30


async def test_the_model_that_answers_is_named_and_paid() -> None:
    down = ModelServerError("out of order", provider="scripted")
    broken = Paced(answer=says("wrong answer"), shown=2, breaks=ModelServerError("it broke", provider="spare"))
    spare = ScriptedProvider([broken, says("here")], name="spare", slice_chars=3)
    took = Usage(input_tokens=1_000, output_tokens=100)
    prices = {
        provider: {model: ModelFacts(provider=provider, model=model, window=8_192, output_max=1_000, input_price=price,
                                     output_price=price)}
        for provider, model, price in (("scripted", "script-1", 1_000_000), ("spare", "m", 5_000_000))
    }  # fmt: skip
    meters = Counting()
    async with acting(
        [down, says("right", usage=took), down], others=[spare], catalogue=Catalogue(prices), meters=meters
    ) as world:
        config = {"routing": {"fallback_models": [{"provider": "spare", "model": "m"}]}}
        await world.constellation.roster.update("ada", {"config": config})
        view = await world.say("hi")
        assert [message.content for message in view.messages] == ["hi", "right"]
        [moved] = [event for event in await world.events(view.id) if event.name == "model.fallback"]
        assert moved.data["to"] == "spare/m"
        answered = "SELECT provider, model FROM step WHERE status = 'done'"
        assert await world.database.read(rows, answered) == [("scripted", "script-1")]
        paid = "SELECT provider, model, cost_microdollars FROM usage ORDER BY attempt"
        cut_off, answered_ = await world.database.read(rows, paid)
        assert (cut_off[:2], answered_) == (("spare", "m"), ("scripted", "script-1", 1_100))
        assert [message.content for message in (await world.say("and now?")).messages] == ["and now?", "here"]
        for table in ("step", "usage"):
            named = await world.database.read(rows, f"SELECT provider, model FROM {table} WHERE turn = 2")
            assert named == [("spare", "m")]
        assert meters.steps == ["scripted/script-1", "spare/m"]


# The prompt of a step: whom it asks, whether it fits, and what makes it fit.

WINDOW = 4_000


async def test_a_rule_of_routing_chooses_the_model_and_the_most_that_it_may_take_is_held() -> None:
    rule = {"condition": {"type": "tool_call", "tools": ["note"]}, "model": "other/big", "max_tokens_override": 3_000}
    gate = trio.Event()
    other = ScriptedProvider([Paced(answer=says("ok"), gate=gate)], name="other")
    async with running([calls("note", {"text": "x"})], others=[other], tools=[note]) as world:
        await world.agent(config={"context_window": WINDOW, "routing": {"rules": [rule]}})
        budget = BudgetRow(BudgetScope.CONSTELLATION, "", Period.TOTAL, Unit.TOKENS, 100_000)
        await world.constellation.budgets.put(budget)
        turn_id = await world.submit("go")
        await trio.testing.wait_all_tasks_blocked()
        [(held,)] = await world.database.read(rows, "SELECT tokens FROM reservation")
        assert 3_000 < int(str(held)) < WINDOW
        gate.set()
        assert (await world.constellation.wait(turn_id)).status == "completed"
    [first], [second] = world.provider.requests, other.requests
    assert (first.model, first.max_output_tokens) == ("script-1", WINDOW // 4)
    assert (second.model, second.max_output_tokens) == ("big", 3_000)


async def test_a_rule_of_cost_reads_what_was_spent_today() -> None:
    rule = {"condition": {"type": "cost_threshold", "max_usd": 0.01}, "model": "other/cheap"}
    dear = ModelFacts(
        provider="scripted", model="script-1", window=9_000, output_max=99, input_price=10**9, output_price=10**9
    )
    catalogue, other = Catalogue({"scripted": {"script-1": dear}}), ScriptedProvider(otherwise=says("ok"), name="other")
    async with running([calls("note", {"text": "x"})], others=[other], tools=[note], catalogue=catalogue) as world:
        await world.agent(config={"routing": {"rules": [rule]}})
        for asked in (1, 2):  # what the step before has just cost counts, and what an earlier turn cost
            assert (await world.say("go")).status == "completed"
            assert (world.provider.asked, other.asked) == (1, asked)


async def test_room_is_made_before_the_step_that_needs_it() -> None:
    gate = trio.Event()

    def before(request: ModelRequest) -> ModelReply:  # whose vendor counts as the estimate does
        return says("All right.", usage=Usage(input_tokens=estimate_request(request), output_tokens=5))

    def answer(request: ModelRequest) -> ModelReply | Paced:
        if any("keep the memory" in text for text in request.system):
            return says("So far: words.")
        return Paced(answer=says("ok"), gate=gate)

    async with acting(otherwise=before, tools=[note, shout]) as world:
        for _number in range(10):
            await world.say("word " * 400)
        await world.constellation.roster.update("ada", {"config": {"context_window": WINDOW}})
        world.provider._otherwise = answer
        turn_id = await world.submit("and now?")
        await trio.testing.wait_all_tasks_blocked()
        assert await world.names(turn_id) == ["turn.queued", "turn.started", "history.compacted", "step.started"]
        assert world.constellation._actors._running[turn_id].judge.compactions == [1]
        gate.set()
        assert (await world.constellation.wait(turn_id)).status == "completed"
    request = world.provider.requests[-1]
    assert estimate_request(request) + request.max_output_tokens <= WINDOW
    assert request.messages[-1].text == "and now?"


async def test_a_window_without_room_says_what_takes_it() -> None:
    async with running(tools=[note, shout]) as one:
        await one.agent(prompt="Be kind. " * 400, config={"context_window": 1_000})
        view = await one.say("hello")
        assert view.status == "limit"
        trouble = await one.constellation.window_trouble(await one.constellation.roster.get("ada"))
        await one.constellation.roster.update("ada", {"config": {}})
        assert await one.constellation.window_trouble(await one.constellation.roster.get("ada")) is None
    message = str((view.error or {})["message"])
    assert trouble is not None and message.partition("additions")[0] == trouble.partition("additions")[0]
    for words in ("the window of 1,000 tokens is too small", "2 tools need about", ", memory ", "context_window"):
        assert words in message


@pytest.mark.parametrize(("window", "status"), [(2_048, "completed"), (1_100, "limit"), (None, "limit")])
async def test_a_window_that_a_server_names_is_kept_to_from_then_on(window: int | None, status: str) -> None:
    def answer(request: ModelRequest) -> ModelReply | WindowExceeded:
        if window and request.max_output_tokens <= window // OUTPUT_SHARE:
            return says("fine")
        error = WindowExceeded("exceeds the available context size", provider="scripted", status=400)
        error.details["window"] = window
        return error

    async with running(otherwise=answer, tools=[note, shout]) as one:
        await one.agent(prompt="Be kind. " * 300)
        view = await one.say("hello")
        facts = one.constellation.models.facts("scripted", "script-1")
    assert view.status == status
    assert one.provider.asked == (1 if status == "limit" else 2)
    if status == "limit":
        known = f"{window:,} tokens, as its server says," if window else "8,192 tokens"
        assert f"the window of {known} is too small for a conversation" in str((view.error or {})["message"])
    assert (facts.window, facts.window_source == "server") == (window or 8_192, window is not None)


async def test_a_turn_knows_its_agents_past_and_where_it_came_from() -> None:
    rules: Json = [{"tool": "note", "type": "periodic", "seconds": 60}]
    async with acting([calls("note", {"text": "x"})], otherwise=says("ok"), tools=[note]) as one:
        await one.say("go")
        await one.constellation.roster.update("ada", {"tool_rules": rules})
        gate = trio.Event()
        one.provider._script = iter([Paced(answer=says("late"), gate=gate)])
        turn_id = await one.submit("again", sender="agent:agent_bob", source="schedule", depth=2)
        await trio.testing.wait_all_tasks_blocked()
        turn = one.constellation._actors._running[turn_id]
        assert turn.judge.last_ms == {"note": one.clock.now_ms()}, "a rule of time knows when the tool last ran"
        assert (turn.record.source, turn.record.depth) == ("schedule", 2)
        gate.set()
