"""Collect what a prompt is made of: the conversation, memory blocks, and what was found for the turn.

Everything that waits is here; what is decided with it is in `build`. What is found beyond memory (passages, activity,
tasks) is found once per turn, for its first prompt in this process, and shown in all of the turn's steps.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from weakref import WeakKeyDictionary

from pattern_core.agent_settings import ContextSettings
from pattern_core.conversation.history import History
from pattern_core.errors import NotFound
from pattern_core.ids import Clock, now_text
from pattern_core.memory.content import prompt
from pattern_core.memory.store import MemoryStore
from pattern_core.messages import Image, Message, Text, ToolResult
from pattern_core.models.model import Usage
from pattern_core.models.tokens import message_tokens
from pattern_core.prompts.activity import HOUR_MS, TASKS_MAX, RecentTurns, task_parts
from pattern_core.prompts.build import (
    MINUTE_CHARS,
    Halves,
    Material,
    Offered,
    Prompt,
    Shown,
    build_prompt,
    halves_of,
)
from pattern_core.prompts.parts import NOTHING_FOUND, Findings, Kind, Part, read_log
from pattern_core.prompts.recalled import Searching, recall
from pattern_core.tools.registry import ToolRegistry
from pattern_core.untrusted import marked_import, marked_result
from pattern_db.columns import iso
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.enums import BlockType, SearchKind
from pattern_db.tables import activity, prompts
from pattern_db.tables.activity import NotedActivity, OpenTask
from pattern_db.tables.agents import AgentRow
from pattern_db.tables.memory_blocks import BlockRow, Via
from pattern_db.tables.prompts import CountedRow

IN_VIEW_MAX = 100  # newest messages that a passage is compared with, so that nothing is shown twice
LABEL_CHARS_MIN = 3  # of a block that a message can name: shorter ones would be named by chance
RATIOS_MAX = 1_024  # pairs of agent and model that are remembered, in memory only
WEIGHT = 0.3  # of the newest call; the ones before fade
LEAST, MOST = 0.5, 3.0  # a ratio beyond is a vendor that counts something else
TOKENS_MIN = 200  # shorter prompts say little about the ratio
RESTORED_CALLS = 8  # of the agent, from which a new process learns; older ones have faded to a twentieth …
RESTORED_AMONG = 500  # … as far as they are among so many last calls of all agents

_KINDS = (Kind.CORE, Kind.PINNED, Kind.REFERRED, Kind.LOGS)  # of blocks, in the order in which they are shown
_OWNERS = {Via.OWN: "the agent's own", Via.ATTACHED: "lent to the agent", Via.CONSTELLATION: "everybody's"}
_REASONS = {
    Kind.CORE: "a core block, {owner}",
    Kind.PINNED: "a working block, {owner}",
    Kind.REFERRED: "a working block that the message names, {owner}",
    Kind.LOGS: "the newest entries of a log, {owner}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Rows that one look into the tables found: what can be searched, open tasks, what was noted for everybody."""

    findable: Sequence[SearchKind] = ()
    tasks: Sequence[OpenTask] = ()
    noted: Sequence[NotedActivity] = ()


Look = Callable[[Connection], Seen | None]
"""Looks for what a prompt should show beyond the conversation; None if there is nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockParts:
    """The parts of an agent's blocks: core, pinned, named ones, logs. `has_any` is whether it has any block at all.

    `made_of` are the blocks and the kinds as which they are shown.
    """

    parts: Sequence[Part]
    has_any: bool
    made_of: tuple[Sequence[BlockRow], Sequence[Kind | None]]


class Conversation:
    """A conversation as prompts show it, results of tools and imports marked as theirs.

    Each message is rendered and counted once, when it is first shown: a later prompt only adds what was appended since,
    unless the history says that something else changed. `blocks`, `material` and `halves` are what the last prompt was
    made of, since little of it changes from one step to the next.
    """

    def __init__(self, is_foreign: Callable[[str], bool]) -> None:
        """`is_foreign` says of a tool's name whether its results may hold text from elsewhere."""
        self.blocks: BlockParts | None = None
        self.material: Material | None = None
        self.halves: Halves | None = None
        self._is_foreign = is_foreign
        self._revision = -1
        self._messages: list[Message] = []

    def show(self, history: History) -> Shown:
        """Return the history's messages as a prompt shows them now."""
        if self._revision != history.revision:
            self._revision, self._messages = history.revision, []
            self._tokens = self._mark_tokens = 0
            self._has_images = False
            self._newest: Message | None = None  # that was said to the agent
        for message, own_tokens in history.after(len(self._messages)):
            shown, tokens = message, own_tokens
            if message.is_imported:
                shown = marked_import(message)
            elif message.role == "tool" and self._is_foreign(getattr(message.parts[0], "tool", "")):
                shown = marked_result(message)
            if shown is not message:
                tokens = message_tokens(shown)
                self._mark_tokens += tokens - own_tokens
            if shown.role == "user" and shown.position:
                self._newest = shown
                self._has_images = self._has_images or any(isinstance(part, Image) for part in shown.parts)
            self._messages.append(shown)
            self._tokens += tokens
        return Shown(
            messages=tuple(self._messages),
            tokens=self._tokens,
            mark_tokens=self._mark_tokens,
            has_images=self._has_images,
            first=history.first,
            cursor=history.cursor,
            digest=history.digest,
            words="" if self._newest is None else self._newest.text,
            is_opened=history.opening_tokens > 0,
        )


