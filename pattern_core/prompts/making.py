"""Making prompts: collect, gate, rank, budget, place, note. Everything that waits is here; the decisions are beside it.

What is found beyond memory (passages, activity, tasks) is found once per turn, for its first prompt in this process,
and shown in all of the turn's steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from weakref import WeakKeyDictionary

from pattern_core.again import Again
from pattern_core.clock import Clock, now_text
from pattern_core.conversation.history import History
from pattern_core.errors import NotFound
from pattern_core.memory.store import MemoryStore
from pattern_core.messages import Message, Text, ToolResult
from pattern_core.models.model import ToolSpec, Usage
from pattern_core.prompts.activity import Lately
from pattern_core.prompts.blocks import BlockParts, block_parts
from pattern_core.prompts.budget import fit
from pattern_core.prompts.calibration import Calibration, last_calls
from pattern_core.prompts.conversation import Conversations
from pattern_core.prompts.guide import DEFAULT_INSTRUCTIONS, guide, rules
from pattern_core.prompts.parts import Kind, Part
from pattern_core.prompts.prompt import Halves, Prompt, PromptInput, build_prompt, halves_of, has_opening
from pattern_core.prompts.recalled import Question, Recalled, Searching, recall
from pattern_core.prompts.sampling import Sampling
from pattern_core.prompts.settings import ContextSettings
from pattern_core.prompts.tasks import TASKS_MAX, task_parts
from pattern_core.tools.registry import ToolRegistry
from pattern_db.columns import iso
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.enums import SearchKind
from pattern_db.tables import activity, prompts, tasks
from pattern_db.tables.activity import Mark, NotedActivity, TurnActivity
from pattern_db.tables.agents import AgentRow
from pattern_db.tables.tasks import OpenTask

IN_VIEW_MAX = 100  # newest messages that a passage is compared with, so that nothing is shown twice
HOUR_MS = 3_600_000
MINUTE_CHARS = len("2026-01-31T14:05")


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """What the turn's step decides of its prompt: tools, their rules in words, how to answer, the model's window.

    `notes` are what the model is to be reminded of at the prompt's end.
    """

    tools: Sequence[ToolSpec]
    window: int
    sampling: Sampling
    context: ContextSettings = field(default_factory=ContextSettings)
    rules: Sequence[str] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What was found for a turn beyond its conversation, shown in all its prompts."""

    recalled: Recalled = field(default_factory=Recalled)
    tasks: Sequence[Part] = ()
    activity: Sequence[Part] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Rows that one look into the tables found: what can be searched, open tasks, what others did."""

    findable: Sequence[SearchKind] = ()
    tasks: Sequence[OpenTask] = ()
    turns: Sequence[TurnActivity] = ()
    noted: Sequence[NotedActivity] = ()


Look = Callable[[Connection], Seen | None]
"""Looks for what a prompt should show beyond the conversation; None if there is nothing."""

NOTHING_FOUND, _NOTHING_SEEN = Findings(), Seen()


@dataclass(kw_only=True)
class Prompts:
    """Makes the prompts of one constellation's agents."""

    database: Database
    memory: MemoryStore
    search: Searching
    tools: ToolRegistry
    clock: Clock
    _calibration: Calibration = field(default_factory=Calibration, init=False)
    _conversations: Conversations = field(init=False)
    _lately: Lately = field(default_factory=Lately, init=False)
    _again: WeakKeyDictionary[History, Again] = field(default_factory=WeakKeyDictionary, init=False)

    def __post_init__(self) -> None:
        self._conversations = Conversations(self._is_foreign)

    async def make(self, agent: AgentRow, history: History, offered: Offered, found: Findings, *, seed: int) -> Prompt:
        """Return what the agent's model is shown now."""
        settings = offered.context
        again = self._again.get(history)
        if again is None:
            again = self._again[history] = Again()  # from one step to the next little changes
        conversation = self._conversations.shown(history)
        blocks = await block_parts(self.memory, agent.id, newest_words(conversation.messages), again)
        halves = again(
            _halves,
            again,
            (agent.system_prompt, offered.rules, blocks, found, now_text(self.clock)[:MINUTE_CHARS]),
            (offered.notes, settings, offered.window, offered.tools, has_opening(conversation.messages)),
        )
        return build_prompt(
            PromptInput(
                model=agent.model_name,
                halves=halves,
                conversation=conversation,
                cursor=history.cursor,
                history_digest=history.digest,
                tools=offered.tools,
                sampling=offered.sampling,
                seed=seed,
                window=offered.window,
                ratio=await self._ratio(agent.id, agent.model_name),
            )
        )

    async def _ratio(self, agent_id: str, model: str) -> float:
        """What to multiply estimates by; looked up once in the rows, then only learnt."""
        if not self._calibration.is_known(agent_id, model):
            calls = await self.database.read(last_calls, agent_id, model)
            self._calibration.restore(agent_id, model, calls)
        return self._calibration.ratio(agent_id, model)

    def learn(self, agent_id: str, prompt: Prompt, usage: Usage) -> None:
        """Note what the vendor counted for the prompt, so that the next one is estimated better."""
        if not usage.is_estimate:
            model, estimate = prompt.request.model, prompt.estimate
            self._calibration.learn(agent_id, model, estimated=estimate, counted=usage.input_tokens)

    def look(self, agent_id: str, turn_id: str, history: History, settings: ContextSettings) -> Look:
        """Return the look for what a turn's prompts should show beyond the conversation, to run in a transaction."""
        before = history.first
        since = iso(self.clock.now_ms() - settings.activity_hours * HOUR_MS)

        def look(connection: Connection) -> Seen | None:
            seen = _seen(connection, self._lately, (agent_id, turn_id), settings, before, since)
            return None if seen == _NOTHING_SEEN else seen

        return look

    async def find(self, seen: Seen, agent_id: str, history: History, settings: ContextSettings) -> Findings:
        """Return what a turn's prompts show beyond the conversation; it may take as long as one search may."""
        now = now_text(self.clock)
        recalled = Recalled()
        if seen.findable and Kind.RECALLED not in settings.hidden:
            conversation = self._conversations.shown(history)
            blocks = await block_parts(self.memory, agent_id, newest_words(conversation.messages), Again())
            question = Question(
                words=newest_words(conversation.messages),
                agent_id=agent_id,
                kinds=seen.findable,
                before=conversation.first,
                in_view=[*(part.text for part in blocks.parts), *_texts(conversation.messages[-IN_VIEW_MAX:])],
                now=now,
            )
            recalled = await recall(self.search, question, settings)
        return Findings(
            recalled=recalled,
            tasks=task_parts(seen.tasks, now),
            activity=self._lately.parts(agent_id, seen.turns, seen.noted, settings),
        )

    def _is_foreign(self, name: str) -> bool:
        """Whether results of this tool are untrusted text; those of an unknown tool are."""
        try:
            return self.tools.get(name, (name,)).returns_untrusted_text
        except NotFound:
            return True


