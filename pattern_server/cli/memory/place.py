"""Which block a command means: `-a AGENT` or `--everyone`, and a label."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import click

from pattern_db.enums import CONSTELLATION_OWNER as EVERYONE
from pattern_server.cli.client import Api, Json, path
from pattern_server.cli.command import ExitCode, constellation_option
from pattern_server.cli.output import Output


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Whose memory: of a constellation (name or id), one agent (name or id), or everybody's."""

    constellation: str
    agent: str

    @property
    def whose(self) -> str:
        """The owner as it stands in a sentence."""
        return "the constellation" if self.agent == EVERYONE else self.agent

    @property
    def options(self) -> str:
        """The options that lead here again, for hints."""
        return f"-c {self.constellation} " + ("--everyone" if self.agent == EVERYONE else f"-a {self.agent}")

    def at(self, *parts: str) -> str:
        """The API's path of the memory, or of a block by its label and what follows."""
        return path("constellations", self.constellation, "agents", self.agent, "memory", *parts)


def placed(function: Callable[..., Awaitable[ExitCode]]) -> Callable[..., Awaitable[ExitCode]]:
    """A command that is called with the `Place` that its options name, after the `Api` and the `Output`."""

    @constellation_option
    @click.option("-a", "--agent", metavar="NAME", help="The agent, by name or id.")
    @click.option("--everyone", is_flag=True, help="The blocks of the constellation, which all its agents see.")
    @wraps(function)
    async def command(
        api: Api, output: Output, constellation: str, agent: str | None, everyone: bool, **given: Any
    ) -> ExitCode:
        if everyone == (agent is not None):
            raise click.UsageError("Say whose memory: -a AGENT, or --everyone for what the constellation shares.")
        place = Place(constellation=constellation, agent=EVERYONE if agent is None else agent)
        return await function(api, output, place, **given)

    return command


def filled(block: Json) -> str:
    """How full a block is: `120/5000`."""
    return f"{len(block['content'])}/{block['char_limit']}"


def schema_name(block: Json) -> str:
    """The name of a block's schema: Text, Map, List, Log or Composite."""
    schema = block.get("schema") or "Text"
    return schema if isinstance(schema, str) else str(next(iter(schema), "Text"))


def day(stamp: object) -> str:
    """A time as tables show it: to the minute, in UTC."""
    return str(stamp or "")[:16].replace("T", " ")
