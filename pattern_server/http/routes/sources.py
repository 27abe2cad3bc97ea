"""Sources and channels: where data and people come from by themselves, who may talk, and what was delivered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Response
from pydantic import BaseModel, Field, StringConstraints

from pattern_core.errors import InvalidInput
from pattern_core.outbox import Undelivered
from pattern_core.sources.channels import Person
from pattern_core.sources.sources import Receiver, Source
from pattern_db.columns import Json, from_json
from pattern_db.enums import DeliveryStatus, PersonStatus, SourceDelivery
from pattern_server.http.bodies import (
    BY_VALUE,
    Paged,
    PagedTexts,
    RequestModel,
    answer_of,
    fields_with,
    items_of,
    page_of,
)
from pattern_server.http.routing import AwakeAccess, Router, ToRead, ToWrite

router = Router(prefix="/constellations/{c}/sources", tags=["sources"])

RECEIVER = answer_of(Receiver, "agent_id delivery notification_template filters batch_s", "SourceReceiver")
SOURCE = answer_of(
    Source,
    "id name source_type config state error failing_since last_sync_at last_event_at agents created_at",
    "Source",
    state=str,
    agents=list[RECEIVER],  # type: ignore[valid-type]  # a model
)
PERSON = answer_of(Person, "native name status expires_at decided_by created_at", "SourcePerson")
DELIVERY = answer_of(
    Undelivered,
    "id direction text status attempts unclear next_at last_error created_at delivered_at",
    "SourceTransfer",
    direction=str,
    text=str,
    next_at=str | None,
)
TEXT_CHARS_MAX = 200  # of a delivery in a list


class SourceRequest(RequestModel):
    """The source to create; `agent` receives its events. `config` names secrets of the server's configuration."""

    name: str
    kind: str
    agent: str
    config: dict[str, Json] = Field(default_factory=dict)


class SourceChangeRequest(RequestModel):
    """Whether the source is asked, or paused."""

    enabled: bool


class ReceiverRequest(RequestModel):
    """What an agent gets of a source, and as what."""

    delivery: Annotated[SourceDelivery, BY_VALUE] = SourceDelivery.MESSAGE
    template: str | None = None
    filters: dict[str, Json] = Field(default_factory=dict)
    batch_s: float = 0.0


class PersonRequest(RequestModel):
    """A person or a room, by its pairing `code` or by its id at the service (`person`), and what it may do."""

    code: str | None = None
    person: Annotated[str, StringConstraints(min_length=1, max_length=500)] | None = None
    status: Annotated[PersonStatus, BY_VALUE] = PersonStatus.ALLOWED


class SourceTest(BaseModel):
    """Whether the source could be asked, or why not; and where people reach it, if its service has such an address."""

    accepted: bool
    error: str | None
    link: str | None


class SourceSync(BaseModel):
    """How many events were new."""

    new: int


async def _shown(home: AwakeAccess, row: Source) -> Mapping[str, Any]:
    agents = await home.constellation.sources.receivers(row.id)
    state = "paused" if not row.enabled else "active" if row.error is None else "failing"
    return fields_with(row, state=state, agents=agents)


def _delivery(row: Undelivered) -> Mapping[str, Any]:
    payload, is_in = from_json(row.payload), row.target.startswith("source:")
    text = payload["event"]["title"] or payload["event"]["text"] if is_in else payload["text"]
    next_at = row.next_at if row.status is DeliveryStatus.PENDING else None
    return fields_with(row, next_at=next_at, direction="in" if is_in else "out", text=text[:TEXT_CHARS_MAX])


@router.get("", response_model=page_of(SOURCE))
async def list_all(home: ToRead, paging: Paged) -> object:
    """List the sources and channels of the constellation by name."""
    page = paging.of_all(await home.constellation.sources.all(), lambda row: (row.name, row.id))
    return {**page, "items": [await _shown(home, row) for row in page["items"]]}


@router.post("", status_code=201, response_model=SOURCE)
async def create(body: SourceRequest, home: ToWrite, response: Response) -> object:
    """Create a source or a channel, and have an agent receive its events.

    From now on its service is asked, or may post to `/hooks/{account}`, where the account is the id of the source.
    """
    row = await home.constellation.sources.create(**body.model_dump())
    home.locate(response, "sources", row.id)
    return await _shown(home, row)


@router.get("/{src}", response_model=SOURCE)
async def get(src: str, home: ToRead) -> object:
    """Show a source or a channel."""
    return await _shown(home, await home.constellation.sources.get(src))


@router.patch("/{src}", response_model=SOURCE)
async def update(src: str, body: SourceChangeRequest, home: ToWrite) -> object:
    """Pause a source, or resume it where it was paused."""
    return await _shown(home, await home.constellation.sources.set_enabled(src, body.enabled))


@router.delete("/{src}", status_code=204)
async def delete(src: str, home: ToWrite) -> None:
    """Delete a source with what is known of its people and chats; sessions and messages stay."""
    await home.constellation.sources.delete(src)


@router.post("/{src}/test")
async def test(src: str, home: ToWrite) -> SourceTest:
    """Test a source: ask it now, once, and store nothing."""
    error, link = await home.constellation.sources.test(src)
    return SourceTest(accepted=error is None, error=error, link=link or None)


@router.post("/{src}/sync")
async def sync(src: str, home: ToWrite) -> SourceSync:
    """Ask a source now, and store what is new."""
    return SourceSync(new=await home.constellation.sources.poll(src))


@router.put("/{src}/agents/{a}", response_model=RECEIVER)
async def set_agent(src: str, a: str, body: ReceiverRequest, home: ToWrite) -> object:
    """Set what an agent gets of a source, and as what."""
    return await home.constellation.sources.set_receiver(src, a, **body.model_dump())


@router.delete("/{src}/agents/{a}", status_code=204)
async def drop_agent(src: str, a: str, home: ToWrite) -> None:
    """Have an agent get nothing of a source any more."""
    await home.constellation.sources.drop_receiver(src, a)


@router.get("/{src}/people", response_model=items_of(PERSON))
async def list_people(src: str, home: ToRead) -> object:
    """List the people and rooms of a channel, oldest first."""
    return {"items": await home.constellation.channels.people(src)}


@router.post("/{src}/people", response_model=PERSON)
async def decide_person(src: str, body: PersonRequest, home: ToWrite) -> object:
    """Let a person or a room talk in a channel, or block it.

    A person who is not known is given a code, which is valid for an hour. A partner may also answer questions.
    """
    channels, by = home.constellation.channels, home.caller.author
    if (body.code is None) == (body.person is None):
        raise InvalidInput("send either `code` or `person`")
    if body.code is not None:
        return await channels.approve(src, body.code, body.status, by=by)
    return await channels.decide(src, body.person or "", body.status, by=by)


@router.get("/{src}/deliveries", response_model=page_of(DELIVERY))
async def list_deliveries(src: str, home: ToRead, paging: PagedTexts) -> object:
    """List what came from a source, and what was said in its chats.

    Newest first; the last 1,000 of each are kept, and those that failed.
    """
    row = await home.constellation.sources.get(src)
    found = await home.constellation.sources.deliveries(row.id, paging.one_more, before=paging.after)
    return paging.cut([_delivery(one) for one in found], lambda one: str(one["id"]))


@router.post("/{src}/deliveries/{d}/retry", status_code=204)
async def retry(src: str, d: str, home: ToWrite) -> None:
    """Deliver again now, also what was perhaps delivered."""
    row = await home.constellation.sources.get(src)
    await home.constellation.sources.retry(row.id, d)
