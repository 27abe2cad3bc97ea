"""What happens around an agent, as parts of a prompt, one line each: what happened recently, newest first, and what is
still to be done.

    [10:42] [AGENT:bob] answered a person: "What does the report say?"
    - Pay the rent (high, due 2026-02-01, overdue)

Nothing is stored for it: the lines are made of the turns, of the events that were noted for all agents, and of the
tasks. An agent that is alone has no section of what happened, since its own activity is in its conversation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from heapq import merge

from pattern_core.agent_settings import ContextSettings
from pattern_core.decision_ranking import SHOWN_SCORE_MIN
from pattern_core.decisions import cut
from pattern_core.models.tokens import estimate_text
from pattern_core.prompts.parts import Kind, Part
from pattern_core.untrusted import escaped, marked, masked
from pattern_db.columns import Json, iso
from pattern_db.enums import GuidanceSource, TaskStatus, TurnStatus
from pattern_db.tables.activity import WORDS_CHARS, NotedActivity, TurnActivity
from pattern_db.tables.agents import AgentRow
from pattern_db.tables.decisions import DecisionRow
from pattern_db.tables.guidance import GuidanceRow
from pattern_db.tables.handoffs import Handed
from pattern_db.tables.overview import AgentSummaryRow, NotableRow
from pattern_db.tables.tasks import TaskRow
from pattern_db.tables.workspaces import WorkspaceMap

HOUR_MS = 3_600_000
TURNS_MAX = 100  # that are remembered: a prompt shows at most as many (context.activity_max)
WORDS_MAX = 120  # characters shown of what a turn or an event was about
TASKS_MAX = 20
MAP_TOKENS_MAX = 400  # of a workspace's map
SNIPPET_UNITS = 180  # of UTF-16: what is shown of a decision's text
GUIDANCE_TOKENS_MAX = 300
LINES_KNOWN_MAX = 1_000  # lines kept for the next prompt; with many agents, most are in all their prompts
_DOING = {
    "completed": "answered",
    "running": "is busy with",
    "waiting": "waits for an approval, asked by",
    "cancelled": "was stopped while it answered",
}
_OTHERWISE = "could not answer"  # failed, limit, interrupted
CaughtUp = AgentSummaryRow | NotableRow
_SUMMARIES = ("summary", "description", "title", "text")  # where an event's details may hold words


class RecentTurns:
    """The newest turns of all agents, for the lines of prompts.

    They are read once, when the constellation is opened; from then on each commit that matters is noted here. So a
    prompt has them at once, and none waits for the file.
    """

    def __init__(
        self, turns: Sequence[TurnActivity] = (), *, on_change: Callable[[str], None] = lambda _agent_id: None
    ) -> None:
        """Begin with `turns`, the newest ones, oldest first; `on_change` is called with the agent of a changed turn."""
        self._on_change = on_change
        self._turns = {turn.id: turn for turn in turns}
        self._agents = {turn.agent_id for turn in turns}

    def start(self, turn_id: str, agent: AgentRow, sender: str, words: str, started_at: str) -> None:
        """Note a turn that was started: who answers whom, and the words that it answers."""
        self._turns[turn_id] = TurnActivity(
            id=turn_id,
            agent_id=agent.id,
            agent_name=agent.name,
            sender=sender,
            status=TurnStatus.RUNNING.value,
            started_at=started_at,
            words=words[:WORDS_CHARS],
        )
        self._agents.add(agent.id)
        if len(self._turns) > TURNS_MAX:
            del self._turns[next(iter(self._turns))]

    def change(self, turn_id: str, status: str, agent_id: str) -> None:
        """Note the new status of an agent's turn, which may be one of a session, that prompts do not show."""
        if turn_id in self._turns:
            self._turns[turn_id].status = status
        self._on_change(agent_id)

    def rename(self, agent_id: str, name: str | None) -> None:
        """Note an agent's new name; None if it was deleted, and its turns with it."""
        for turn in [turn for turn in self._turns.values() if turn.agent_id == agent_id]:
            if name is None:
                del self._turns[turn.id]
            else:
                turn.agent_name = name

    def is_alone(self, agent_id: str) -> bool:
        """Return whether nothing is known of any other agent."""
        return self._agents <= {agent_id}

    def parts(
        self,
        agent_id: str,
        turn_id: str,
        noted: Sequence[NotedActivity],
        settings: ContextSettings,
        *,
        among: Collection[str] | None,
        now_ms: int,
    ) -> list[Part]:
        """Return the lines for one agent's turn of what happened in the last hours, the turn itself left out.

        Of other agents, those of `among` are shown (None: all). Its own are few; without those of others there are none
        at all. `noted` come newest first.
        """
        since = iso(now_ms - settings.activity_hours * HOUR_MS)
        seen = None if among is None else {agent_id, None, *among}  # None: the system's
        newest = reversed(self._turns.values())
        turns: Iterable[TurnActivity | NotedActivity] = (
            turn
            for turn in newest
            if turn.id != turn_id and turn.started_at >= since and (seen is None or turn.agent_id in seen)
        )
        if seen is not None:
            noted = [one for one in noted if one.agent_id in seen]
        chosen: list[Part] = []
        own, others = 0, 0
        for one in merge(turns, noted, key=_moment, reverse=True):
            if own + others == settings.activity_max:
                break
            is_own = one.agent_id == agent_id
            if is_own and own == settings.activity_own_max:
                continue
            own, others = own + is_own, others + (not is_own)
            line = turn_line(one, agent_id) if isinstance(one, TurnActivity) else noted_line(one, agent_id)
            what = "what the agent did" if is_own else "what happened in the constellation"
            reason = f"{what} in the last {settings.activity_hours} hours"
            chosen.append(_line_part(line, one.id, reason))
        return chosen if others else []


