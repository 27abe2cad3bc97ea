"""Resources of an MCP server that change, shown as differences. Each look starts the server, reads them, and leaves it.

The operator configured the server, so what it reaches is allowed; what it says is text of others, as of all sources.

Source: "Resources" of the Model Context Protocol, 2025-11-25. Few servers notify of changes, so none is relied on.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, ClassVar

import trio

from pattern_core.errors import InvalidInput, NotFound, PatternError, Unavailable
from pattern_core.files.disk import matches
from pattern_core.mcp_servers.connection import McpConnection
from pattern_core.mcp_servers.servers import reason_of
from pattern_core.mcp_settings import McpSettings
from pattern_core.sources.kinds.file import FILES_MAX, KEPT_CHARS_MAX, TEXT_CHARS_MAX, changes
from pattern_core.sources.source import Arrivals, SourceAccount, SourceKind, take_fields
from pattern_core.web.policy import SourceSettings
from pattern_db.columns import Json


class ResourceSource(SourceKind):
    """Watches the resources of a server that a pattern matches."""

    fields: ClassVar = {
        "server": "name of a server that is configured below [mcp]",
        "pattern": "which resources by their addresses, such as file:///notes/**",
        "every_s": "how often to look, in seconds",
    }
    every_s_min: ClassVar = 30.0

    def checked(self, config: Mapping[str, Json], settings: SourceSettings) -> Mapping[str, Json]:
        """Return the configuration with its defaults, as `SourceKind.checked`."""
        found = take_fields(self, config, {"server": None, "pattern": "**", "every_s": 900.0})
        _server(found, settings)
        return found

    async def poll(self, account: SourceAccount) -> Arrivals:
        """Return what changed since the last look, as `SourceKind.poll`; the first look only remembers."""
        before: Mapping[str, list[Any]] = account.cursor.get("resources", {})
        number = account.cursor.get("number", 0) + 1
        now = await _look(account, before, number)
        events = [] if not account.cursor else [*changes(before, now, is_complete=True)]
        cursor = {"resources": now, "number": number if events else account.cursor.get("number", 0)}
        return Arrivals(events=events, cursor=cursor, wait_s=account.config["every_s"])


def _server(config: Mapping[str, Json], settings: SourceSettings) -> McpSettings:
    name = config["server"]
    if name not in settings.mcp:
        raise NotFound(f"there is no MCP server {name!r}; it needs a section [mcp.{name}] in the configuration")
    return settings.mcp[name]


async def _look(account: SourceAccount, before: Mapping[str, list[Any]], number: int) -> Mapping[str, list[Any]]:
    """Return of each resource the number of the look that found it changed, its size, a digest, and its text.

    Raises:
        Unavailable: the server cannot be used.
    """
    settings, found = _server(account.config, account.settings), dict[str, list[Any]]()
    limit_s = settings.start_timeout_s + settings.call_timeout_s
    connection, failure = McpConnection(settings, trio.lowlevel.ParkingLot()), "; ".join(settings.faults)

    def unusable(reason: str) -> Unavailable:
        return Unavailable(f"the MCP server {account.config['server']} cannot be used ({reason})")

    if failure:
        raise unusable(failure)
    try:
        with trio.move_on_after(limit_s) as scope:
            async with connection.opened():
                try:
                    await _read(connection, account.config["pattern"], before, number, found)
                except PatternError as error:  # leaving the server may fail, too
                    failure = error.message
    except Exception as error:  # whatever the library raises
        raise unusable(failure or connection.reason or reason_of(error)) from error
    if failure or scope.cancelled_caught:
        raise unusable(failure or f"it was not done within {limit_s:g} s")
    return found


async def _read(
    connection: McpConnection, pattern: str, before: Mapping[str, list[Any]], number: int, found: dict[str, list[Any]]
) -> None:
    uris = [uri for uri in dict.fromkeys(await connection.resources()) if matches(pattern, uri)]
    if len(uris) > FILES_MAX:
        raise InvalidInput(f"{len(uris)} resources match, at most {FILES_MAX} are watched; use a narrower pattern")
    kept = 0
    for uri in uris:
        try:
            text, is_text = await connection.read(uri)
        except InvalidInput:  # of this one alone
            found |= {uri: before[uri]} if uri in before else {}
            continue
        data = text.encode("utf-8", "replace")
        digest = blake2b(data, digest_size=16).hexdigest()
        known = before.get(uri, [None] * 3)
        if known[2] != digest:
            known = [number, len(data), digest, text if is_text and len(text) <= TEXT_CHARS_MAX else None]
        kept += len(known[3] or "")
        found[uri] = known if kept <= KEPT_CHARS_MAX else [*known[:3], None]
