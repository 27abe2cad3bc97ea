"""Who makes a change, as it is stored: `agent:<id>`, `user:<id>` or `system`."""

from __future__ import annotations

from pattern_db.tables import memory_blocks

Attribution = memory_blocks.Attribution  # who made a change, and what led to it
AGENT = "agent:"  # how the author of what an agent does begins


def agent_author(agent_id: str) -> str:
    """The author of what an agent does."""
    return AGENT + agent_id


def is_agent(author: str) -> bool:
    """Whether an agent acts, whom the blocks' permissions bind; people and the system own the constellation."""
    return author.startswith(AGENT)


def short_name(author: str) -> str:
    """The author as the entries of a log name it: an agent by its bare id."""
    return author.removeprefix(AGENT)
