"""Models of the configured providers: list and try them, choose the default, read the configuration again."""

from __future__ import annotations

from dataclasses import replace

from pydantic import BaseModel

from pattern_core.errors import InvalidInput
from pattern_core.models.model import ModelFacts
from pattern_core.models.trial import ModelTrial, try_model
from pattern_server.http.bodies import RequestModel, answer_of
from pattern_server.http.routing import MayAdminister, MayRead, Router, Server
from pattern_server.models import ConfiguredProvider, ModelSetup

router = Router(prefix="/models", tags=["models"])


MODEL = answer_of(
    ModelFacts,
    "provider model window trained_window output_max input_price output_price cache_read_price cache_write_price"
    " images tools reasoning tool_profile source as_of is_known window_source",
    "Model",
)
PROVIDER = answer_of(
    ConfiguredProvider, "name kind is_default trouble", "ModelProvider", models=list.__class_getitem__(MODEL)
)
TRIAL = answer_of(
    ModelTrial,
    "question answer finish_reason output_tokens first_word_s total_s thought_chars tool_calls tool_answer",
    facts=MODEL,
)


class DefaultModel(BaseModel):
    """The model of agents that name none. `unusable` names providers that cannot be asked, with the reason."""

    default_provider: str
    default_model: str
    unusable: dict[str, str]


class ModelList(DefaultModel):
    """The configured providers and their models."""

    items: list.__class_getitem__(PROVIDER)  # type: ignore[valid-type]  # made above


class ModelNameRequest(RequestModel):
    """A model, as `provider/model`."""

    model: str

    def split(self) -> tuple[str, str]:
        """Return the provider and the model.

        Raises:
            InvalidInput: there are no two names.
        """
        provider, _slash, model = self.model.partition("/")
        if not provider.strip() or not model.strip():
            raise InvalidInput(f"a model is written PROVIDER/MODEL, such as ollama/qwen3:8b; got {self.model!r}")
        return provider, model


def _default(models: ModelSetup) -> dict[str, object]:
    config = models.config
    return {
        "default_provider": config.default_provider,
        "default_model": config.default_model,
        "unusable": models.unusable,
    }


@router.get("", response_model=ModelList)
async def list_all(server: Server, caller: MayRead) -> object:
    """List the models of all providers.

    Return the default model and each provider with its models. Every provider's server is asked which models it has,
    for at most 3 s; `trouble` says why one does not answer.
    """
    default, found = _default(server.models), await server.models.providers()
    if not caller.is_admin:  # a reason may name addresses inside the operator's network
        found = [replace(one, trouble=one.trouble and "it does not answer; ask an administrator why") for one in found]
    return {**default, "items": found}


@router.post("/test", response_model=TRIAL)
async def test(body: ModelNameRequest, server: Server, caller: MayAdminister) -> object:
    """Ask a model a question.

    Return its answer in words, its speed, and in which form it calls a tool. The calls count against no budget.
    """
    provider, model = body.split()
    server.models.require(provider)
    return await try_model(server.models.client, provider, model)


@router.put("/default", response_model=DefaultModel)
async def set_default(body: ModelNameRequest, server: Server, caller: MayAdminister) -> object:
    """Set the default model.

    It is written to the configuration's file, which is read again. Agents that exist keep the model that they have.
    """
    await server.models.set_default(*body.split())
    return _default(server.models)


@router.post("/reload", response_model=DefaultModel)
async def reload(server: Server, caller: MayAdminister) -> object:
    """Read the providers again.

    Read the sections of `[providers]` and the default model from the configuration's file. Turns that run keep the
    providers that they began with. A file that does not fit is refused, and nothing changes.
    """
    await server.models.reload()
    return _default(server.models)
