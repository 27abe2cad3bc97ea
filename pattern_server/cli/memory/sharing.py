"""`pattern memory share|unshare`: lending a block to other agents."""

from __future__ import annotations

import click

from pattern_server.cli.client import Api
from pattern_server.cli.command import ExitCode, connected
from pattern_server.cli.memory.place import Place, day, placed
from pattern_server.cli.output import Output

COLUMNS = ("agent", "permission", "since")
PERMISSIONS = click.Choice(["read_only", "append", "read_write"])


@click.command("share")
@click.argument("label")
@click.argument("with_agent", metavar="[AGENT]", required=False)
@click.option("--permission", type=PERMISSIONS, default="read_only", show_default=True, help="What AGENT may do.")
@connected
@placed
async def share(
    api: Api, output: Output, place: Place, label: str, with_agent: str | None, permission: str
) -> ExitCode:
    """Let AGENT see the block LABEL as its own; without AGENT, show who sees it."""
    where = place.at(label, "share")
    if with_agent is None:
        shares = (await api.get(where))["items"]
        rows = shares if output.is_json else [{**row, "since": day(row.get("attached_at"))} for row in shares]
        output.table(COLUMNS, rows, empty=f"{label} is shared with nobody.")
        return None
    shared = await api.call("POST", where, body={"agent": with_agent, "permission": permission})
    output.data(shared)
    output.say(f"{with_agent} sees {label} now ({permission}).")
    return None


@click.command("unshare")
@click.argument("label")
@click.argument("from_agent", metavar="AGENT")
@connected
@placed
async def unshare(api: Api, output: Output, place: Place, label: str, from_agent: str) -> ExitCode:
    """Take the block LABEL out of AGENT's mind again; its owner keeps it."""
    await api.call("DELETE", place.at(label, "share", from_agent))
    output.data({"unshared": label, "agent": from_agent})
    output.say(f"{from_agent} does not see {label} any more.")
    return None
