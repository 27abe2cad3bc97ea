"""`pattern source …` and `pattern channel …`: where data and people come from by themselves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import click
import trio

from pattern_core.errors import PatternError
from pattern_core.ids import new_secret
from pattern_core.sources.kinds import kind_of
from pattern_db.enums import PersonStatus, SourceDelivery
from pattern_server.cli.client import Json
from pattern_server.cli.command import Home, PlainGroup, yes_option
from pattern_server.cli.names import Named
from pattern_server.cli.output import Output
from pattern_server.config import SECRETS_FOLDER, write_private

COLUMNS = ("name", "kind=source_type", "state", "agents", "last event=last_event_at?", "error*", "id")
PEOPLE_COLUMNS = ("name", "id=native", "status", "code until=expires_at?", "decided by=decided_by?")
DELIVERY_COLUMNS = (
    "id",
    "direction",
    "text*",
    "status",
    "attempts",
    "unclear",
    "created=created_at",
    "error=last_error*",
)
SOURCE = Named("constellations/{constellation}/sources")
AGENT = Named("constellations/{constellation}/agents")

source = PlainGroup("source", help="Sources: where data comes from by itself.")
channel = PlainGroup("channel", help="Channels: people who write in their own chat application.")


def _config(settings: tuple[str, ...]) -> Json:
    """Return a configuration from `key=value`; a value may be JSON, such as a number."""
    config: Json = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise click.UsageError(f"{setting!r} is not written as KEY=VALUE")
        try:
            config[key] = json.loads(value)
        except ValueError:
            config[key] = value
    return config


async def _add(home: Home, name: str, kind: str, agent: str, config: Json) -> Json:
    body: Json = {"name": name, "kind": kind, "agent": agent, "config": config}
    made: Json = await home.call("POST", "sources", body=body)
    return made


@source.add("add", "news rss --agent ada --set url=https://example.org/feed.xml")
@click.argument("name")
@click.argument("kind")
@click.option("--agent", required=True, type=AGENT, help="The agent that receives the events.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of the kind; repeatable.")
async def add(home: Home, output: Output, name: str, kind: str, agent: str, settings: tuple[str, ...]) -> None:
    """Create the source NAME of a KIND: file, rss, http, calendar, mcp, process, jetstream or webhook."""
    made = await _add(home, name, kind, agent, _config(settings))
    place = f" Its service posts to /hooks/{made['id']}." if kind == "webhook" else ""
    output.result(made, f"Created {made['name']}.{place} Next: pattern source test {made['name']} -c {home.name}")


async def _with_names(home: Home) -> Callable[[Json], Json]:
    """Return a function that shows a source with the names of its agents."""
    names = {one["id"]: one["name"] for one in await home.pages("agents")}

    def shown(found: Json) -> Json:
        agents = (f"{names.get(one['agent_id'], one['agent_id'])} ({one['delivery']})" for one in found["agents"])
        return {**found, "agents": ", ".join(agents)}

    return shown


@source.add("list")
async def list_all(home: Home, output: Output) -> None:
    """List the sources and channels."""
    rows, shown = await home.pages("sources"), await _with_names(home)
    output.table(COLUMNS, rows, empty="There is no source yet: pattern source add --help", shown=shown)


@source.add("show", "news")
@click.argument("name", type=SOURCE)
async def show(home: Home, output: Output, name: str) -> None:
    """Show the source or channel NAME."""
    found = await home.get("sources", name)
    shown = (await _with_names(home))(found)
    output.record({**shown, "config": json.dumps(found["config"], ensure_ascii=False)}, data=found)


@source.add("test", "news")
@click.argument("name", type=SOURCE)
async def test(home: Home, output: Output, name: str) -> None:
    """Ask the source NAME now, and store nothing."""
    answer = await home.call("POST", "sources", name, "test")
    if not answer["accepted"]:
        raise click.ClickException(f"{name} cannot be asked: {answer['error']}")
    output.result(answer, f"{name} answers.")


@source.add("sync", "news")
@click.argument("name", type=SOURCE)
async def sync(home: Home, output: Output, name: str) -> None:
    """Ask the source NAME now, and store what is new."""
    answer = await home.call("POST", "sources", name, "sync")
    output.result(answer, f"{answer['new']} new")


async def _set(home: Home, output: Output, name: str, *, enabled: bool) -> None:
    found = await home.call("PATCH", "sources", name, body={"enabled": enabled})
    output.result(found, f"{found['name']} is {found['state']}.")


@source.add("pause", "news")
@click.argument("name", type=SOURCE)
async def pause(home: Home, output: Output, name: str) -> None:
    """Pause the source NAME: it is not asked, and nothing is said in its chats."""
    await _set(home, output, name, enabled=False)


@source.add("resume", "news")
@click.argument("name", type=SOURCE)
async def resume(home: Home, output: Output, name: str) -> None:
    """Resume the source NAME where it was paused."""
    await _set(home, output, name, enabled=True)


@source.add("remove", "news")
@click.argument("name", type=SOURCE)
@yes_option
async def remove(home: Home, output: Output, name: str, yes: bool) -> None:
    """Remove the source NAME, with what is known of its people; sessions and messages stay."""
    output.confirm(f"Remove the source {name}?", yes=yes)
    config = (await home.get("sources", name))["config"]
    await home.call("DELETE", "sources", name)
    if home.data_dir is not None:
        for one in (home.data_dir / SECRETS_FOLDER).glob("*"):
            if one.name in config.values():
                one.unlink()
    output.result({"removed": name}, f"Removed {name}.")


@source.add("agent", "news ada --as archive")
@click.argument("name", type=SOURCE)
@click.argument("agent", type=AGENT)
@click.option(
    "--as",
    "delivery",
    type=click.Choice([one.value for one in SourceDelivery]),
    default="message",
    show_default=True,
    help="What an event becomes.",
)
@click.option("--template", help="The words of a notification, with {title}, {text}, {link}, {author}, {source}.")
@click.option("--filter", "filters", multiple=True, metavar="KEY=JSON", help='Such as words=["storm"]; repeatable.')
@click.option("--batch", "batch_s", type=float, default=0.0, metavar="SECONDS", help="Gather events for so long.")
@click.option("--drop", is_flag=True, help="Give it nothing any more.")
async def agent(
    home: Home,
    output: Output,
    name: str,
    agent: str,
    delivery: str,
    template: str | None,
    filters: tuple[str, ...],
    batch_s: float,
    drop: bool,
) -> None:
    """Set what AGENT gets of the source NAME, and as what."""
    if drop:
        await home.call("DELETE", "sources", name, "agents", agent)
        output.result({"dropped": agent}, f"{agent} gets nothing of {name} any more.")
        return
    body: Json = {"delivery": delivery, "template": template, "filters": _config(filters), "batch_s": batch_s}
    set_ = await home.call("PUT", "sources", name, "agents", agent, body=body)
    output.result(set_, f"{agent} gets {name} as {set_['delivery']}.")


@source.add("deliveries", "news")
@click.argument("name", type=SOURCE)
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="How many of the newest.")
@click.option("--retry", metavar="ID", help="Deliver this one again now.")
async def deliveries(home: Home, output: Output, name: str, limit: int, retry: str | None) -> None:
    """List what arrived from the source NAME, and what was said in its chats; or deliver one again."""
    if retry is not None:
        await home.call("POST", "sources", name, "deliveries", retry, "retry")
        output.result({"delivered": retry}, f"Delivered {retry} again.")
        return
    rows = await home.pages("sources", name, "deliveries", most=limit)
    output.table(DELIVERY_COLUMNS, rows, empty="Nothing arrived yet.")


@channel.add("add", "phone telegram --agent ada")
@click.argument("name")
@click.argument("kind")
@click.option("--agent", required=True, type=AGENT, help="The agent that answers.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of the kind; repeatable.")
@click.option(
    "--secret-file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="File with the token or password, instead of asking for it.",
)
async def add_channel(
    home: Home, output: Output, name: str, kind: str, agent: str, settings: tuple[str, ...], secret_file: Path | None
) -> None:
    """Create the channel NAME of a KIND: telegram, discord, slack, matrix, bluesky, email or irc.

    Its token or password is asked for, and kept in a file of the server's data directory; or it is one of
    [sources.secrets], named by a setting.
    """
    config, kept = _config(settings), list[Path]()
    missing = [field for field in kind_of(kind).secret_fields if field not in config]
    if secret_file is not None and len(missing) != 1:
        raise click.UsageError(f"--secret-file has one secret; {kind} lacks these: {', '.join(missing) or 'none'}")
    try:
        for field in missing:
            kept.append(await _keep_secret(home, output, kind, field, secret_file))
            config[field] = kept[-1].name
        made = await _add(home, name, kind, agent, config)
        answer = await home.call("POST", "sources", made["id"], "test")
        if kept and not answer["accepted"]:
            await home.call("DELETE", "sources", made["id"])
            raise click.ClickException(f"{kind} cannot be used: {answer['error']}. Nothing was created; try again.")
    except (PatternError, click.ClickException):
        for one in kept:
            one.unlink()
        raise
    works = "It works." if answer["accepted"] else f"It does not work yet: {answer['error']}."
    place = "to it there" if answer["link"] is None else f"to {answer['link']}"
    output.result(
        {**made, "link": answer["link"]},
        f"Created {made['name']}. {works}",
        *([] if home.streams else ["Start the server, which asks it for messages: pattern up"]),
        f"Next: write {place}. The answer is a code; who has it is let in with:",
        f"pattern channel approve {made['name']} CODE --partner -c {home.name}",
    )


async def _keep_secret(home: Home, output: Output, kind: str, field: str, file: Path | None) -> Path:
    """Store a secret where the server finds it by the name of its file; return that."""
    if home.data_dir is None:
        raise click.UsageError(f"Name one of that server's [sources.secrets]: --set {field}=NAME")
    secret = (output.ask_secret(f"{kind} {field}") if file is None else file.read_text()).strip()
    if not secret:
        raise click.UsageError(f"The {field} is empty. If there is none, add --set {field}=")
    place = home.data_dir / SECRETS_FOLDER / f"{kind}-{new_secret()[:16]}"
    await trio.to_thread.run_sync(write_private, place, f"{secret}\n")
    return place


@channel.add("approve", "phone 7KQ4M2XD")
@click.argument("name", type=SOURCE)
@click.argument("code")
@click.option("--partner", is_flag=True, help="It may also answer questions that wait for a person.")
async def approve(home: Home, output: Output, name: str, code: str, partner: bool) -> None:
    """Let the person with the pairing CODE talk in the channel NAME."""
    status = PersonStatus.PARTNER if partner else PersonStatus.ALLOWED
    person = await home.call("POST", "sources", name, "people", body={"code": code, "status": status.value})
    output.result(person, f"{person['name']} may talk in {name}.")


@channel.add("set", "phone 4711 blocked")
@click.argument("name", type=SOURCE)
@click.argument("person")
@click.argument("status", type=click.Choice([one.value for one in PersonStatus if one is not PersonStatus.PENDING]))
async def set_person(home: Home, output: Output, name: str, person: str, status: str) -> None:
    """Set what a PERSON or a room, by its id at the service, may do in the channel NAME."""
    found = await home.call("POST", "sources", name, "people", body={"person": person, "status": status})
    output.result(found, f"{found['name']} is {found['status']} in {name}.")


@channel.add("people", "phone")
@click.argument("name", type=SOURCE)
async def people(home: Home, output: Output, name: str) -> None:
    """List the people and rooms of the channel NAME."""
    rows = (await home.get("sources", name, "people"))["items"]
    output.table(PEOPLE_COLUMNS, rows, empty="No one has written yet.")
