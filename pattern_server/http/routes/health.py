"""Liveness, readiness, metrics and the description of the API. None of them needs a token."""

from __future__ import annotations

import html
from typing import Any, Literal

import trio
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from pydantic import BaseModel

from pattern_db.errors import DatabaseError
from pattern_server.http.routing import Server
from pattern_server.metrics import CONTENT_TYPE

router = APIRouter(tags=["health"])

_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Pattern: the API</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>body{{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}}
code{{background:#8882;padding:.1em .3em}}td{{vertical-align:top;padding:.3rem .8rem .3rem 0}}</style>
<h1>Pattern: the API</h1>
<p>Send <code>Authorization: Bearer &lt;token&gt;</code> with every request. Errors are problem documents (RFC 9457)
with a stable <code>code</code>. Lists page by <code>limit</code> and <code>cursor</code>. The exact shapes are in
<a href="/openapi.json">openapi.json</a>.</p>
<table>{rows}</table></html>"""


class Liveness(BaseModel):
    """The server is alive."""

    status: Literal["alive"]


@router.get("/healthz", response_model=Liveness)
async def alive() -> JSONResponse:
    """Check that the process responds."""
    return JSONResponse({"status": "alive"})


class Readiness(BaseModel):
    """Whether requests can be served."""

    status: Literal["ready", "unready"]
    reasons: list[str]


@router.get("/readyz", response_model=Readiness, responses={503: {"model": Readiness}})
async def ready(server: Server) -> JSONResponse:
    """Check whether requests can be served now.

    Return 503 with the reasons if not. A single failed constellation does not make the server unready.
    """
    reasons = ["the server is stopping"] if server.draining.is_set() else []
    try:
        await server.accounts.database.check()
    except DatabaseError as error:
        reasons.append(f"the global database does not respond: {error.message}")
    content = {"status": "unready" if reasons else "ready", "reasons": reasons}
    return JSONResponse(content, 503 if reasons else 200)


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(server: Server) -> Response:
    """Return metrics for Prometheus.

    The text format, version 0.0.4. Metrics contain no names of people or agents and no texts.
    """
    states = {"awake": server.supervisor.awake(), "quarantined": len(server.supervisor.quarantined())}
    return Response(server.metrics.text(states), media_type=CONTENT_TYPE)


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> HTMLResponse:
    """The routes as a page that needs nothing from elsewhere."""
    return HTMLResponse(_PAGE.format(rows="".join(_rows(await _description(request)))))


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request) -> JSONResponse:
    """The API for programs, as OpenAPI describes it."""
    return JSONResponse(await _description(request))


@router.get("/", include_in_schema=False)
async def root() -> PlainTextResponse:
    """A word for people who open the address in a browser."""
    return PlainTextResponse("This is a Pattern server. What it offers: /docs\n")


async def _description(request: Request) -> dict[str, Any]:
    app: FastAPI = request.app
    return await trio.to_thread.run_sync(app.openapi)


def _rows(description: dict[str, Any]) -> list[str]:
    paths: dict[str, dict[str, dict[str, str]]] = description["paths"]
    return [
        f"<tr><td><code>{method.upper()}</code><td><code>{html.escape(path)}</code>"
        f"<td>{html.escape(operation['summary'])}. {html.escape(operation['description'])}"
        for path, operations in paths.items()
        for method, operation in operations.items()
    ]
