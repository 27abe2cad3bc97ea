"""Collect what a prompt is made of: the conversation, memory blocks, and what was found for the turn.

Everything that waits is here; what is decided with it is in `build`. What is found beyond memory (passages, activity,
tasks) is found once per turn, for its first prompt, and stays before the turn's question.

A turn does not wait for passages: if the message has no vector in time (the model is loaded by the first message after
a pause), they are found by words; what was not found within the time set is left out and said so. A search always finds
something, so they are shown only where the best of them have to do with the message, and never what the prompt shows
anyway.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

import trio

from pattern_core.agent_settings import ContextSettings
from pattern_core.conversation.history import History
from pattern_core.decision_ranking import RankedDecisions
from pattern_core.errors import PatternError
from pattern_core.guidance import advice
from pattern_core.guidance_quality import PROJECT, detect
from pattern_core.ids import Clock, time_of
from pattern_core.memory.store import MemoryStore
from pattern_core.messages import Message, Note, Text, ToolResult
from pattern_core.models.model import Usage
from pattern_core.models.tokens import message_tokens
from pattern_core.prompts.activity import (
    HOUR_MS,
    TASKS_MAX,
    CaughtUp,
    RecentTurns,
    caught_up_parts,
    decision_part,
    guidance_parts,
    handoff_parts,
    task_parts,
    workspace_part,
)
from pattern_core.prompts.build import (
    NOT_NOTED,
    Material,
    Noted,
    Offered,
    Prompt,
    SeenBlock,
    Stable,
    block_parts,
    build_prompt,
    history_room,
    kind_of,
    note_of,
    stable_of,
)
from pattern_core.prompts.parts import NOTHING_FOUND, Findings, Kind, Part, read_log
from pattern_core.search import RELEVANT_MIN, Hit, SearchRequest, SearchResult
from pattern_core.untrusted import marked, masked
from pattern_db.columns import iso
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.enums import CONSTELLATION_OWNER, SearchKind
from pattern_db.tables import activity, decisions, handoffs, overview, prompts, tasks, workspaces
from pattern_db.tables.activity import NotedActivity
from pattern_db.tables.agents import AgentRow
from pattern_db.tables.handoffs import Handed
from pattern_db.tables.memory_blocks import BlockRow, Via
from pattern_db.tables.tasks import TaskRow

QUERY_CHARS_MAX = 2_000  # of a message, from its beginning: more makes no better question
TEXT_CHARS_MAX = 1_500  # a longer passage is shown as the excerpt that the search cut out of it
QUESTION_SHARE = 2 / 3  # of the time for recalling; a model that is still loading then leaves some for words alone
SHARE_MIN = 0.62  # of the best hit's score
CANDIDATES = 2  # hits checked for each one that may be shown
HANDOFFS_SHOWN_MAX = 3  # notes of others in one turn; the next ones are shown in the next turns
IDLE_MS = HOUR_MS  # after which an agent is shown what the others did …
MISSED_MAX = 20  # … and of how many agents, and events, as far as there is room
IN_VIEW_MAX = 100  # newest messages that a passage is compared with, so that nothing is shown twice
RATIOS_MAX = 1_024  # pairs of agent and model that are remembered, in memory only
WEIGHT = 0.3  # of the newest call; the ones before fade
LEAST, MOST = 0.5, 3.0  # a ratio beyond is a vendor that counts something else
TOKENS_MIN = 200  # shorter prompts say little about the ratio
RESTORED_CALLS = 8  # of the agent, from which a new process learns; older ones have faded to a twentieth …
RESTORED_AMONG = 500  # … as far as they are among so many last calls of all agents

Searching = Callable[[SearchRequest], Awaitable[SearchResult]]
_SOURCES = {SearchKind.ARCHIVAL: "the archive", SearchKind.FILE: "the file", SearchKind.BLOCK: "the block"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Rows that one look into the tables found: what can be searched, open tasks, what was noted for all agents, notes
    that the agent has claimed, what it missed while it was idle, parts about the project of the session, and what of
    these has no room.
    """

    findable: Sequence[SearchKind] = ()
    tasks: Sequence[TaskRow] = ()
    noted: Sequence[NotedActivity] = ()
    handed: Sequence[Handed] = ()
    missed: Sequence[CaughtUp] = ()
    project: Sequence[Part] = ()
    unfit: Sequence[Part] = ()


