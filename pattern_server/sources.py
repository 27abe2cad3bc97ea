"""The accounts of all sources and channels: one task asks each, also while its constellation is parked.

A constellation is woken only to store something: events that arrived, or that a source began to fail. Its account is
read from it before the first question; until that is due, which the global database knows, a start opens no file.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import trio

from pattern_core.errors import Conflict, NotFound, PatternError, instead_of
from pattern_core.ids import Clock, Randomness
from pattern_core.timers import sleep_until
from pattern_db.columns import iso
from pattern_db.errors import DatabaseError, RowNotFound
from pattern_db.tables import source_accounts
from pattern_db.tables.source_accounts import SourceAccountRow
from pattern_server.global_database import GlobalDatabase
from pattern_server.rates import Rate
from pattern_server.supervisor import WAKES_AT_ONCE

if TYPE_CHECKING:
    from pattern_core.constellation import Constellation
    from pattern_core.sources.source import Arrivals, SourceAccount, SourceKind

FIRST_WAIT_S = 2.0  # after the first failure; twice that after the second …
WAIT_S_MAX = 900.0
EVENTS_PER_S = 20.0  # of one source that is asked; more are read later
POSTED_PER_S = 10.0  # of one that is called, each of which is a request; more wait, or are refused
PATIENCE_S = 5.0  # for which one waits for its turn; services wait twice as long for an answer
STORED_MAX = 20  # events at once: what is stored at once holds up the turns of others
KEPT_WAIT_S = 60.0  # shorter waits are not written down: a start asks at once

Use: TypeAlias = "Callable[[str], AbstractAsyncContextManager[Constellation]]"
_log = logging.getLogger("pattern.sources")


@dataclass(slots=True)
class _Asked:
    """An account that is asked: as it was after the last change, the names of the events that it sent last, and how
    often it failed since.
    """

    row: SourceAccountRow
    failures: int = 0
    account: tuple[SourceKind, SourceAccount] | None = None
    seen: set[str] = field(default_factory=set)


class SourceAccounts:
    """Asks the accounts of all constellations. Any task may call the other methods while `run` runs, or before."""

    use: Use  # yields a constellation, awake; set before `run`

    def __init__(self, registry: GlobalDatabase, clock: Clock, randomness: Randomness) -> None:
        self._registry = registry
        self._clock = clock
        self._randomness = randomness
        self._known: dict[str, Mapping[str, bool]] = {}  # by constellation: its accounts, as it reported them
        self._tasks: dict[str, trio.CancelScope] = {}
        self._called: dict[str, tuple[SourceKind, SourceAccount]] = {}  # those that are called
        self._rate = Rate(STORED_MAX, 1 / EVENTS_PER_S, "events")
        self._posted = Rate(1, 1 / POSTED_PER_S, "events of this source")
        self._starting = trio.CapacityLimiter(WAKES_AT_ONCE)
        self._nursery: trio.Nursery | None = None
        self.polls: Counter[str] = Counter()  # by outcome: events, nothing, failure
        self.failing: dict[str, int] = {}  # since when, in Unix milliseconds
        self.last_event_ms: int | None = None

    @property
    def states(self) -> Mapping[str, int]:
        """How many accounts are asked, and how many of them fail."""
        return {"failing": len(self.failing), "active": len(self._tasks.keys() - self.failing.keys())}

    @property
    def lag_s(self) -> float:
        """For how many seconds the account that has failed for longest has failed: what its service has since then is
        not here yet.
        """
        now_ms = self._clock.now_ms()
        return max((now_ms - since_ms for since_ms in self.failing.values()), default=0) / 1000

    async def changed(self, constellation_id: str, accounts: Mapping[str, bool]) -> None:
        """Note the accounts of a constellation, and whether each is to be asked.

        Raises:
            DatabaseError: they cannot be stored.
        """
        if accounts == self._known.get(constellation_id, {}):
            return
        now = iso(self._clock.now_ms())
        due = {one: now if is_asked else None for one, is_asked in accounts.items()}
        await self._registry.write(source_accounts.replace, constellation_id, due)
        for gone in self._known.get(constellation_id, {}).keys() - accounts.keys():
            self._called.pop(gone, None)
            if gone in self._tasks:
                self._tasks.pop(gone).cancel()
        self._known[constellation_id] = dict(accounts)
        for one, is_asked in accounts.items():
            if is_asked:
                self._start(SourceAccountRow(one, constellation_id, now))

    async def owner_of(self, account_id: str) -> str:
        """Return the id of the constellation that an account belongs to.

        Raises:
            NotFound: there is no such account, or it is paused.
        """
        try:
            return (await self._registry.read(source_accounts.get, account_id)).constellation_id
        except RowNotFound:
            raise NotFound(f"there is no source {account_id!r} on this server") from None

    async def posted(self, account_id: str, headers: Mapping[str, str], body: bytes) -> bool:
        """Store an event that a service posts, in its turn, so that a burst does not hold up others; return False if it
        was known. Who cannot prove that it is from the service uses no turn.

        Raises:
            NotFound: there is no such account that is called, or it is paused.
            PermissionDenied: it is not from the service.
            Overloaded: too many are before it.
            PatternError: it cannot be an event, or as `Sources.receive`.
        """
        self._posted.use(account_id, PATIENCE_S, 0)  # before the proof, which costs more than a refusal may
        if (found := self._called.get(account_id)) is None:
            async with self.use(await self.owner_of(account_id)) as constellation:
                self._called[account_id] = found = await constellation.sources.account(account_id)
        kind, account = found
        event = await kind.called(account, headers, body)
        await trio.sleep(self._posted.use(account_id, PATIENCE_S))
        async with self.use(await self.owner_of(account_id)) as constellation:  # it may have been deleted since
            return await constellation.sources.receive_one(account_id, event)

    async def run(self) -> None:
        """Ask all accounts until cancelled."""
        rows = await self._registry.read(source_accounts.list_all)
        async with trio.open_nursery() as self._nursery:
            for row in rows:
                known = dict(self._known.get(row.constellation_id, {}))
                self._known[row.constellation_id] = {**known, row.id: row.next_at is not None}
                if row.next_at is not None:
                    self._start(row)
            await trio.sleep_forever()

    def _start(self, row: SourceAccountRow) -> None:
        if row.id not in self._tasks and self._nursery is not None:
            self._tasks[row.id] = scope = trio.CancelScope()
            self._nursery.start_soon(self._follow, row, scope)

    async def _follow(self, row: SourceAccountRow, scope: trio.CancelScope) -> None:
        """Ask one account until it is deleted or paused; whatever goes wrong with it stays here."""
        asked = _Asked(row)
        with scope:
            await sleep_until(row.next_at, self._clock, trio.Event())
            while True:
                try:
                    wait_s = await self._ask(asked)
                except Conflict:  # paused or deleted since
                    break
                except (PatternError, DatabaseError) as error:
                    asked.failures += 1
                    wanted_s = error.details.get("retry_after_s") if isinstance(error, PatternError) else None
                    wait_s = min(WAIT_S_MAX, FIRST_WAIT_S * 2 ** min(asked.failures - 1, 20))
                    wait_s *= 1 + self._randomness.random() / 2  # so that they do not all return together
                    wait_s = max(wait_s, min(wanted_s, WAIT_S_MAX) if isinstance(wanted_s, int | float) else 0.0)
                    await self._failed(row, error)
                next_at = iso(self._clock.now_ms() + round(wait_s * 1000))
                if wait_s >= KEPT_WAIT_S:
                    with suppress(DatabaseError):
                        await self._registry.write(source_accounts.set_next, row.id, next_at)
                await sleep_until(next_at, self._clock, trio.Event())
        self.failing.pop(row.id, None)
        if self._tasks.get(row.id) is scope:
            del self._tasks[row.id]

    async def _ask(self, asked: _Asked) -> float:
        """Ask an account once, or listen while its connection lasts, and store what is new; return how long to wait
        until the next time, in seconds.

        Raises:
            Conflict: it was deleted, perhaps with its constellation, or is paused.
            PatternError: it could not be asked, or what came not be stored.
        """
        with instead_of(NotFound, Conflict("the source is not asked any more")):
            await self.owner_of(asked.row.id)
        if asked.account is None:
            async with self._starting, self.use(asked.row.constellation_id) as constellation:
                asked.account = await constellation.sources.account(asked.row.id)
        kind, account = asked.account
        return await account.call(kind.listen, partial(self._received, asked))

    async def _received(self, asked: _Asked, arrived: Arrivals) -> None:
        """Store what is new, if anything is."""
        assert asked.account is not None
        row, cursor = asked.row, asked.account[1].cursor
        self.polls["events" if arrived.events else "nothing"] += 1
        natives = {event.native for event in arrived.events}
        if natives - asked.seen or arrived.cursor != cursor or row.id in self.failing:
            rest = arrived.events
            while len(rest) > STORED_MAX:  # the place is behind all of them
                await self._store(asked, replace(arrived, events=rest[:STORED_MAX], cursor={}))
                rest = rest[STORED_MAX:]
            await self._store(asked, replace(arrived, events=rest))
            asked.seen = natives
        asked.failures = 0

    async def _store(self, asked: _Asked, arrived: Arrivals) -> None:
        row = asked.row
        async with self.use(row.constellation_id) as constellation:
            if await constellation.sources.receive(row.id, arrived):
                self.last_event_ms = self._clock.now_ms()
            asked.account = await constellation.sources.account(row.id)
        self.failing.pop(row.id, None)
        # A source with more events than that is read later, and costs others nothing.
        await trio.sleep(self._rate.spend(row.id, len(arrived.events)))

    async def _failed(self, row: SourceAccountRow, error: PatternError | DatabaseError) -> None:
        self.polls["failure"] += 1
        if row.id not in self.failing:
            self.failing[row.id] = self._clock.now_ms()
            _log.warning("a source cannot be asked", {"source": row.id, "reason": error.message})
            with suppress(PatternError, DatabaseError):
                async with self.use(row.constellation_id) as constellation:
                    await constellation.sources.failed(row.id, error.message)
