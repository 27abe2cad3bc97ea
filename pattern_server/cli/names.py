"""Names and ids on the command line: defaults, shortened ids, completion and suggestions."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click
import trio
from click.shell_completion import CompletionItem

from pattern_core.errors import NotFound, PatternError
from pattern_db.enums import CONSTELLATION_OWNER as EVERYONE
from pattern_server.cli.client import Api, Json, connection, running_server
from pattern_server.config import Config, load

CANDIDATES_MAX = 5  # shown of the ids that begin alike
COMPLETE_TIMEOUT_S = 2.0
_BEGINNING = re.compile(r"[a-z]+_0[0-9a-z]{0,24}")  # of an id: the first digit of a ULID stays 0 for some centuries


class Named(click.ParamType[str]):
    """A name or an id; the beginning of an id is enough if no other id has the same.

    `listed` is the path of the list that it is in, with `{…}` for other parameters of the command, and `field` what the
    name is in its rows. One that `is_only` may be left out where the list has a single row; it is not looked for if
    the parameter `for_` is left out, too.
    """

    name = "name"

    def __init__(
        self, listed: str, *, field: str = "name", is_only: bool = False, for_: str = "", **query: str
    ) -> None:
        self.listed = listed
        self.field = field
        self.is_only = is_only
        self.for_ = for_
        self._query = query

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the names that begin so, as a running server knows them. Called by click, for the shell."""
        try:
            config = load(ctx.params.get("config_file"), data_dir=ctx.params.get("data_dir"))
            with ctx:
                names = trio.run(self._names, config, ctx.params)
        except (PatternError, click.ClickException, trio.TooSlowError, OSError):
            names = []
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]

    async def _names(self, config: Config, params: Mapping[str, Any]) -> list[str]:
        """Return the names in the list; none without a server. `params` are those that are on the line already."""
        if (server := running_server(config.data_dir)) is None:
            return []
        given = {name: params.get(name) for name in ("constellation", "agent") if f"{{{name}}}" in self.listed}
        with trio.fail_after(COMPLETE_TIMEOUT_S):
            async with connection(server) as http:
                api = Api(http, streams=False)
                await fill(api, config, given)
                return sorted(str(row[self.field]) for row in await self.rows(api, given))

    async def rows(self, api: Api, given: Mapping[str, Any]) -> list[Json]:
        """Return the rows of the list that it is in."""
        parts = self.listed.format_map({name: value or EVERYONE for name, value in given.items()}).split("/")
        return await api.pages(*parts, most=None, **self._query)

    async def whole(self, api: Api, value: str, given: Mapping[str, Any]) -> str:
        """Return the id that begins like `value`, or `value` itself if none does.

        Raises:
            click.UsageError: several do.
        """
        if not _BEGINNING.fullmatch(value):
            return value
        rows = await self.rows(api, given)
        ids = [one for row in rows if (one := _id_of(row)).startswith(value)]
        if len(ids) > 1 and value not in [row.get(self.field) for row in rows]:
            more = f" and {len(ids) - CANDIDATES_MAX} more" if len(ids) > CANDIDATES_MAX else ""
            raise click.UsageError(
                f"{len(ids)} ids begin with {value}. Add more characters: {', '.join(ids[:CANDIDATES_MAX])}{more}"
            )
        return ids[0] if len(ids) == 1 else value

    async def only(self, api: Api, given: Mapping[str, Any]) -> str:
        """Return the name of the single row of the list. Archived agents do not count.

        Raises:
            NotFound: it is empty.
            click.UsageError: it has several rows.
        """
        names = sorted(row[self.field] for row in await self.rows(api, given) if row.get("status") != "archived")
        noun, option = ("agent", "-a") if "agents" in self.listed else ("constellation", "-c")
        if not names:
            where = f" -c {given['constellation']}" if noun == "agent" else ""
            raise NotFound(f"There is no {noun} yet. Create one: pattern {noun} create NAME{where}")
        if len(names) > 1:
            default = f" (export PATTERN_CONSTELLATION={names[0]} makes one the default)" * (noun == "constellation")
            raise click.UsageError(f"There are several {noun}s. Name one with {option}: {', '.join(names)}{default}")
        return str(names[0])


