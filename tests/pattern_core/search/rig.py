"""A constellation in memory to search in, with messages, entries and vectors of hashed words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pattern_core.embeddings.providers.deterministic import hashed_words
from pattern_core.search.find import find
from pattern_core.search.plan import Plan, plan
from pattern_core.search.request import SearchRequest, check
from pattern_db.connection import Connection
from pattern_db.enums import IndexState, Role, SearchKind
from pattern_db.search_terms import parse
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

    def plan(self, query: str, meant: str | None = None, *, dimension: int = DIMENSION, **fields: Any) -> Plan:
        """Plan a search for `query`; `meant` are the words of its vector."""
        request = asked(query, **fields)
        vector = None if meant is None else hashed_words(meant, dimension)
        return plan(self.connection, request, parse(request.query), vector)

    def find(self, query: str, **fields: Any) -> list[str]:
        """The ids of what is found by words."""
        request = asked(query, **fields)
        return [hit.id for hit in find(self.connection, request, parse(request.query), None)]

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


def asked(query: str, **fields: Any) -> SearchRequest:
    """A request for `query`."""
    return check(SearchRequest(query=query, **fields))
