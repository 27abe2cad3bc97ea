"""A constellation's database in memory, and texts of every kind to put into it."""

from __future__ import annotations

from pattern_core.embeddings.providers.deterministic import hashed_words
from pattern_db.database import Database
from pattern_db.enums import IndexState, Role, SearchKind
from pattern_db.tables import archival, embedding_indexes, memory_blocks, messages, summaries
from pattern_db.tables.archival import ArchivalRow
from pattern_db.tables.embedding_indexes import EmbedderInfo
from pattern_db.tables.messages import MessageRow
from pattern_db.tables.summaries import SummaryRow
from tests.pattern_core.memory.rig import ADA, NOW, block_row, constellation
from tests.pattern_db import vector_rows
from tests.pattern_db.vector_rows import VectorRow

DIMENSION = 64


class Texts:
    """The agents ada and bob and what is stored for them; ada's unless a test says otherwise. Methods return ids.

    `database` is the fixture's to open, in tests that wait.
    """

    database: Database

    def __init__(self) -> None:
        self.db = constellation()

    def message(self, message_id: str, number: int, content: str, **fields: object) -> str:
        """Store a message at this position."""
        usual = {"agent_id": ADA, "position": f"{number:019}", "role": Role.USER, "created_at": NOW}
        row = MessageRow(id=message_id, content=content, **(usual | fields))  # type: ignore[arg-type]  # known fields
        messages.append(self.db, [row])
        return row.id

    def entry(self, entry_id: str, content: str, *, parent: str | None = None) -> str:
        """Store an archival entry, or a chunk of one."""
        row = ArchivalRow(id=entry_id, agent_id=ADA, content=content, created_at=NOW, parent_entry_id=parent)
        archival.insert(self.db, row)
        return row.id

    def note(self, label: str, content: str) -> str:
        """Store a block."""
        row = block_row(id=f"blk_{label}", label=label, content_preview=content)
        memory_blocks.create(self.db, row)
        return row.id

    def summarise(self, number: int, content: str, *, agent: str = ADA, is_stub: bool = False) -> str:
        """Store a summary of the message at this position."""
        position = f"{number:019d}"
        row = SummaryRow(
            id=f"sum_{number}",
            agent_id=agent,
            summary=content,
            start_position=position,
            end_position=position,
            message_count=1,
            strategy="truncate",
            started_at=NOW,
            ended_at=NOW,
            created_at=NOW,
            is_stub=is_stub,
        )
        summaries.insert(self.db, row)
        return row.id

    def embed(self, kind: SearchKind, ref: str, meant: str, *, scope: str = ADA) -> None:
        """Store the vector of some words for a text."""
        if embedding_indexes.active(self.db) is None:
            info = EmbedderInfo(fingerprint="f", provider="p", model="m", dimension=DIMENSION)
            embedding_indexes.begin(self.db, info, IndexState.ACTIVE, NOW)
        vector = hashed_words(meant, DIMENSION)
        row = VectorRow(kind=kind, ref=ref, scope=scope, vector=vector, content_hash=ref, created_at=NOW)
        vector_rows.insert(self.db, row)