Look = Callable[[Connection], Seen | None]
"""Looks for what a prompt should show beyond the conversation; None if there is nothing."""


class Calibration:
    """The ratio of counted to estimated tokens, by agent and model; 1.0 until something was counted.

    The estimate knows no vendor's tokenizer, so a prompt's is multiplied by this ratio before it is compared with a
    window. It is kept in memory only; a new process learns it again from the agent's last calls.
    """

    def __init__(self) -> None:
        self._ratios: OrderedDict[tuple[str, str], float | None] = OrderedDict()

    def ratio(self, agent_id: str, model: str) -> float | None:
        """Return what to multiply an estimate by; None if this process has neither learnt it nor looked for it."""
        key = (agent_id, model)
        return self._ratios[key] or 1.0 if key in self._ratios else None

    def learn(self, agent_id: str, model: str, calls: Sequence[tuple[int, int]]) -> None:
        """Note calls, oldest first: what each prompt was estimated at, and what its vendor counted, in tokens."""
        ratio = self._ratios.pop((agent_id, model), None)
        for estimated, counted in calls:
            if estimated >= TOKENS_MIN and counted > 0:
                seen = min(max(counted / estimated, LEAST), MOST)
                ratio = seen if ratio is None else (1 - WEIGHT) * ratio + WEIGHT * seen
        self._ratios[agent_id, model] = ratio
        if len(self._ratios) > RATIOS_MAX:
            self._ratios.popitem(last=False)


@dataclass(slots=True)
class _Last:
    """What an agent's last prompt was made of and from, since little of it changes from one step to the next."""

    material: Material
    stable: Stable
    noted: Noted = NOT_NOTED  # before the message at `position`
    position: str = ""


