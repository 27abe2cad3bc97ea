"""One turn: call the model, run its tool calls, call it again, until it makes none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby, takewhile
from operator import itemgetter

import trio

from pattern_core import images
from pattern_core.agent_settings import AgentSettings, settings_of
from pattern_core.agents import Agent
from pattern_core.answers import CUT, without_echo, without_run
from pattern_core.budgets.budget import TurnBudget
from pattern_core.compaction.summariser import SummaryUsage
from pattern_core.conversation.history import History
from pattern_core.errors import LimitReached
from pattern_core.events import Draft
from pattern_core.messages import Part, Reasoning, Text, ToolCall
from pattern_core.models.errors import ModelError, ModelRejected, NoAnswer, WindowExceeded, was_shown
from pattern_core.models.model import Delta, ModelFacts, ModelReply, TextDelta, Usage
from pattern_core.models.routing import CostThreshold, ModelChain, StepFacts, choose
from pattern_core.prompts.build import SECTIONS, Offered, Prompt
from pattern_core.prompts.collect import Look, Seen
from pattern_core.prompts.parts import NOTHING_FOUND, Findings, Kind, read_log
from pattern_core.rules import facts
from pattern_core.rules.rule import StepBorder
from pattern_core.rules.ruleset import RuleSet
from pattern_core.tools.registry import suited
from pattern_core.turns.admission import NO_OPTIONS, TurnOptions
from pattern_core.turns.calls import PlannedCall, TurnCalls, TurnServices
from pattern_core.turns.judge import Judge
from pattern_core.turns.record import CallRefused, Record
from pattern_core.turns.recovery import RunCalls
from pattern_core.turns.state import COMPLETED, Asking, DeadAttempt
from pattern_db.enums import Role, TrustLevel
from pattern_db.journal import budgets, turns
from pattern_db.journal.budgets import BudgetScope
from pattern_db.tables import agents, messages

ROOM_MIN = 100  # tokens: less has no room for a question
SQUEEZED_SHARE = 0.6  # share of a conversation that is shown again after a vendor found it too long …
SQUEEZES_MAX = 3  # … and how often within a step
EMPTY = "Your last answer was empty. Answer the last message in words."
ECHOED = "Your last answer copied parts of this prompt. Answer the last message in your own words."
_TAKERS: dict[str, str] = {  # what uses a window, by the kinds of a prompt's parts
    **dict.fromkeys((Kind.INSTRUCTIONS, Kind.GUIDE, Kind.RULES, Kind.CLIENT), "instructions"),
    **dict.fromkeys((Kind.CORE, Kind.PINNED, Kind.REFERRED, Kind.LOGS), "memory"),
}
OUTPUT_SHARE = 4  # an answer has at most one part in this many of the window, unless the agent's config allows more


class Turn:
    """One turn of one agent, from its first prompt to its end.

    Its methods are the moments that `record` stores. The record is flushed before any long wait. `run` is
    called within `scope`, which bounds its time.
    """

    def __init__(
        self, services: TurnServices, record: Record, settings: AgentSettings, options: TurnOptions = NO_OPTIONS
    ) -> None:
        self.record = record
        self.agent = record.agent
        self.scope = trio.CancelScope(deadline=record.deadline)
        self.stop_reason: str | None = None  # why it ends at its next step border
        self.joins = False  # messages join it at its next step border
        self.settings = settings
        self.bounds = TurnBudget()
        self.judge = Judge(now_ms=services.journal.clock.now_ms)
        self.calls = TurnCalls(services, record, self.judge, {tool.name for tool in options.tools})
        self.asking: Asking | None = None  # of the step that is open, or was last
        self.is_addressed = False  # a message joined after the newest decision, so it cannot be the last
        self.output_chars = 0  # that its model wrote
        self._services = services
        self._options = options
        self._has_looked = False  # for what its prompts show beyond the conversation …
        self._found: Findings | None = None  # … which is what the next one puts before the question
        self._notes: Sequence[str] = ()  # what the next prompt says at its end
        self._lacks_tools = False  # an MCP server had not listed them when the turn began
        self._squeezed: list[int] = []  # steps with a prompt that was too long for a vendor, once each time
        self._chain: ModelChain | None = None  # the models to call, chosen again only if routing rules require it
        self.wasted: Usage | None = None  # by the answer for which it failed
        self._asked_again = 0  # the last step with a discarded answer
        self._is_blind = False  # its model refused its images and is shown none
        record.on_refused = self.judge.finish

    def stop_at_border(self, reason: str) -> None:
        """End it at its next step border; the first reason stays, as in its row."""
        self.stop_reason = self.stop_reason or reason

    def stop(self, reason: str) -> None:
        """Cancel it."""
        self.stop_at_border(reason)
        self.scope.cancel()

    async def run(self, found: DeadAttempt | RunCalls | None = None) -> None:
        """Run the turn; return when it has ended, or waits: a person must answer, or the server drains.

        `found` says where an earlier process left it.

        Raises:
            ModelError: the provider failed permanently.
            LimitReached: a limit of the turn or a budget was reached, or the agent repeats itself.
            InvalidInput: the agent's settings are not valid.
            InDoubt: a call may have happened, and the agent's turns are set to fail then.
        """
        await self._prepare(found)
        planned = await self.calls.resume(found.calls, self.settings.on_doubt) if isinstance(found, RunCalls) else None
        dead = found if isinstance(found, DeadAttempt) else None
        while True:
            if planned is None:
                planned = await self.ask(await self.open_step(dead))
                if not planned and not self.joins and self.judge.exit(self.record.step).ends:
                    return await self.record.end(COMPLETED)
            border = await self.act(planned)
            if border is None:
                return None
            if self.joins:
                await self.join()
            if border.ends and not self.is_addressed:
                return await self.record.end(COMPLETED)
            self._notes, planned, dead = border.notes, None, None

    async def _prepare(self, found: DeadAttempt | RunCalls | None) -> None:
        """Read the agent's settings and rules, and what a restart needs of the turn."""
        services, agent = self._services, self.agent
        self.settings = settings_of(self._options.over(agent.config))
        self.bounds = self.settings.limits.over(services.models.limits(agent.model_provider))
        self.record.children_max = self.settings.limits.children
        self.judge.detectors = self.settings.detectors
        if services.mcp.by_name and (starting := services.mcp.pending(agent.enabled_tools)):
            # Tools of MCP servers may not be listed yet; the prompt says which are missing.
            await self.record.publish("mcp.starting", {"servers": [server.name for server in starting]})
            await services.mcp.ready(agent.enabled_tools)
            self._lacks_tools = bool(services.mcp.pending(agent.enabled_tools))
        if agent.tool_rules is not None:
            rules = self.judge.rules = RuleSet.of(agent.tool_rules)
            self.judge.tools = tuple(spec.name for spec in services.tools.specs(agent.enabled_tools))
            if timed := rules.timed(self.judge.tools):
                self.judge.last_ms = await services.journal.database.read(facts.read, agent.id, timed)
        if isinstance(found, DeadAttempt) and self.record.step > 1:
            with suppress(LimitReached):  # decided otherwise then
                self._notes = self.judge.border(self.record.step - 1).notes

    # T2: the step and its prompt

    async def open_step(self, dead: DeadAttempt | None = None) -> Asking:
        """T2: make the prompt of the next step, or of another attempt after a `dead` one, and open the step.

        Apart from the conversation, the first prompt shows only data in memory. The transaction that opens the step
        checks whether there is more; if so, it is searched and the step opened afterwards. If a part of the
        conversation is hidden, there is always more, so the check comes first. The findings stay with the question; a
        resumed turn already has them.

        Raises:
            LimitReached: a budget forbids it, or what was asked does not fit.
        """
        look: Look | None = None
        began_ms = self._services.journal.clock.now_ms()
        question, was_looked, self._has_looked = self.record.history.question, self._has_looked, True
        if not was_looked and question is not None and not question.note:
            self._found = NOTHING_FOUND
            if (sees_only := self.record.sees_only) is not None and self.record.trust is TrustLevel.SOURCE:
                await self.record.flush()  # who led to it is only in rows
                sees_only = self.record.sees_only
            if sees_only is None:
                look = await self._looking(began_ms)
        while True:
            asking = self.asking = await self._fitting(self.record.step + (dead is None))
            try:
                seen = await self.record.open_step(asking, look=look, dead=dead)
            except CallRefused:
                continue  # a result that it shows is an error now
            if seen is None:
                self.is_addressed = False  # the prompt shows what joined
                self._found = None
                asking.began_ms = began_ms
                return asking
            look = None
            await self._find_more(seen)

    async def _looking(self, now_ms: int) -> Look | None:
        """Return the check for what its prompts show beyond the conversation; None once that was found."""
        prompts, settings, history = self._services.prompts, self.settings.context, self.record.history
        agent_id, turn_id = self.agent.id, self.record.id
        self._found = Findings(parts=await prompts.recent(agent_id, turn_id, (), settings))
        look = partial(prompts.look, agent_id=agent_id, turn_id=turn_id, now_ms=now_ms)
        look = partial(look, history=history, settings=settings)
        is_partial = history.opening_tokens > 0 or history.session_id is not None
        if not (is_partial and settings.show.get(Kind.RECALLED, True)):
            return look
        await self._find_more(await self.record.look(look))
        return None

    async def _find_more(self, seen: Seen | None) -> None:
        """Search what the turn's prompts show in addition, after a check that found something."""
        if seen is not None:
            record, settings = self.record, self.settings.context
            self._found = await self._services.prompts.find(seen, self.agent.id, record.id, record.history, settings)

    async def _fitting(self, step: int) -> Asking:
        """Return the request of a step, after compacting the conversation if necessary.

        Raises:
            LimitReached: the message alone does not fit.
        """
        asking = await self._asking(step)
        history, room = self.record.history, asking.prompt.history_room
        if not history.opening.unloaded and history.tokens <= self.settings.compaction.threshold * room:
            return asking
        if room < ROOM_MIN:
            raise no_room(asking.prompt, self._facts())
        await self._make_room(step, room)
        return await self._asking(step)

    async def _make_room(self, step: int, room: int) -> None:
        services, record = self._services, self.record
        await record.flush()  # it archives stored messages, and may ask a model
        record.may_hold = True
        usage = SummaryUsage(
            models=services.models,
            journal=services.journal,
            agent_id=self.agent.id,
            turn=record.key,
            step=step,
            attempt=record.attempt,
        )
        made = await services.compaction.make_room(
            self.agent,
            record.history,
            turn=(record.key, record.id),
            running_from=record.batch_id,
            deadline=record.deadline,
            room=room,
            usage=usage,
        )
        if made.messages:
            self.judge.compactions.append(step)

    async def _asking(self, step: int) -> Asking:
        """Return the prompt of a step, and the models to call, with the worst-case cost."""
        services, agent = self._services, self.agent
        absent = services.mcp.absent(agent.enabled_tools) if self._lacks_tools else ()
        if self._chain is None or self.settings.routing.rules:
            self._chain = choose(self.settings.routing, await self._step_facts())
        known = self._facts()
        if known.window_source == "unasked":
            await self.record.flush()
            known = await services.models.learn(known.provider, known.model)
        window, output_max = room_of(known, self.settings, services)
        enabled = suited(agent.enabled_tools, known, window).enabled
        specs, alone = services.tools.specs(enabled), services.tools.specs(enabled, is_alone=True)
        if specs != alone and await services.journal.database.read(agents.count) == 1:
            specs = alone
        if self.record.sees_only is not None:
            specs = services.tools.for_strangers(specs)
        self.calls.offered = (*specs, *self._options.tools)
        self.judge.tools = [spec.name for spec in specs]
        offered = self.judge.offer(specs, step)
        prompt = await services.prompts.make(
            agent,
            self.record.history,
            Offered(
                tools=(*offered.tools, *self._options.tools),
                window=window,
                output_max=output_max,
                settings=self.settings,
                instructions=self._options.instructions,
                force_tool=offered.forced or (self._options.force_tool if step == 1 else None),
                rules=self.judge.rules.lines,
                notes=(*absent, *offered.notes, *self._notes),
            ),
            self._found,
            seed=self.record.seed,
        )
        return Asking(chain=self._chain, prompt=prompt, facts=services.models.facts)

    def _facts(self) -> ModelFacts:
        """Return the facts about the first model."""
        assert self._chain is not None  # chosen with each prompt
        first = self._chain.links[0]
        return self._services.models.facts(first.provider, first.model)

    async def _step_facts(self) -> StepFacts:
        agent, routing = self.agent, self.settings.routing
        now, spent = self._services.journal.now() if routing.rules else "", 0
        if any(isinstance(rule.condition, CostThreshold) for rule in routing.rules):
            await self.record.flush()  # the turn's spending so far is included
            today = await self._services.journal.database.read(budgets.spent, BudgetScope.AGENT, agent.id, since=now)
            spent = today.microdollars
        return StepFacts(
            provider=agent.model_provider,
            model=agent.model_name,
            tokens=self.record.history.tokens,
            spent_today=spent,
            tools_called=frozenset(call.tool for call in self.judge.calls.values()),
            hour=int(now[11:13] or 0),
            source=self.record.source,
        )

    # T3: the answer

    async def ask(self, asking: Asking) -> list[PlannedCall]:
        """Ask the model and record its decision (T3); return the calls that it wants, planned.

        An answer that breaks off is superseded by another attempt, and clients drop what they showed; so is a prompt
        that turns out too long for the model, after a compaction.

        Raises:
            ModelError: the provider failed permanently.
            LimitReached: the calls exceed a limit of the turn.
        """
        services, record, judge = self._services, self.record, self.judge
        writer = DeltaWriter(record, services)
        kept: tuple[ModelReply, str] | None = None
        while kept is None:
            asking.asked_ms = services.journal.clock.now_ms()
            try:
                kept = await self._kept(await self._answer(asking, writer), asking)
            except ModelError as error:
                asking = await self.open_step(await self._after_failure(asking, error))
                writer = DeltaWriter(record, services)  # the shown part of the failed attempt is invalid
        reply, cut_off = kept
        if asking.index == 0:  # the prompt was counted for the model that is asked first
            services.prompts.learn(self.agent.id, asking.prompt, reply.usage)
        reply = self.calls.meant(reply)
        if judge.rules.rules:
            reply = judge.completed(reply, self.calls.offered, record.step, self.calls.forced)
        planned = self.calls.plan([part for part in reply.parts if isinstance(part, ToolCall)])
        for part in reply.parts:
            if isinstance(part, Text | Reasoning):
                self.output_chars += len(part.text)
                if part.text and isinstance(part, Text):
                    judge.said.add(record.step)
        record.decide(reply, asking, [one.row for one in planned], rest=writer.rest(), cut_off=cut_off)
        return planned

    async def _answer(self, asking: Asking, writer: DeltaWriter) -> ModelReply:
        """Call the models of the step in order; events report retries and fallbacks."""
        services, record, prompt = self._services, self.record, asking.prompt

        async def on_retry(attempt: int, error: ModelError, wait_s: float) -> None:
            await record.publish(
                "model.retry",
                {"attempt": attempt, "code": error.code, "wait_s": round(wait_s, 3), "message": error.message},
            )

        async def on_move(index: int, error: ModelError) -> None:
            failed, following = asking.chain.links[asking.index], asking.chain.links[index]
            asking.index = index
            data = {
                "from": f"{failed.provider}/{failed.model}",
                "to": f"{following.provider}/{following.model}",
                "why": error.code,
                "message": error.message,
            }
            await record.publish("model.fallback", data)

        request, first = prompt.request, asking.chain.links[0]
        if self.record.history.has_images:
            takes = services.models.facts(first.provider, first.model).images and not self._is_blind
            request = await images.shown_to(services.journal.database, request, takes_images=takes)
        return await services.models.ask(
            request,
            asking.chain,
            writer.on_delta,
            record.deadline,
            on_retry,
            on_move,
            flow=services.constellation_id,
        )

    async def _kept(self, reply: ModelReply, asking: Asking) -> tuple[ModelReply, str]:
        """Return a reply without copies of its prompt and repetitions, and why its text is incomplete (empty: it is
        complete).

        Raises:
            NoAnswer: it copied for the first time in its step, or nothing of the answer is left.
        """
        request, is_instructed = asking.prompt.request, bool(self._options.instructions)
        ours = request.system[bool(self.agent.system_prompt) : len(request.system) - is_instructed]
        guide = (*ours, *request.memory[:1], *SECTIONS.values())
        cut_off: str = reply.finish_reason if reply.finish_reason in CUT else ""
        parts: list[Part] = []
        has_echo = has_words = has_calls = False
        for part in reply.parts:
            if isinstance(part, ToolCall):
                has_calls = True
            elif isinstance(part, Text):
                once = without_run(part.text)
                answer = without_echo(once, guide=guide, memory=request.memory)
                cut_off, has_echo = cut_off if once == part.text else "repetition", has_echo or answer != once
                part = part if answer == part.text else Text(text=answer)
                has_words = has_words or bool(part.text.strip())
            parts.append(part)
        kept = reply if parts == [*reply.parts] else replace(reply, parts=tuple(parts))
        if has_calls:
            return kept, ""
        if (has_echo and self._asked_again != self.record.step) or (not has_words and await self._owes_words()):
            what = "only words of its prompt" if has_echo else "nothing"
            words = f"the model answered {what} (finish reason: {reply.finish_reason}), also when it was asked again"
            advice = "say it in other words, or give the agent a larger model"
            if reply.finish_reason == "length":
                advice = "raise max_output_tokens, or lower reasoning_effort"
            raise NoAnswer(
                f"{words}; {advice}",
                provider=asking.chain.links[asking.index].provider,
                reminder=ECHOED if has_echo else EMPTY,
                usage=reply.usage,
            )
        return kept, cut_off

    async def _owes_words(self) -> bool:
        """Return whether the turn would end now without a text for a person: no tool has just sent one."""
        if self.joins or self.record.depth or not self.judge.exit(self.record.step).ends:
            return False
        stored = await self._services.journal.database.read(messages.by_batch, self.agent.id, self.record.batch_id)
        newest = takewhile(lambda row: row.is_said_by_call or row.role is Role.TOOL, reversed(stored))
        return not any(row.is_said_by_call for row in newest)

    async def _after_failure(self, asking: Asking, error: ModelError) -> DeadAttempt:
        """Prepare another attempt of the step, if that may help.

        Raises:
            ModelError: it would not help, or was tried often enough.
        """
        step = self.record.step
        if isinstance(error, NoAnswer):
            if self._asked_again == step:
                self.wasted = error.usage
                raise error
            self._asked_again = step
            self._notes = (*self._notes, error.reminder)
            return DeadAttempt(is_charged=True, asking=asking, used=error.usage, why=error.code)
        if isinstance(error, WindowExceeded) and self._squeezed.count(step) < SQUEEZES_MAX:
            # The estimate or the catalogue is wrong. Nothing was answered, so nothing is charged.
            self._squeezed.append(step)
            window, _output_max = room_of(self._facts(), self.settings, self._services)
            if window < read_log(asking.prompt.log.stable.parts).window:
                return DeadAttempt(is_charged=False)  # the server named it, and the next prompt keeps to it
            self._found = NOTHING_FOUND  # what is not needed leaves first
            room = int(self.record.history.tokens * SQUEEZED_SHARE)
            try:
                await self._make_room(step, room)
            except LimitReached:
                if room < ROOM_MIN:  # it is not the message that is too long
                    raise no_room(asking.prompt, self._facts()) from error
                raise
            return DeadAttempt(is_charged=False)
        if type(error) is ModelRejected and self.record.history.has_images and not self._is_blind:
            self._is_blind = True  # a vendor that refuses an image refuses every prompt with it
            return DeadAttempt(is_charged=False)
        if error.retryable and was_shown(error) and self.record.attempt < self._services.limits.turn.attempts_max:
            return DeadAttempt(is_charged=True, asking=asking)
        raise error

    # T4 to T6: the calls, and what follows them

    async def act(self, planned: Sequence[PlannedCall]) -> StepBorder | None:
        """Run the calls, and those of rules after them; return None if the turn waits now.

        Raises:
            LimitReached: a limit is exceeded, or the agent repeats itself.
        """
        self.bounds.check(
            steps=self.record.step + 1,
            tool_calls=len(self.judge.calls),
            children=self.record.children,
            output_chars=self.output_chars,
        )
        while await self.calls.run(planned):
            if self.stop_reason is not None:
                self.stop(self.stop_reason)
                await trio.lowlevel.checkpoint()  # it ends here
            border = self.judge.border(self.record.step)
            if (border.ends or border.forced) and self.record.holds_work:
                await self.record.flush()  # a call with refused writes does not end the turn
                border = self.judge.border(self.record.step)
            if self._services.is_draining():
                await self.record.flush()
                return None
            if not border.forced:
                return border
            calls = self.calls.forced(border.forced)
            planned = self.calls.plan(calls)
            self.record.force(calls, [one.row for one in planned])
        await self.record.wait()
        self._services.consent.approvals.changed()
        return None

    async def join(self) -> None:
        """Add the messages that join the turn; cancelled ones are left out."""
        self.joins = False
        joining = await self._services.journal.database.read(
            turns.steering_messages, self.agent.id, self.record.history.session_id
        )
        if joining and await self.record.join(joining):
            self.is_addressed = True
            self._found = NOTHING_FOUND


