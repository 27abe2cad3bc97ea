"""Webhooks: addresses that are sent chosen events, and what was sent to them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Query, Response
from pydantic import BaseModel, Field

from pattern_core.errors import NotFound
from pattern_core.outbox import Undelivered
from pattern_core.webhooks import DEFAULT_EVENTS, Webhook
from pattern_db.enums import DeliveryStatus
from pattern_server.http.bodies import Paged, PagedTexts, RequestModel, answer_of, fields_with, page_of
from pattern_server.http.routing import Router, ToRead, ToWrite

router = Router(prefix="/constellations/{c}/webhooks", tags=["webhooks"])

WEBHOOK = answer_of(Webhook, "id name url events secret created_at")
DELIVERY = answer_of(
    Undelivered,
    "id event status attempts next_at last_error created_at delivered_at",
    "WebhookDelivery",
    event=str,
    next_at=str | None,
)


class WebhookRequest(RequestModel):
    """The webhook to create. `secret` is the name of a secret in the server's configuration."""

    name: str
    url: str
    secret: str
    events: list[str] = Field(default=list(DEFAULT_EVENTS))


class WebhookTest(BaseModel):
    """Whether a test was accepted, or why not."""

    accepted: bool
    error: str | None


def _shown(row: Undelivered) -> Mapping[str, Any]:
    next_at = row.next_at if row.status is DeliveryStatus.PENDING else None
    return {**fields_with(row, next_at=next_at), "event": json.loads(row.payload)["type"]}


@router.get("", response_model=page_of(WEBHOOK))
async def list_all(home: ToRead, paging: Paged) -> object:
    """List the webhooks of the constellation by name."""
    return paging.of_all(await home.constellation.webhooks.all(), lambda row: (row.name, row.id))


@router.post("", status_code=201, response_model=WEBHOOK)
async def create(body: WebhookRequest, home: ToWrite, response: Response) -> object:
    """Create a webhook.

    Events from now on are posted to the address: at least once, with an id in `webhook-id` by which a repetition is
    known, signed as Standard Webhooks are. Addresses in private networks are refused unless the server allows them.
    """
    row = await home.constellation.webhooks.create(**body.model_dump())
    home.locate(response, "webhooks", row.id)
    return row


@router.get("/{w}", response_model=WEBHOOK)
async def get(w: str, home: ToRead) -> object:
    """Show a webhook."""
    return await home.constellation.webhooks.get(w)


@router.delete("/{w}", status_code=204)
async def delete(w: str, home: ToWrite) -> None:
    """Delete a webhook; what was still to be sent is not sent."""
    await home.constellation.webhooks.delete(w)


@router.post("/{w}/test")
async def test(w: str, home: ToWrite) -> WebhookTest:
    """Test a webhook: send an event `webhook.test` now, once."""
    error = await home.constellation.webhooks.test(w)
    return WebhookTest(accepted=error is None, error=error)


@router.get("/{w}/deliveries", response_model=page_of(DELIVERY))
async def list_deliveries(
    w: str,
    home: ToRead,
    paging: PagedTexts,
    status: Annotated[DeliveryStatus | None, Query(description="Only deliveries with this status.")] = None,
) -> object:
    """List deliveries of a webhook, newest first; the last 1,000, and those that failed for a day (`dead`)."""
    row = await home.constellation.webhooks.get(w)
    which = {} if status is None else {"statuses": [status]}
    found = await home.constellation.outbox.newest(f"webhook:{row.id}", paging.one_more, before=paging.after, **which)
    return paging.cut([_shown(one) for one in found], lambda one: str(one["id"]))


@router.post("/{w}/deliveries/{d}/retry", status_code=204)
async def retry(w: str, d: str, home: ToWrite) -> None:
    """Retry a delivery now; it has the same id and content as before."""
    row = await home.constellation.webhooks.get(w)
    delivery = await home.constellation.outbox.get(d, ("webhook",))
    if delivery.target != f"webhook:{row.id}":
        raise NotFound(f"there is no delivery {d!r} of the webhook {row.name!r}")
    await home.constellation.outbox.retry(delivery)
