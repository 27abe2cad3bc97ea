"""What is known of the model that an agent is answered by."""

from __future__ import annotations

from dataclasses import asdict

from pattern_core.agent_settings import settings_of
from pattern_server.http.bodies import Told
from pattern_server.http.routing import MayRead, Router, Server
from pattern_server.providers import catalogue_of

router = Router(prefix="/constellations/{c}/agents/{a}/model", tags=["agents"])


class ModelTold(Told):
    """A model's figures, from `data/models.toml` and `[providers.<name>.models]`.

    `window` and `output_max` are tokens; `prompt_window` is what the agent's prompts and answers keep to, which is less
    where its config has a smaller `context_window`; `trained_window` is what an open model was made for, of which its
    server decides how much there is. Prices are micro-dollars per million tokens, null where they are not known; a
    cache price of null beside a known input price means that cached input costs the same. `is_known` is false for a
    model of which nothing is known: its window is an assumption. `is_configured` says whether the server can reach the
    provider at all.
    """

    provider: str
    model: str
    window: int
    prompt_window: int
    trained_window: int | None
    output_max: int
    input_price: int | None
    output_price: int | None
    cache_read_price: int | None
    cache_write_price: int | None
    images: bool
    tools: bool
    reasoning: bool
    source: str
    as_of: str
    is_known: bool
    is_configured: bool


@router.get("", response_model=ModelTold)
async def show(c: str, a: str, server: Server, caller: MayRead) -> object:
    """The window, prices and abilities of the agent's model, and where the figures are from."""
    async with server.constellations.use(caller, c) as constellation:
        agent = await constellation.roster.get(a)
    facts = asdict(catalogue_of(server.config).facts(agent.model_provider, agent.model_name))
    told = {name: value for name, value in facts.items() if name in ModelTold.model_fields}
    return ModelTold(
        **told,
        prompt_window=min(settings_of(agent.config).context_window, facts["window"]),
        is_configured=agent.model_provider in server.config.providers,
    )