@lru_cache(LINES_KNOWN_MAX)
def _line_part(line: str, ref: str, reason: str) -> Part:
    return Part(kind=Kind.ACTIVITY, text=line, ref=ref, reason=reason)


def _moment(one: TurnActivity | NotedActivity) -> tuple[str, str]:
    return (one.started_at if isinstance(one, TurnActivity) else one.timestamp, one.id)


def turn_line(turn: TurnActivity, reader: str) -> str:
    """Return one turn, as it is shown to the agent `reader`."""
    who = "YOU" if turn.agent_id == reader else f"AGENT:{_short(turn.agent_name)}"
    doing = _DOING.get(turn.status, _OTHERWISE)
    words = f': "{_short(turn.words)}"' if turn.words else ""
    return f"[{turn.started_at[11:16]}] [{who}] {doing} {_sender(turn.sender, reader)}{words}"


def noted_line(event: NotedActivity, reader: str) -> str:
    """Return one noted event, as it is shown to the agent `reader`."""
    who = "SYSTEM"
    if event.agent_id is not None:
        who = "YOU" if event.agent_id == reader else f"AGENT:{_short(event.agent_name or event.agent_id)}"
    what = event.event_type.replace("_", " ")
    words = _words(event.details)
    return f"[{event.timestamp[11:16]}] [{who}] {_short(f'{what}: {words}' if words else what)}"


def _sender(sender: str, reader: str) -> str:
    kind, _, name = sender.partition(":")
    if kind == "agent":
        return "you" if name == reader else "another agent"
    return "a person" if kind in ("user", "conversant") else "the system"


def _words(details: Json) -> str:
    if not isinstance(details, dict):
        return ""
    return next((str(details[name]) for name in _SUMMARIES if isinstance(details.get(name), str)), "")


@lru_cache(LINES_KNOWN_MAX)
def _short(text: str) -> str:
    words = escaped(" ".join(text.split()))
    return words if len(words) <= WORDS_MAX else words[: WORDS_MAX - 1] + "…"


def handoff_parts(handed: Sequence[Handed]) -> list[Part]:
    """Return notes that were handed to an agent, as they come."""
    reason = "a note for the agent, shown once"
    return [Part(kind=Kind.HANDOFFS, text=handoff_text(note), reason=reason, ref=note[0].id) for note in handed]


def handoff_text(handed: Handed) -> str:
    """Return one note: `[2026-01-31 14:05] Agent bob: The draft is ready.`; further lines are indented."""
    note, name = handed
    who = "A person" if note.author.startswith("user:") else f"Agent {name}" if name else "An agent that was deleted"
    text = escaped(note.content).replace("\n", "\n  ")
    return f"[{_minute(note.created_at)}] {who}: {text}"


def workspace_part(seen: WorkspaceMap) -> Part:
    """Return the map of a workspace, which may repeat anything, as data: counts, then notes, then tasks of others, as
    many as there is room for.
    """
    counts = f"{seen.open_tasks} open tasks, {seen.passages} passages in the archive, {seen.key_count} keys"
    more = ", …" if seen.key_count > len(seen.keys) else ""
    keys = f" ({', '.join(map(_short, seen.keys))}{more})" if seen.keys else ""
    listed = [
        masked(f"{counts}{keys}"),
        *(masked(_note_line(label, metadata)) for label, metadata in seen.notes),
        *(masked(f"- Task of another agent: {_short(title)}") for title in seen.tasks),
    ]
    source, lines = f"the workspace {seen.name}", list[str]()
    free = MAP_TOKENS_MAX - estimate_text(marked("", source))
    for line in listed:
        free -= estimate_text(line) + 1
        if free < 0:
            break
        lines.append(line)
    left = len(listed) - len(lines)
    reason = f"the session is about it{f'; {left} lines had no room in {MAP_TOKENS_MAX} tokens' if left else ''}"
    text = marked("\n".join(lines), source)
    return Part(kind=Kind.WORKSPACE, text=text, ref=seen.id, name=seen.name, reason=reason)


