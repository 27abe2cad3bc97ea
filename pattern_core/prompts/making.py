"""Making prompts: collect, gate, rank, budget, place, note. Everything that waits is here; the decisions are beside it.

What is looked up beyond memory (passages, activity, tasks) is looked up once per turn, at its first prompt in this
process, and shown in all of the turn's steps.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from weakref import WeakKeyDictionary

from pattern_core.again import Again
from pattern_core.agents.active import ActiveTurn
from pattern_core.agents.history import History
from pattern_core.clock import Clock, now_text
from pattern_core.errors import NotFound
from pattern_core.memory.store import MemoryStore
from pattern_core.messages import Message, Text, ToolResult
from pattern_core.models.model import ToolSpec, Usage
from pattern_core.prompts.activity import Lately
from pattern_core.prompts.blocks import block_parts
from pattern_core.prompts.budget import Fitted, fit
from pattern_core.prompts.calibration import Calibration, last_calls
from pattern_core.prompts.conversation import Conversations, Shown
from pattern_core.prompts.guide import DEFAULT_INSTRUCTIONS, guide, rules
from pattern_core.prompts.parts import Kind, Part
from pattern_core.prompts.prompt import Prompt, PromptInput, build_prompt
from pattern_core.prompts.recalled import Question, Recalled, Searching, recall
from pattern_core.prompts.sampling import Sampling
from pattern_core.prompts.settings import ContextSettings
from pattern_core.prompts.tasks import TASKS_MAX, task_parts
from pattern_core.tools.registry import ToolRegistry
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.enums import EffectClass, SearchKind
from pattern_db.tables import activity, prompts, tasks
from pattern_db.tables.activity import Mark, NotedActivity, TurnActivity
from pattern_db.tables.tasks import OpenTask
from pattern_db.timestamps import iso

TURNS_MAX = 256  # turns under way whose finds are kept in memory
IN_VIEW_MAX = 100  # newest messages that a passage is compared with, so that nothing is shown twice
HOUR_MS = 3_600_000
MINUTE_CHARS = len("2026-01-31T14:05")
# Tools that act within this file, and yet return texts that others wrote.
FOREIGN_TOOLS = frozenset({"file", "search", "recall", "result", "web", "shell"})
_INNER = frozenset({EffectClass.PURE, EffectClass.LOCAL})


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
class _Found:
    """What was looked up for a turn."""

    recalled: Recalled
    tasks: Sequence[Part]
    activity: Sequence[Part]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    findable: Sequence[SearchKind] = ()
    tasks: Sequence[OpenTask] = ()
    turns: Sequence[TurnActivity] = ()
    noted: Sequence[NotedActivity] = ()


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
    _found: OrderedDict[str, _Found] = field(default_factory=OrderedDict, init=False)
    _lately: Lately = field(default_factory=Lately, init=False)
    _again: WeakKeyDictionary[History, Again] = field(default_factory=WeakKeyDictionary, init=False)

    def __post_init__(self) -> None:
        self._conversations = Conversations(self._is_foreign)

    async def make(self, turn: ActiveTurn, offered: Offered) -> Prompt:
        """What the turn's model is shown now."""
        agent, settings = turn.agent, offered.context
        again = self._again.get(turn.history)
        if again is None:
            again = self._again[turn.history] = Again()  # from one step to the next little changes
        conversation = self._conversations.shown(turn.history)
        words = newest_words(conversation.messages)
        blocks = await block_parts(self.memory, agent.id, words, again)
        found = self._found.get(turn.id)
        if found is None:
            found = await self._look_up(turn, settings, words, conversation, blocks.parts)
            self._found[turn.id] = found
            while len(self._found) > TURNS_MAX:
                self._found.popitem(last=False)
        own = again(
            own_parts, agent.system_prompt, offered.rules, has_blocks=blocks.has_any, has_tools=bool(offered.tools)
        )
        parts = [
            *own,
            *blocks.parts,
            *found.recalled.parts,
            *found.tasks,
            *found.activity,
            again(time_part, now_text(self.clock)[:MINUTE_CHARS]),
            *(Part(kind=Kind.REMINDER, text=note, reason="for this step", name=note) for note in offered.notes),
        ]
        fitted = again(fit, parts, settings, offered.window)
        return build_prompt(
            PromptInput(
                model=agent.model_name,
                fitted=again(Fitted.and_left_out, fitted, found.recalled.left_out),
                conversation=conversation,
                cursor=turn.history.cursor,
                history_digest=turn.history.digest,
                tools=offered.tools,
                sampling=offered.sampling,
                seed=turn.seed,
                window=offered.window,
                ratio=await self._ratio(agent.id, agent.model_name),
            ),
            again,
        )

    async def _ratio(self, agent_id: str, model: str) -> float:
        """What to multiply estimates by; looked up once in the rows, then only learnt."""
        if not self._calibration.is_known(agent_id, model):
            calls = await self.database.read(last_calls, agent_id, model)
            self._calibration.restore(agent_id, model, calls)
        return self._calibration.ratio(agent_id, model)

    def learn(self, turn: ActiveTurn, prompt: Prompt, usage: Usage) -> None:
        """Note what the vendor counted for the prompt, so that the next one is estimated better."""
        if not usage.is_estimate:
            self._calibration.learn(
                turn.agent.id, prompt.request.model, estimated=prompt.estimate, counted=usage.input_tokens
            )

    def forget(self, turn_id: str) -> None:
        """Drop what was looked up for a turn that has ended."""
        self._found.pop(turn_id, None)

    async def _look_up(
        self, turn: ActiveTurn, settings: ContextSettings, words: str, conversation: Shown, blocks: Sequence[Part]
    ) -> _Found:
        agent_id, before = turn.agent.id, conversation.first
        now_ms = self.clock.now_ms()
        rows = await self.database.read(
            _rows, self._lately, turn, settings, before, iso(now_ms - settings.activity_hours * HOUR_MS)
        )
        recalled = Recalled()
        if rows.findable and Kind.RECALLED not in settings.hidden:
            question = Question(
                words=words,
                agent_id=agent_id,
                kinds=rows.findable,
                before=before,
                in_view=[*(part.text for part in blocks), *_texts(conversation.messages[-IN_VIEW_MAX:])],
                now=iso(now_ms),
            )
            recalled = await recall(self.search, question, settings)
        return _Found(
            recalled=recalled,
            tasks=task_parts(rows.tasks, iso(now_ms)),
            activity=self._lately.parts(agent_id, rows.turns, rows.noted, settings),
        )

    def _is_foreign(self, name: str) -> bool:
        """Results of tools that reach outside, of those that are no more, and of those that hand on others' texts."""
        if name in FOREIGN_TOOLS:
            return True
        try:
            return self.tools.get(name, (name,)).effect not in _INNER
        except NotFound:
            return True


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


