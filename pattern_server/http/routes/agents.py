"""Agents of a constellation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Header, Response

from pattern_core.agent_settings import settings_of
from pattern_core.agents import Agent, AgentSpec, version_of
from pattern_core.errors import InvalidInput
from pattern_core.models.providers import PROVIDERS
from pattern_db.enums import AgentStatus
from pattern_server.config import Config, default_model_of
from pattern_server.http.blocks import new_block
from pattern_server.http.bodies import AgentAsked, AgentPatched, AgentTold, Cursor, Page, PageLimit, page_of
from pattern_server.http.routing import MayRead, MayWrite, Router, Server

router = Router(prefix="/constellations/{c}/agents", tags=["agents"])

IfMatch = Annotated[str | None, Header(description="the agent's `ETag`: it is changed only if it still has that one")]


@router.get("", response_model=Page[AgentTold])
async def list_all(c: str, server: Server, caller: MayRead, limit: PageLimit = 100, cursor: Cursor = None) -> object:
    """The constellation's agents, by name."""
    async with server.constellations.use(caller, c) as constellation:
        return page_of(await constellation.roster.all(), _place, limit, cursor)


@router.post("", status_code=201, response_model=AgentTold)
async def create(c: str, body: AgentAsked, server: Server, caller: MayWrite, response: Response) -> object:
    """Make an agent, with its memory blocks."""
    provider, model = _model_of(server.config, body.model_provider, body.model_name)
    _check_other_models(server.config, body.config)
    spec = AgentSpec(
        name=body.name,
        description=body.description,
        model_provider=provider,
        model_name=model,
        system_prompt=body.system_prompt,
        config=body.config,
        enabled_tools=body.enabled_tools,
        tool_rules=body.tool_rules,
        memory=None if body.memory is None else [new_block(block, block.label) for block in body.memory],
    )
    async with server.constellations.use(caller, c) as constellation:
        agent = await constellation.roster.create(spec, author=caller.author)
        if body.status is not AgentStatus.ACTIVE:
            agent = await constellation.roster.update(agent.id, {"status": body.status})
    response.headers["location"] = f"/api/v1/constellations/{constellation.id}/agents/{agent.id}"
    return _tagged(response, agent)


@router.get("/{a}", response_model=AgentTold)
async def show(c: str, a: str, server: Server, caller: MayRead, response: Response) -> object:
    """One agent, by id or name. With its `ETag` as `If-Match` a change does not overwrite what others changed."""
    async with server.constellations.use(caller, c) as constellation:
        return _tagged(response, await constellation.roster.get(a))


@router.patch("/{a}", response_model=AgentTold)
async def change(
    c: str, a: str, body: AgentPatched, server: Server, caller: MayWrite, response: Response, if_match: IfMatch = None
) -> object:
    """Change the given fields of an agent; a turn under way goes on with the old ones."""
    changes = body.model_dump(include=body.model_fields_set)
    empty = sorted(
        name for name, value in changes.items() if value is None and name not in ("description", "tool_rules")
    )
    if empty:
        raise InvalidInput(f"{', '.join(empty)} cannot be null; leave out what shall stay as it is")
    if "model_provider" in changes:
        _check_provider(server.config, changes["model_provider"])
    if "config" in changes:
        _check_other_models(server.config, changes["config"])
    async with server.constellations.use(caller, c) as constellation:
        version = None if if_match in (None, "*") else str(if_match).strip().removeprefix("W/").strip('"')
        return _tagged(response, await constellation.roster.update(a, changes, version=version))


@router.delete("/{a}", status_code=204)
async def delete(c: str, a: str, server: Server, caller: MayWrite) -> None:
    """Delete an agent with its messages and memory. To keep its past, set its status to `archived` instead."""
    async with server.constellations.use(caller, c) as constellation:
        await constellation.delete_agent(a)


def _tagged(response: Response, agent: Agent) -> Agent:
    response.headers["etag"] = f'"{version_of(agent)}"'
    return agent


def _place(agent: Agent) -> tuple[str, str]:
    return agent.name, agent.id


def _model_of(config: Config, provider: str | None, model: str | None) -> tuple[str, str]:
    """The provider and model that an agent gets."""
    chosen = provider or config.default_provider
    _check_provider(config, chosen)
    named = model or default_model_of(config, chosen)
    if not named:
        raise InvalidInput(f"name a model: there is no default for the provider {chosen!r} (field model_name)")
    return chosen, named


def _check_other_models(config: Config, asked: Mapping[str, Any]) -> None:
    """Refuse a config whose routing or summaries name providers that nobody knows: it would be noticed when the
    agent's own model fails, which is too late.
    """
    settings = settings_of(asked)
    routing, summariser = settings.routing, settings.compaction.summarization_model
    for link in (*routing.fallbacks, *(link for _, link in routing.rules)):
        _check_provider(config, link.provider)
    if summariser is not None:
        _check_provider(config, summariser.partition("/")[0])


def _check_provider(config: Config, provider: str) -> None:
    known = sorted({*config.providers, *PROVIDERS})  # an agent may name a provider before it is configured
    if provider not in known:
        there = ", ".join(known)
        raise InvalidInput(f"there is no provider {provider!r}; known are {there}, and [providers.<name>] adds others")