class Calibration:
    """The ratio of counted to estimated tokens, by agent and model; 1.0 until something was counted.

    The estimate knows no vendor's tokenizer, so a prompt's is multiplied by this ratio before it is compared with a
    window. It is kept in memory only; a new process learns it once more from the agent's last calls.
    """

    def __init__(self) -> None:
        self._ratios: OrderedDict[tuple[str, str], float | None] = OrderedDict()

    def ratio(self, agent_id: str, model: str) -> float | None:
        """Return what to multiply an estimate by; None if this process has neither learnt it nor looked for it."""
        key = (agent_id, model)
        return self._ratios[key] or 1.0 if key in self._ratios else None

    def restore(self, agent_id: str, model: str, calls: Sequence[tuple[int, int]]) -> float:
        """Learn from calls of processes before, oldest first, unless something is known; return the ratio.

        A call is what its prompt was estimated at and what its vendor counted, in tokens.
        """
        key = (agent_id, model)
        if key not in self._ratios:
            self._ratios[key] = None
            if len(self._ratios) > RATIOS_MAX:
                self._ratios.popitem(last=False)
            for estimated, counted in calls:
                self.learn(agent_id, model, estimated=estimated, counted=counted)
        return self._ratios[key] or 1.0

    def learn(self, agent_id: str, model: str, *, estimated: int, counted: int) -> None:
        """Note that a prompt estimated at `estimated` tokens was counted as `counted`."""
        if estimated < TOKENS_MIN or counted <= 0:
            return
        key = (agent_id, model)
        seen = min(max(counted / estimated, LEAST), MOST)
        known = self._ratios.pop(key, None)
        self._ratios[key] = seen if known is None else (1 - WEIGHT) * known + WEIGHT * seen
        if len(self._ratios) > RATIOS_MAX:
            self._ratios.popitem(last=False)


@dataclass(kw_only=True)
class Prompts:
    """Makes the prompts of one constellation's agents."""

    database: Database
    memory: MemoryStore
    search: Searching
    tools: ToolRegistry
    clock: Clock
    recent_turns: RecentTurns = field(default_factory=RecentTurns)
    _calibration: Calibration = field(default_factory=Calibration, init=False)
    _conversations: WeakKeyDictionary[History, Conversation] = field(default_factory=WeakKeyDictionary, init=False)

    async def make(self, agent: AgentRow, history: History, offered: Offered, found: Findings, *, seed: int) -> Prompt:
        """Return what the agent's model is shown now."""
        conversation = self._conversation(history)
        shown = conversation.show(history)
        blocks = conversation.blocks = await block_parts(self.memory, agent.id, shown.words, conversation.blocks)
        material = Material(
            instructions=agent.system_prompt,
            blocks=blocks.parts,
            has_blocks=blocks.has_any,
            found=found,
            minute=now_text(self.clock)[:MINUTE_CHARS],
            is_opened=shown.is_opened,
            tools=offered.tools,
            rules=offered.rules,
            notes=offered.notes,
            context=offered.context,
            window=offered.window,
        )
        halves = conversation.halves
        if halves is None or conversation.material != material:
            halves = conversation.halves = halves_of(material, halves)
            conversation.material = material
        ratio = self._calibration.ratio(agent.id, agent.model_name)
        if ratio is None:  # looked up once in the rows, then only learnt
            calls = await self.database.read(last_calls, agent.id, agent.model_name)
            ratio = self._calibration.restore(agent.id, agent.model_name, calls)
        return build_prompt(agent.model_name, halves, shown, offered, seed=seed, ratio=ratio)

    def learn(self, agent_id: str, prompt: Prompt, usage: Usage) -> None:
        """Note what the vendor counted for the prompt, so that the next one is estimated better."""
        if not usage.is_estimate:
            model, estimate = prompt.request.model, prompt.estimate
            self._calibration.learn(agent_id, model, estimated=estimate, counted=usage.input_tokens)

    def look(
        self,
        connection: Connection,
        *,
        agent_id: str,
        before: str,
        now_ms: int,
        settings: ContextSettings,
    ) -> Seen | None:
        """Return the rows that a turn's prompts should show beyond the conversation, None if there are none.

        `before` is the position of the first message in view. Most agents have nothing of most of it, so that is asked
        first.
        """
        since = iso(now_ms - settings.activity_hours * HOUR_MS)
        there, show = prompts.beyond(connection, agent_id, before, since), settings.show
        findable = there.findable if show.get(Kind.RECALLED, True) else ()
        due = activity.open_tasks(connection, agent_id, TASKS_MAX) if there.tasks and show.get(Kind.TASKS, True) else ()
        noted: Sequence[NotedActivity] = ()
        if there.noted and show.get(Kind.ACTIVITY, True):
            noted = activity.noted_since(connection, since, limit=4 * settings.activity_max)
        return Seen(findable=findable, tasks=due, noted=noted) if findable or due or noted else None

    async def find(
        self, seen: Seen, agent_id: str, turn_id: str, history: History, settings: ContextSettings
    ) -> Findings:
        """Return all that a turn's prompts show beyond the conversation; it may take as long as one search may."""
        now_ms = self.clock.now_ms()
        now = iso(now_ms)
        recalled = NOTHING_FOUND
        if seen.findable:
            conversation = self._conversation(history)
            shown = conversation.show(history)
            blocks = await block_parts(self.memory, agent_id, shown.words, conversation.blocks)
            recalled = await recall(
                self.search,
                settings,
                shown.words,
                agent_id=agent_id,
                kinds=seen.findable,
                before=shown.first,
                in_view=[*(part.text for part in blocks.parts), *_texts(shown.messages[-IN_VIEW_MAX:])],
                now=now,
            )
        recent = self.recent_turns.parts(agent_id, turn_id, seen.noted, settings, now_ms=now_ms)
        return replace(recalled, parts=[*recalled.parts, *task_parts(seen.tasks, now), *recent])

    def _conversation(self, history: History) -> Conversation:
        """Return what is known of a history; it is forgotten with it."""
        known = self._conversations.get(history)
        if known is None:
            known = self._conversations[history] = Conversation(self._is_foreign)
        return known

    def _is_foreign(self, name: str) -> bool:
        """Return whether results of this tool are untrusted text; those of an unknown tool are."""
        try:
            return self.tools.get(name, (name,)).returns_untrusted_text
        except NotFound:
            return True


