"""The summaries of an agent's archived conversation, for people to read."""

from __future__ import annotations

from pattern_db.database import Database
from pattern_db.tables import summaries
from pattern_db.tables.summaries import SummaryRow


async def list_summaries(
    database: Database, agent_id: str, *, limit: int, before: str | None = None
) -> list[SummaryRow]:
    """The agent's newest `limit` summaries, newest first; only those made before the summary `before`, if given."""
    return await database.read(summaries.recent, agent_id, limit, before=before)
