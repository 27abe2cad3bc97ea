"""Agents of a constellation, and the facts about their models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Response
from pydantic import Field

from pattern_core.agent_settings import settings_of
from pattern_core.agents import Agent, AgentSpec, version_of
from pattern_core.constellation import Constellation
from pattern_core.errors import InvalidInput
from pattern_core.models.model import ModelFacts
from pattern_core.models.providers import not_configured
from pattern_core.rules.ruleset import warnings_of
from pattern_core.tools.registry import suited
from pattern_db.enums import AgentStatus
from pattern_server.config import Config
from pattern_server.http.blocks import BlockCreateRequest, new_block
from pattern_server.http.bodies import BY_VALUE, IfMatch, Paged, RequestModel, answer_of, fields_with, page_of, tagged
from pattern_server.http.routing import Router, ToRead, ToWrite
from pattern_server.settings import default_model_of

router = Router(prefix="/constellations/{c}/agents", tags=["agents"])

# `rule_warnings` name contradictions in its tool rules and rules that can never be met, a sentence each.
AGENT = answer_of(
    Agent,
    "id name description model_provider model_name system_prompt config enabled_tools tool_rules status created_at"
    " updated_at",
    rule_warnings=list[str],
)
# `tool_profile` is the agent's, with the reason and the names of its tools; null if `enabled_tools` names them all.
# `prompt_window` is what the agent's prompts and answers keep to, which is less where its config has a smaller
# `context_window`; `is_configured` says whether the server can reach the provider at all, `window_trouble` why the
# agent cannot work in the window (null: it can).
MODEL = answer_of(
    ModelFacts,
    "provider model window prompt_window trained_window output_max input_price output_price cache_read_price"
    " cache_write_price images tools reasoning tool_profile source as_of is_known window_source",
    "AgentModel",
    tool_profile_reason=str,
    offered_tools=list[str],
    prompt_window=int,
    is_configured=bool,
    window_trouble=str | None,
)


class AgentCreateRequest(RequestModel):
    """The agent to create. Provider and model default to those of the server, `memory` to the usual blocks.

    Providers that are not configured are refused, here and in the config's routing, unless `force` is set.
    """

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
    force: bool = False


class AgentUpdateRequest(RequestModel):
    """The fields of an agent to change; `force` as in `AgentCreateRequest`."""

    name: str | None = None
    description: str | None = None
    model_provider: str | None = None
    model_name: str | None = None
    system_prompt: str | None = None
    config: dict[str, Any] | None = None
    enabled_tools: list[str] | None = None
    tool_rules: Any = None
    status: Annotated[AgentStatus, BY_VALUE] | None = None
    force: bool = False


@router.get("", response_model=page_of(AGENT))
async def list_all(home: ToRead, paging: Paged) -> object:
    """List the agents of the constellation by name."""
    page = paging.of_all(await home.constellation.roster.all(), lambda agent: (agent.name, agent.id))
    return {**page, "items": [_answer(home.constellation, agent) for agent in page["items"]]}


@router.post("", status_code=201, response_model=AGENT)
async def create(body: AgentCreateRequest, home: ToWrite, response: Response) -> object:
    """Create an agent with its memory blocks."""
    config = home.server.models.config
    provider = body.model_provider or config.default_provider
    if not body.force:
        _check_providers(config, provider, body.config)
    model = body.model_name or default_model_of(config, provider)
    if not model:
        raise InvalidInput(
            f"the provider {provider!r} has no default model: name one (`model_name`, on the command line --model),"
            " or set the default (`PUT /models/default`, on the command line: pattern model set)"
        )
    given = {
        name: getattr(body, name)
        for name in AgentCreateRequest.model_fields
        if name not in ("status", "memory", "force")
    }
    memory = None if body.memory is None else [new_block(block, block.label) for block in body.memory]
    spec = AgentSpec(**{**given, "model_provider": provider, "model_name": model, "memory": memory})
    agent = await home.constellation.roster.create(spec, author=home.caller.author)
    if body.status is not AgentStatus.ACTIVE:
        agent = await home.constellation.roster.update(agent.id, {"status": body.status})
    home.locate(response, "agents", agent.id)
    return _tagged(response, home.constellation, agent)


@router.get("/{a}", response_model=AGENT)
async def get(a: str, home: ToRead, response: Response) -> object:
    """Show an agent; its `ETag`, sent as `If-Match` with an update, keeps the changes of others."""
    return _tagged(response, home.constellation, await home.constellation.roster.get(a))


@router.patch("/{a}", response_model=AGENT)
async def update(a: str, body: AgentUpdateRequest, home: ToWrite, response: Response, if_match: IfMatch) -> object:
    """Update the fields of an agent that are sent; a turn that already runs continues with the old values."""
    changes = body.model_dump(include=body.model_fields_set - {"force"})
    empty = sorted(
        name for name, value in changes.items() if value is None and name not in ("description", "tool_rules")
    )
    if empty:
        raise InvalidInput(f"{', '.join(empty)} cannot be null; leave out fields that should stay unchanged")
    if not body.force:
        _check_providers(home.server.models.config, changes.get("model_provider"), changes.get("config", {}))
    agent = await home.constellation.roster.update(a, changes, version=if_match)
    return _tagged(response, home.constellation, agent)


@router.delete("/{a}", status_code=204)
async def delete(a: str, home: ToWrite) -> None:
    """Delete an agent with its messages and memory; to keep its data, set its status to `archived` instead."""
    await home.constellation.delete_agent(a)


@router.get("/{a}/model", response_model=MODEL)
async def get_model(a: str, home: ToRead) -> object:
    """Show the model of an agent.

    Return the window, prices and capabilities of the model, and the source of the figures. If the window is not
    configured, the model's server is asked for it once.
    """
    agent = await home.constellation.roster.get(a)
    facts = await home.constellation.models.learn(agent.model_provider, agent.model_name)
    window = min(settings_of(agent.config).context_window, facts.window)
    tools = suited(agent.enabled_tools, facts, window)
    return fields_with(
        facts,
        prompt_window=window,
        tool_profile=tools.profile,
        tool_profile_reason=tools.why,
        offered_tools=[spec.name for spec in home.constellation.tools.specs(tools.enabled)],
        is_configured=agent.model_provider in home.server.models.config.providers,
        window_trouble=await home.constellation.window_trouble(agent),
    )


def _answer(constellation: Constellation, agent: Agent) -> dict[str, Any]:
    enabled = constellation.tools.named(agent.enabled_tools)
    return fields_with(agent, rule_warnings=warnings_of(agent.tool_rules, enabled))


def _tagged(response: Response, constellation: Constellation, agent: Agent) -> dict[str, Any]:
    return tagged(response, version_of(agent), _answer(constellation, agent))


def _check_providers(config: Config, provider: str | None, asked: Mapping[str, Any]) -> None:
    """Refuse an agent with an unconfigured provider for its model, routing or summaries: the error would otherwise
    appear with its next message, or when its own model fails.
    """
    settings = settings_of(asked)
    routing, summariser = settings.routing, settings.compaction.summarization_model
    others = (*routing.fallback_models, *(rule.model for rule in routing.rules), summariser)
    for name in (provider, *(model.provider for model in others if model is not None)):
        if name is not None and name not in config.providers:
            missing = not_configured(name, sorted(config.providers))
            raise InvalidInput(f"{missing.message} To use it before it is configured, set `force` (--force).")