async def block_parts(memory: MemoryStore, agent_id: str, words: str, last: BlockParts | None = None) -> BlockParts:
    """Return what a prompt of the agent may show of its blocks, or `last` if nothing of that has changed.

    `words` is the message that it answers. What the agent's own call under way has changed is shown as changed: that
    prompt is stored in one transaction with it.
    """
    there = await memory.blocks.seen_by(agent_id)
    kinds = [kind_of(one, words) for one in there]
    made_of = there, kinds
    if last is not None and last.made_of == made_of:
        return last
    parts: list[Part] = []
    for kind, via in product(_KINDS, _OWNERS):
        for block, its in zip(there, kinds, strict=True):
            if its is not kind or block.via is not via:
                continue
            owner = "pinned" if kind is Kind.PINNED and block.pinned else _OWNERS[via]
            part = Part(
                kind=kind,
                text=prompt(block),
                reason=_REASONS[kind].format(owner=owner),
                ref=block.id,
                version=block.last_seq,
                name=block.label,
            )
            parts.append(part)
    return BlockParts(parts=parts, has_any=bool(there), made_of=made_of)


def kind_of(block: BlockRow, words: str) -> Kind | None:
    """Return as what a prompt shows the block; None if it does not."""
    match block.block_type:
        case BlockType.CORE:
            return Kind.CORE
        case BlockType.LOG:
            return Kind.LOGS
        case BlockType.WORKING if block.pinned or block.via is Via.ATTACHED:
            return Kind.PINNED
        case BlockType.WORKING if is_named(block.label, words):
            return Kind.REFERRED
        case _:
            return None


def is_named(label: str, words: str) -> bool:
    """Return whether the words name a block of this label."""
    if len(label) < LABEL_CHARS_MIN:
        return False
    return re.search(rf"(?<!\w){re.escape(label)}(?!\w)", words, re.IGNORECASE) is not None


def _texts(messages: Sequence[Message]) -> list[str]:
    return [
        part.text if isinstance(part, Text) else part.content
        for message in messages
        for part in message.parts
        if isinstance(part, Text | ToolResult)
    ]


def last_calls(connection: Connection, agent_id: str, model: str) -> list[tuple[int, int]]:
    """Return the agent's last calls of a model, oldest first, for `Calibration.restore`.

    Only the estimate times its ratio is stored whole, so it is added up again from what was noted of the prompt's
    parts. That leaves out the tags between them, about one part in a hundred.
    """
    rows = prompts.counted(connection, agent_id, model, RESTORED_CALLS, among=RESTORED_AMONG)
    return [(_estimated(row), row.counted) for row in rows]


def _estimated(row: CountedRow) -> int:
    logs = read_log(row.stable), read_log(row.volatile)
    return row.history_tokens + sum(log.tool_tokens + sum(part.tokens for part in log.parts) for log in logs)
