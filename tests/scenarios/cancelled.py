"""Scenarios that are cut off at each checkpoint of their turns, in three ways, and what must hold afterwards.

    python -m tests.scenarios.cancelled [--every 1] [--scene consent]

An instrument counts the steps of the agents' tasks and of the tasks that these started, and cuts off at the n-th: so a
cancellation arrives at each checkpoint in turn. The test command takes a share of them; this one takes all.

    asked       a client cancels the turn
    late        the turn's time is over: its scope is cancelled in this very moment
    stopped     the whole constellation is cancelled, and another one continues with its file
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Literal, TypeVar, get_args

import trio
import trio.testing

from pattern_core.approvals import ApprovalAnswer
from pattern_core.budgets.budget import Budget
from pattern_core.conversation.history import load_history
from pattern_core.errors import Conflict
from pattern_core.events import read
from pattern_core.limits import Limits, PromptLimits
from pattern_core.messages import Message, ToolResult
from pattern_core.models.errors import ModelServerError, ModelUnreachable
from pattern_core.models.model import ModelReply, ModelRequest, Usage
from pattern_core.models.tokens import estimate_request
from pattern_core.rules.facts import FORCED_PREFIX
from pattern_core.testing.model import NO_USAGE, Answer, Paced, ScriptedProvider, calls, says, together
from pattern_core.tools.builtin.send_message import send_message
from pattern_core.tools.tool import ToolContext, tool
from pattern_db.columns import Json
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.enums import ApprovalStatus, EffectClass
from pattern_db.journal.budgets import BudgetScope, Period, Unit
from tests.crash.rows import at_rest, complete, state_of
from tests.support import USER, Outside, Running, in_memory, note, running, shout

T = TypeVar("T")
Way = Literal["asked", "late", "stopped"]
WAYS: tuple[Way, ...] = get_args(Way)
SPARE = "spare"  # the provider to fall back on
WALL_S = 50.0  # of a turn, in stopped time
PATIENCE_S = 1_000.0  # in stopped time: a longer wait never ends
BUDGET = Budget(BudgetScope.CONSTELLATION, "", Period.TOTAL, Unit.TOKENS, 10**9)  # so that every call is held for


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A small scenario: what the model decides step by step, the agent's config and rules, how often it spoke before.

    `expects` is an event without which the scenario is not what it is meant to be. `joins`: another message follows
    at once. `fails` gives what the first question is answered with instead.
    """

    name: str
    expects: str
    decisions: Sequence[ModelReply | Paced] = ()
    config: Mapping[str, Json] = field(default_factory=dict)
    rules: Json = None
    past: int = 0
    slice_chars: int | None = None
    joins: bool = False
    fails: Callable[[], Answer] | None = None


def _breaks() -> Answer:
    broken = ModelUnreachable("the line broke", provider="scripted")
    return Paced(answer=says("half of an ans"), breaks=broken, shown=1)


def _down() -> Answer:
    return ModelServerError("out of order", provider="scripted")


