"""A constellation in memory to search in."""

from __future__ import annotations

from typing import Any

from pattern_core.embeddings.providers.deterministic import hashed_words
from pattern_core.search.find import find
from pattern_core.search.plan import Plan, plan
from pattern_core.search.request import SearchRequest, check
from tests.pattern_core.memory.rig import NOW
from tests.pattern_core.texts import DIMENSION, Texts


class Past(Texts):
    """What was said and stored; the ids of messages are numbers in order."""

    count: int = 0

    def say(
        self, content: str, *, name: str | None = None, when: str = NOW, session: str | None = "s", **more: object
    ) -> str:
        """Store the next message."""
        self.count += 1
        metadata = None if name is None else {"name": name}
        fields = {"created_at": when, "session_id": session, "source_metadata": metadata}
        return self.message(str(self.count), self.count, content, **fields, **more)

    def plan(self, query: str, meant: str | None = None, *, dimension: int = DIMENSION, **fields: Any) -> Plan:
        """Plan a search for `query`; `meant` are the words of its vector."""
        request = asked(query, **fields)
        vector = None if meant is None else hashed_words(meant, dimension)
        return plan(self.db, request, vector)

    def find(self, query: str, **fields: Any) -> list[str]:
        """The ids of what is found by words."""
        request = asked(query, **fields)
        return [hit.id for hit in find(self.db, request, None).hits]


def asked(query: str, **fields: Any) -> SearchRequest:
    """A request for `query`."""
    return check(SearchRequest(query=query, **fields))
