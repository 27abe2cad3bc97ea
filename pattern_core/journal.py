"""The only way to store: a transaction, with its events published after the commit, in the order of the commits.

Every commit is synced before it is acted on or published, and shielded from cancellation with its own deadline
(`Database.watch`); nothing else is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import astuple, dataclass, field
from operator import add
from typing import TypeVar

import trio

from pattern_core.budgets.budget import KnownBudgets
from pattern_core.events import Draft, Event, EventLog, append
from pattern_core.ids import Clock, Ids, message_id
from pattern_core.messages import Message, Part, Role
from pattern_core.runtime import Meters
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.columns import iso
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.journal import retention
from pattern_db.journal.retention import Pruned

T = TypeVar("T")
PRUNE_AFTER_S = 120.0  # after the start, so that the request that woke a constellation does not wait for it
PRUNE_PAUSE_S = 0.05  # between two portions, so that others can use the disk
DAY_MS = 24 * 3600 * 1000
_log = logging.getLogger("pattern.turns")  # below the server's logger, so that its level applies


@dataclass(eq=False, kw_only=True)
class Journal:
    """Commits for the constellation with this id, with times of `clock` and `ids`.

    `logged` are the digests of the prompt parts already stored for each agent's last prompt. `after_commit` is called
    after every commit and must not wait or raise.
    """

    constellation_id: str
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

    async def prune_daily(self, days: int) -> None:
        """Delete data of turns that ended more than `days` ago, once a day until cancelled; 0: nothing."""
        if days:
            await trio.sleep(PRUNE_AFTER_S)
        while days:
            await self.prune(days)
            await trio.sleep(DAY_MS / 1000)

    async def prune(self, days: int, *, dry_run: bool = False) -> Pruned:
        """Delete data of turns that ended more than `days` ago, in portions; return the numbers, also for a dry run."""
        before, gone = iso(self.clock.now_ms() - days * DAY_MS), Pruned()
        if dry_run:
            return await self.database.read_aside(retention.prunable, before)
        while True:
            self.logged.clear()  # their rows may be deleted; the next prompt stores them again
            portion = await self.database.write(retention.prune, before)
            if portion == Pruned():
                return gone
            gone = Pruned(*map(add, astuple(gone), astuple(portion)))
            await trio.sleep(PRUNE_PAUSE_S)

    def now(self) -> str:
        """Return the wall time as it is stored."""
        return iso(self.clock.now_ms())

    def seconds_since(self, began_ms: int) -> float:
        """Return the time since a wall time in unix milliseconds, at least 0."""
        passed_ms = self.clock.now_ms() - began_ms
        return passed_ms / 1000 if passed_ms > 0 else 0.0

    def log_end(
        self, turn_id: str, agent_id: str, end: Draft, *, steps: int = 0, model: str | None = None, seconds: float = 0.0
    ) -> None:
        """Log the end of a turn with its terminal event `end`: one line of ids and counts, without any text of
        messages.

        `model` is the last one called, as `provider/model`; `seconds` is the time since the turn started.
        """
        if not _log.isEnabledFor(logging.INFO):
            return
        error, usage = end.derived.get("error"), end.derived["usage"]
        fields = {
            "constellation": self.constellation_id,
            "agent": agent_id,
            "turn": turn_id,
            "status": end.derived["status"],
            "code": error["code"] if isinstance(error, dict) else None,
            "steps": steps,
            "model": model,
            **(usage if isinstance(usage, dict) else {}),
            "ms": round(seconds * 1000),
        }
        _log.info("turn ended", fields)

    def new_message(self, role: Role, *parts: Part) -> Message:
        """Return a message at the next position, not yet stored."""
        now_ms = self.clock.now_ms()
        position = self.ids.position(now_ms)
        return Message(role=role, parts=parts, id=message_id(position), position=position, created_at=iso(now_ms))