_MAIL, _PUT = calls("mail", {"to": "bob"}), calls("put", {"text": "x"})
_NOTE, _SHOUT = calls("note", {"text": "n"}), calls("shout", {"text": "s"})
_DEAR = calls("note", {"text": "n"}, usage=Usage(input_tokens=1_500, output_tokens=10))
SCENES = (
    Scene(name="plain", expects="turn.completed"),
    Scene(name="local", expects="noted", decisions=[_NOTE, together(_NOTE, _SHOUT)]),
    Scene(name="streamed", expects="turn.completed", decisions=[calls("note", {"text": "n"}, text="a word or two")],
          slice_chars=5),
    Scene(name="parallel", expects="noted", decisions=[together(_MAIL, _PUT, _NOTE, _SHOUT)]),
    Scene(name="consent", expects="turn.resumed", decisions=[together(calls("pay", {"to": "eve"}), _NOTE)]),
    Scene(name="compaction", expects="history.compacted", past=12,
          decisions=[_NOTE], config={"context_window": 1_000, "max_output_tokens": 60}),
    Scene(name="fallback", expects="model.fallback", decisions=[_NOTE], fails=_down,
          config={"routing": {"fallback_models": [{"provider": "spare", "model": "m"}]}}),
    Scene(name="again", expects="step.superseded", decisions=[_NOTE], fails=_breaks),
    Scene(name="steered", expects="message.joined", joins=True,
          decisions=[Paced(answer=_NOTE, delay_s=1.0), _PUT]),
    Scene(name="budget", expects="turn.limit", decisions=[_DEAR] * 9,
          config={"limits": {"tokens": 3_500}, "max_output_tokens": 100}),
    Scene(name="forced", expects="signed", rules=[{"tool": "sign", "type": "required_before_exit"}]),
    Scene(name="delivered", expects="turn.completed",
          decisions=[calls("send_message", {"to": "bob", "content": "hello bob"})]),
)  # fmt: skip


