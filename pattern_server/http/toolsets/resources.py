"""What people show to a model: memory blocks and files as resources, and prompts made of what is remembered.

`ANSWERS` are the methods of the protocol. Each takes the constellation and the params of a request, which the library
has checked, and returns the result as JSON.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, unquote

from pattern_core.constellation import Constellation
from pattern_core.delta import memory_of
from pattern_core.errors import InvalidInput, NotFound
from pattern_core.ids import now_text
from pattern_core.search import SPOKEN, SearchRequest
from pattern_db.enums import CONSTELLATION_OWNER
from pattern_server.http.routing import owner_of

FILE_BYTES_MAX = 1024 * 1024  # of a file that is read whole
HITS = 10
MEMORY, FILES, DELTA = "pattern://memory/", "pattern://files/", "pattern://delta/"
Params = Mapping[str, Any]


async def _list_resources(constellation: Constellation, _params: Params) -> dict[str, Any]:
    """Return the memory blocks. Files, which may be many, are found by the tool `search`."""
    owners = {agent.name: agent.id for agent in await constellation.roster.all()}
    found: list[dict[str, Any]] = []
    for name, owner in {**owners, CONSTELLATION_OWNER: CONSTELLATION_OWNER}.items():
        seen = await constellation.memory.list(owner)
        for block in seen:
            if block.agent_id == owner:
                uri = f"{MEMORY}{quote(name, safe='')}/{quote(block.label)}"
                found.append({"uri": uri, "name": f"{name}/{block.label}", "mimeType": "text/plain"})
    return {"resources": found}


async def _list_templates(_constellation: Constellation, _params: Params) -> dict[str, Any]:
    memory = {"uriTemplate": MEMORY + "{agent}/{label}", "name": "memory block"}
    file = {"uriTemplate": FILES + "{folder}/{+path}", "name": "file"}
    return {"resourceTemplates": [memory, file, {"uriTemplate": DELTA + "{workspace}", "name": "memory for Delta"}]}


async def _read_resource(constellation: Constellation, params: Params) -> dict[str, Any]:
    uri = str(params["uri"])
    if uri.startswith(DELTA):
        text = await memory_of(constellation, unquote(uri.removeprefix(DELTA)))
        return {"contents": [{"uri": uri, "mimeType": "text/plain", "text": text}]}
    kind = next((kind for kind in (MEMORY, FILES) if uri.startswith(kind)), "")
    owner, _, name = (unquote(part) for part in uri.removeprefix(kind).partition("/"))
    if not kind or not name:
        raise NotFound(f"there is no resource {uri!r}; list the resources")
    if kind == MEMORY:
        view = await constellation.memory.view(await owner_of(constellation, owner), name)
        return {"contents": [{"uri": uri, "mimeType": "text/plain", "text": view.content}]}
    _file, data = await constellation.folders.content(owner, name)
    if len(data) > FILE_BYTES_MAX:
        raise InvalidInput(f"{name} has {len(data)} bytes, more than {FILE_BYTES_MAX}; use the tool `search`")
    try:
        return {"contents": [{"uri": uri, "text": data.decode()}]}
    except UnicodeDecodeError:
        return {"contents": [{"uri": uri, "blob": b64encode(data).decode()}]}


async def _recall(constellation: Constellation, topic: str) -> str:
    """Show what was said or stored about a topic."""
    request = SearchRequest(query=topic, roles=SPOKEN, limit=HITS, now=now_text(constellation.runtime.clock))
    hits = (await constellation.search(request)).hits
    found = "\n".join(f"- {hit.created_at[:10]}, {hit.kind.value}: {hit.snippet}" for hit in hits)
    return f"What is remembered about {topic}:\n\n{found or 'Nothing.'}"


async def _memory(constellation: Constellation, agent: str) -> str:
    """Show the memory blocks of an agent."""
    blocks = await constellation.memory.list(await owner_of(constellation, agent))
    return "\n\n".join([f"The memory of {agent}:", *(f"## {block.label}\n\n{block.content}" for block in blocks)])


async def _delta(constellation: Constellation, workspace: str) -> str:
    """Show notes, tasks and keys of a workspace (an id, a name or a folder), as Delta shows them."""
    return await memory_of(constellation, workspace)


# By name: the one argument of a prompt, and what makes its text.
_PROMPTS: Mapping[str, tuple[str, Callable[[Constellation, str], Awaitable[str]]]] = MappingProxyType(
    {"recall": ("topic", _recall), "memory": ("agent", _memory), "delta": ("workspace", _delta)}
)


async def _list_prompts(_constellation: Constellation, _params: Params) -> dict[str, Any]:
    shown = [
        {"name": name, "description": make.__doc__, "arguments": [{"name": argument, "required": True}]}
        for name, (argument, make) in _PROMPTS.items()
    ]
    return {"prompts": shown}


async def _get_prompt(constellation: Constellation, params: Params) -> dict[str, Any]:
    if params["name"] not in _PROMPTS:
        raise NotFound(f"there is no prompt {params['name']!r}; there are {', '.join(_PROMPTS)}")
    argument, make = _PROMPTS[params["name"]]
    given = params.get("arguments") or {}
    if argument not in given:
        raise InvalidInput(f"the prompt {params['name']} needs `{argument}`")
    text = await make(constellation, given[argument])
    return {"messages": [{"role": "user", "content": {"type": "text", "text": text}}]}


ANSWERS: Mapping[str, Callable[[Constellation, Params], Awaitable[dict[str, Any]]]] = MappingProxyType(
    {
        "resources/list": _list_resources,
        "resources/templates/list": _list_templates,
        "resources/read": _read_resource,
        "prompts/list": _list_prompts,
        "prompts/get": _get_prompt,
    }
)