@dataclass(kw_only=True)
class Prompts:
    """Makes the prompts of one constellation's agents."""

    database: Database
    memory: MemoryStore
    search: Searching
    clock: Clock
    recent_turns: RecentTurns = field(default_factory=RecentTurns)
    _calibration: Calibration = field(default_factory=Calibration, init=False)
    _decisions: RankedDecisions = field(default_factory=RankedDecisions, init=False)
    _last: WeakKeyDictionary[History, _Last] = field(default_factory=WeakKeyDictionary, init=False)

    async def make(
        self, agent: AgentRow, history: History, offered: Offered, found: Findings | None, *, seed: int
    ) -> Prompt:
        """Return what the agent's model is shown now.

        If `found` is not None, the newest message gets a note with it and with the time.
        """
        question, note = history.question, None
        shown: dict[str, Sequence[str]] = {}
        blocks = await seen_blocks(self.memory, agent.id, "" if question is None else question.text)
        material = Material(
            instructions=agent.system_prompt,
            blocks=[one for one in blocks if one[0] in (Kind.CORE, Kind.PINNED)],
            is_opened=history.opening_tokens > 0,
            offered=offered,
        )
        last = self._last.get(history)
        if last is None:
            last = self._last[history] = _Last(material, stable_of(material))
        elif last.material != material:
            last.material, last.stable = material, stable_of(material, last.stable)
        model, calibration = agent.model_name, self._calibration
        if calibration.ratio(agent.id, model) is None:  # looked up once in the rows, then only learnt
            calibration.learn(agent.id, model, await self.database.read(last_calls, agent.id, model))
        ratio = calibration.ratio(agent.id, model) or 1.0
        if found is not None and question is not None and question.position == history.cursor:
            room = history_room(last.stable, offered, ratio) - message_tokens(question)
            others = [one for one in blocks if one[0] in (Kind.REFERRED, Kind.LOGS)]
            now, in_view = iso(self.clock.now_ms()), history.notes(IN_VIEW_MAX)
            last.noted = note_of(last.stable, others, found, offered, now=now, in_view=in_view, room=room)
            last.position = question.position
            history.note(last.noted.text)
            note = question.position, last.noted.text
            if found.parts:
                unfit = [part.ref for part in last.noted.left_out]
                handed = [part.ref for part in found.parts if part.kind == Kind.HANDOFFS and part.ref not in unfit]
                decided = [part.ref for part in last.noted.parts if part.kind == Kind.DECISIONS]
                shown = {kind: ids for kind, ids in (("handoffs", handed), ("decisions", decided)) if ids}
        noted = last.noted if question is not None and question.position == last.position else NOT_NOTED
        prompt = build_prompt(model, last.stable, noted, history, offered, seed=seed, ratio=ratio, note=note)
        return replace(prompt, shown=shown) if shown else prompt

    def learn(self, agent_id: str, prompt: Prompt, usage: Usage) -> None:
        """Note what the vendor counted for the prompt, so that the next one is estimated better."""
        if not usage.is_estimate:
            self._calibration.learn(agent_id, prompt.request.model, [(prompt.estimate, usage.input_tokens)])

    def look(
        self,
        connection: Connection,
        *,
        agent_id: str,
        turn_id: str,
        history: History,
        now_ms: int,
        settings: ContextSettings,
    ) -> Seen | None:
        """Return the rows that a turn should show beyond the conversation, None if there are none.

        What was noted before the question before has been shown. Most agents have nothing of most of it, so that is
        asked first.
        """
        asked = next((one.position for one in reversed(history.messages[:-1]) if one.role == "user"), "")
        asked_ms = time_of(asked)
        since = iso(max(now_ms - settings.activity_hours * HOUR_MS, asked_ms))
        there, show = prompts.beyond(connection, agent_id, history.first, since), settings.show
        findable = there.findable if show.get(Kind.RECALLED, True) else ()
        due = tasks.pressing(connection, agent_id, TASKS_MAX) if there.tasks and show.get(Kind.TASKS, True) else ()
        noted: Sequence[NotedActivity] = ()
        if there.noted and show.get(Kind.ACTIVITY, True):
            noted = activity.noted_since(connection, agent_id, since, limit=4 * settings.activity_max)
        missed: Sequence[CaughtUp] = ()
        if asked and now_ms - asked_ms > IDLE_MS and show.get(Kind.CATCH_UP, True):
            notable = overview.notable(connection, MISSED_MAX, since=iso(asked_ms))
            did = overview.summaries(connection, MISSED_MAX, since=iso(asked_ms), but=agent_id)
            missed = [*did, *notable]
            noted = [one for one in noted if one.id not in {other.id for other in notable}]
        handed = handoffs.claim(connection, agent_id, HANDOFFS_SHOWN_MAX) if there.handed else ()
        project, unfit = list[Part](), list[Part]()
        about = None if history.session_id is None else workspaces.of_session(connection, history.session_id)
        for kind in (Kind.WORKSPACE, Kind.DECISIONS, Kind.GUIDANCE):
            if about is not None and show.get(kind, True):
                shown, left = self._about(connection, kind, about, agent_id, turn_id, history, now_ms)
                project += shown
                unfit += left
        if not (findable or due or noted or handed or missed or project):
            return None
        return Seen(
            findable=findable, tasks=due, noted=noted, handed=handed, missed=missed, project=project, unfit=unfit
        )

    def _about(
        self,
        connection: Connection,
        kind: Kind,
        about: tuple[str, str | None],
        agent_id: str,
        turn_id: str,
        history: History,
        now_ms: int,
    ) -> tuple[list[Part], list[Part]]:
        """Return the parts of a kind about a workspace, seen from a folder, if any; and what of them has no room."""
        workspace, folder = about
        if kind == Kind.WORKSPACE:
            return [workspace_part(workspaces.map_of(connection, workspace, agent_id))], []
        if kind == Kind.DECISIONS:
            fitting = self._decisions.fitting(connection, workspace, history.words, cwd=folder, now_ms=now_ms)
            return [decision_part(*one) for one in fitting], []
        types = [detect(history.words[:QUERY_CHARS_MAX]).primary, PROJECT]
        return guidance_parts(
            advice(connection, workspace, types, author=f"agent:{agent_id}", turn=turn_id, now=iso(now_ms))
        )

    async def find(
        self, seen: Seen, agent_id: str, turn_id: str, history: History, settings: ContextSettings
    ) -> Findings:
        """Return all that a turn shows beyond the conversation; it may last as long as one search may."""
        now_ms = self.clock.now_ms()
        now = iso(now_ms)
        recalled = NOTHING_FOUND
        if seen.findable:
            words = history.words
            blocks = block_parts(await seen_blocks(self.memory, agent_id, words))
            recalled = await recall(
                self.search,
                settings,
                words,
                agent_id=agent_id,
                kinds=seen.findable,
                before=history.first,
                session_id=history.session_id,
                in_view=[*(part.text for part in blocks), *_texts(history.messages[-IN_VIEW_MAX:])],
                now=now,
            )
        recent = await self.recent(agent_id, turn_id, seen.noted, settings)
        among = await self._among(agent_id, settings) if seen.missed else None
        missed = caught_up_parts(seen.missed, agent_id, among)
        return replace(
            recalled,
            parts=[
                *handoff_parts(seen.handed),
                *seen.project,
                *recalled.parts,
                *task_parts(seen.tasks, now),
                *missed,
                *recent,
            ],
            left_out=[*recalled.left_out, *seen.unfit],
        )

    async def recent(
        self, agent_id: str, turn_id: str, noted: Sequence[NotedActivity], settings: ContextSettings
    ) -> list[Part]:
        """Return the lines of what happened around the agent: by itself, the system, and the agents that have a shared
        block in common with it; by all, or not at all, if its settings say so.
        """
        shows = settings.show.get(Kind.ACTIVITY)
        if shows is False or (not noted and self.recent_turns.is_alone(agent_id)):
            return []
        among = await self._among(agent_id, settings)
        return self.recent_turns.parts(agent_id, turn_id, noted, settings, among=among, now_ms=self.clock.now_ms())

    async def _among(self, agent_id: str, settings: ContextSettings) -> set[str] | None:
        """Return the others that the agent may see: those with a shared block; all (None) if its settings say so."""
        if settings.show.get(Kind.ACTIVITY):
            return None
        return sharers(await self.memory.blocks.seen_by(agent_id), agent_id)


