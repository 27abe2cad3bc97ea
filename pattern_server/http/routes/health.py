"""Liveness, readiness, metrics and the description of the API. None of them needs a token."""

from __future__ import annotations

import shutil
from typing import Literal

import trio
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel

from pattern_db.errors import DatabaseError
from pattern_server.http.routing import Server
from pattern_server.metrics import CONTENT_TYPE
from pattern_server.sections import DISK_BYTES_EASY

router = APIRouter(tags=["health"])

# The page `/docs`: by the last part of a file's path, its name and type. It loads nothing but these and /openapi.json.
_PAGE = {
    "docs": ("page.html", "text/html"),
    "page.css": ("page.css", "text/css"),
    "page.js": ("page.js", "text/javascript"),
}
_PAGE_HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'; trusted-types 'none'",
    "referrer-policy": "no-referrer",
}


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
    warnings: list[str]


@router.get("/readyz", response_model=Readiness, responses={503: {"model": Readiness}})
async def ready(server: Server) -> JSONResponse:
    """Check whether requests can be served now.

    Return 503 with the reasons if not: until interrupted work has been resumed after a start, and while the server
    stops. A single failed constellation does not make the server unready; low disk space and missing backups are
    warnings.
    """
    reasons = [*sorted(server.pending), *(["the server is stopping"] if server.draining.is_set() else [])]
    try:
        await server.accounts.database.check()
    except DatabaseError as error:
        reasons.append(f"the global database does not respond: {error.message}")
    free = shutil.disk_usage(server.config.data_dir).free
    warnings = [f"low disk space: {free // 2**20} MiB free"] if free < DISK_BYTES_EASY else []
    warnings += server.backups.warnings()
    content = {"status": "unready" if reasons else "ready", "reasons": reasons, "warnings": warnings}
    return JSONResponse(content, 503 if reasons else 200)


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(server: Server) -> Response:
    """Return metrics for Prometheus.

    The text format, version 0.0.4. Metrics contain no names of people or agents and no texts.
    """
    return Response(server.metrics.text(), media_type=CONTENT_TYPE)


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> Response:
    """Return a file of the page that shows the API and sends requests."""
    name, media_type = _PAGE[request.scope["path"].rpartition("/")[2]]
    content = await trio.Path(__file__).parent.parent.joinpath("docs", name).read_bytes()
    return Response(content, headers=_PAGE_HEADERS, media_type=media_type)


for file in ("page.css", "page.js"):
    router.add_route(f"/docs/{file}", docs, include_in_schema=False)


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request) -> JSONResponse:
    """The API for programs, as OpenAPI describes it."""
    app: FastAPI = request.app
    return JSONResponse(await trio.to_thread.run_sync(app.openapi))


@router.get("/", include_in_schema=False)
async def root() -> PlainTextResponse:
    """A word for people who open the address in a browser."""
    return PlainTextResponse("This is a Pattern server. What it offers: /docs\n")
