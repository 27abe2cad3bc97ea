"""Where a life can be cut off: at each moment of the journal, inside a commit, around the outside, at any instant.

A point is a moment and a phase of it. The moments T0 to T8 are those of `pattern_core/turns/record.py`; which of
them a transaction was is derived from what it stored, not from the caller. Phases of a commit: `before` (everything is
written, nothing committed), `after` (committed, not announced), `announced` (events sent, the caller has no answer).
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pattern_core.events import TERMINAL, Event
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.testing.disks import Call, Op, WatchedDisk
from tests.crash.outside import Log

T = TypeVar("T")

COMMIT_MOMENTS = ("T0", "T1", "T2", "T2'", "T3", "T4", "T5", "T6", "T7", "T8", "resume", "aside")
# Moments beside those: what follows a question (T4'), messages that leave or join, and money held for a summary.
OTHER_MOMENTS = ("rest", "answer", "resumed", "compact", "join", "money")
COMMIT_PHASES = ("before", "after", "announced")
AROUND = ("model", "summary", "outside", "submit", "ack", "decide")
INSTANT = ("instant", "any")
_NAMED: tuple[tuple[str, str], ...] = (
    *((moment, phase) for moment in (*COMMIT_MOMENTS, *OTHER_MOMENTS) for phase in COMMIT_PHASES),
    *((moment, phase) for moment in AROUND for phase in ("before", "after")),
    # Twice more: few of these calls cannot be repeated, and it is those that a death leaves in doubt.
    *(("outside", phase) for phase in ("before", "after", "before", "after")),
    *(("disk", phase) for phase in ("write", "written", "sync", "synced")),
)
# Every fifth life ends at an instant of no name: the kernel ends it wherever a random time finds it.
POINTS = tuple(point for at, named in enumerate(_NAMED) for point in ((named, INSTANT) if at % 4 == 3 else (named,)))
_OFTEN = frozenset({"T3", "T6", "T7", "T2'", "model"})
RARE = frozenset({"resume", "aside", "T4", "decide", "summary", *OTHER_MOMENTS})
INSTANT_S_MAX = 0.04


@dataclass(frozen=True, slots=True)
class Point:
    """The `nth` time (from 1) that a phase of a moment is reached; for an instant, the seconds from the start."""

    moment: str
    phase: str
    nth: int = 1
    seconds: float = 0.0


def choose(points: Sequence[tuple[str, str]], number: int, chance: random.Random) -> Point:
    """The point of a life: all of `points` in turn, each at a time by chance."""
    moment, phase = points[number % len(points)]
    if (moment, phase) == INSTANT:
        return Point(moment, phase, seconds=chance.uniform(0.0002, INSTANT_S_MAX))
    if moment == "disk":
        return Point(moment, phase, nth=chance.randint(1, 40 if phase.startswith("writ") else 12))
    most = 1 if moment in RARE else 4 if moment in _OFTEN else 2
    return Point(moment, phase, nth=chance.randint(1, most))


def die() -> None:
    """End this process by SIGKILL: at once, without clean-up."""
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)  # the signal may take a moment to arrive at another thread


class Trigger:
    """Calls `at` when the point is reached, once; counts all phases of all moments by the way."""

    def __init__(self, point: Point | None, at: Callable[[], None] = die) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self._point = point
        self._at = at

    @property
    def moment(self) -> str | None:
        """The moment that is waited for, so that a life can cause it."""
        return None if self._point is None else self._point.moment

    def reached(self, moment: str, phase: str) -> None:
        """Count a phase of a moment, and act if it is the point."""
        self.counts[moment, phase] += 1
        point = self._point
        if point is not None and point == Point(moment, phase, self.counts[moment, phase]):
            self._at()

    def arm(self) -> None:
        """Start the time to an instant: the kernel ends the process then, wherever it is."""
        if self._point is not None and self._point.moment == "instant":
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, self._point.seconds)


class TriggerDisk(WatchedDisk):
    """Reports each change of a file to the trigger, so that a life can end in the middle of a commit."""

    def __init__(self, trigger: Trigger) -> None:
        super().__init__()
        self._trigger = trigger

    def before(self, call: Call) -> None:
        """A write or sync is about to happen."""
        if call.op in (Op.WRITE, Op.SYNC):
            self._trigger.reached("disk", "write" if call.op is Op.WRITE else "sync")

    def done(self, call: Call) -> None:
        """A write or sync has happened."""
        if call.op in (Op.WRITE, Op.SYNC):
            self._trigger.reached("disk", "written" if call.op is Op.WRITE else "synced")


class WatchedDatabase(Database):
    """A database that reports each phase of each commit to its trigger, and logs what is announced.

    `watch_with` is called once, before the first write.
    """

    trigger: Trigger
    announced: Log

    def watch_with(self, trigger: Trigger, announced: Log) -> None:
        """Set the trigger and the log of announced events."""
        self.trigger, self.announced = trigger, announced

    async def write_and_announce(self, fn: Callable[[Connection], T], announce: Callable[[T], None]) -> T:
        """Commit as the product does, and report the phases."""
        moments: list[str] = []

        def watched(connection: Connection) -> T:
            value, found = classify(connection, fn)
            moments.extend(found)
            self._reached(moments, "before")
            return value

        def announce_it(value: T) -> None:
            self._reached(moments, "after")
            self.note(value)
            announce(value)
            self._reached(moments, "announced")

        return await super().write_and_announce(watched, announce_it)

    def note(self, value: object) -> None:
        """Note the events that are about to be announced."""
        for event in events_of(value):
            self.announced.append(line_of(event))

    def _reached(self, moments: list[str], phase: str) -> None:
        for moment in moments:
            self.trigger.reached(moment, phase)


def events_of(value: object) -> list[Event]:
    """The events that a commit's value carries: the journal's `(value, events)`."""
    match value:
        case (_, [*events]):
            return [event for event in events if isinstance(event, Event)]
    return []


def line_of(event: Event) -> dict[str, object]:
    """An event as the logs hold it."""
    return {"seq": event.seq, "name": event.name, "turn": event.turn_id, "data": dict(event.data)}


def classify(connection: Connection, fn: Callable[[Connection], T]) -> tuple[T, list[str]]:
    """Run `fn` within the open transaction; its value, and which moments of the journal it was."""
    marks = _marks(connection)
    value = fn(connection)
    return value, _moments(value, marks, _marks(connection))


def _marks(connection: Connection) -> tuple[int, int, int]:
    """Count what stores no event: calls started, turns resumed, summaries reserved and paid."""
    started, resumed, money = connection.execute(
        "SELECT (SELECT coalesce(sum(attempts), 0) FROM effect), (SELECT coalesce(sum(resumes), 0) FROM turn),"
        " (SELECT count(*) FROM reservation WHERE purpose = 'summary')"
        " + 2 * (SELECT count(*) FROM usage WHERE purpose = 'summary')"
    ).get
    return started, resumed, money


_BY_EVENT = {
    "turn.queued": "T0",
    "turn.started": "T1",
    "approval.requested": "T4",
    "turn.waiting": "rest",
    "approval.decided": "answer",
    "turn.resumed": "resumed",
    "history.compacted": "compact",
    "message.joined": "join",
}


def _moments(value: object, before: tuple[int, int, int], after: tuple[int, int, int]) -> list[str]:
    """The moments of the journal that a transaction was."""
    names = [event.name for event in events_of(value)]
    found = [moment for name, moment in _BY_EVENT.items() if name in names]
    found += [moment for at, moment in enumerate(("T5", "resume", "money")) if after[at] > before[at]]
    if "tool.result" in names and not TERMINAL.intersection(names):
        found.append("T6")
    if "step.started" in names:
        found.append("T7" if "tool.result" in names else "T2")
    if "tool.call" in names or ("message" in names and "tool.result" not in names):
        found.append("T3")
    if TERMINAL.intersection(names) and "message.joined" not in names:
        found.append("T8")
    if not found and {"text.delta", "reasoning.delta"}.intersection(names):
        found.append("T2'")
    return found or ["aside"]
