"""Models and embeddings in OpenAI's form: agents and groups are models, under their names.

| name | means |
|---|---|
| `agent:home/ada`, `group:home/desk` | an agent, a group of a constellation |
| `ada` | the agent of this name, if the caller reaches only one |
| `ephemeral:` before one of them | the same, and nothing of it is kept |
"""

from __future__ import annotations

import base64
import math
from array import array
from collections import Counter
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from pattern_core.agents import Agent
from pattern_core.embeddings.embedder import TEXTS_MAX, checked_vectors
from pattern_core.errors import InvalidInput, NotFound, Unavailable
from pattern_core.groups.group import Group
from pattern_core.models.tokens import estimate_text
from pattern_db.columns import unix_ms
from pattern_db.enums import AgentStatus
from pattern_server.accounts import Principal
from pattern_server.http.bodies import RequestModel
from pattern_server.http.errors import OPENAI
from pattern_server.http.routing import Access, MayChat, MayRead, Router, Server, ServerState

EPHEMERAL = "ephemeral:"
CONSTELLATIONS_MAX = 100  # searched for a list of models, or for an agent by its plain name
INPUTS_MAX = 2_048  # texts of one request for embeddings

router = Router(base="", prefix=OPENAI, tags=["openai"])


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedModel:
    """What a model's name means: an agent or a group, its `owner`. With `is_ephemeral` nothing of a request is kept."""

    home: Access
    owner: Agent | Group
    model: str  # as the client named it

    @property
    def is_group(self) -> bool:
        """Whether it is a group."""
        return isinstance(self.owner, Group)

    @property
    def is_ephemeral(self) -> bool:
        """Whether nothing but usage is kept of its requests."""
        return self.model.startswith(EPHEMERAL)


async def resolve(server: ServerState, caller: Principal, model: str) -> NamedModel:
    """Return what a model's name means for a caller.

    Raises:
        NotFound: nothing, or nothing that the caller reaches.
        InvalidInput: it is the name of several agents.
        Unavailable: the constellation cannot run now.
    """
    name = model.removeprefix(EPHEMERAL)
    kind, _, path = name.partition(":")
    c, slash, member = path.partition("/")
    places: list[tuple[str, str]] = []
    if kind in ("agent", "group") and slash:
        places, name = [(kind, c)], member
    else:
        places = [("agent", row.id) for row in (await server.accounts.constellations_of(caller))[:CONSTELLATIONS_MAX]]
    found: list[NamedModel] = []
    for kind, c in places:
        home = Access(server, caller, c)
        try:
            async with home.use() as constellation:
                one = await (constellation.roster if kind == "agent" else constellation.groups).get(name)
        except NotFound:
            continue
        found.append(NamedModel(home=home, owner=one, model=model))
    if not found:
        raise NotFound(f"there is no model {model!r}; `GET {OPENAI}/models` lists yours, such as agent:home/ada")
    if len(found) > 1:
        raise InvalidInput(f"several constellations have an agent {name!r}; write agent:CONSTELLATION/{name}")
    return found[0]


async def _all(server: ServerState, caller: Principal) -> list[dict[str, object]]:
    """Return every name that `resolve` knows, with what OpenAI says of a model."""
    listed: list[dict[str, object]] = []
    plain: list[Agent] = []
    for row in (await server.accounts.constellations_of(caller))[:CONSTELLATIONS_MAX]:
        c = row.name if row.owner_id == caller.user_id else row.id
        try:
            async with server.constellations.use(caller, row.id) as constellation:
                agents = [one for one in await constellation.roster.all() if one.status is not AgentStatus.ARCHIVED]
                groups = await constellation.groups.all()
        except Unavailable:  # quarantined: the others are still models
            continue
        plain += agents
        listed += [_model(f"agent:{c}/{one.name}", one.created_at) for one in agents]
        listed += [_model(f"group:{c}/{one.name}", one.created_at) for one in groups]
        listed += [_model(f"{EPHEMERAL}agent:{c}/{one.name}", one.created_at) for one in agents]
    count = Counter(one.name for one in plain)
    return [*listed, *(_model(one.name, one.created_at) for one in plain if count[one.name] == 1)]


def _model(name: str, created_at: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": unix_ms(created_at) // 1000, "owned_by": "pattern"}


@router.get("/models")
async def list_models(server: Server, caller: MayRead) -> object:
    """List the agents and groups that the caller reaches, as models."""
    return {"object": "list", "data": await _all(server, caller)}


@router.get("/models/{model:path}")
async def get_model(model: str, server: Server, caller: MayRead) -> object:
    """Show the agent or group with this name, as a model."""
    return _model(model, (await resolve(server, caller, model)).owner.created_at)


class EmbeddingsRequest(RequestModel):
    """Texts to embed."""

    input: str | Annotated[list[str], Field(min_length=1, max_length=INPUTS_MAX)]
    model: str
    dimensions: Annotated[int, Field(ge=1)] | None = None
    encoding_format: Literal["float", "base64"] = "float"
    user: str | None = None


@router.post("/embeddings")
async def embed(body: EmbeddingsRequest, server: Server, caller: MayChat) -> object:
    """Embed texts.

    Return a vector of length 1 for each text, by the configured embedding model. With fewer `dimensions` the vectors
    are cut, and have length 1 again.
    """
    texts = [body.input] if isinstance(body.input, str) else body.input
    if not all(text.strip() for text in texts):
        raise InvalidInput("a text of `input` is empty; leave it out")
    embedder = server.runtime.embedders.configured
    info = await embedder.info()
    if body.model != info.model:
        raise NotFound(f"there is no embedding model {body.model!r}; the configured one is {info.model!r}")
    length = body.dimensions or info.dimension
    if length > info.dimension:
        raise InvalidInput(f"`dimensions` is at most {info.dimension} with {info.model}")
    vectors: list[array[float]] = []
    for first in range(0, len(texts), TEXTS_MAX):
        some = texts[first : first + TEXTS_MAX]
        vectors += [_cut(vector, length) for vector in await checked_vectors(embedder, some, info, purpose="passage")]
    encoded = [
        vector.tolist() if body.encoding_format == "float" else base64.b64encode(vector.tobytes()).decode()
        for vector in vectors
    ]
    data = [{"object": "embedding", "index": index, "embedding": one} for index, one in enumerate(encoded)]
    tokens = sum(map(estimate_text, texts))
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": info.model, "usage": usage}


def _cut(vector: bytes, length: int) -> array[float]:
    """Return the first numbers of a vector (float32, little endian), as a vector of length 1."""
    numbers = array("f", vector[: 4 * length])
    norm = math.sqrt(math.fsum(number * number for number in numbers)) or 1.0
    return numbers if abs(norm - 1) < 1e-6 else array("f", [number / norm for number in numbers])
