"""MCP servers without a constellation: owned by a nursery, their tools called as an executor would."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import trio

from pattern_core.mcp_servers.servers import McpServers
from pattern_core.mcp_settings import McpSettings, Stdio
from pattern_core.models.providers.settings import Secret
from pattern_core.tools.registry import ToolRegistry
from pattern_core.tools.tool import ToolContext

PROGRAM = Path(__file__).with_name("program.py")
PATIENCE_S = 60.0
CONTEXT = cast("ToolContext", SimpleNamespace(idempotency_key="key_1"))


def program(log: Path, *habits: str, **more: object) -> McpSettings:
    """The stand-in with these habits; `more` are other settings."""
    environment = {"PATH": Secret("/usr/bin:/bin"), "COLOUR": Secret("blue")}
    args = ("-I", "-S", str(PROGRAM), str(log), *habits)
    reach = Stdio(command=sys.executable, args=args, environment=environment)
    return replace(McpSettings(reach=reach, protocol="legacy"), **more)  # type: ignore[arg-type]  # settings by name


@dataclass(frozen=True)
class Owned:
    servers: McpServers
    registry: ToolRegistry
    nursery: trio.Nursery

    def give(self, name: str, **seconds: float) -> None:
        """Change the times of a server from now on: what answers is never under the short time of what does not."""
        server = self.servers.by_name[name]
        server.settings = replace(server.settings, **seconds)  # type: ignore[arg-type]  # settings by name

    async def call(self, name: str, **arguments: object) -> object:
        """Call a tool as an agent does that has all of its server's."""
        enabled = (f"{name.partition('__')[0]}__*",)
        await self.servers.ready(enabled)
        return await self.registry.get(name, enabled).call(CONTEXT, arguments)


@asynccontextmanager
async def owned(settings: Mapping[str, McpSettings]) -> AsyncIterator[Owned]:
    """The servers while the block runs."""
    registry = ToolRegistry(())
    servers = McpServers(settings, registry)
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(servers.run)
            yield Owned(servers, registry, nursery)
            nursery.cancel_scope.cancel()


async def until(log: Path, words: str) -> None:
    """Wait until the program noted something."""
    while not log.exists() or words not in log.read_text().split():
        await trio.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Whether a process exists and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
