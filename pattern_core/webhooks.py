"""Webhooks: chosen events, sent to addresses, signed, at least once.

The sequence of events is the queue. A cursor follows it, and moves in the transaction that puts events into the outbox;
so a turn does nothing for webhooks, a restart continues where it was, and an event becomes one delivery with one id.

Format: Standard Webhooks, github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md: the
headers `webhook-id`, `webhook-timestamp` (Unix seconds) and `webhook-signature` (`v1,` and the base64 of the
HMAC-SHA256 of `{id}.{timestamp}.{body}`).
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import partial

import trio

from pattern_core.errors import Conflict, InvalidInput, NotFound, PatternError, Unavailable, instead_of
from pattern_core.events import Event, EventLog
from pattern_core.outbox import Outbox
from pattern_core.unit_of_work import Storage, UnitOfWork
from pattern_core.untrusted import check_plain
from pattern_core.web.download import Downloader
from pattern_core.web.policy import WebhookSettings, read_secret
from pattern_db.columns import to_json
from pattern_db.errors import RowConflict, RowNotFound
from pattern_db.journal.events import DELTAS
from pattern_db.tables import outbox, webhooks
from pattern_db.tables.outbox import OutboxRow
from pattern_db.tables.webhooks import WebhookRow

WEBHOOKS_MAX = 50  # of one constellation
NAME_CHARS_MAX = 100
EVENTS_MAX = 50  # names or patterns of one webhook
PENDING_MAX = 10_000  # deliveries that wait; the events behind them wait in their own table
FULL_WAIT_S = 30.0  # until there may be room again
CURSOR_STEP = 500  # events after which the cursor is stored where none of them was wanted
DEFAULT_EVENTS = ("approval.requested", "turn.failed", "schedule.fired", "schedule.missed", "calendar.reminder")
SECRET_PREFIX = "whsec_"  # of a secret in base64

Webhook = WebhookRow
_PATTERN = re.compile(r"[a-z_.*]{1,100}")


class Webhooks:
    """The webhooks of one constellation, and what follows its events for them."""

    def __init__(self, storage: Storage, events: EventLog, outbox: Outbox, settings: WebhookSettings) -> None:
        self._storage = storage
        self._events = events
        self._outbox = outbox
        self._settings = settings
        self._downloader = Downloader(settings, timeout_s=settings.timeout_s)
        self._changed = trio.Event()
        self._seen: int | None = None  # the last event that was read; None: events are not read
        outbox.on_due("webhook", self._deliver)

    @property
    def is_idle(self) -> bool:
        """Whether no event waits to be put into the outbox."""
        return self._seen is None or self._seen >= self._events.latest

    async def all(self) -> list[WebhookRow]:
        """Return all webhooks, by name."""
        return await self._storage.database.read(webhooks.list_all)

    async def get(self, id_or_name: str) -> WebhookRow:
        """Return the webhook with this id or name.

        Raises:
            NotFound: there is none.
        """
        with instead_of(RowNotFound, NotFound(f"there is no webhook {id_or_name!r} in this constellation")):
            return await self._storage.database.read(webhooks.find, id_or_name)

    async def create(self, *, name: str, url: str, secret: str, events: Sequence[str] = DEFAULT_EVENTS) -> WebhookRow:
        """Create a webhook; it is sent events from now on.

        Raises:
            InvalidInput: a field is invalid, or no secret of this name is configured.
            PermissionDenied: the operator's rules forbid the address.
            Conflict: the name is taken.
        """
        if not 0 < len(check_plain(name.strip(), "a webhook's name")) <= NAME_CHARS_MAX:
            raise InvalidInput(f"a webhook's name has 1 to {NAME_CHARS_MAX} characters")
        if not 0 < len(events) <= EVENTS_MAX or not all(map(_PATTERN.fullmatch, events)):
            raise InvalidInput(f"`events` are 1 to {EVENTS_MAX} names such as turn.failed, with * for any characters")
        if len(await self.all()) >= WEBHOOKS_MAX:
            raise InvalidInput(f"a constellation has at most {WEBHOOKS_MAX} webhooks; delete one")
        self._settings.check(url)
        await self._key(secret)
        row = WebhookRow(
            id=self._storage.ids.new("hook"),
            name=name.strip(),
            url=url,
            events=list(events),
            secret=secret,
            after=self._events.latest,
            created_at=self._storage.now(),
        )
        await self._store(partial(webhooks.create, row=row), "webhook.created", row)
        return row

    async def delete(self, id_or_name: str) -> None:
        """Delete a webhook, and what was to be sent to it.

        Raises:
            NotFound: there is no such webhook.
        """
        row = await self.get(id_or_name)
        await self._store(partial(webhooks.delete, webhook_id=row.id), "webhook.deleted", row)

    async def test(self, id_or_name: str) -> str | None:
        """Send an event `webhook.test` now; return why it failed, None if it was accepted.

        Raises:
            NotFound: there is no such webhook.
        """
        row, now = await self.get(id_or_name), self._storage.now()
        try:
            await self._post(row, self._storage.ids.new("dlv"), _body("webhook.test", now, {"webhook_id": row.id}))
        except PatternError as error:
            return error.message
        return None

    async def run(self) -> None:
        """Put wanted events into the outbox, until cancelled.

        Raises:
            StorageFailed: the disk failed.
        """
        while True:
            self._changed, self._seen = trio.Event(), -1
            rows = await self.all()
            async with trio.open_nursery() as nursery:
                if rows:
                    nursery.start_soon(self._follow, rows)
                else:
                    self._seen = None
                await self._changed.wait()
                nursery.cancel_scope.cancel()

    async def _store(self, store: object, event: str, row: WebhookRow) -> None:
        work = UnitOfWork()
        work.store(store)  # type: ignore[arg-type]  # a function of a connection
        work.event(event, {"webhook_id": row.id, "name": row.name})
        try:
            await self._storage.commit(work)
        except RowConflict:
            raise Conflict(f"the name {row.name!r} is taken by another webhook; choose another one") from None
        except RowNotFound as error:
            raise NotFound(error.message) from None
        self._changed.set()

    async def _follow(self, rows: Sequence[WebhookRow]) -> None:
        seen = stored = min(row.after for row in rows)

        def wants(event: Event) -> bool:
            return any(_is_for(row, event) for row in rows)

        while True:
            if await self._storage.database.read(outbox.count_pending) >= PENDING_MAX:
                self._seen = None
                await trio.sleep(FULL_WAIT_S)
                continue
            self._seen = seen
            seen, found = await self._events.next_after(seen, None, wants, is_alone=False)
            if found or seen - stored >= CURSOR_STEP:
                work, now = UnitOfWork(), self._storage.now()
                for event in found:
                    about = {"seq": event.seq, "turn_id": event.turn_id, **event.data}
                    body = _body(event.name, event.created_at, about)
                    for row in rows:
                        if _is_for(row, event):
                            delivery = OutboxRow(self._storage.ids.new("dlv"), f"webhook:{row.id}", body, now, now)
                            work.store(outbox.add, delivery)
                work.store(webhooks.pass_on, seen)
                await self._storage.commit(work)
                stored = seen
                self._outbox.changed()

    async def _deliver(self, delivery: OutboxRow, _work: UnitOfWork) -> None:
        try:
            row = await self._storage.database.read(webhooks.find, delivery.target.partition(":")[2])
        except RowNotFound:
            return  # deleted since
        await self._post(row, delivery.id, delivery.payload)

    async def _post(self, row: WebhookRow, delivery_id: str, body: str) -> None:
        sent_at = self._storage.clock.now_ms() // 1000
        signed = hmac.digest(await self._key(row.secret), f"{delivery_id}.{sent_at}.{body}".encode(), "sha256")
        headers = {
            "Content-Type": "application/json",
            "webhook-id": delivery_id,
            "webhook-timestamp": str(sent_at),
            "webhook-signature": f"v1,{base64.b64encode(signed).decode()}",
        }
        answer = await self._downloader.get(row.url, headers=headers, body=body.encode(), redirects_max=0)
        if not 200 <= answer.status < 300:
            raise Unavailable(
                f"{row.url} answered with HTTP status {answer.status}", retry_after_s=answer.retry_after_s or 0
            )

    async def _key(self, name: str) -> bytes:
        """Return a configured secret, as its source says now.

        Raises:
            InvalidInput: there is none of this name, or its source holds none.
        """
        text = await read_secret(self._settings.secrets, name, "webhooks")
        if not text.startswith(SECRET_PREFIX):
            return text.encode()
        try:
            return base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
        except (binascii.Error, ValueError):
            raise InvalidInput(f"the secret {name!r} begins with {SECRET_PREFIX}, but the rest is not base64") from None


def _is_for(row: WebhookRow, event: Event) -> bool:
    is_new = event.seq > row.after and event.name not in DELTAS
    return is_new and any(fnmatchcase(event.name, pattern) for pattern in row.events)


def _body(name: str, at: str, data: dict[str, object]) -> str:
    return to_json({"type": name, "timestamp": at, "data": data})
