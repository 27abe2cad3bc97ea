"""An API that answers each request by its method and path, and keeps what it was asked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import click
import httpx2

from pattern_server.cli.client import Api
from pattern_server.cli.memory.place import Place
from pattern_server.cli.output import Output
from tests.pattern_server.cli.conftest import Answer, api_of, as_json

HOME = Place(constellation="home", agent="ada")
PREFIX = "/api/v1/constellations/home/agents/ada/memory"


@dataclass(slots=True)
class Scripted:
    """`answers` maps `METHOD /label…` (below the agent's memory) to JSON, or to a status and JSON."""

    answers: Mapping[str, Any]
    asked: list[tuple[str, Any]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)

    @property
    def api(self) -> Api:
        """The API's client for it."""
        return api_of(self.answer)

    def answer(self, request: httpx2.Request) -> Answer:
        """Answer one request, and keep it."""
        query = str(request.url).partition("?")[2]
        what = f"{request.method} {request.url.path.removeprefix(PREFIX)}" + (f"?{query}" if query else "")
        self.asked.append((what, json.loads(request.content) if request.content else None))
        self.headers.append(dict(request.headers))
        found = self.answers.get(what, (404, {"detail": f"nothing at {what}", "code": "not_found"}))
        status, body = found if isinstance(found, tuple) else (200, found)
        tag = {"etag": f'"{body["version"]}"'} if isinstance(body, dict) and "version" in body else {}
        return as_json(body, status, **tag)


def block(content: str = "Likes tea.\n", **more: Any) -> dict[str, Any]:
    """A block as the API tells it."""
    return {"label": "human", "content": content, "value": content, "version": 3, "char_limit": 100, **more}


async def call(command: click.Command, scripted: Scripted, *, is_json: bool = False, **given: Any) -> Any:
    """What a command does once it is connected: the function below its options."""
    inner: Any = command.callback
    while "place" not in inner.__code__.co_varnames[: inner.__code__.co_argcount]:
        inner = inner.__wrapped__
    return await inner(scripted.api, Output(is_json=is_json), HOME, **given)
