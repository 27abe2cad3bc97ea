"""What goes on around an agent, as parts of a prompt, one line each: what happened lately, newest first, and what is
still to be done.

    [10:42] [AGENT:bob] answered a person: "What does the report say?"
    - Pay the rent (high, due 2026-02-01, overdue)

Nothing is stored for it: the lines are made of the turns, of the events that were noted for everybody, and of the
tasks. An agent that is alone has no section of what happened, since what it did itself stands in its conversation.
"""

from __future__ import annotations

from collections.abc import Sequence

from pattern_core.prompts.parts import Kind, Part
from pattern_core.prompts.settings import ContextSettings
from pattern_core.untrusted import escaped
from pattern_db.columns import Json
from pattern_db.connection import Connection
from pattern_db.tables import activity
from pattern_db.tables.activity import Mark, NotedActivity, TurnActivity
from pattern_db.tables.tasks import OpenTask

KNOWN_MAX = 1_000  # turns whose lines are at hand
WORDS_MAX = 120  # characters shown of what a turn or an event was about
TASKS_MAX = 20
_PRIORITIES = ("low", "medium", "high", "urgent")
_DOING = {
    "completed": "answered",
    "running": "is busy with",
    "waiting": "waits for an approval, asked by",
    "cancelled": "was stopped while it answered",
}
_OTHERWISE = "could not answer"  # failed, limit, interrupted, parked
_SUMMARIES = ("summary", "description", "title", "text")  # where an event's details may hold words


class Lately:
    """What turns were told as. Every prompt tells of the same turns as the one before it, and of a few new ones."""

    def __init__(self) -> None:
        self._turns: dict[Mark, TurnActivity] = {}
        self._parts: dict[tuple[Mark, bool, bool, int], Part] = {}

    def turns(self, connection: Connection, marks: Sequence[Mark]) -> list[TurnActivity]:
        """The turns of the marks, which were read in the same transaction; only those that are new are read."""
        new = [mark for mark in marks if mark not in self._turns]
        if new and len(self._turns) + len(new) > KNOWN_MAX:
            self._turns, new = {}, list(marks)
        for one in activity.of_turns(connection, [turn_id for turn_id, _status, _name in new]) if new else ():
            self._turns[_mark(one)] = one
        return [self._turns[mark] for mark in marks if mark in self._turns]

    def parts(
        self,
        agent_id: str,
        turns: Sequence[TurnActivity],
        noted: Sequence[NotedActivity],
        settings: ContextSettings,
    ) -> list[Part]:
        """The lines for one agent. Its own are few; without anybody else's there are none at all."""
        there: list[TurnActivity | NotedActivity] = [*turns, *noted]
        if all(one.agent_id == agent_id for one in there):
            return []
        chosen: list[Part] = []
        own = 0
        for one in sorted(there, key=_moment, reverse=True):
            own += one.agent_id == agent_id
            if (one.agent_id == agent_id and own > settings.activity_own_max) or len(chosen) >= settings.activity_max:
                continue
            hours = settings.activity_hours
            chosen.append(
                self._turn(one, agent_id, hours)
                if isinstance(one, TurnActivity)
                else _part(one.id, noted_line(one, agent_id), hours, is_own=one.agent_id == agent_id)
            )
        return chosen

    def _turn(self, turn: TurnActivity, reader: str, hours: int) -> Part:
        is_own, is_asked = turn.agent_id == reader, turn.sender == f"agent:{reader}"
        key = (_mark(turn), is_own, is_asked, hours)
        known = self._parts.get(key)
        if known is None:
            if len(self._parts) >= KNOWN_MAX:
                self._parts.clear()
            known = self._parts[key] = _part(turn.id, turn_line(turn, reader), hours, is_own=is_own)
        return known


def _mark(turn: TurnActivity) -> Mark:
    return (turn.id, turn.status, turn.agent_name)


def _part(ref: str, text: str, hours: int, *, is_own: bool) -> Part:
    what = "what the agent did" if is_own else "what happened in the constellation"
    return Part(kind=Kind.ACTIVITY, text=text, ref=ref, reason=f"{what} in the last {hours} hours")


def _moment(one: TurnActivity | NotedActivity) -> tuple[str, str]:
    return (one.started_at if isinstance(one, TurnActivity) else one.timestamp, one.id)


def turn_line(turn: TurnActivity, reader: str) -> str:
    """One turn, as the agent `reader` is told of it."""
    who = "YOU" if turn.agent_id == reader else f"AGENT:{_short(turn.agent_name)}"
    doing = _DOING.get(turn.status, _OTHERWISE)
    words = f': "{_short(turn.words)}"' if turn.words else ""
    return f"[{turn.started_at[11:16]}] [{who}] {doing} {_sender(turn.sender, reader)}{words}"


def noted_line(event: NotedActivity, reader: str) -> str:
    """One noted event, as the agent `reader` is told of it."""
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
    return "a person" if kind == "user" else "the system"


def _words(details: Json) -> str:
    if not isinstance(details, dict):
        return ""
    return next((str(details[name]) for name in _SUMMARIES if isinstance(details.get(name), str)), "")


def _short(text: str) -> str:
    words = escaped(" ".join(text.split()))
    return words if len(words) <= WORDS_MAX else words[: WORDS_MAX - 1] + "…"


def task_parts(tasks: Sequence[OpenTask], now: str) -> list[Part]:
    """The tasks as lines, the most urgent first as they come; `now` is a stored time."""
    return [
        Part(kind=Kind.TASKS, text=task_line(one, now), reason=_reason(one, now), ref=one.id, name=one.title)
        for one in tasks[:TASKS_MAX]
    ]


def task_line(task: OpenTask, now: str) -> str:
    """One task: `- Pay the rent (high, due 2026-02-01, overdue)`."""
    about = [_PRIORITIES[task.priority]]
    if task.status == "in_progress":
        about.append("begun")
    if task.due_at is not None:
        about.append(f"due {task.due_at[:16].replace('T', ' ').removesuffix(' 00:00')}")
    if _is_late(task, now):
        about.append("overdue")
    if task.agent_id is None:
        about.append("everybody's")
    return f"- {escaped(' '.join(task.title.split()))} ({', '.join(about)})"


def _is_late(task: OpenTask, now: str) -> bool:
    return task.due_at is not None and task.due_at < now


def _reason(task: OpenTask, now: str) -> str:
    return "an open task, overdue" if _is_late(task, now) else "an open task"
