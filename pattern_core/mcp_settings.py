"""The operator's settings of an MCP server: how it is reached, what it offers, and its time limits."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import Field

from pattern_core.models.providers.settings import Secret
from pattern_db.enums import EffectClass

Protocol: TypeAlias = Literal["auto", "legacy"]
ConfiguredEffect: TypeAlias = Literal[EffectClass.IDEMPOTENT, EffectClass.UNSAFE]
Seconds: TypeAlias = Annotated[float, Field(gt=0, le=3600)]

SERVERS_MAX = 16  # each constellation may run all of them at once
SERVER_CHARS_MAX = 24
# A single underscore between words, so that the first double one in a tool's name ends the server's name.
_SERVER = re.compile(r"[a-z][a-z0-9-]*(_[a-z0-9-]+)*")


def is_server_name(name: str) -> bool:
    """Return whether a server may be called that."""
    return len(name) <= SERVER_CHARS_MAX and _SERVER.fullmatch(name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stdio:
    """A program that is started and spoken to over its standard input and output.

    `environment` is all that it finds there: `PATH` and the like have to be named too. It starts in `cwd`.
    """

    command: str
    args: Sequence[str] = ()
    environment: Mapping[str, Secret] = field(default_factory=dict)
    cwd: Path = Path("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Streamable:
    """An address that speaks streamable HTTP; `headers` go with every request and nowhere else."""

    url: str
    headers: Mapping[str, Secret] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class McpSection:
    """The configured tools and time limits of one server. Times are in seconds.

    `tools` are those of its tools that agents may have (None: all). `effects` sets for a tool what `effect` sets for
    all: whether a call with an outcome hidden by a crash may be repeated. `trust_hints`: the server's own hints about
    that count too, where `effects` has nothing. A `lazy` server is started when it is needed, and stopped after
    `idle_s`; others always run. `protocol`: "legacy" spares servers of before 2026 a question they do not know.
    """

    # the only tools that agents may have, by their names on the server; default: all
    tools: tuple[str, ...] | None = None
    # whether a call with an unknown outcome may be repeated, for all tools
    effect: ConfiguredEffect = EffectClass.UNSAFE
    effects: Mapping[str, ConfiguredEffect] = field(default_factory=dict)  # the same for single tools, by their names
    trust_hints: bool = False  # use `readOnlyHint` and `idempotentHint` of the server where `effects` has no entry
    for_strangers: bool = False  # also for people in channels who may only chat, and in rooms
    lazy: bool = True  # start the server when an agent needs it; `false`: keep it running
    protocol: Protocol = "auto"  # `legacy`: do not send the handshake of 2026 and later
    start_timeout_s: Seconds = 30.0  # until its tools are listed
    call_timeout_s: Seconds = 60.0  # for one tool call
    idle_s: Annotated[float, Field(gt=0)] = 600.0  # a lazy server stops this long after its last call
    calls_max: Annotated[int, Field(ge=1, le=64)] = 8  # calls at once


@dataclass(frozen=True, slots=True, kw_only=True)
class McpSettings(McpSection):
    """One server, with its address or program."""

    reach: Stdio | Streamable
    missing: Sequence[str] = ()  # environment variables that it needs and that are not set

    @property
    def faults(self) -> list[str]:
        """What keeps it from being started, as far as it can be seen without starting it."""
        found = [f"the variable {variable} is not set" for variable in self.missing]
        if isinstance(self.reach, Stdio):
            command, cwd, path = self.reach.command, self.reach.cwd, self.reach.environment.get("PATH")
            name = str(cwd / command) if "/" in command else command
            if not cwd.is_dir():
                found.append(f"{cwd}, where it should start, is not a directory")
            elif shutil.which(name, path=path.get_secret_value() if path else os.defpath) is None:
                found.append(f"there is no program {command}")
        return found

    @property
    def place(self) -> str:
        """Where it is, for people; without anything that may be secret: arguments, user names, paths and queries."""
        if isinstance(self.reach, Stdio):
            return self.reach.command
        address = urlsplit(self.reach.url)
        return f"{address.scheme}://{address.netloc.rpartition('@')[2]}"