class Cutter(trio.abc.Instrument):
    """Counts the steps of the agents' tasks while it is armed, and calls `cut` before the `at`-th."""

    def __init__(self, at: int | None) -> None:
        self.steps = 0
        self.is_armed = False
        self.has_cut = False
        self.cut: Callable[[], None] = lambda: None
        self._at = at

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Trio is about to run a task up to its next checkpoint."""
        if not self.is_armed or not _is_of_an_agent(task):
            return
        self.steps += 1
        if self.steps == self._at:
            self.has_cut = True
            self.cut()


def _is_of_an_agent(task: trio.lowlevel.Task | None) -> bool:
    while task is not None:
        if task.name.startswith("agent "):
            return True
        task = None if task.parent_nursery is None else task.parent_nursery.parent_task
    return False


def model_of(scene: Scene, name: str = "scripted") -> ScriptedProvider:
    """A model whose decisions follow from what it is shown, so that it is the same after a restart."""
    failures = [] if scene.fails is None or name == SPARE else [scene.fails()]

    def counted(request: ModelRequest) -> ModelReply | Paced | Exception:
        reply = answer(request)
        if isinstance(reply, ModelReply) and reply.usage is NO_USAGE:
            # Else an agent would learn that the vendor counts next to nothing.
            return replace(reply, usage=Usage(input_tokens=estimate_request(request), output_tokens=5))
        return reply

    def answer(request: ModelRequest) -> ModelReply | Paced | Exception:
        if request.messages[-1].text.endswith("Now write the summary."):
            return says("They greeted each other.")
        start = max(at for at, message in enumerate(request.messages) if message.role == "user")
        if not request.messages[start].text.startswith("go"):
            return says("As you wish.")
        if failures:
            return failures.pop()  # type: ignore[return-value]  # a scene's failure is no function
        taken = sum(_is_decision(message) for message in request.messages[start:])
        return scene.decisions[taken] if taken < len(scene.decisions) else says("I am done.")

    return ScriptedProvider(otherwise=counted, slice_chars=scene.slice_chars, name=name)


def _is_decision(message: Message) -> bool:
    is_forced = any(call.call_id.startswith(FORCED_PREFIX) for call in message.tool_calls)
    return message.role == "assistant" and not is_forced


@tool(effect=EffectClass.LOCAL)
async def sign(context: ToolContext) -> str:
    """Sign that the work is done."""
    context.work.event("signed", {})
    return "signed"


@tool(effect=EffectClass.UNSAFE, consent=lambda _arguments: "it costs money")
async def pay(_context: ToolContext, to: Annotated[str, "Whom."]) -> str:
    """Pay a person."""
    await trio.lowlevel.checkpoint()
    OUTSIDE.done.append(("pay", to))
    return "paid"


# Made once, since that takes longer than a trial: trials run one after another.
OUTSIDE = Outside()
TOOLS = [note, shout, sign, pay, send_message, *OUTSIDE.tools]


@dataclass
class Trial:
    """One scenario, cut off once (or, with `at` None, not at all)."""

    scene: Scene
    way: Way = "asked"
    at: int | None = None
    requests: list[ModelRequest] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    is_left: bool = False  # without recovery after the cut: the check must find something
    _span: tuple[int, int] = (0, 0)  # of the numbers of the events of the scenario itself

    def run(self) -> Cutter:
        """Lead the scenario; raises AssertionError with what does not hold."""
        OUTSIDE.done.clear()
        self.cutter = Cutter(self.at)
        self.clock = trio.testing.MockClock(autojump_threshold=0)
        trio.run(self._lead, clock=self.clock, instruments=[self.cutter])
        return self.cutter

    async def _lead(self) -> None:
        async with in_memory() as database:
            async with self._opened(database) as one:
                await self._prepare(one)
                await self._use(one)
            self.cutter.is_armed = False
            if not self.is_left:
                async with self._opened(database) as again:
                    await rest(again)
                    view = await again.say("and now?")
                    assert view.status == "completed", view
            await self._check(database)

    @asynccontextmanager
    async def _opened(self, database: Database) -> AsyncIterator[Running]:
        provider, spare = model_of(self.scene), model_of(self.scene, SPARE)
        limits = Limits(prompt=PromptLimits(history_messages_max=200), delta_flush_s=0.0)
        async with running(
            provider=provider, others=[spare], tools=TOOLS, database=database, limits=limits, budgets=[BUDGET]
        ) as one:
            try:
                one.nursery.start_soon(person, one)
                yield one
            finally:
                self.requests += [*provider.requests, *spare.requests]

    async def _prepare(self, one: Running) -> None:
        for name in ("ada", "bob"):
            await one.agent(name)
        for number in range(self.scene.past):
            await one.say(f"hello {number}, " + "how are you today? " * 12)
        config = {"limits": {"wall_s": WALL_S}, **self.scene.config}
        if "limits" in self.scene.config:
            config["limits"] = {"wall_s": WALL_S, **self.scene.config["limits"]}
        await one.constellation.roster.update("ada", {"config": config, "tool_rules": self.scene.rules})

    async def _use(self, one: Running) -> None:
        asked = trio.Event()
        cuts: Mapping[Way, Callable[[], None]] = {
            "asked": asked.set,
            "late": partial(self.clock.jump, 2 * WALL_S),
            "stopped": one.nursery.cancel_scope.cancel,
        }
        self.cutter.cut = cuts[self.way]
        self.cutter.is_armed = True
        began = one.constellation.events.latest
        turn_id = await one.submit("go")
        one.nursery.start_soon(_cancel, one, turn_id, asked)
        if self.scene.joins:
            await trio.sleep(0.5)
            await one.submit("and this", policy="steer")
        await rest(one)
        self.cutter.is_armed = False
        self._span = (began, one.constellation.events.latest)
        assert (await one.say("are you there?")).status == "completed"

    async def _check(self, database: Database) -> None:
        problems = await database.read(problems_of)
        problems += [problem for request in self.requests for problem in unanswered(request.messages)]
        mails = [what for what, _about in OUTSIDE.done if what in ("mail", "pay")]
        if len(set(mails)) != len(mails):
            problems.append(f"repeated: {mails}")
        if len({key for what, key in OUTSIDE.done if what == "put"}) > 1:
            problems.append(f"repeated: put under several keys: {OUTSIDE.done}")
        first, last = self._span
        self.names = {event.name for event in await database.read(read, first) if event.seq <= last}
        assert not problems, (self.scene.name, self.way, self.at, problems)


class CutDatabase(Database):
    """Dies at its n-th commit: `before` it, with nothing stored, or `after` it, with nothing announced."""

    commits = 0
    cut: tuple[int, str] | None = None
    die: Callable[[], None]

    def cut_at(self, number: int, phase: str, life: Running) -> None:
        """Count commits from now on; at the `number`-th (0: never), kill this life of the constellation."""
        self.commits, self.cut, self.die = 0, (number, phase), life.nursery.cancel_scope.cancel

    async def write_and_announce(self, fn: Callable[[Connection], T], announce: Callable[[T], None]) -> T:
        """As the product's, until it dies."""
        self.commits += 1
        number, phase = self.cut or (0, "")
        if self.commits != number:
            return await super().write_and_announce(fn, announce)
        if phase == "after":
            await super().write_and_announce(fn, lambda _value: None)
        self.die()
        await trio.sleep_forever()
        raise AssertionError("dead")


