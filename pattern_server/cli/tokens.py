"""`pattern token …`: API tokens."""

from __future__ import annotations

from typing import Any

import click

from pattern_server.cli.client import Api
from pattern_server.cli.command import PlainGroup, connected
from pattern_server.cli.names import CONSTELLATION, USER, Named
from pattern_server.cli.output import Output

COLUMNS = (
    *("id", "name", "scopes?", "expires=expires_at?", "used=last_used_at?"),
    *("revoked=revoked_at?", "constellation=constellation_id?"),
)

token = PlainGroup("token", help="API tokens, for programs and other machines. Commands on this machine need none.")


@token.add("create", "--name laptop --scope read,chat --days 90", runs=connected)
@click.option("--user", metavar="NAME", type=USER, help="The user of the token.  [default: you]")
@click.option("-c", "--constellation", metavar="NAME", type=CONSTELLATION, help="Valid only for this constellation.")
@click.option(
    "--scope", default="read,chat,write", show_default=True, help="One or more of read, chat, write and admin."
)
@click.option("--days", type=click.IntRange(min=1), help="Days until it expires.  [default: never]")
@click.option("--name", default="", help="A note about its purpose.")
async def create(api: Api, output: Output, scope: str, **given: Any) -> None:
    """Create a token and print it. It is shown only now; the server stores a hash."""
    body = {"scopes": [one.strip() for one in scope.split(",")], **given}
    made = await api.call("POST", "tokens", body=body)
    output.result(made, made["token"])
    output.note(f"Revoke it with: pattern token revoke {made['id']}")


@token.add("list", runs=connected)
@click.option("--user", metavar="NAME", type=USER, help="The user of the tokens.  [default: you]")
async def list_all(api: Api, output: Output, user: str | None) -> None:
    """List tokens, oldest first, including revoked and expired ones."""
    rows = await api.pages("tokens", user=user)
    output.table(COLUMNS, rows, empty="There are no tokens yet: pattern token create")


@token.add("revoke", "token_01k", runs=connected)
@click.argument("id_", metavar="ID", type=Named("tokens", field="id"))
async def revoke(api: Api, output: Output, id_: str) -> None:
    """Revoke the token ID at once; open streams end within 5 seconds."""
    await api.call("DELETE", "tokens", id_)
    output.result({"revoked": id_}, f"Revoked {id_}.")
