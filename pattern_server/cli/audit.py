"""`pattern audit …`: what was done with users, tokens and data."""

from __future__ import annotations

import click

from pattern_server.cli.client import Api
from pattern_server.cli.command import ExitCode, PlainGroup, connected
from pattern_server.cli.output import DONE, FAILED, Output

COLUMNS = ("seq", "at=created_at", "action", "object", "status", "user=user_id?", "token=token_id?", "from=address?")

audit = PlainGroup("audit", help="The audit log: sign-ins, users, tokens, approvals, restores, deletions.")


@audit.add("list", "--limit 20", runs=connected)
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="How many at most.")
async def list_all(api: Api, output: Output, limit: int) -> None:
    """List the audit log, newest first."""
    output.table(COLUMNS, await api.pages("audit", most=limit), empty="The audit log is empty.")


@audit.add("verify", runs=connected)
async def verify(api: Api, output: Output) -> ExitCode:
    """Check that no entry was changed, or removed before the last one."""
    found = await api.get("audit", "verify")
    if not found["is_intact"]:
        output.result(found, f"Entry {found['entries'] + 1} does not fit the one before it: the log was changed.")
        return FAILED
    output.result(found, f"The log is intact (entries: {found['entries']}). The last one has the hash {found['head']}.")
    return DONE
