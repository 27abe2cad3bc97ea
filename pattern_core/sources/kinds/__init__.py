"""The kinds of sources and channels: one file and one entry of `SOURCES` each."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pkgutil import resolve_name
from types import MappingProxyType

from pattern_core.errors import InvalidInput
from pattern_core.sources.source import SourceKind

# A kind's module is imported with the first of its accounts.
SOURCES: Mapping[str, str] = MappingProxyType(
    {
        "file": "pattern_core.sources.kinds.file:FileSource",
        "rss": "pattern_core.sources.kinds.rss:FeedSource",
        "webhook": "pattern_core.sources.kinds.webhook:HookSource",
        "telegram": "pattern_core.sources.kinds.telegram:TelegramChannel",
        "discord": "pattern_core.sources.kinds.discord:DiscordChannel",
        "slack": "pattern_core.sources.kinds.slack:SlackChannel",
        "bluesky": "pattern_core.sources.kinds.bluesky:BlueskyChannel",
        "jetstream": "pattern_core.sources.kinds.jetstream:JetstreamSource",
        "http": "pattern_core.sources.kinds.http:PageSource",
        "matrix": "pattern_core.sources.kinds.matrix:MatrixChannel",
        "email": "pattern_core.sources.kinds.mail:MailChannel",
        "calendar": "pattern_core.sources.kinds.ics:CalendarSource",
        "mcp": "pattern_core.sources.kinds.mcp:ResourceSource",
        "irc": "pattern_core.sources.kinds.irc:IrcChannel",
        "process": "pattern_core.sources.kinds.process:ProcessSource",
    }
)


@cache
def kind_of(name: str) -> SourceKind:
    """Return the kind of this name.

    Raises:
        InvalidInput: there is none.
    """
    if name not in SOURCES:
        raise InvalidInput(f"there is no source of the kind {name!r}; kinds are {', '.join(SOURCES)}")
    kind: SourceKind = resolve_name(SOURCES[name])()
    return kind


def is_channel(name: str) -> bool:
    """Return whether people write in sources of this kind; a kind that this version does not know is none."""
    return name in SOURCES and kind_of(name).chars_max > 0
