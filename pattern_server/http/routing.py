"""What every route uses: the parts of the server, the caller with the required scope, and strict JSON.

A route declares the required scope in its signature (`home: ToRead` below `/constellations/{c}`, `caller: MayRead`
elsewhere); an API route without one is an error at import.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Coroutine, MutableMapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import trio
from fastapi import APIRouter, Depends, Path, Request, Response
from fastapi.dependencies.utils import get_flat_params
from fastapi.exceptions import RequestValidationError
from fastapi.params import Header
from fastapi.params import Path as PathParameter
from fastapi.routing import APIRoute
from starlette.routing import Match

from pattern_core.errors import InvalidInput, NotFound, PatternError, PermissionDenied
from pattern_core.runtime import Runtime
from pattern_db.columns import strict_json
from pattern_db.enums import CONSTELLATION_OWNER
from pattern_db.errors import DatabaseError
from pattern_server.accounts import SCOPES, Accounts, Principal, Scope
from pattern_server.audit import BEGUN, Audit, is_audited
from pattern_server.backups import Backups
from pattern_server.config import Config
from pattern_server.constellations import Constellations
from pattern_server.http.errors import UnsupportedMediaType, status_of
from pattern_server.identities import Identities
from pattern_server.metrics import Metrics
from pattern_server.models import ModelSetup
from pattern_server.sign_in import SignIns
from pattern_server.sources import SourceAccounts
from pattern_server.supervisor import Supervisor

if TYPE_CHECKING:
    from pattern_core.constellation import Constellation
    from pattern_server.telemetry import Telemetry

API = "/api/v1"
# Routes that need no token, because they are there to get one, or because each request proves itself: their paths, and
# those that these match.
SIGN_IN = re.compile(rf"{API}/auth/(login|refresh|providers|[^/]+/(start|callback|login))|/hooks/[^/]+")
_JSON = re.compile(r"\s*application/(?:[^;]*\+)?json\s*(?:;.*)?", re.IGNORECASE)  # content types
OwnerInPath = Annotated[
    str, Path(description="Id or name of an agent or a group; `_constellation_` for what all agents see.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """The parts of a running server. The tasks of `background` end with it, and it with a bug of theirs."""

    config: Config
    accounts: Accounts
    sign_ins: SignIns
    identities: Identities
    constellations: Constellations
    backups: Backups
    supervisor: Supervisor[Constellation]
    runtime: Runtime
    draining: trio.Event
    pending: set[str]  # what must end before the server is ready
    started_at: str
    metrics: Metrics
    models: ModelSetup
    telemetry: Telemetry | None
    sources: SourceAccounts
    background: trio.Nursery


def client_address(request: Request) -> str:
    """Return the address that a request came from, as the border found it."""
    return "" if request.client is None else request.client.host


async def _server(request: Request) -> ServerState:
    state: ServerState = request.app.state.server
    return state


@dataclass(frozen=True, slots=True)
class Access:
    """The constellation of a route's path (`c`: its id or name), for a caller with the required scope."""

    server: ServerState
    caller: Principal
    c: str
    state: dict[str, Any] = field(default_factory=dict, kw_only=True)  # the request's, in the ASGI scope
    traceparent: str | None = field(default=None, kw_only=True)  # the request's header of that name

    def use(self) -> AbstractAsyncContextManager[Constellation]:
        """Return the constellation, awake within the block. Raises as `Constellations.use`."""
        return self.server.constellations.use(self.caller, self.c)


@dataclass(frozen=True, slots=True)
class AwakeAccess(Access):
    """An access for a whole route: its constellation stays awake until the route has returned."""

    constellation: Constellation

    async def find_workspace(self, given: str | None, *, is_written: bool = False) -> str | None:
        """Return the id of the workspace that a request names; None for None. It is made for what `is_written` to it.

        Raises:
            NotFound: there is none.
            InvalidInput: its name or path is invalid.
        """
        if given is None:
            return None
        workspaces = self.constellation.workspaces
        found = workspaces.ensure(given, author=self.caller.author) if is_written else workspaces.find(given)
        return (await found).id

    async def known_workspace(self, given: str) -> str:
        """Return the id of a workspace; empty, if there is none yet. Raises as `find_workspace`."""
        try:
            return await self.find_workspace(given) or ""
        except NotFound:
            return ""

    def locate(self, response: Response, *below: str) -> None:
        """Set the header `Location` to what was made below the constellation."""
        response.headers["location"] = f"{API}/constellations/{self.constellation.id}/{quote('/'.join(below))}"


@dataclass(frozen=True, slots=True)
class OwnerAccess(AwakeAccess):
    """An access to the data of the owner in the route's path: `owner` is an agent's id, or `_constellation_`."""

    owner: str


