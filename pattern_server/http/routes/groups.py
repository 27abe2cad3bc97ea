"""Groups of agents: created, changed, and sent messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import Response
from pydantic import BaseModel, ConfigDict, Field

from pattern_core.errors import Conflict, InvalidInput, NotFound
from pattern_core.groups.group import Group, MemberSpec
from pattern_core.views import view_conversation
from pattern_db.enums import TrustLevel
from pattern_db.journal.group_runs import GroupSaid
from pattern_server.http.bodies import Paged, PagedTexts, RequestModel, answer_of, page_of, require_values
from pattern_server.http.routes.messages import (
    ANSWERS,
    Accept,
    IdempotencyKey,
    MessageRequest,
    OfSession,
    Prefer,
    deliver,
    incoming_of,
)
from pattern_server.http.routes.turns import TURN
from pattern_server.http.routing import Router, ToChatOn, ToRead, ToWrite

router = Router(prefix="/constellations/{c}/groups", tags=["groups"])


class GroupMember(BaseModel):
    """A member of a group."""

    model_config = ConfigDict(from_attributes=True)

    agent_id: Annotated[str, Field(validation_alias="id")]
    agent: Annotated[str, Field(validation_alias="name")]
    role: str | None
    domain: str | None
    capabilities: list[str]
    is_active: bool


GROUP = answer_of(
    Group,
    "id name description pattern_type pattern_config members created_at updated_at",
    members=list[GroupMember],
)
MESSAGE = answer_of(
    GroupSaid,
    "id turn_id role agent_id agent sender trust content session_id created_at",
    "GroupMessage",
    role=str,
    agent=str | None,
    content=str,
    trust=TrustLevel,
)


class MemberRequest(RequestModel):
    """An agent that is to be a member."""

    agent_id: str
    role: str | None = None
    domain: str | None = None
    capabilities: list[str] = Field(default_factory=list)


class GroupCreateRequest(RequestModel):
    """The group to create."""

    name: str
    pattern_type: str
    members: list[MemberRequest]
    description: str | None = None
    pattern_config: dict[str, Any] | None = None


class GroupUpdateRequest(RequestModel):
    """The fields of a group to change; `members` replaces all."""

    name: str | None = None
    description: str | None = None
    pattern_type: str | None = None
    pattern_config: dict[str, Any] | None = None
    members: list[MemberRequest] | None = None


def _specs(members: Sequence[MemberRequest]) -> list[MemberSpec]:
    return [MemberSpec(one.agent_id, one.role, one.domain, tuple(one.capabilities)) for one in members]


@router.get("", response_model=page_of(GROUP))
async def list_all(home: ToRead, paging: Paged) -> object:
    """List the groups of the constellation by name."""
    shown = await home.constellation.groups.all()
    return paging.of_all(shown, lambda group: (group.name, group.id))


@router.post("", status_code=201, response_model=GROUP)
async def create(body: GroupCreateRequest, home: ToWrite, response: Response) -> Group:
    """Create a group: `pattern_type` is how its members work together, `pattern_config` configures that."""
    group = await home.constellation.groups.create(
        name=body.name,
        pattern_type=body.pattern_type,
        members=_specs(body.members),
        description=body.description,
        pattern_config=body.pattern_config,
    )
    home.locate(response, "groups", group.id)
    return group


@router.get("/{g}", response_model=GROUP)
async def get(g: str, home: ToRead) -> Group:
    """Show a group and its members."""
    return await home.constellation.groups.get(g)


@router.patch("/{g}", response_model=GROUP)
async def update(g: str, body: GroupUpdateRequest, home: ToWrite) -> Group:
    """Update a group; a running turn keeps what it started with."""
    changes = body.model_dump(exclude_unset=True, exclude={"members"})
    require_values(changes, "name", "pattern_type")
    if changes.get("pattern_config", {}) is None:
        changes["pattern_config"] = {}
    members = None if body.members is None else _specs(body.members)
    return await home.constellation.groups.update(g, changes, members=members)


@router.delete("/{g}", status_code=204)
async def delete(g: str, home: ToWrite) -> None:
    """Delete a group.

    Its running turns are cancelled and its conversation is deleted; what its members said stays in theirs.
    """
    await home.constellation.delete_group(g)


@router.post("/{g}/members", status_code=201, response_model=GROUP)
async def add_member(g: str, body: MemberRequest, home: ToWrite) -> Group:
    """Add a member to a group; it is asked after the others. One that is a member already is refused."""
    group = await home.constellation.groups.get(g)
    agent = await home.constellation.roster.get(body.agent_id)
    if any(one.id == agent.id for one in group.members):
        raise Conflict(f"{agent.name} is a member already; PATCH the group to change its role")
    members = [*_kept(group), *_specs([body])]
    return await home.constellation.groups.update(group.id, {}, members=members)


@router.delete("/{g}/members/{a}", status_code=204)
async def remove_member(g: str, a: str, home: ToWrite) -> None:
    """Remove a member from a group; the agent itself stays."""
    group = await home.constellation.groups.get(g)
    left = _kept(group, but=a)
    if len(left) == len(group.members):
        raise NotFound(f"{a!r} is not a member of the group {group.name}")
    await home.constellation.groups.update(group.id, {}, members=left)


def _kept(group: Group, *, but: str = "") -> list[MemberSpec]:
    """Return the members as they are, without the one with this id or name."""
    return [
        MemberSpec(one.id, one.role, one.domain, one.capabilities)
        for one in group.members
        if but not in (one.id, one.name)
    ]


@router.post("/{g}/messages", response_model=TURN, responses=ANSWERS)
async def send(
    g: str,
    body: MessageRequest,
    home: ToChatOn,
    accept: Accept = "",
    prefer: Prefer = "",
    idempotency_key: IdempotencyKey = None,
) -> object:
    """Send a message to a group.

    It is a turn of the group, and its members' turns are its own: the events of the stream name them. Everything else
    is as for a message to an agent.
    """
    if body.tools:
        raise InvalidInput("`tools`: only agents can call them; leave them out, or send the message to an agent")
    incoming = incoming_of(body, "", home.caller.sender, idempotency_key)
    return await deliver(home, lambda constellation: constellation.submit_to_group(g, incoming), accept, prefer)


@router.get("/{g}/messages", response_model=page_of(MESSAGE))
async def list_messages(g: str, home: ToRead, paging: PagedTexts, session: OfSession = None) -> object:
    """List what was said in a group, newest first; with `session` only in that one."""
    group = await home.constellation.groups.get(g)
    said = await home.constellation.database.read_aside(
        view_conversation, group.id, paging.one_more, before=paging.before, session_id=session
    )
    names = {agent.id: agent.name for agent in await home.constellation.roster.all()}
    page = paging.cut(said, lambda one: str(one[0].key))
    return {**page, "items": [_shown(one, trust, names) for one, trust in page["items"]]}


def _shown(said: GroupSaid, trust: TrustLevel, names: Mapping[str, str]) -> dict[str, Any]:
    """Return a message to the group (of the `role` user), or a member's answer."""
    role, agent = ("user", None) if said.agent_id is None else ("assistant", names.get(said.agent_id))
    return {**said._asdict(), "role": role, "agent": agent, "content": said.content or "", "trust": trust}
