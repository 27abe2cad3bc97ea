"""A constellation in memory to search in, with messages, entries and vectors of hashed words."""

from __future__ import annotations

from dataclasses import dataclass

from pattern_core.embeddings.providers.deterministic import hashed_words
from pattern_core.search.request import Mode, SearchRequest, check
from pattern_db.connection import Connection
from pattern_db.enums import IndexState, Role, SearchKind
from pattern_db.tables import archival, embedding_indexes, messages
from pattern_db.tables.archival import ArchivalRow
from pattern_db.tables.embedding_indexes import EmbedderInfo
from pattern_db.tables.messages import MessageRow
from tests.pattern_core.memory.rig import ADA, NOW, constellation
from tests.pattern_db import vector_rows
from tests.pattern_db.vector_rows import VectorRow

DIMENSION = 64


@dataclass
class Past:
    """What was said and stored; ids are numbers in order."""

    connection: Connection
    count: int = 0

    def say(self, content: str, *, name: str | None = None, when: str = NOW, session: str = "s", **more: Role) -> str:
        self.count += 1
        row = MessageRow(
            id=str(self.count),
            agent_id=ADA,
            position=f"{self.count:019}",
            role=more.get("role", Role.USER),
            created_at=when,
            content=content,
            session_id=session,
            source_metadata=None if name is None else {"name": name},
        )
        messages.append(self.connection, [row])
        return row.id

    def store(self, entry: str, content: str, *, parent: str | None = None) -> None:
        row = ArchivalRow(id=entry, agent_id=ADA, content=content, created_at=NOW, parent_entry_id=parent)
        archival.insert(self.connection, row)

    def embed(self, kind: SearchKind, ref: str, text: str) -> None:
        if embedding_indexes.active(self.connection) is None:
            info = EmbedderInfo(fingerprint="f", provider="p", model="m", dimension=DIMENSION)
            embedding_indexes.begin(self.connection, info, IndexState.ACTIVE, NOW)
        row = VectorRow(
            kind=kind, ref=ref, scope=ADA, vector=hashed_words(text, DIMENSION), content_hash=ref, created_at=NOW
        )
        vector_rows.insert(self.connection, row)


def past() -> Past:
    """An empty one."""
    return Past(constellation())


def asked(query: str, *, mode: Mode = Mode.HYBRID, **fields: object) -> SearchRequest:
    """A request for `query`."""
    return check(SearchRequest(query=query, mode=mode, **fields))  # type: ignore[arg-type]  # the tests know the fields
