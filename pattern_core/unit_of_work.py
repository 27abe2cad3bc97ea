"""What one transaction will store, collected before it and settled after it.

A tool with local effects does not write: it adds functions to the unit of work of its call, and the journal stores
them in the same transaction as the call's result. So the effect happens exactly once, or not at all.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec

from pattern_core.errors import Conflict, NotFound
from pattern_core.events import Draft, Event
from pattern_core.ids import Clock, Ids, now_text
from pattern_db import errors as storage
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.tables import activity
from pattern_db.tables.activity import ActivityEvent

P = ParamSpec("P")


@dataclass(slots=True, eq=False)
class UnitOfWork:
    """Functions of a connection to run in one transaction, events to store with them, and callbacks.

    `settle` is called once, after the commit or failure; a second call does nothing.
    """

    drafts: list[Draft] = field(default_factory=list)
    _writes: list[tuple[bool, Callable[..., Any], tuple[object, ...], dict[str, object]]] = field(default_factory=list)
    _settled: list[Callable[[bool], None]] = field(default_factory=list)

    @property
    def has_writes(self) -> bool:
        """Whether anything is to be stored."""
        return bool(self._writes or self.drafts)

    def store(self, fn: Callable[Concatenate[Connection, P], object], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Run `fn(connection, *args, **kwargs)` within the transaction, after earlier ones."""
        self._writes.append((False, fn, args, kwargs))

    def store_and_tell(self, fn: Callable[[Connection], Sequence[Event]]) -> None:
        """Run `fn(connection)`, which stores its own events, within the transaction; they are published after it."""
        self._writes.append((True, fn, (), {}))

    def event(self, name: str, data: Mapping[str, object]) -> None:
        """Store an event with the transaction; it is published after the commit."""
        self.drafts.append(Draft(name, data))

    def when_settled(self, fn: Callable[[bool], None]) -> None:
        """Call `fn(committed)` after the transaction, committed or not. `fn` must not raise or wait."""
        self._settled.append(fn)

    def run(self, connection: Connection) -> list[Event]:
        """Run all added functions within the caller's transaction; return the stored events."""
        events: list[Event] = []
        for publishes, fn, args, kwargs in self._writes:
            stored = fn(connection, *args, **kwargs)
            if publishes:
                events += stored
        return events

    def settle(self, *, committed: bool) -> None:
        """Call the functions added by `when_settled`, the last one first. What was to be stored is let go: functions
        that refer to their unit of work, and to a prompt, would be freed by a garbage collection only.
        """
        self._writes.clear()
        while self._settled:
            self._settled.pop()(committed)


Commit = Callable[[UnitOfWork], Awaitable[None]]  # stores it in one transaction, publishes its events and settles it


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """What the services of a constellation need to store data: its database, `commit` for changes outside of turns, the
    clock and ids.
    """

    database: Database
    commit: Commit
    clock: Clock
    ids: Ids

    def now(self) -> str:
        """Return the wall time as it is stored."""
        return now_text(self.clock)

    def note(self, work: UnitOfWork, event_type: str, summary: str, *, author: str, importance: int) -> ActivityEvent:
        """Note for all agents what `work` does, in its transaction; prompts of others show it."""
        kind, _, author_id = author.partition(":")
        agent_id = author_id if kind == "agent" else None
        details = {"summary": summary, "by": author}
        event = ActivityEvent(self.ids.new("act"), self.now(), agent_id, event_type, details, importance)
        work.store(activity.note, event)
        return event


@asynccontextmanager
async def given_or_alone(given: UnitOfWork | None, commit: Commit) -> AsyncIterator[UnitOfWork]:
    """Yield `given`, which its owner commits; if None, a new unit of work, committed at the end of the block.

    If the block raises, its own unit is discarded. Without an event nothing was changed, and no transaction is made.

    Raises:
        Conflict: storage refused it: a name is in use, or another writer was first.
        NotFound: what it was about has been deleted.
    """
    if given is not None:
        yield given
        return
    unit = UnitOfWork()
    try:
        yield unit
        if unit.drafts:
            try:
                await commit(unit)
            except storage.RowConflict as error:
                raise Conflict(error.message) from error
            except storage.RowNotFound as error:
                raise NotFound(error.message) from error
        unit.settle(committed=True)
    finally:
        unit.settle(committed=False)  # nothing, if it was settled before