class Demand:
    """The scope that a route requires of its caller. Its methods are called by the framework: all raise as `caller`,
    and those that wake the constellation of the path as `Constellations.use`.
    """

    def __init__(self, scope: Scope, *, is_named_in_body: bool = False) -> None:
        """With `is_named_in_body` the request's body says which constellation it is for, not its path."""
        self.scope = scope
        self._is_named = is_named_in_body

    async def caller(self, request: Request) -> Principal:
        """Return the caller.

        Raises:
            PermissionDenied: the token lacks the scope; it is not an administrator's (for "admin"); or it is for one
            constellation, and the request concerns the whole server.
        """
        caller: Principal = request.state.principal  # set at the border, before routing
        if self.scope not in caller.scopes:
            raise PermissionDenied(
                f"this token may {', '.join(scope for scope in SCOPES if scope in caller.scopes) or 'nothing'};"
                f" this request needs the scope {self.scope}"
            )
        if self.scope == "admin" and not caller.is_admin:
            raise PermissionDenied("this request needs an administrator's token")
        if self.scope == "admin" or (self.scope != "read" and not self._is_named and "c" not in request.path_params):
            caller.require_unbound()
        return caller

    async def access(self, request: Request, c: str) -> Access:
        """Return the caller's access to the constellation of the path."""
        caller = await self.caller(request)
        given = request.headers.get("traceparent")
        return Access(request.app.state.server, caller, c, state=request.scope["state"], traceparent=given)

    async def awake(self, request: Request, c: str) -> AsyncIterator[AwakeAccess]:
        """Yield the caller's access to the constellation of the path, awake."""
        server, caller = request.app.state.server, await self.caller(request)
        async with server.constellations.use(caller, c) as constellation:
            yield AwakeAccess(server, caller, c, constellation)

    async def owner(self, request: Request, c: str, a: OwnerInPath) -> AsyncIterator[OwnerAccess]:
        """Yield the caller's access to the data of the owner in the path (`a`: an agent, or `_constellation_`).

        Raises:
            NotFound: there is no such agent.
        """
        server, caller = request.app.state.server, await self.caller(request)
        async with server.constellations.use(caller, c) as constellation:
            yield OwnerAccess(server, caller, c, constellation, await owner_of(constellation, a))


Server = Annotated[ServerState, Depends(_server)]
MayRead = Annotated[Principal, Depends(Demand("read").caller)]
MayChat = Annotated[Principal, Depends(Demand("chat", is_named_in_body=True).caller)]
MayWrite = Annotated[Principal, Depends(Demand("write").caller)]
MayAdminister = Annotated[Principal, Depends(Demand("admin").caller)]
ToRead = Annotated[AwakeAccess, Depends(Demand("read").awake, scope="function")]
ToChat = Annotated[AwakeAccess, Depends(Demand("chat").awake, scope="function")]
ToWrite = Annotated[AwakeAccess, Depends(Demand("write").awake, scope="function")]
ToReadOwned = Annotated[OwnerAccess, Depends(Demand("read").owner, scope="function")]
ToChatOwned = Annotated[OwnerAccess, Depends(Demand("chat").owner, scope="function")]
ToWriteOwned = Annotated[OwnerAccess, Depends(Demand("write").owner, scope="function")]
# For work that outlasts a route: a stream, or waiting for a turn.
ToReadOn = Annotated[Access, Depends(Demand("read").access)]
ToChatOn = Annotated[Access, Depends(Demand("chat").access)]


async def owner_of(constellation: Constellation, a: str) -> str:
    """Return the owner in the place of `{a}` in a path: the id of an agent or a group, or `_constellation_` for all
    agents together.

    Raises:
        NotFound: there is no such agent or group.
    """
    if a == CONSTELLATION_OWNER:
        return CONSTELLATION_OWNER
    try:
        return (await constellation.roster.get(a)).id
    except NotFound as error:
        try:
            return (await constellation.groups.get(a)).id
        except NotFound:
            raise error from None


@dataclass(slots=True)
class ActionResult:
    """What came of an action: what it was done with, and the status of its answer."""

    object: str
    status: int