def decision_part(points: int, row: DecisionRow) -> Part:
    """Return a decision, which may repeat anything, as data: `- [dec_1] ★ Use tabs: We decided …`."""
    text = cut(masked(" ".join(row.text.split())), SNIPPET_UNITS, "…")
    said = f"- [{row.id}] {'★ ' * row.important}{masked(' '.join(row.title.split()))}: {text}"
    shown = marked(said, f"a decision of {(row.created_at or 'an unknown day')[:10]}")
    reason = f"it fits the message ({points} points, at least {SHOWN_SCORE_MIN})"
    return Part(kind=Kind.DECISIONS, text=shown, ref=row.id, name=masked(row.title), reason=reason)


def _note_line(label: str, metadata: Json) -> str:
    note = metadata["note"] if isinstance(metadata, dict) and isinstance(metadata.get("note"), dict) else {}
    about = ", ".join(str(note[name]) for name in ("category", "importance") if note.get(name) not in (None, "normal"))
    return f"- {label}: {_short(str(note.get('title', '')))}{f' ({_short(about)})' if about else ''}"


def guidance_parts(rows: Sequence[GuidanceRow]) -> tuple[list[Part], list[Part]]:
    """Return guidance, and what of it has no room."""
    shown, left_out, free = list[Part](), list[Part](), GUIDANCE_TOKENS_MAX
    for row in rows:
        why = f"it helped {row.helpful} of {row.helpful + row.harmful} times with such tasks"
        part = Part(kind=Kind.GUIDANCE, text=guidance_text(row), reason=why, ref=row.id, name=row.task_type)
        if part.tokens > free:
            left_out.append(replace(part, reason=f"no room: {free} of {GUIDANCE_TOKENS_MAX} tokens are left"))
        else:
            free -= part.tokens
            shown.append(part)
    return shown, left_out


def guidance_text(row: GuidanceRow) -> str:
    """Return guidance: of a person as a line, other as data."""
    if row.source is GuidanceSource.MANUAL:
        return f"- {escaped(masked(' '.join(row.content.split())))}"
    return marked(masked(row.content), f"guidance, {row.source}, {row.created_at[:10]}")


def caught_up_parts(missed: Sequence[CaughtUp], agent_id: str, among: Collection[str] | None) -> list[Part]:
    """Return what happened while an agent was idle: of other agents, what those of `among` did (None: all)."""
    parts = []
    for one in missed:
        what, name, by = "a notable event", "", set[str]()
        if isinstance(one, NotableRow):
            ref, by = one.id, {*one.agents_involved}
        else:
            what, ref, name, by = "what another agent did", one.agent_id, one.name, {one.agent_id}
        if not by or (by - {agent_id} if among is None else by.intersection(among)):
            reason = f"{what}, since the agent's last message"
            parts.append(Part(kind=Kind.CATCH_UP, text=caught_up_text(one), ref=ref, name=name, reason=reason))
    return parts


def caught_up_text(one: CaughtUp) -> str:
    """Return one part of a catch-up: a line for a notable event; a summary, which may repeat anything, as data."""
    if isinstance(one, NotableRow):
        return f"[{_minute(one.timestamp)}] {one.event_type}: {escaped(one.description)}"
    return marked(masked(one.summary), f"the summary of agent {one.name}, {_minute(one.last_active)}")


def _minute(time: str) -> str:
    return time[:16].replace("T", " ")


def task_parts(tasks: Sequence[TaskRow], now: str) -> list[Part]:
    """Return the tasks as lines, the most urgent first as they come; `now` is a stored time."""
    parts = []
    for task in tasks[:TASKS_MAX]:
        is_late = task.due_at is not None and task.due_at < now
        reason = "an open task, overdue" if is_late else "an open task"
        text = task_line(task, is_late=is_late)
        parts.append(Part(kind=Kind.TASKS, text=text, reason=reason, ref=task.id, name=task.title))
    return parts


def task_line(task: TaskRow, *, is_late: bool) -> str:
    """Return one task: `- Pay the rent (high, due 2026-02-01, overdue)`."""
    about = [str(task.priority)]
    if task.status is TaskStatus.IN_PROGRESS:
        about.append("begun")
    if task.blocked_reason is not None:
        about.append(f"blocked: {_short(task.blocked_reason)}")
    if task.due_at is not None:
        about.append(f"due {_minute(task.due_at).removesuffix(' 00:00')}")
    if is_late:
        about.append("overdue")
    if task.agent_id is None:
        about.append("for all agents")
    return f"- {escaped(' '.join(task.title.split()))} ({', '.join(about)})"
