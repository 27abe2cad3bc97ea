"""Signing in and out: access tokens and refresh tokens for a user name and a password."""

from __future__ import annotations

from typing import Annotated

from fastapi import Request
from pydantic import Field

from pattern_server.accounts import NAME_CHARS_MAX
from pattern_server.credentials import PASSWORD_CHARS_MAX
from pattern_server.http.bodies import RequestModel
from pattern_server.http.routing import MayRead, Router, Server, client_address
from pattern_server.sign_in import Granted

router = Router(prefix="/auth", tags=["auth"])

REFRESH_CHARS_MAX = 200

Password = Annotated[str, Field(max_length=PASSWORD_CHARS_MAX)]


class LoginRequest(RequestModel):
    """The name and the password of a user."""

    username: Annotated[str, Field(max_length=NAME_CHARS_MAX)]
    password: Password


class RefreshRequest(RequestModel):
    """A refresh token."""

    refresh_token: Annotated[str, Field(max_length=REFRESH_CHARS_MAX)]


@router.post("/login")
async def login(body: LoginRequest, server: Server, request: Request) -> Granted:
    """Sign in with a password.

    Return an access token for the header `Authorization`, and a refresh token for `POST /auth/refresh`. Attempts are
    limited per address and per user.
    """
    return await server.sign_ins.sign_in(body.username, body.password, address=client_address(request))


@router.post("/refresh")
async def refresh(body: RefreshRequest, server: Server, request: Request) -> Granted:
    """Exchange a refresh token for another pair; a second use of it revokes the sign-in with all its tokens."""
    return await server.sign_ins.refresh(body.refresh_token, address=client_address(request))


@router.post("/logout", status_code=204)
async def logout(server: Server, caller: MayRead) -> None:
    """Sign out.

    The sign-in with all its tokens is revoked; or the API token, if the request has one. Open streams end within 5 s.
    """
    await server.sign_ins.sign_out(caller)
