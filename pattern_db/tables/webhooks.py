"""Webhooks: addresses that are sent chosen events, and how far the events have been put into the outbox."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pattern_db.connection import Connection, Table


@dataclass(frozen=True, slots=True)
class WebhookRow:
    """An address that is sent `events`: names with `*` for any characters. `secret` is the name of a configured one.

    Events up to the number `after` are in the outbox, or are not for it.
    """

    id: str
    name: str
    url: str
    events: Sequence[str]
    secret: str
    after: int
    created_at: str


_WEBHOOKS = Table("webhook", WebhookRow, "webhook {!r}", order="name, id", json=("events",))
create, find, list_all = _WEBHOOKS.create, _WEBHOOKS.find, _WEBHOOKS.list_all


def pass_on(connection: Connection, seq: int) -> None:
    """Note that the events up to this number were put into the outbox."""
    connection.execute("UPDATE webhook SET after = max(after, ?)", (seq,))


def delete(connection: Connection, webhook_id: str) -> None:
    """Delete a webhook, and what was to be sent to it.

    Raises:
        RowNotFound: there is no such webhook.
    """
    _WEBHOOKS.delete(connection, webhook_id)
    connection.execute("DELETE FROM outbox WHERE target = 'webhook:' || ?", (webhook_id,))
