"""`pattern login`, `logout` and `identity …`: act for a user, here or on another machine, with a password or with an
identity at another provider.

A sign-in is used once, to create an API token: commands that run at the same time could not share a refresh token,
which works once. The token ends with the sign-in, after 30 days. A provider redirects the browser to this machine,
where a listener waits for the one redirection that has the state of this sign-in (RFC 8252, section 7.3).
"""

from __future__ import annotations

import platform
import webbrowser
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from urllib.parse import parse_qsl, urlsplit

import click
import trio

from pattern_core.errors import NotFound, PermissionDenied, Unavailable
from pattern_server.cli.client import Api, Json, ServerFailed, address_of, client_for, keep_login, logins
from pattern_server.cli.command import PlainGroup, connected, local, server_option, with_api
from pattern_server.cli.names import Named
from pattern_server.cli.output import Output
from pattern_server.config import Config

UNAUTHORIZED = 401
COLUMNS = ("id", "provider", "who=provider_id", "since=created_at")
HEAD_BYTES_MAX = 16_384
HEAD_TIMEOUT_S = 10.0
PAGE = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\nYou can close this page now.\n"


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

    _call(config, output, server, "", call)


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

    _call(config, output, server, token, call)


def _place(config: Config, server: str | None) -> str:
    return str(config.data_dir) if server is None else address_of(server)


def _call(
    config: Config, output: Output, server: str | None, token: str, call: Callable[[Api], Awaitable[None]]
) -> None:
    """Call with the API of the server, or of the data directory."""
    http = None if server is None else client_for(address_of(server), token)
    trio.run(with_api, config, False, http, call, None, output)


identity = PlainGroup("identity", help="Identities at other providers that you can sign in with.")


@identity.add("link", "google", runs=connected)
@click.argument("provider")
async def link(api: Api, output: Output, provider: str) -> None:
    """Link your identity at PROVIDER, so that `pattern login --provider` signs you in. Asks for your password, unless
    you are an administrator.
    """
    me, header = await api.get("me"), api.http.headers["Authorization"]
    if not me["is_admin"]:  # an API token links nothing
        body = {"username": me["username"], "password": output.ask_secret("Password")}
        pair = await api.call("POST", "auth", "login", body=body)
        header = f"Bearer {pair['access_token']}"
    _route, proof = await prove(api, output, provider)
    body = {"provider": provider, **proof}
    made = await api.call("POST", "me", "identities", body=body, headers={"Authorization": header})
    if not me["is_admin"]:
        await api.call("POST", "auth", "logout", headers={"Authorization": header})
    output.result(made, f"Linked {made['provider_id']} to {me['username']}.")


@identity.add("list", runs=connected)
async def list_all(api: Api, output: Output) -> None:
    """List the identities that you can sign in with."""
    rows = await api.pages("me", "identities")
    output.table(COLUMNS, rows, empty="There are none yet: pattern identity link PROVIDER")


@identity.add("unlink", "identity_01k", runs=connected)
@click.argument("id_", metavar="ID", type=Named("me/identities", field="id"))
async def unlink(api: Api, output: Output, id_: str) -> None:
    """Unlink the identity ID. All your sign-ins end."""
    await api.call("DELETE", "me", "identities", id_)
    output.result({"unlinked": id_}, f"Unlinked {id_}.")


async def prove(api: Api, output: Output, provider: str) -> tuple[str, Json]:
    """Let the person sign in at a provider, in a browser or with an app password; return the last part of the route
    that takes the proof, and the proof.

    Raises:
        NotFound: the server has no such provider.
        PermissionDenied: the provider, or the person there, refuses.
        Unavailable: the person did not sign in in time.
    """
    known = {row["name"]: row for row in (await api.get("auth", "providers"))["items"]}
    if provider not in known:
        raise NotFound(f"The server has no provider {provider!r}. It has: {', '.join(known) or 'none'}.")
    if known[provider]["takes_app_passwords"]:
        identifier = output.ask(f"Handle at {provider}: ")
        return "login", {"identifier": identifier, "password": output.ask_secret("App password")}
    return "callback", await _through_browser(api, output, provider, known[provider]["redirect_url"])


async def _through_browser(api: Api, output: Output, provider: str, fixed: str | None) -> Json:
    """Return the ticket and what the redirection to `fixed`, or to any port, brought.

    Raises:
        PermissionDenied: the provider, or the person there, refuses.
        Unavailable: the person did not sign in in time.
    """
    send, receive = trio.open_memory_channel[Json](1)
    async with trio.open_nursery() as nursery:
        serve = partial(trio.serve_tcp, partial(_receive, send), urlsplit(fixed or "").port or 0, host="127.0.0.1")
        (listener,) = await nursery.start(serve)
        redirect_url = fixed or f"http://127.0.0.1:{listener.socket.getsockname()[1]}/"
        begun = await api.call("POST", "auth", provider, "start", body={"redirect_url": redirect_url})
        output.note(f"Sign in here, if your browser does not open:\n{begun['url']}")
        nursery.start_soon(partial(trio.to_thread.run_sync, webbrowser.open, begun["url"], abandon_on_cancel=True))
        state, found = dict(parse_qsl(urlsplit(begun["url"]).query))["state"], dict[str, str]()
        with trio.move_on_after(begun["expires_in"]):
            while found.get("state") != state:
                found = await receive.receive()
        nursery.cancel_scope.cancel()
    if "error" in found:
        raise PermissionDenied(f"the provider {provider} refused: {found.get('error_description') or found['error']}")
    if "code" not in found:
        raise Unavailable(f"No sign-in arrived within {begun['expires_in'] // 60} minutes; try again.")
    return {"ticket": begun["ticket"], "state": state, "code": found["code"], "iss": found.get("iss")}


async def _receive(send: trio.MemorySendChannel[Json], stream: trio.SocketStream) -> None:
    """Answer one connection of the browser, and pass on the query of its request."""
    head = b""
    with trio.move_on_after(HEAD_TIMEOUT_S), suppress(trio.BrokenResourceError):
        while b"\r\n\r\n" not in head and len(head) < HEAD_BYTES_MAX and (more := await stream.receive_some()):
            head += more
        await stream.send_all(PAGE)
        target = head.decode("latin-1").partition(" ")[2].partition(" ")[0]  # GET /?state=… HTTP/1.1
        await send.send(dict(parse_qsl(urlsplit(target).query)))