async def person(one: Running) -> None:
    """Agree to everything, also to what was asked before."""
    seen = 0
    while True:
        for approval in await one.constellation.approvals.list(9):
            if approval.status is ApprovalStatus.PENDING:
                with suppress(Conflict):  # its turn was cancelled meanwhile
                    await one.constellation.approvals.decide(approval.id, ApprovalAnswer(approve=True, by=USER))
        stream = one.constellation.events.subscribe(after=seen)
        async for event in stream:
            seen = event.seq
            if event.name == "approval.requested":
                break


async def _cancel(one: Running, turn_id: str, asked: trio.Event) -> None:
    await asked.wait()
    await one.constellation.cancel(turn_id)


async def rest(one: Running) -> None:
    with trio.fail_after(PATIENCE_S):
        while await one.database.read(_unfinished):
            await trio.sleep(0.1)


def _unfinished(connection: Connection) -> int:
    count: int = connection.execute("SELECT count(*) FROM turn WHERE ended_at IS NULL").get
    return count


def problems_of(connection: Connection) -> list[str]:
    state = state_of(connection, "PRAGMA quick_check", complete(connection))
    problems = [*state.problems, *at_rest(connection, state)]
    for agent_id in {turn.agent_id for turn in state.turns.values()}:
        history = load_history(connection, agent_id, PromptLimits(), active=None, is_untrusted=lambda _tool: True)
        problems += unanswered(history.messages)
    return problems


def unanswered(messages: Sequence[Message]) -> Iterator[str]:
    """What no vendor would accept: a call that is not answered before the next words, or an answer to no call."""
    open_calls: set[str] = set()
    for message in messages:
        results = {part.call_id for part in message.parts if isinstance(part, ToolResult)}
        if results - open_calls:
            yield f"divergent: results {results - open_calls} of no call"
        open_calls -= results
        if message.role != "tool" and open_calls:
            yield f"divergent: the calls {open_calls} have no results before {message.role} {message.text[:50]!r}"
        open_calls |= {call.call_id for call in message.tool_calls}
    if open_calls:
        yield f"divergent: the calls {open_calls} have no results at the end"


def points(scene: Scene) -> int:
    """How many steps the scenario's agents take without a cut."""
    trial = Trial(scene)
    cutter = trial.run()
    assert scene.expects in trial.names, (scene.name, trial.names)
    return cutter.steps


def lead(scene: Scene, every: int, *, offset: int = 0) -> tuple[int, int]:
    """Cut the scenario off at each `every`-th checkpoint in each way; how many points there are and were taken."""
    count, taken = points(scene), 0
    for place, way in enumerate(WAYS):
        for at in range(1 + (offset + place) % every, count + 1, every):
            taken += Trial(scene, way, at).run().has_cut
    return count, taken


def main() -> int:
    """Read the command line, lead the scenarios, say how many points there were."""
    parser = argparse.ArgumentParser(prog="python -m tests.scenarios.cancelled", description=__doc__)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--scene", choices=[scene.name for scene in SCENES])
    options = parser.parse_args()
    for scene in SCENES:
        if options.scene in (None, scene.name):
            count, taken = lead(scene, options.every)
            sys.stdout.write(f"{scene.name:<12}{count:>6} checkpoints, cut off {taken} times\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
