"""`pattern token …`: what programs show to be let in."""

from __future__ import annotations

import click

from pattern_server.cli.client import Api, path
from pattern_server.cli.command import connected
from pattern_server.cli.output import Output

COLUMNS = (
    *("id", "name", "scopes", "constellation=constellation_id"),
    *("expires=expires_at", "used=last_used_at", "revoked=revoked_at"),
)


@click.group()
def token() -> None:
    """Tokens of the API: for programs, and for people elsewhere. Commands on this machine need none."""


@token.command("create")
@click.option("--user", metavar="NAME", help="Whose it is.  [default: admin]")
@click.option("-c", "--constellation", metavar="NAME", help="The only constellation that it is for.")
@click.option("--scope", default="read,chat,write", show_default=True, help="Of read, chat, write and admin.")
@click.option("--days", type=click.IntRange(min=1), help="When it expires.  [default: never]")
@click.option("--name", default="", help="What it is for, to know it by.")
@connected
async def create(
    api: Api, output: Output, user: str | None, constellation: str | None, scope: str, days: int | None, name: str
) -> None:
    """Make a token and print it; it is shown this once and stored only as a hash."""
    body = {
        "scopes": [one.strip() for one in scope.split(",")],
        "name": name,
        "user": user,
        "constellation": constellation,
        "days": days,
    }
    made = await api.call("POST", path("tokens"), body=body)
    output.result(made, made["token"])
    output.note(f"Revoke it with: pattern token revoke {made['id']}")


@token.command("list")
@click.option("--user", metavar="NAME", help="Whose tokens.  [default: admin's]")
@connected
async def list_all(api: Api, output: Output, user: str | None) -> None:
    """List tokens, oldest first, also those that were revoked or have expired."""
    rows = await api.pages(path("tokens"), user=user)
    output.table(COLUMNS, rows, empty="There is no token yet: pattern token create")


@token.command("revoke")
@click.argument("id_", metavar="ID")
@connected
async def revoke(api: Api, output: Output, id_: str) -> None:
    """End a token's validity, at once; open streams end within 5 seconds. Of your own the ID's beginning is enough."""
    valid = [row["id"] for row in await api.pages(path("tokens")) if row["revoked_at"] is None]
    same = [one for one in valid if one.startswith(id_)]
    if len(same) > 1:
        raise click.UsageError(f"{len(same)} tokens begin with {id_}; write more of the id.")
    id_ = same[0] if same else id_
    await api.call("DELETE", path("tokens", id_))
    output.result({"revoked": id_}, f"Revoked {id_}.")
