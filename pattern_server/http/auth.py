"""Bearer tokens, and the scope that each route demands.

Everything that is not listed as public needs a token; a route of the API without a `scope(…)` among its dependencies
is an error when the application is built.
"""

from __future__ import annotations

from typing import Any

from fastapi import Depends, Request
from fastapi.params import Depends as Dependency

from pattern_core.errors import PermissionDenied
from pattern_server.accounts import SCOPES, Accounts, Principal, Scope, Unauthorized

PUBLIC = frozenset({"/", "/healthz", "/readyz", "/metrics", "/openapi.json", "/docs"})


class Demands:
    """A route's demand for one scope."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    async def __call__(self, request: Request) -> None:
        """Let the request pass if its token has the scope.

        Raises:
            PermissionDenied: it has not.
        """
        principal: Principal = request.state.principal
        if self.scope not in principal.scopes:
            raise PermissionDenied(
                f"this token may {', '.join(scope for scope in SCOPES if scope in principal.scopes) or 'nothing'};"
                f" this request needs the scope {self.scope}"
            )
        if self.scope == "admin" and not principal.is_admin:
            raise PermissionDenied("this request is for administrators")


# One object per scope: FastAPI runs equal dependencies of a request once.
_DEMANDS = {scope: Demands(scope) for scope in SCOPES}


def demand(scope: Scope) -> Any:
    """The dependency of a route that needs `scope`: `dependencies=[demand("read")]`."""
    return Depends(_DEMANDS[scope])


def demanded_by(dependencies: list[Dependency]) -> str | None:
    """The scope among a route's dependencies; None if it demands none."""
    return next((found.dependency.scope for found in dependencies if isinstance(found.dependency, Demands)), None)


async def authenticate(accounts: Accounts, headers: list[tuple[bytes, bytes]]) -> Principal:
    """Who sent a request with these raw headers.

    Raises:
        Unauthorized: there is no bearer token, or it is not valid.
    """
    given = next((value for name, value in headers if name == b"authorization"), b"")
    kind, _, secret = given.partition(b" ")
    if kind.lower() != b"bearer" or not secret.strip():
        raise Unauthorized("send a token: `Authorization: Bearer <token>`")
    return await accounts.authenticate(secret.strip().decode("latin-1"))
