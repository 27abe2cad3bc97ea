"""`pattern login` and `logout`: act for a user, here or on another machine.

A sign-in is used once, to create an API token: commands that run at the same time could not share a refresh token,
which works once. The token ends with the sign-in, after 30 days.
"""

from __future__ import annotations

import platform
from collections.abc import Awaitable, Callable

import click
import trio

from pattern_core.errors import NotFound
from pattern_server.cli.client import Api, ServerFailed, address_of, client_for, keep_login, logins, open_api
from pattern_server.cli.command import local, server_option, unwrapped
from pattern_server.cli.identities import prove
from pattern_server.cli.output import Output
from pattern_server.config import Config

UNAUTHORIZED = 401


@click.command(epilog="Example: pattern login ann --server https://pattern.example.org")
@click.argument("name", required=False)
@click.option(
    "--provider",
    metavar="PROVIDER",
    help="Sign in there, in a browser on this machine or with an app password; needs no NAME.",
)
@server_option
@local
def login(config: Config, output: Output, name: str | None, provider: str | None, server: str | None) -> None:
    """Sign in as the user NAME with a password, typed or piped in; or with an identity at another provider, which you
    have linked (`pattern identity link`).

    For 30 days, commands for this server (or, without --server, for this data directory) act for this user. Without a
    sign-in, commands on the server's own machine act for an administrator.
    """
    if (name is None) == (provider is None):
        raise click.UsageError("Name either the user, or --provider.")
    place = _place(config, server)
    password = output.ask_secret("Password") if provider is None else ""

    async def call(api: Api) -> None:
        del api.http.headers["Authorization"]
        if provider is None:
            pair = await api.call("POST", "auth", "login", body={"username": name, "password": password})
        else:
            route, proof = await prove(api, output, provider)
            pair = await api.call("POST", "auth", provider, route, body=proof)
        api.http.headers["Authorization"] = f"Bearer {pair['access_token']}"
        me = await api.get("me")
        note = f"pattern login on {platform.node()}"[:100]
        made = await api.call("POST", "tokens", body={"name": note, "scopes": me["scopes"]})
        await api.call("POST", "auth", "logout")
        keep_login(place, made["token"])
        shown = {"username": me["username"], "place": place, "expires_at": made["expires_at"]}
        output.result(shown, f"Signed in to {place} as {me['username']}.")

    _with_api(config, server, "", call)


@click.command(epilog="Example: pattern logout --server https://pattern.example.org")
@server_option
@local
def logout(config: Config, output: Output, server: str | None) -> None:
    """Sign out: the token of `pattern login` is revoked and forgotten."""
    place = _place(config, server)
    if (token := logins().get(place)) is None:
        raise NotFound(f"No one is signed in to {place} here.")

    async def call(api: Api) -> None:
        try:
            await api.call("POST", "auth", "logout")
        except ServerFailed as error:
            if error.status != UNAUTHORIZED:  # revoked or expired already
                raise
        keep_login(place, None)
        output.result({"place": place}, f"Signed out of {place}.")

    _with_api(config, server, token, call)


def _place(config: Config, server: str | None) -> str:
    return str(config.data_dir) if server is None else address_of(server)


def _with_api(config: Config, server: str | None, token: str, call: Callable[[Api], Awaitable[None]]) -> None:
    """Call with the API of the server, or of the data directory."""

    async def run() -> None:
        http = None if server is None else client_for(address_of(server), token)
        with unwrapped():
            async with open_api(config, server=http) as api:
                await call(api)

    trio.run(run)