@dataclass(slots=True)
class DeltaWriter:
    """Stores an answer's pieces as they arrive: the first immediately, or soon if no stream waits for it; then those of
    each tenth of a second.

    An answer that arrives completely is not stored in pieces; its message is the event.
    """

    record: Record
    services: TurnServices
    _waiting: list[tuple[str, str]] = field(default_factory=list)
    _chars: int = 0
    _flushed_at: float = float("-inf")

    async def on_delta(self, delta: Delta) -> None:
        """Add a piece; store the collected ones if it is time."""
        name = "text.delta" if isinstance(delta, TextDelta) else "reasoning.delta"
        self._waiting.append((name, delta.text))
        self._chars += len(delta.text)
        limits = self.services.limits
        due = self._flushed_at + limits.delta_flush_s
        if trio.current_time() >= due or self._chars >= limits.delta_flush_chars:
            self.record.say(self.rest())
            is_first, self._flushed_at = self._flushed_at < 0, trio.current_time()
            if is_first and limits.delta_flush_s and not self.services.journal.events.is_heard(self.record.id):
                self.services.flush_late(self.record)
            else:
                await self.record.flush()

    def rest(self) -> list[Draft]:
        """Return the pieces that were not stored yet, to be stored with the decision."""
        place = {"step": self.record.step, "attempt": self.record.attempt}
        drafts = [
            Draft(name, {**place, "text": "".join(text for _name, text in pieces)})
            for name, pieces in groupby(self._waiting, key=itemgetter(0))
        ]
        self._waiting, self._chars = [], 0
        return drafts


