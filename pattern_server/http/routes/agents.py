"""Agents of a constellation, and what is known of their models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Header, Response
from pydantic import Field

from pattern_core.agent_settings import settings_of
from pattern_core.agents import Agent, AgentSpec, version_of
from pattern_core.errors import InvalidInput
from pattern_core.models.model import ModelFacts
from pattern_core.models.providers import PROVIDERS
from pattern_core.rules.ruleset import warnings_of
from pattern_db.enums import AgentStatus
from pattern_server.config import Config
from pattern_server.http.blocks import BlockCreateRequest, new_block
from pattern_server.http.bodies import BY_VALUE, Paged, RequestModel, answer_of, fields_with, page_of
from pattern_server.http.routing import Router, ToRead, ToWrite
from pattern_server.settings import catalogue_of, default_model_of

router = Router(prefix="/constellations/{c}/agents", tags=["agents"])

IfMatch = Annotated[
    str | None, Header(description="The agent's `ETag`: the change is refused (412) if it has another one by now.")
]

# `rule_warnings` are what in its tool rules contradicts or can never be met, a sentence each.
AGENT = answer_of(
    Agent,
    "id name description model_provider model_name system_prompt config enabled_tools tool_rules status created_at"
    " updated_at",
    rule_warnings=list[str],
)
# `prompt_window` is what the agent's prompts and answers keep to, which is less where its config has a smaller
# `context_window`; `is_configured` says whether the server can reach the provider at all.
MODEL = answer_of(
    ModelFacts,
    "provider model window prompt_window trained_window output_max input_price output_price cache_read_price"
    " cache_write_price images tools reasoning source as_of is_known",
    "AgentModel",
    prompt_window=int,
    is_configured=bool,
)


class AgentCreateRequest(RequestModel):
    """The agent to create. Provider and model default to those of the server, `memory` to the usual blocks."""

    name: str
    description: str | None = None
    model_provider: str | None = None
    model_name: str | None = None
    system_prompt: str = ""
    config: dict[str, Any] = Field(default_factory=dict)
    enabled_tools: list[str] | None = None
    tool_rules: Any = None
    status: Annotated[AgentStatus, BY_VALUE] = AgentStatus.ACTIVE
    memory: list[BlockCreateRequest] | None = None


class AgentUpdateRequest(RequestModel):
    """The fields of an agent to change."""

    name: str | None = None
    description: str | None = None
    model_provider: str | None = None
    model_name: str | None = None
    system_prompt: str | None = None
    config: dict[str, Any] | None = None
    enabled_tools: list[str] | None = None
    tool_rules: Any = None
    status: Annotated[AgentStatus, BY_VALUE] | None = None


@router.get("", response_model=page_of(AGENT))
async def list_all(home: ToRead, paging: Paged) -> object:
    """List agents.

    Return the agents of the constellation by name.
    """
    page = paging.of_all(await home.constellation.roster.all(), lambda agent: (agent.name, agent.id))
    return {**page, "items": [_answer(agent) for agent in page["items"]]}


@router.post("", status_code=201, response_model=AGENT)
async def create(body: AgentCreateRequest, home: ToWrite, response: Response) -> object:
    """Create an agent.

    Return the new agent. Its memory blocks are created with it.
    """
    config = home.server.config
    provider, model = _model_of(config, body.model_provider, body.model_name)
    _check_other_models(config, body.config)
    given = {name: getattr(body, name) for name in AgentCreateRequest.model_fields if name not in ("status", "memory")}
    memory = None if body.memory is None else [new_block(block, block.label) for block in body.memory]
    spec = AgentSpec(**{**given, "model_provider": provider, "model_name": model, "memory": memory})
    agent = await home.constellation.roster.create(spec, author=home.caller.author)
    if body.status is not AgentStatus.ACTIVE:
        agent = await home.constellation.roster.update(agent.id, {"status": body.status})
    response.headers["location"] = f"/api/v1/constellations/{home.constellation.id}/agents/{agent.id}"
    return _tagged(response, agent)


@router.get("/{a}", response_model=AGENT)
async def get(a: str, home: ToRead, response: Response) -> object:
    """Show an agent.

    Return the agent with this id or name. Send its `ETag` as `If-Match` with an update to keep the changes of others.
    """
    return _tagged(response, await home.constellation.roster.get(a))


@router.patch("/{a}", response_model=AGENT)
async def update(
    a: str, body: AgentUpdateRequest, home: ToWrite, response: Response, if_match: IfMatch = None
) -> object:
    """Update an agent.

    Change the fields that are sent. A turn that already runs continues with the old values.
    """
    changes = body.model_dump(include=body.model_fields_set)
    empty = sorted(
        name for name, value in changes.items() if value is None and name not in ("description", "tool_rules")
    )
    if empty:
        raise InvalidInput(f"{', '.join(empty)} cannot be null; leave out what should stay unchanged")
    if "model_provider" in changes:
        _check_provider(home.server.config, changes["model_provider"])
    if "config" in changes:
        _check_other_models(home.server.config, changes["config"])
    version = None if if_match in (None, "*") else str(if_match).strip().removeprefix("W/").strip('"')
    return _tagged(response, await home.constellation.roster.update(a, changes, version=version))


@router.delete("/{a}", status_code=204)
async def delete(a: str, home: ToWrite) -> None:
    """Delete an agent.

    Its messages and memory are deleted with it. To keep its past, set its status to `archived` instead.
    """
    await home.constellation.delete_agent(a)


@router.get("/{a}/model", response_model=MODEL)
async def get_model(a: str, home: ToRead) -> object:
    """Show the model of an agent.

    Return the window, prices and abilities of the model, and where the figures come from.
    """
    config = home.server.config
    agent = await home.constellation.roster.get(a)
    facts = catalogue_of(config).facts(agent.model_provider, agent.model_name)
    return fields_with(
        facts,
        prompt_window=min(settings_of(agent.config).context_window, facts.window),
        is_configured=agent.model_provider in config.providers,
    )


def _answer(agent: Agent) -> dict[str, Any]:
    return fields_with(agent, rule_warnings=warnings_of(agent.tool_rules, agent.enabled_tools))


def _tagged(response: Response, agent: Agent) -> dict[str, Any]:
    response.headers["etag"] = f'"{version_of(agent)}"'
    return _answer(agent)


def _model_of(config: Config, provider: str | None, model: str | None) -> tuple[str, str]:
    """Return the provider and model that an agent gets."""
    chosen = provider or config.default_provider
    _check_provider(config, chosen)
    named = model or default_model_of(config, chosen)
    if not named:
        raise InvalidInput(
            f"the provider {chosen!r} has no default model: name one (`model_name`, on the command line --model),"
            " or set default_model in pattern.toml and start the server again"
        )
    return chosen, named


def _check_other_models(config: Config, asked: Mapping[str, Any]) -> None:
    """Refuse a config whose routing or summaries name unknown providers: it would be noticed when the
    agent's own model fails, which is too late.
    """
    settings = settings_of(asked)
    routing, summariser = settings.routing, settings.compaction.summarization_model
    for named in (*routing.fallback_models, *(rule.model for rule in routing.rules), summariser):
        if named is not None:
            _check_provider(config, named.provider)


def _check_provider(config: Config, provider: str) -> None:
    known = sorted({*config.providers, *PROVIDERS})  # an agent may name a provider before it is configured
    if provider not in known:
        there = ", ".join(known)
        raise InvalidInput(f"there is no provider {provider!r}; known are {there}, and [providers.<name>] adds others")
