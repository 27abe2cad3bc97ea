"""The one way to store: a transaction, its events published after the commit, in the order of the commits.

Every commit is synced before it is acted on or published, and shielded from cancellation with a deadline of its own
(`Database.watch`); nothing else is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from pattern_core.budgets.budget import KnownBudgets
from pattern_core.events import Event, EventLog, append
from pattern_core.ids import Clock, Ids, message_id
from pattern_core.messages import Message, Part, Role
from pattern_core.runtime import Meters
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.columns import iso
from pattern_db.connection import Connection
from pattern_db.database import Database

T = TypeVar("T")


@dataclass(eq=False, kw_only=True)
class Journal:
    """Commits for one constellation, with what goes into them: times of `clock` and `ids`.

    `logged` are the digests of what each agent's last prompt showed: they are stored. `after_commit` is called after
    every commit and must not wait or raise.
    """

    database: Database
    events: EventLog
    clock: Clock
    ids: Ids
    epoch: int
    budgets: KnownBudgets
    meters: Meters = field(default_factory=Meters)
    logged: dict[str, tuple[bytes, bytes]] = field(default_factory=dict)
    after_commit: Callable[[], None] = lambda: None

    async def commit(self, fn: Callable[[Connection], tuple[T, list[Event]]]) -> T:
        """Run `fn` in a transaction, publish the events that it returns, and return its value.

        Raises:
            StorageFailed: the disk refused, or hangs.
            DatabaseError: the transaction was refused; nothing of it is stored.
        """
        value, _events = await self.database.write_and_announce(fn, self.events.publish)
        self.meters.commits += 1
        self.after_commit()
        return value

    async def commit_work(self, work: UnitOfWork) -> None:
        """Store a unit of work that belongs to no turn, such as an edit through the API, and settle it.

        Raises:
            DatabaseError: the transaction was refused; nothing of it is stored.
        """
        now = self.now()

        def store(connection: Connection) -> tuple[None, list[Event]]:
            stored = work.run(connection)
            return None, [*stored, *append(connection, None, work.drafts, created_at=now)]

        try:
            await self.commit(store)
            work.settle(committed=True)
        finally:
            work.settle(committed=False)  # nothing, if it was committed

    def now(self) -> str:
        """Return the wall time as it is stored."""
        return iso(self.clock.now_ms())

    def seconds_since(self, began_ms: int) -> float:
        """Return the time since a wall time in unix milliseconds, at least 0."""
        passed_ms = self.clock.now_ms() - began_ms
        return passed_ms / 1000 if passed_ms > 0 else 0.0

    def new_message(self, role: Role, *parts: Part) -> Message:
        """Return a message at the next position, not yet stored."""
        now_ms = self.clock.now_ms()
        position = self.ids.position(now_ms)
        return Message(role=role, parts=parts, id=message_id(position), position=position, created_at=iso(now_ms))