def sharers(blocks: Sequence[BlockRow], agent_id: str) -> set[str]:
    """Return the other agents that have one of an agent's blocks in common with it, because one shared it. What belongs
    to the constellation is seen by all and makes no two of them closer.
    """
    lent = [block for block in blocks if block.via is not Via.CONSTELLATION and block.agent_id != CONSTELLATION_OWNER]
    return {one for block in lent for one in (block.agent_id, *(block.lent_to or ()))} - {agent_id}


async def seen_blocks(memory: MemoryStore, agent_id: str, words: str) -> list[SeenBlock]:
    """Return the agent's blocks, as prompts show them that answer the message `words`.

    Uncommitted changes of the agent's own running call are shown: that prompt is stored in one transaction with
    it.
    """
    return [(kind_of(block, words), block) for block in await memory.blocks.seen_by(agent_id)]


def _texts(messages: Sequence[Message]) -> list[str]:
    return [
        part.content if isinstance(part, ToolResult) else part.text
        for message in messages
        for part in message.parts
        if isinstance(part, Text | Note | ToolResult)
    ]


def mark_shown(connection: Connection, shown: Mapping[str, Sequence[str]], at: str) -> None:
    """Note that a prompt shows notes that were handed over, and decisions: their ids by kind."""
    handoffs.mark_read(connection, shown.get("handoffs", ()), at)
    decisions.count_shown(connection, shown.get("decisions", ()), at)