def room_of(known: ModelFacts, settings: AgentSettings, services: TurnServices) -> tuple[int, int]:
    """Return the window for an agent's prompts and answers, and the longest answer, in tokens."""
    window = min(settings.context_window, known.window)
    bounds = services.limits.turn.output_tokens_max, known.output_max, max(window // OUTPUT_SHARE, 1)
    return window, settings.max_output_tokens or min(bounds)


async def window_trouble(services: TurnServices, agent: Agent) -> str | None:
    """Return why an agent cannot answer the shortest message in its model's window; None if it can."""
    settings = settings_of(agent.config)
    known = await services.models.learn(agent.model_provider, agent.model_name)
    window, output_max = room_of(known, settings, services)
    offered = Offered(
        tools=services.tools.specs(suited(agent.enabled_tools, known, window).enabled),
        window=window,
        output_max=output_max,
        settings=settings,
        rules=RuleSet.of(agent.tool_rules).lines,
    )
    prompt = await services.prompts.make(agent, History(), offered, NOTHING_FOUND, seed=0)
    return no_room(prompt, known).message if prompt.history_room < ROOM_MIN else None


def no_room(prompt: Prompt, known: ModelFacts) -> LimitReached:
    """Return what uses the window, and what to do about it. `known` are facts about the prompt's model."""
    stable, volatile = read_log(prompt.log.stable.parts), read_log(prompt.log.volatile.parts)
    taken = Counter[str]()
    for part in (*stable.parts, *volatile.parts):
        taken[_TAKERS.get(part.kind, "extras")] += part.tokens
    says_so = ", as its server says," if known.window_source == "server" and stable.window == known.window else ""
    return LimitReached(
        f"the window of {stable.window:,} tokens{says_so} is too small for a conversation: the descriptions of the"
        f" {stable.tool_count} tools need about {stable.tool_tokens:,}, instructions {taken['instructions']:,}, memory"
        f" {taken['memory']:,}, additions to the message (activity, tasks, passages, the time) "
        f"{taken['extras']:,}, and {prompt.request.max_output_tokens:,} are reserved for the answer. Enable "
        f"fewer tools"
        " (enabled_tools), shorten the memory, lower max_output_tokens, or use a larger window (its server's, "
        "if that is small; context_window; or another model)"
    )