class _Workspace(Named):
    """A workspace, which may also be named by a folder: one that is written as a path becomes a whole one."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return it as the server knows it. Called by click."""
        is_path = os.sep in value or value in (os.curdir, os.pardir)
        return str(Path(value).absolute()) if is_path else value


_AGENTS = "constellations/{constellation}/agents"
CONSTELLATION = Named("constellations")
ONLY_CONSTELLATION = Named("constellations", is_only=True)
AGENT = Named(_AGENTS)
ONLY_AGENT = Named(_AGENTS, is_only=True)
LABEL = Named(_AGENTS + "/{agent}/memory", field="label")
FOLDER = Named("constellations/{constellation}/folders")
GROUP = Named("constellations/{constellation}/groups")
USER = Named("users", field="username")
SCHEDULE = Named("constellations/{constellation}/schedules")
SESSION = Named(_AGENTS + "/{agent}/sessions", field="id")
TASK = Named("constellations/{constellation}/tasks", field="id")
EVENT = Named("constellations/{constellation}/calendar/events", field="title")
WORKSPACE = _Workspace("constellations/{constellation}/workspaces")
TURN = Named("constellations/{constellation}/turns", field="turn_id")


def _id_of(row: Json) -> str:
    return str(row.get("turn_id") or row.get("id"))


def _names(given: Mapping[str, Any]) -> list[tuple[str, Named]]:
    """Return the running command's parameters that are names, those that others depend on first."""
    params = click.get_current_context().command.params
    found = [(param.name or "", param.type) for param in params if isinstance(param.type, Named)]
    return sorted((one for one in found if one[0] in given), key=lambda one: one[1].listed.count("/"))


async def fill(api: Api, config: Config, given: dict[str, Any]) -> None:
    """Complete the running command's parameters: what was left out and is the only one, and ids that were shortened.

    Raises:
        NotFound: there is none.
        click.UsageError: there are several.
    """
    for name, kind in _names(given):
        value = given[name]
        if isinstance(value, tuple):
            given[name] = tuple([await kind.whole(api, one, given) for one in value])
        elif value is not None:
            given[name] = await kind.whole(api, value, given)
        elif name == "constellation" and given.get("kind") == name and given.get("name"):
            given[name] = given["name"]  # `export constellation --name`
        elif kind.is_only and not (name == "agent" and given.get("everyone")) and given.get(kind.for_, True):
            default = config.default_constellation if name == "constellation" else ""
            given[name] = default or await kind.only(api, given)


async def suggestion(api: Api, given: Mapping[str, Any]) -> str | None:
    """Return the name that the first unknown one of the running command's names resembles, if there is one."""
    for name, kind in _names(given):
        if not isinstance(given[name], str) or given[name] == EVERYONE or kind.field.endswith("id"):
            continue  # an id that resembles another is nothing like it
        rows = await kind.rows(api, given)
        known = [str(row[kind.field]) for row in rows]
        if given[name] not in (*known, *map(_id_of, rows)):
            return next(iter(get_close_matches(given[name], known, 1)), None)
    return None


async def people(api: Api, constellation: str) -> dict[str, str]:
    """Return the names of a constellation's agents and groups, and of the users that the caller may see, by id."""
    caller = await api.get("me")
    names = {caller["user_id"]: caller["username"]}
    if caller["is_admin"] and "admin" in caller["scopes"] and caller["constellation_id"] is None:
        names |= {user["id"]: user["username"] for user in await api.pages("users")}
    for kind in ("agents", "groups"):
        names |= {one["id"]: one["name"] for one in await api.pages("constellations", constellation, kind)}
    return names