@asynccontextmanager
async def audited(request: Request, caller: Principal, action: str) -> AsyncIterator[ActionResult]:
    """Yield the result of an action, to be set in the block, between its two entries in the audit log.

    Raises:
        DatabaseError: the first entry cannot be stored; the block does not run.
    """
    audit: Audit = request.app.state.server.accounts.audit
    entry = partial(
        audit.entry, action, address=client_address(request), user_id=caller.user_id, token_id=caller.token_id
    )
    result = ActionResult(request.url.path, HTTPStatus.INTERNAL_SERVER_ERROR)
    await audit.add(entry(result.object.removeprefix(API), status=BEGUN))
    try:
        yield result
    except (PatternError, DatabaseError) as error:
        result.status = status_of(error.code)
        raise
    except RequestValidationError:
        result.status = HTTPStatus.UNPROCESSABLE_ENTITY
        raise
    finally:
        await audit.conclude(entry(result.object.removeprefix(API), status=result.status))


class StrictRequest(Request):
    """A request with JSON that RFC 8259 allows and SQLite can store: no NaN, no lone surrogates, bounded depth."""

    async def json(self) -> Any:
        """Return the body.

        Raises:
            json.JSONDecodeError: it is not valid JSON.
        """
        body = await self.body()
        try:
            value = strict_json(body)
            json.dumps(value, ensure_ascii=False).encode()  # fails for a lone surrogate anywhere in the value
        except json.JSONDecodeError:
            raise
        except UnicodeError:
            raise json.JSONDecodeError("it is not valid UTF-8", "", 0) from None
        except ValueError as error:  # NaN, too deep, or an integer of thousands of digits
            raise json.JSONDecodeError(str(error), "", 0) from None
        return value


class ApiRoute(APIRoute):
    """A route of the API: `scope` is required of its caller (None: no token is); its body is read by `StrictRequest`.

    Bodies with another content type than JSON and unknown query parameters are refused.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        if options.get("status_code") == 204:
            options["response_class"] = Response  # no body, so no content type
        super().__init__(path, endpoint, **options)
        owners = (getattr(each.call, "__self__", None) for each in self.dependant.dependencies)
        demand = next((owner for owner in owners if isinstance(owner, Demand)), None)
        if demand is None and not SIGN_IN.fullmatch(self.path):
            raise AssertionError(f"{path} requires no scope; add a parameter such as `caller: MayRead`")
        self._demand = demand
        self.scope: Scope | None = None if demand is None else demand.scope
        self.is_audited = demand is not None and is_audited(self.methods or (), self.tags)
        others = (Header, PathParameter)
        declared = [one for one in get_flat_params(self.dependant) if not isinstance(one.field_info, others)]
        self.query = sorted(one.alias for one in declared)
        self._prefix = self.path.partition("{")[0]  # a path has to begin with this

    def matches(self, scope: MutableMapping[str, Any]) -> tuple[Match, MutableMapping[str, Any]]:
        """Return whether and how the route matches. Called by the framework, for one route after another: so most of
        them are left out by a quick look. One of another method matches only when all modules are imported, of which
        one may have the right one.
        """
        if scope["path"].startswith(self._prefix) and self.path_regex.match(scope["path"]) is not None:
            match, more = super().matches(scope)
            if match is Match.FULL or not scope["app"].unloaded:
                return match, more
        return Match.NONE, {}

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the framework's handler for our class of requests."""
        handle = super().get_route_handler()

        async def strictly(request: Request) -> Response:
            if request.scope["query_string"]:
                self._check_query(request)
            strict = StrictRequest(request.scope, request.receive)
            is_json = _JSON.fullmatch(request.headers.get("content-type", "")) is not None
            if self.body_field is not None and not is_json and await strict.body():
                raise UnsupportedMediaType(
                    "the body is not declared as JSON; send it with the header `Content-Type: application/json`"
                )
            if self._demand is None or not self.is_audited:
                return await handle(strict)
            caller = await self._demand.caller(request)  # who may not do this leaves no entry: it would cost a write
            async with audited(request, caller, f"{self.tags[0]}.{self.name}") as result:
                answer = await handle(strict)
                result.status = answer.status_code
                result.object = getattr(request.state, "made", answer.headers.get("location", result.object))
            return answer

        return strictly

    def _check_query(self, request: Request) -> None:
        """Refuse unknown query parameters: a misspelled one would be ignored silently.

        Raises:
            InvalidInput: there is one.
        """
        unknown = sorted({*request.query_params} - {*self.query})
        if unknown:
            known = f"known are {', '.join(self.query)}" if self.query else "it has no query parameters"
            raise InvalidInput(
                f"this request has no query parameter {unknown[0]!r}; {known}",
                errors=[{"field": f"query.{name}", "message": "Unknown parameter"} for name in unknown],
            )


class Router(APIRouter):
    """The routes of one resource, below `/api/v1` or another `base`."""

    def __init__(self, *, tags: list[str], prefix: str = "", base: str = API) -> None:
        super().__init__(prefix=base + prefix, tags=[*tags], route_class=ApiRoute)
