"""API tokens: create, list and revoke your own; administrators can do so for any user."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request
from pydantic import Field

from pattern_server.accounts import NAME_CHARS_MAX, Scope, Token
from pattern_server.http.bodies import Paged, RequestModel, answer_of, fields_with, page_of
from pattern_server.http.routing import MayRead, MayWrite, Router, Server

router = Router(prefix="/tokens", tags=["tokens"])

DAYS_MAX = 36_500
_FIELDS = "id user_id name scopes constellation_id created_at expires_at last_used_at revoked_at"
TOKEN = answer_of(Token, _FIELDS, scopes=list[str])
NEW_TOKEN = answer_of(Token, _FIELDS, "NewToken", scopes=list[str], token=str)


class TokenRequest(RequestModel):
    """The token to create."""

    scopes: Annotated[list[Scope], Field(min_length=1)]
    name: Annotated[str, Field(max_length=NAME_CHARS_MAX)] = ""
    user: str | None = None
    constellation: str | None = None
    days: Annotated[int, Field(ge=1, le=DAYS_MAX)] | None = None


@router.get("", response_model=page_of(TOKEN))
async def list_all(
    server: Server,
    caller: MayRead,
    paging: Paged,
    user: Annotated[
        str | None,
        Query(description="Id or name of the user. Default: the caller. Only administrators may name another user."),
    ] = None,
) -> object:
    """List the API tokens of a user, oldest first, including revoked and expired ones."""
    return paging.of_all(await server.accounts.tokens_of(caller, user), lambda row: (row.created_at, row.id))


@router.post("", status_code=201, response_model=NEW_TOKEN)
async def create(body: TokenRequest, server: Server, caller: MayWrite, request: Request) -> object:
    """Create an API token, and return it with its secret, which is never shown again."""
    row, secret = await server.accounts.create_token_for(caller, **body.model_dump())
    request.state.made = f"/tokens/{row.id}"  # for the audit log
    return fields_with(row, token=secret)


@router.delete("/{id}", status_code=204)
async def revoke(id: str, server: Server, caller: MayWrite) -> None:  # noqa: A002 - the path's own word
    """Revoke an API token; requests with it are refused at once, and its open streams end within 5 s."""
    await server.accounts.revoke_token_for(caller, id)