def last_calls(connection: Connection, agent_id: str, model: str) -> list[tuple[int, int]]:
    """Return the agent's last calls of a model, oldest first, for `Calibration.learn`.

    Only the estimate times its ratio is stored whole, so it is added up again from what was noted of the prompt's
    parts. That leaves out the tags between them, about one part in a hundred.
    """
    found = []
    for row in prompts.counted(connection, agent_id, model, RESTORED_CALLS, among=RESTORED_AMONG):
        logs = read_log(row.stable), read_log(row.volatile)
        parts = sum(log.tool_tokens + sum(part.tokens for part in log.parts) for log in logs)
        found.append((row.history_tokens + parts, row.counted))
    return found


async def recall(
    searching: Searching,
    settings: ContextSettings,
    words: str,
    *,
    agent_id: str,
    kinds: Sequence[SearchKind],
    before: str,
    in_view: Sequence[str],
    now: str,
    session_id: str | None = None,
) -> Findings:
    """Look for passages in `kinds` that speak to a message; nothing if it has no telling words.

    Messages of the session (None: of the main conversation) from the position `before` on are visible (empty: none);
    `in_view` are other texts that the prompt shows. `now` is a stored time.

    A query that storage has begun is waited for, so the time can be passed by the length of one query.
    """
    request = SearchRequest(
        query=words[:QUERY_CHARS_MAX],
        kinds=kinds,
        agents=[agent_id, CONSTELLATION_OWNER],
        shown_from=before or None,
        shown_session=session_id,
        now=now,
        limit=CANDIDATES * settings.recall_max,
        is_quick=True,
        patience_s=QUESTION_SHARE * settings.recall_timeout_ms / 1000,
    )
    if settings.recall_max == 0 or all(term.is_filler for term in request.wanted.terms):
        return NOTHING_FOUND
    reason = f"the search was not finished within {settings.recall_timeout_ms} ms (context.recall_timeout_ms)"
    with trio.move_on_after(settings.recall_timeout_ms / 1000):
        try:
            return choose(await searching(request), in_view, settings)
        except PatternError as error:
            reason = f"the search failed: {error.message}"
    return Findings(left_out=[Part(kind=Kind.RECALLED, reason=reason)])


def choose(found: SearchResult, in_view: Sequence[str], settings: ContextSettings) -> Findings:
    """Return the hits to show, and the best of those that are not. Pure."""
    parts: list[Part] = []
    out: list[Part] = []
    shown_already = "\0".join(in_view)  # one search for each hit, however many texts there are
    best = found.hits[0].score if found.hits else 0.0
    irrelevant = f"nothing that was found speaks to the message ({best:.2f} of {RELEVANT_MIN})"
    for hit in found.hits:
        text = hit.content if len(hit.content) <= TEXT_CHARS_MAX else hit.snippet
        reason = None if found.is_relevant else irrelevant
        if not text.strip():
            reason = "it has no words"
        elif reason is None and hit.score < SHARE_MIN * best:
            reason = f"it fits the message less than the best does ({hit.score:.2f} of {best:.2f})"
        elif text.strip() in shown_already:
            reason = "the prompt shows the same words already"
        elif reason is None and len(parts) >= settings.recall_max:
            reason = f"{settings.recall_max} passages are shown (context.recall_max)"
        if reason is None:
            shown_already += f"\0{text.strip()}"
            shown = marked(masked(f"> {hit.answers}\n{text}" if hit.answers else text), source_of(hit))
            why = f"found for the message: {hit.reason or 'its words fit'}"
            parts.append(Part(kind=Kind.RECALLED, text=shown, reason=why, ref=hit.id, name=source_of(hit)))
        elif len(out) < settings.recall_max:
            out.append(Part(kind=Kind.RECALLED, reason=reason, ref=hit.id, name=source_of(hit)))
    return Findings(parts=parts, left_out=out)


def source_of(hit: Hit) -> str:
    """Return where the passage comes from, in words with the day."""
    day = hit.created_at[:10]
    if hit.kind is SearchKind.MESSAGE:
        who = "tool" if hit.role is None else hit.role.value
        return f"the conversation of {day}, {who}"
    where = _SOURCES.get(hit.kind, hit.kind.value)
    name = f" {hit.label}" if hit.label else ""
    return f"{where}{name}, {day}"
