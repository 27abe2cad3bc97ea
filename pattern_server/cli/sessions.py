"""`pattern session …`: conversations in addition to the main one of an agent or a group."""

from __future__ import annotations

import click

from pattern_server.cli.client import Json
from pattern_server.cli.command import Home, PlainGroup, agent_option, yes_option
from pattern_server.cli.names import SESSION, WORKSPACE
from pattern_server.cli.output import Output

COLUMNS = ("id", "title", "said=said_at?", "origin?", "forked from=parent_id?")

session = PlainGroup("session", help="Other conversations with an agent, or with the group that -a names.")


@session.add("create", "'A trip to Rome' -a ada")
@click.argument("title", required=False)
@agent_option
@click.option("--workspace", metavar="WORKSPACE", type=WORKSPACE, help="The project that it is about.")
async def create(home: Home, output: Output, agent: str, title: str | None, workspace: str | None) -> None:
    """Create a session, with a TITLE or none."""
    made = await home.call("POST", "agents", agent, "sessions", body={"title": title, "workspace": workspace})
    output.result(made, f"Created {made['id']}. Talk in it: {_chat(home, agent, made)}")


def _chat(home: Home, owner: str, made: Json) -> str:
    return f"pattern chat -c {home.name} {'-g' if made['group_id'] else '-a'} {owner} --session {made['id']}"


@session.add("list", "-a ada")
@agent_option
@click.option("--archived", is_flag=True, help="List the archived ones instead of the others.")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="How many of the newest.")
async def list_all(home: Home, output: Output, agent: str, archived: bool, limit: int) -> None:
    """List the sessions of an agent, newest first."""
    found = await home.pages("agents", agent, "sessions", most=limit, archived=archived)
    output.table(COLUMNS, found, empty=f"No sessions. Create one: pattern session create -c {home.name} -a {agent}")


@session.add("rename", "ses_01k 'A trip to Naples' -a ada")
@click.argument("session_id", metavar="SESSION", type=SESSION)
@click.argument("title")
@agent_option
async def rename(home: Home, output: Output, agent: str, session_id: str, title: str) -> None:
    """Give SESSION another TITLE."""
    found = await home.call("PATCH", "agents", agent, "sessions", session_id, body={"title": title})
    output.result(found, f"{found['id']} is now {found['title']!r}.")


@session.add("archive", "ses_01k -a ada")
@click.argument("session_id", metavar="SESSION", type=SESSION)
@agent_option
@click.option("--undo", is_flag=True, help="Let it have messages again.")
async def archive(home: Home, output: Output, agent: str, session_id: str, undo: bool) -> None:
    """Archive SESSION: it can be read and searched, and refuses messages."""
    found = await home.call("PATCH", "agents", agent, "sessions", session_id, body={"is_archived": not undo})
    output.result(found, f"{found['id']} is archived." if found["is_archived"] else f"{found['id']} is open again.")


@session.add("fork", "ses_01k -a ada --at msg_0031351808219086848")
@click.argument("session_id", metavar="SESSION", type=SESSION)
@agent_option
@click.option("--at", "message_id", metavar="MESSAGE", help="The last message of both.  [default: the newest one]")
@click.option("--title", metavar="TITLE", help="The fork's title.  [default: that of SESSION]")
async def fork(
    home: Home, output: Output, agent: str, session_id: str, message_id: str | None, title: str | None
) -> None:
    """Create a session that begins as SESSION."""
    body = {"message_id": message_id, "title": title}
    made = await home.call("POST", "agents", agent, "sessions", session_id, "fork", body=body)
    output.result(made, f"Created {made['id']}. Talk in it: {_chat(home, agent, made)}")


@session.add("delete", "ses_01k -a ada")
@click.argument("session_id", metavar="SESSION", type=SESSION)
@agent_option
@yes_option
async def delete(home: Home, output: Output, agent: str, session_id: str, yes: bool) -> None:
    """Delete SESSION with its messages; its running turns are cancelled."""
    found = await home.get("agents", agent, "sessions", session_id)
    output.confirm(f"Delete the session {found['title'] or found['id']} and its messages?", yes=yes)
    await home.call("DELETE", "agents", agent, "sessions", found["id"])
    output.result({"deleted": found["id"]}, f"Deleted {found['id']}.")