def _rows(
    connection: Connection, lately: Lately, turn: ActiveTurn, settings: ContextSettings, before: str, since: str
) -> _Rows:
    """All that one turn looks up in tables, in one visit. Most agents have nothing of most of it, so that is asked
    first.
    """
    hidden, agent_id = settings.hidden, turn.agent.id
    there = prompts.beyond(connection, agent_id, before, since)
    is_active = Kind.ACTIVITY not in hidden and settings.activity_max > 0
    noted = (
        activity.noted_since(connection, since, limit=4 * settings.activity_max) if is_active and there.noted else ()
    )
    has_turns = is_active and (there.others or bool(noted))
    has_tasks = there.tasks and Kind.TASKS not in hidden
    return _Rows(
        findable=there.findable,
        tasks=tasks.open_of(connection, agent_id, TASKS_MAX) if has_tasks else (),
        turns=lately.turns(connection, _turns(connection, turn, settings, since, noted)) if has_turns else (),
        noted=noted,
    )


def _turns(
    connection: Connection, turn: ActiveTurn, settings: ContextSettings, since: str, noted: Sequence[NotedActivity]
) -> list[Mark]:
    """Others' turns, and the agent's own ones beside them: one that is alone is told nothing."""
    me = turn.agent.id
    others = activity.newest_turns(connection, since, but=turn.id, limit=settings.activity_max, not_by=me)
    if not others and all(one.agent_id == me for one in noted):
        return []
    return [*others, *activity.newest_turns(connection, since, but=turn.id, limit=settings.activity_own_max, by=me)]


def _texts(messages: Sequence[Message]) -> list[str]:
    return [
        part.text if isinstance(part, Text) else part.content
        for message in messages
        for part in message.parts
        if isinstance(part, Text | ToolResult)
    ]