def _halves(
    again: Again,
    about: tuple[str, Sequence[str], BlockParts, Findings, str],
    step: tuple[Sequence[str], ContextSettings, int, Sequence[ToolSpec], bool],
) -> Halves:
    """What stands before and behind the conversation: the same as long as nothing that it is made of changes."""
    instructions, rules_in_words, blocks, found, minute = about
    notes, settings, window, tools, is_opened = step
    parts = [
        *own_parts(instructions, rules_in_words, has_blocks=blocks.has_any, has_tools=bool(tools)),
        *blocks.parts,
        *found.recalled.parts,
        *found.tasks,
        *found.activity,
        time_part(minute),
        *(Part(kind=Kind.REMINDER, text=note, reason="for this step", name=note) for note in notes),
    ]
    fitted = fit(parts, settings, window).and_left_out(found.recalled.left_out)
    return halves_of(fitted, tools, window, is_opened=is_opened, again=again)


def newest_words(messages: Sequence[Message]) -> str:
    """What was said last to the agent; empty if nothing was."""
    return next((message.text for message in reversed(messages) if message.role == "user" and message.position), "")


def time_words(now: str) -> str:
    """A stored time, to the minute at least, as an agent reads it: `2026-01-31 14:05 UTC, Saturday`."""
    return f"{now[:10]} {now[11:MINUTE_CHARS]} UTC, {datetime.fromisoformat(now[:10]):%A}"


def time_part(minute: str) -> Part:
    """The time as a part: the beginning of a stored time, to the minute."""
    return Part(kind=Kind.TIME, text=time_words(minute), reason="the time")


def own_parts(
    instructions: str, rules_in_words: Sequence[str], *, has_blocks: bool, has_tools: bool
) -> tuple[Part, ...]:
    """What stands before memory: the same as long as nobody changes the agent."""
    reason = "the agent's instructions" if instructions else "for an agent without instructions of its own"
    parts = [
        Part(kind=Kind.INSTRUCTIONS, text=instructions or DEFAULT_INSTRUCTIONS, reason=reason),
        Part(kind=Kind.GUIDE, text=guide(has_blocks=has_blocks, has_tools=has_tools), reason="how things work here"),
    ]
    if rules_in_words:
        parts.append(Part(kind=Kind.RULES, text=rules(rules_in_words), reason="the agent's tool rules, in words"))
    return tuple(parts)


def _seen(
    connection: Connection,
    lately: Lately,
    reader: tuple[str, str],
    settings: ContextSettings,
    before: str,
    since: str,
) -> Seen:
    """All that one turn looks up in tables, in one visit. Most agents have nothing of most of it, so that is asked
    first. `reader` is the agent's id and the turn's.
    """
    hidden, agent_id = settings.hidden, reader[0]
    there = prompts.beyond(connection, agent_id, before, since)
    is_active = Kind.ACTIVITY not in hidden and settings.activity_max > 0
    noted = (
        activity.noted_since(connection, since, limit=4 * settings.activity_max) if is_active and there.noted else ()
    )
    has_turns = is_active and (there.others or bool(noted))
    has_tasks = there.tasks and Kind.TASKS not in hidden
    return Seen(
        findable=there.findable if Kind.RECALLED not in hidden else (),
        tasks=tuple(tasks.open_of(connection, agent_id, TASKS_MAX)) if has_tasks else (),
        turns=tuple(lately.turns(connection, _turns(connection, reader, settings, since, noted))) if has_turns else (),
        noted=tuple(noted),
    )


def _turns(
    connection: Connection,
    reader: tuple[str, str],
    settings: ContextSettings,
    since: str,
    noted: Sequence[NotedActivity],
) -> list[Mark]:
    """Others' turns, and the agent's own ones beside them: an agent that is alone is shown none."""
    me, turn_id = reader
    others = activity.newest_turns(connection, since, but=turn_id, limit=settings.activity_max, not_by=me)
    if not others and all(one.agent_id == me for one in noted):
        return []
    return [*others, *activity.newest_turns(connection, since, but=turn_id, limit=settings.activity_own_max, by=me)]


def _texts(messages: Sequence[Message]) -> list[str]:
    return [
        part.text if isinstance(part, Text) else part.content
        for message in messages
        for part in message.parts
        if isinstance(part, Text | ToolResult)
    ]
