"""Users: administrators create, change, disable and delete them; everyone can set their own password."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response
from pydantic import Field

from pattern_server.accounts import NAME_CHARS_MAX, User
from pattern_server.http.bodies import Paged, RequestModel, answer_of, fields_with, page_of, require_values
from pattern_server.http.routes.auth import Password
from pattern_server.http.routing import API, MayAdminister, MayRead, MayWrite, Router, Server
from pattern_server.sign_in import SigningKey

router = Router(tags=["users"])

EMAIL_CHARS_MAX = 254  # RFC 5321, section 4.5.3.1.3
USER = answer_of(User, "id username email is_admin disabled_at created_at updated_at", has_password=bool)
SIGNING_KEY = answer_of(SigningKey, "id created_at")

Name = Annotated[str, Field(max_length=NAME_CHARS_MAX)]
Email = Annotated[str, Field(max_length=EMAIL_CHARS_MAX, pattern=r"^[^@\s]+@[^@\s]+$")]


class UserCreateRequest(RequestModel):
    """A new user. Without a password they use API tokens, until one is set."""

    username: Name
    email: Email | None = None
    is_admin: bool = False
    password: Password | None = None


class UserUpdateRequest(RequestModel):
    """What to change."""

    username: Name | None = None
    email: Email | None = None
    is_admin: bool | None = None
    disabled: bool | None = None


class PasswordRequest(RequestModel):
    """The new password, and the current one if there is one and the caller is not an administrator."""

    password: Password
    current: Password | None = None


@router.get("/users", response_model=page_of(USER))
async def list_all(server: Server, caller: MayAdminister, paging: Paged) -> object:
    """List users by name; only for administrators."""
    page = paging.of_all(await server.accounts.users(), lambda row: (row.username, row.id))
    return {**page, "items": [_answer(row) for row in page["items"]]}


@router.post("/users", status_code=201, response_model=USER)
async def create(body: UserCreateRequest, server: Server, caller: MayAdminister, response: Response) -> object:
    """Create a user; only for administrators."""
    hashed = None if body.password is None else await server.sign_ins.passwords.hash(body.password)
    given = body.model_dump(exclude={"password"})
    made = await server.accounts.create_user(**given, password_hash=hashed)
    response.headers["location"] = f"{API}/users/{made.id}"
    return _answer(made)


@router.get("/users/{u}", response_model=USER)
async def get(u: str, server: Server, caller: MayRead) -> object:
    """Show a user; only administrators see others than themselves."""
    return _answer(await server.accounts.user_for(caller, u))


@router.patch("/users/{u}", response_model=USER)
async def change(u: str, body: UserUpdateRequest, server: Server, caller: MayAdminister) -> object:
    """Change, disable or enable a user.

    A disabled user's tokens are refused at once, and open streams end within 5 s. Only for administrators.
    """
    changes = body.model_dump(exclude_unset=True)
    require_values(changes, "username", "is_admin", "disabled")
    return _answer(await server.accounts.change_user(u, **changes))


@router.put("/users/{u}/password", status_code=204)
async def set_password(u: str, body: PasswordRequest, server: Server, caller: MayWrite) -> None:
    """Set a password; all sign-ins of the user end. Only administrators may set that of another user."""
    await server.sign_ins.set_password(caller, u, body.password, body.current)


@router.delete("/users/{u}", status_code=204)
async def delete(
    u: str,
    server: Server,
    caller: MayAdminister,
    give_to: Annotated[str | None, Query(description="Id or name of the user who gets the constellations.")] = None,
    delete_constellations: Annotated[bool, Query(description="Delete the user's constellations, too.")] = False,
) -> None:
    """Delete a user.

    A user with constellations is deleted only if these are given to another user, or deleted, too. Only for
    administrators.
    """
    await server.constellations.delete_user(caller, u, give_to=give_to, with_data=delete_constellations)


@router.post("/signing-keys", status_code=201, response_model=SIGNING_KEY)
async def rotate_keys(server: Server, caller: MayAdminister) -> object:
    """Replace the key that signs access tokens.

    Tokens of the former key stay valid until they expire. Only for administrators.
    """
    return await server.sign_ins.rotate_keys()


def _answer(row: User) -> dict[str, object]:
    return fields_with(row, has_password=row.password_hash is not None)
