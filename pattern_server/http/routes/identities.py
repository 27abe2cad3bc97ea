"""Signing in with other providers, and the identities that users have there."""

from __future__ import annotations

from typing import Annotated

from fastapi import Request, Response
from pydantic import BaseModel, Field

from pattern_server.http.bodies import Paged, RequestModel, answer_of, items_of, page_of
from pattern_server.http.routing import API, MayRead, MayWrite, Router, Server, client_address
from pattern_server.identities import AppPassword, Identity, Redirected, StartedSignIn
from pattern_server.sign_in import Granted

router = Router(tags=["identities"])

IDENTITY = answer_of(Identity, "id provider provider_id created_at")

Url = Annotated[str, Field(max_length=2_000)]


class SignInProvider(BaseModel):
    """A provider that users can sign in with."""

    name: str
    redirect_url: str | None
    takes_app_passwords: bool


class SignInStartRequest(RequestModel):
    """Where the provider redirects to: an address of the person's own machine, with a port."""

    redirect_url: Url


class SignInFinishRequest(RequestModel):
    """The ticket of a started sign-in, and what the provider's redirection brought."""

    ticket: Annotated[str, Field(max_length=100)]
    state: Annotated[str, Field(max_length=100)]
    code: Annotated[str, Field(max_length=8_000)]
    iss: Url | None = None


class IdentityLinkRequest(SignInFinishRequest):
    """The same, with the name of the provider."""

    provider: str


class AppPasswordRequest(RequestModel):
    """An account at an AT Protocol server: its handle, DID or address, and one of its app passwords."""

    identifier: Annotated[str, Field(min_length=1, max_length=500)]
    password: Annotated[str, Field(min_length=1, max_length=500)]


class AppPasswordLinkRequest(AppPasswordRequest):
    """The same, with the name of the provider."""

    provider: str


@router.get("/auth/providers", response_model=items_of(SignInProvider))
async def list_providers(server: Server) -> object:
    """List providers.

    Return the providers that users can sign in with, by name. `redirect_url` is the only one that a provider accepts;
    null: any address of the person's own machine. Those that accept app passwords redirect no one:
    `POST /auth/{provider}/login`.
    """
    found = sorted(server.identities.providers.items())
    items = [
        {"name": name, "redirect_url": section.redirect_url, "takes_app_passwords": section.atproto_url is not None}
        for name, section in found
    ]
    return {"items": items}


@router.post("/auth/{provider}/start")
async def start(provider: str, body: SignInStartRequest, server: Server, request: Request) -> StartedSignIn:
    """Start a sign-in with a provider.

    Open `url` in the person's browser. The provider redirects it to `redirect_url` with `state`, `code` and perhaps
    `iss` in the query: send them with the ticket to `POST /auth/{provider}/callback`, or to `POST /me/identities`.
    """
    return await server.identities.start(provider, body.redirect_url, address=client_address(request))


@router.post("/auth/{provider}/callback")
async def finish(provider: str, body: SignInFinishRequest, server: Server, request: Request) -> Granted:
    """Finish a sign-in with a provider.

    Return a pair of tokens, as `POST /auth/login`, for the user who has linked this identity. A ticket works once.
    """
    redirected = Redirected(**body.model_dump())
    return await server.identities.sign_in(provider, redirected, address=client_address(request))


@router.post("/auth/{provider}/login")
async def login(provider: str, body: AppPasswordRequest, server: Server, request: Request) -> Granted:
    """Sign in with an app password.

    Return a pair of tokens, as `POST /auth/login`, for the user who has linked this account. The password is passed on
    to the provider and not kept.
    """
    return await server.identities.sign_in(provider, AppPassword(**body.model_dump()), address=client_address(request))


@router.get("/me/identities", response_model=page_of(IDENTITY))
async def list_all(server: Server, caller: MayRead, paging: Paged) -> object:
    """List the identities that you can sign in with, oldest first."""
    return paging.of_all(await server.identities.linked_of(caller), lambda row: (row.created_at, row.id))


@router.post("/me/identities", status_code=201, response_model=IDENTITY)
async def link(
    body: IdentityLinkRequest | AppPasswordLinkRequest,
    server: Server,
    caller: MayWrite,
    request: Request,
    response: Response,
) -> object:
    """Link an identity.

    Send what a redirection brought, or an account and its app password, as the provider takes it. You can then sign in
    with the identity. This needs an access token: with an API token it is refused, unless it is an administrator's with
    the scope `admin`. An e-mail address links nothing.
    """
    kind = AppPassword if isinstance(body, AppPasswordLinkRequest) else Redirected
    proof = kind(**body.model_dump(exclude={"provider"}))
    made = await server.identities.link(caller, body.provider, proof, address=client_address(request))
    response.headers["location"] = f"{API}/me/identities/{made.id}"
    return made


@router.delete("/me/identities/{id}", status_code=204)
async def unlink(id: str, server: Server, caller: MayWrite) -> None:  # noqa: A002 - the path's own word
    """Unlink an identity: you can no longer sign in with it, and all your sign-ins end."""
    await server.identities.unlink(caller, id)
