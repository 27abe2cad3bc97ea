"""Routes get the parts of the server and the caller."""

from __future__ import annotations

from typing import get_args

from fastapi import FastAPI, Request

from pattern_server.http.state import Caller, Server
from tests.pattern_server.place import Place


async def test_routes_get_what_they_ask_for(place: Place) -> None:
    state = place.parts.state
    assert state.constellations is not None
    app = FastAPI()
    app.state.server = state
    request = Request({"type": "http", "app": app, "headers": [], "state": {"principal": "somebody"}})
    (server_of,), (caller_of,) = get_args(Server)[1:], get_args(Caller)[1:]
    assert await server_of.dependency(request) is state
    assert await caller_of.dependency(request) == "somebody"
