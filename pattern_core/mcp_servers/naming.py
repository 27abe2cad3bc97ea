"""Names of foreign tools: `server__tool`, as vendors take them, and always the same one. Pure.

Source: the vendors' common rule for names of functions, `[a-zA-Z0-9_-]{1,64}`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from pattern_core.tools.registry import FOREIGN

NAME_CHARS_MAX = 64
_DIGEST_CHARS = 8
_STRANGE = re.compile(r"[^a-zA-Z0-9_-]")


def tool_name(server: str, tool: str) -> str:
    """The name by which agents know a server's tool.

    One that vendors would not take, or that is too long, is changed and ends with a digest of the original: the same
    tool keeps its name, and two tools never share one.
    """
    plain = f"{server}{FOREIGN}{_STRANGE.sub('_', tool)}"
    if plain == f"{server}{FOREIGN}{tool}" and tool and len(plain) <= NAME_CHARS_MAX:
        return plain
    digest = hashlib.sha256(tool.encode(errors="surrogatepass")).hexdigest()[:_DIGEST_CHARS]
    return f"{plain[: NAME_CHARS_MAX - _DIGEST_CHARS - 1]}_{digest}"


def server_of(name: str) -> str | None:
    """The server that a tool's name (or `server__*`) speaks of; None if it is no name of that form."""
    server, separator, tool = name.partition(FOREIGN)
    return server if separator and tool else None


def enables(enabled: Sequence[str], server: str) -> bool:
    """Whether any of the enabled names belongs to the server."""
    return any(server_of(name) == server for name in enabled)
