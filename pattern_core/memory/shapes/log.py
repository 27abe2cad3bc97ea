"""Which entries of a log have no room any more. Pure; where they go instead is the store's business."""

from __future__ import annotations

from collections.abc import Sequence

from pattern_core.memory.shapes.render import entry_text
from pattern_core.memory.shapes.schema import LogSchema
from pattern_db.columns import Json


def fitted(schema: LogSchema, entries: Sequence[Json], limit: int) -> tuple[int, str]:
    """How many of the oldest `entries` must go so that the rest has at most `limit` characters as plain text, and that
    text, which is `render.plain` of the rest.

    The newest one always stays, though it alone may be too long.
    """
    texts: list[str] = []
    room = limit + 1  # no line feed follows the last
    for entry in reversed(entries):
        text = entry_text(entry, schema)
        room -= len(text) + 1
        if room < 0 and texts:
            break
        texts.append(text)
    return len(entries) - len(texts), "\n".join(texts)
