"""The sources and channels of a constellation: their accounts, and the one transaction by which an event arrives.

An event that is new, where it is to be delivered, and the new cursor are one transaction. The service learns of the
cursor afterwards. So a process that dies is sent an event again, and knows it: its digest is kept permanently.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, replace
from hashlib import blake2b
from typing import Any

import trio

from pattern_core.agents import Roster
from pattern_core.errors import Conflict, InvalidInput, NotFound, Overloaded, PatternError, instead_of
from pattern_core.outbox import Outbox
from pattern_core.sources.intake import check_filters, passes, wait_s
from pattern_core.sources.kinds import SOURCES, is_channel, kind_of
from pattern_core.sources.source import Arrivals, SourceAccount, SourceEvent, SourceKind, storable
from pattern_core.unit_of_work import Storage, UnitOfWork
from pattern_core.untrusted import check_plain
from pattern_core.web.policy import SourceSettings
from pattern_db.columns import Json, iso, to_json
from pattern_db.connection import Connection
from pattern_db.enums import SourceDelivery
from pattern_db.errors import RowConflict, RowNotFound
from pattern_db.journal import events
from pattern_db.tables import meta, outbox, sources
from pattern_db.tables.outbox import OutboxRow
from pattern_db.tables.sources import ReceiverRow, SourceRow

SOURCES_MAX = 100  # of one constellation
NAME_CHARS_MAX = 100
WAITING_MAX = 2_000  # events of a source that were not delivered; later ones stay at the service
BURST_S = 0.3  # events within this time are one message
BATCH_S_MAX = 7 * 24 * 3600.0
TEMPLATE_CHARS_MAX = 2_000
CURSOR = "sources_after"  # in `meta`: up to this one, the constellation's events were checked for answers in chats

Source = SourceRow
Receiver = ReceiverRow


class Sources:
    """The sources of one constellation. `on_change` is awaited with what `accounts` returns, after each change."""

    def __init__(self, storage: Storage, roster: Roster, outbox: Outbox, settings: SourceSettings) -> None:
        self.storage = storage
        self.roster = roster
        self.outbox = outbox
        self.settings = settings
        self.changed = trio.Event()  # set, and replaced, by each change
        self.on_change: Callable[[Mapping[str, bool]], Awaitable[None]] = _ignore

    async def all(self) -> list[SourceRow]:
        """Return all sources, by name."""
        return await self.storage.database.read(sources.list_all)

    async def get(self, id_or_name: str) -> SourceRow:
        """Return the source with this id or name.

        Raises:
            NotFound: there is none.
        """
        with instead_of(RowNotFound, NotFound(f"there is no source {id_or_name!r} in this constellation")):
            return await self.storage.database.read(sources.find, id_or_name)

    async def account(self, id_or_name: str) -> tuple[SourceKind, SourceAccount]:
        """Return a source's account with its kind.

        Raises:
            NotFound: there is no such source.
            InvalidInput: this version does not know its kind.
        """
        row = await self.get(id_or_name)
        return kind_of(row.source_type), SourceAccount(row=row, settings=self.settings, clock=self.storage.clock)

    async def accounts(self) -> dict[str, bool]:
        """Return the ids of the sources that are not paused, and whether each is to be asked: others are called."""
        rows = await self.all()
        known = [one for one in rows if one.enabled and one.source_type in SOURCES]
        return {one.id: not kind_of(one.source_type).is_called for one in known}

    async def create(self, *, name: str, kind: str, config: Mapping[str, Json], agent: str) -> SourceRow:
        """Create a source and have an agent receive its events as messages.

        Raises:
            InvalidInput: a field is invalid, or no secret of this name is configured.
            PermissionDenied: the operator's rules forbid what it names.
            NotFound: there is no such agent.
            Conflict: the name is taken.
        """
        if not 0 < len(check_plain(name.strip(), "a source's name")) <= NAME_CHARS_MAX:
            raise InvalidInput(f"a source's name has 1 to {NAME_CHARS_MAX} characters")
        if len(await self.all()) >= SOURCES_MAX:
            raise InvalidInput(f"a constellation has at most {SOURCES_MAX} sources; remove one")
        found, now = kind_of(kind), self.storage.now()
        row = await self._proved(SourceRow(self.storage.ids.new("src"), name.strip(), kind, config, now, now))
        receiver = ReceiverRow((await self.roster.get(agent)).id, row.id)

        def store(connection: Connection) -> None:
            if found.chars_max and not any(is_channel(one.source_type) for one in sources.list_all(connection)):
                meta.put(connection, CURSOR, str(events.latest(connection)))
            sources.create(connection, row)
            sources.put_receiver(connection, receiver)

        await self._store(store, "source.created", row)
        return row

    async def set_enabled(self, id_or_name: str, enabled: bool) -> SourceRow:
        """Pause a source, or resume it: it is asked again, from the place at which it was paused.

        Raises:
            NotFound: there is no such source.
            PatternError: it cannot be resumed, as `create`: it may come from an archive of another server.
        """
        row, now = await self.get(id_or_name), self.storage.now()
        if enabled:
            await self._proved(row)
        changes = {"enabled": enabled, "error": None, "failing_since": None, "updated_at": now}

        def store(connection: Connection) -> None:
            sources.change(connection, row.id, changes)

        await self._store(store, "source.changed", row)
        return await self.get(row.id)

    async def delete(self, id_or_name: str) -> None:
        """Delete a source: nothing more arrives or is sent, and what is known of its people and chats is gone.

        Raises:
            NotFound: there is no such source.
        """
        row = await self.get(id_or_name)
        await self._store(lambda connection: sources.delete(connection, row.id), "source.deleted", row)

    async def receivers(self, source_id: str) -> list[ReceiverRow]:
        """Return what agents get of a source."""
        return await self.storage.database.read(sources.receivers, source_id)

    async def set_receiver(
        self,
        id_or_name: str,
        agent: str,
        *,
        delivery: SourceDelivery = SourceDelivery.MESSAGE,
        template: str | None = None,
        filters: Mapping[str, Json] | None = None,
        batch_s: float = 0.0,
    ) -> ReceiverRow:
        """Set what an agent gets of a source.

        Raises:
            NotFound: there is no such source or agent.
            InvalidInput: a value is out of bounds, a filter is unknown, or the template is missing.
        """
        row, found = await self.get(id_or_name), await self.roster.get(agent)
        if (delivery is SourceDelivery.NOTIFICATION) == (template is None):
            raise InvalidInput("a notification needs a `template`, and only that; words in it are {title}, {text} …")
        if template is not None and not 0 < len(template) <= TEMPLATE_CHARS_MAX:
            raise InvalidInput(f"a template has 1 to {TEMPLATE_CHARS_MAX} characters")
        if not 0 <= batch_s <= BATCH_S_MAX:
            raise InvalidInput(f"`batch_s` is from 0 to {BATCH_S_MAX:.0f} seconds")
        check_filters(filters or {})
        receiver = ReceiverRow(found.id, row.id, template, delivery, filters or {}, batch_s)
        await self._store(lambda connection: sources.put_receiver(connection, receiver), "source.changed", row)
        return receiver

    async def drop_receiver(self, id_or_name: str, agent: str) -> None:
        """Have an agent get nothing of a source any more.

        Raises:
            NotFound: there is no such source or agent, or it gets nothing of it.
        """
        row, found = await self.get(id_or_name), await self.roster.get(agent)
        await self._store(
            lambda connection: sources.delete_receiver(connection, row.id, found.id), "source.changed", row
        )

    async def receive(self, source_id: str, arrived: Arrivals) -> int:
        """Store what arrived, and the new cursor; return how many events were new. All of it is stored, or nothing.

        Raises:
            NotFound: the source was deleted.
            Conflict: it is paused.
            Overloaded: too many of its events wait.
            InvalidInput: an event cannot be stored.
        """
        bounded = [event.bounded for event in arrived.events]
        receivers, now_ms = await self.receivers(source_id), self.storage.clock.now_ms()
        rows = [(event, [] if event.is_old else self._rows(source_id, event, receivers, now_ms)) for event in bounded]
        new, is_free = 0, False

        def store(connection: Connection) -> None:
            nonlocal new, is_free
            row = sources.find(connection, source_id)
            if not row.enabled:
                raise Conflict(f"the source {row.name!r} is paused")
            if sources.waiting(connection, source_id) + len(rows) > max(WAITING_MAX, len(rows)):
                raise Overloaded(f"{WAITING_MAX} events of {row.name!r} wait for their agents", retry_after_s=30)
            for event, deliveries in rows:
                if sources.see(connection, source_id, event.digest):
                    new += not event.is_old
                    for delivery in deliveries:
                        outbox.add(connection, delivery)
                        is_free = is_free or outbox.is_free(connection, delivery.id)
            changes: dict[str, Any] = {"last_sync_at": iso(now_ms), "error": None, "failing_since": None}
            if new:
                changes["last_event_at"] = iso(now_ms)
            if arrived.cursor:
                changes["sync_cursor"] = storable(to_json(dict(arrived.cursor)))
            sources.change(connection, source_id, changes)

        work = UnitOfWork()
        work.store(store)
        with instead_of(RowNotFound, NotFound(f"the source {source_id} was deleted")):
            await self.storage.commit(work)
        if is_free:  # else the outbox finds it when the older one is delivered
            self.outbox.changed()
        return new

    async def receive_one(self, source_id: str, event: SourceEvent) -> bool:
        """Store an event that a service posted; return False if it was known. Raises what `receive` raises."""
        return bool(await self.receive(source_id, Arrivals(events=[event])))

    def _rows(
        self, source_id: str, event: SourceEvent, receivers: Sequence[ReceiverRow], now_ms: int
    ) -> list[OutboxRow]:
        """Return what is to be delivered of an event: once to the agent of a chat, else to each that wants it."""
        payload, chosen = {"event": asdict(event)}, list[tuple[str, str, float]]()
        if event.chat is not None:
            place = blake2b(event.chat.encode(), digest_size=10).hexdigest()
            chosen = [(place, one.agent_id, BURST_S) for one in receivers[:1]]
        else:
            wanting = [one for one in receivers if passes(one.filters, event)]
            waits = [max(BURST_S, wait_s(one.filters, one.batch_s, now_ms)) for one in wanting]
            chosen = [(one.agent_id, one.agent_id, after_s) for one, after_s in zip(wanting, waits, strict=True)]
        return [
            OutboxRow(
                id=f"evt_{self.storage.ids.position(now_ms)}",
                target=f"source:{source_id}:{place}",
                payload=to_json({**payload, "agent_id": agent_id}),
                next_at=iso(now_ms + round(after_s * 1000)),
                created_at=iso(now_ms),
            )
            for place, agent_id, after_s in chosen
        ]

    async def failed(self, source_id: str, error: str) -> None:
        """Store why a source cannot be asked.

        Raises:
            NotFound: it was deleted.
        """
        row = await self.get(source_id)
        now = self.storage.now()
        work = UnitOfWork()
        work.store(sources.change, row.id, {"error": error, "failing_since": row.failing_since or now})
        work.event("source.failed", {"source_id": row.id, "name": row.name, "reason": error})
        await self.storage.commit(work)

    async def poll(self, id_or_name: str) -> int:
        """Ask a source now, once; return how many events were new.

        Raises:
            NotFound: there is no such source.
            Conflict: it is paused.
            PatternError: it could not be asked.
        """
        kind, account = await self.account(id_or_name)
        if not account.row.enabled:
            raise Conflict(f"the source {account.row.name!r} is paused; resume it first")
        if kind.is_called:
            raise InvalidInput(f"the source {account.row.name!r} is called by its service, and cannot be asked")
        return await self.receive(account.row.id, await account.call(kind.poll))

    async def test(self, id_or_name: str) -> tuple[str | None, str]:
        """Ask a source without storing anything; return why that failed (None if it did not), and the address at which
        people reach it, if there is one.

        Raises:
            NotFound: there is no such source.
        """
        (kind, account), link = await self.account(id_or_name), ""
        try:
            await self._proved(account.row)  # before a secret is sent to where an archive says
            if not kind.is_called:
                link = await account.call(kind.check)
        except PatternError as error:
            return error.message, ""
        return None, link

    async def deliveries(self, source_id: str, limit: int, *, before: str | None = None) -> list[OutboxRow]:
        """Return what was and is to be delivered for a source, newest first; those older than the id `before`."""
        return await self.storage.database.read(sources.newest_of, source_id, limit, before)

    async def retry(self, source_id: str, delivery_id: str) -> None:
        """Deliver again, though perhaps it was delivered.

        Raises:
            NotFound: this source has no such delivery.
            Conflict: it is being delivered, or was.
            PatternError: it cannot be delivered.
        """
        row = await self.outbox.get(delivery_id, ("source", "chat"))
        if row.id not in [one.id for one in await self.deliveries(source_id, 1, before=f"{row.id}~")]:
            raise NotFound(f"there is no delivery {delivery_id!r} of this source")
        await self.storage.database.write(outbox.set_unclear, row.id, 0)
        await self.outbox.retry(replace(row, unclear=0))

    async def _proved(self, row: SourceRow) -> SourceRow:
        """Return a source with its whole configuration: the operator's rules allow that, and its secrets are there."""
        kind = kind_of(row.source_type)
        proved = replace(row, config=kind.checked(row.config, self.settings))
        account = SourceAccount(row=proved, settings=self.settings, clock=self.storage.clock)
        for field in kind.secret_fields:
            await account.secret(field)
        return proved

    async def _store(self, store: Callable[[Connection], None], event: str, row: SourceRow) -> None:
        work = UnitOfWork()
        work.store(store)
        work.event(event, {"source_id": row.id, "name": row.name})
        try:
            await self.storage.commit(work)
        except RowConflict:
            raise Conflict(f"the name {row.name!r} is taken by another source; choose another one") from None
        except RowNotFound as error:
            raise NotFound(error.message) from None
        self.changed.set()
        self.changed = trio.Event()
        await self.on_change(await self.accounts())


async def _ignore(_accounts: Mapping[str, bool]) -> None:
    pass
