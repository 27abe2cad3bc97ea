"""`pattern user …`: who may use this server."""

from __future__ import annotations

from typing import Any

import click

from pattern_server.cli.client import Api
from pattern_server.cli.command import PlainGroup, connected, creating, yes_option
from pattern_server.cli.names import USER
from pattern_server.cli.output import Output

COLUMNS = ("username", "id", "admin=is_admin?", "email?", "password=has_password?", "disabled=disabled_at?")

user = PlainGroup("user", help="Users of this server. Only administrators add, change and delete them.")


@user.add("add", "ben --email ben@example.org", runs=creating)
@click.argument("name")
@click.option("--admin", "is_admin", is_flag=True, help="May do everything, with everyone's constellations.")
@click.option("--email", metavar="ADDRESS", help="E-mail address.")
async def add(api: Api, output: Output, name: str, **given: Any) -> None:
    """Add the user NAME, who has no password yet."""
    made = await api.call("POST", "users", body={"username": name, **given})
    output.result(made, f"Added {made['username']} ({made['id']}).")
    output.note(f"Set a password: pattern user passwd {name}\nOr make a token: pattern token create --user {name}")


@user.add("list", runs=connected)
async def list_all(api: Api, output: Output) -> None:
    """List the users."""
    output.table(COLUMNS, await api.pages("users"), empty="There are no users yet: pattern user add NAME")


@user.add("show", "ben", runs=connected)
@click.argument("name", type=USER)
async def show(api: Api, output: Output, name: str) -> None:
    """Show the user NAME."""
    output.record(await api.get("users", name))


@user.add("edit", "ben --name benjamin --admin", runs=connected)
@click.argument("name", type=USER)
@click.option("--name", "username", metavar="NAME", help="Another name.")
@click.option("--email", metavar="ADDRESS", help="Another e-mail address.")
@click.option("--admin/--no-admin", "is_admin", default=None, help="Whether they may do everything.")
async def edit(api: Api, output: Output, name: str, **given: Any) -> None:
    """Change the user NAME."""
    changes = {field: value for field, value in given.items() if value is not None}
    if not changes:
        raise click.UsageError("Nothing to change: add --name, --email, --admin or --no-admin.")
    changed = await api.call("PATCH", "users", name, body=changes)
    output.result(changed, f"Changed {changed['username']}.")


@user.add("passwd", "ben", runs=connected)
@click.argument("name", type=USER)
async def passwd(api: Api, output: Output, name: str) -> None:
    """Set the password of the user NAME, typed or piped in. All their sign-ins end."""
    me = await api.get("me")
    body = {} if me["is_admin"] else {"current": output.ask_secret("Current password")}
    body["password"] = output.ask_secret("New password", is_new=True)
    await api.call("PUT", "users", name, "password", body=body)
    output.result({"changed": name}, f"Set the password of {name}.")


@user.add("disable", "ben", runs=connected)
@click.argument("name", type=USER)
async def disable(api: Api, output: Output, name: str) -> None:
    """Disable the user NAME at once: no token of theirs is accepted, and open streams end within 5 seconds."""
    output.result(await api.call("PATCH", "users", name, body={"disabled": True}), f"Disabled {name}.")


@user.add("enable", "ben", runs=connected)
@click.argument("name", type=USER)
async def enable(api: Api, output: Output, name: str) -> None:
    """Enable the user NAME again."""
    output.result(await api.call("PATCH", "users", name, body={"disabled": False}), f"Enabled {name}.")


@user.add("delete", "ben --give-to ann", runs=connected)
@click.argument("name", type=USER)
@click.option("--give-to", metavar="NAME", type=USER, help="Who gets their constellations.")
@click.option("--with-constellations", is_flag=True, help="Delete their constellations, too.")
@yes_option
async def delete(
    api: Api, output: Output, name: str, give_to: str | None, with_constellations: bool, yes: bool
) -> None:
    """Delete the user NAME with all tokens."""
    found = await api.get("users", name)
    also = " with all their constellations" if with_constellations else ""
    output.confirm(f"Delete {found['username']} ({found['id']}){also} permanently?", yes=yes)
    params = {"give_to": give_to, "delete_constellations": with_constellations or None}
    await api.call("DELETE", "users", found["id"], params=params)
    output.result({"deleted": found["id"]}, f"Deleted {found['username']}.")


@user.add("rotate-keys", runs=connected)
async def rotate_keys(api: Api, output: Output) -> None:
    """Replace the key that signs access tokens. Those that it signed stay valid for at most 15 minutes."""
    made = await api.call("POST", "signing-keys")
    output.result(made, f"Access tokens are now signed with {made['id']}.")
