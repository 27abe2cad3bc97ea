"""Notes that are handed to an agent: it is shown them with the next message that it answers.

A note for no one in particular is for the first agent that reads it. An agent claims it in the transaction in which its
turn looks for what to show, and it counts as read in the transaction that stores it with the turn's message. So it is
shown once, to one agent, whenever the process dies.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pattern_core.errors import InvalidInput, Overloaded
from pattern_core.messages import check_text
from pattern_core.unit_of_work import Storage, UnitOfWork, given_or_alone
from pattern_db.connection import Connection
from pattern_db.tables import handoffs
from pattern_db.tables.activity import MEDIUM
from pattern_db.tables.agents import AgentRow
from pattern_db.tables.handoffs import HandoffRow

NOTE_CHARS_MAX = 2_000
UNREAD_MAX = 100  # of one agent, and of those for any agent

HandoffNote = HandoffRow


class Handoffs:
    """The notes of one constellation. `find_agent` returns an agent by id or name."""

    def __init__(self, storage: Storage, find_agent: Callable[[str], Awaitable[AgentRow]]) -> None:
        self._storage = storage
        self._find_agent = find_agent

    async def page(
        self, limit: int, *, before: str | None = None, to: str | None = None, unread: bool = False
    ) -> list[HandoffNote]:
        """Return notes, newest first: before an id, for one agent (by id or name), unread ones, if given.

        Raises:
            NotFound: there is no such agent.
        """
        to_agent = None if to is None else (await self._find_agent(to)).id
        return await self._storage.database.read(handoffs.page, limit, before=before, to_agent=to_agent, unread=unread)

    async def add(
        self,
        content: str,
        *,
        author: str,
        from_agent: str | None = None,
        to: str | None = None,
        work: UnitOfWork | None = None,
    ) -> HandoffNote:
        """Leave a note for an agent (by id or name), or for the first one that reads it.

        Raises:
            InvalidInput: it is empty or too long, or is for its author.
            NotFound: there is no such agent.
            Overloaded: too many notes wait for that agent.
        """
        if not 0 < len(check_text(content).strip()) <= NOTE_CHARS_MAX:
            raise InvalidInput(f"a note has 1 to {NOTE_CHARS_MAX:,} characters; put more into a memory block")
        agent = None if to is None else await self._find_agent(to)
        to_agent = None if agent is None else agent.id
        if to_agent is not None and to_agent == from_agent:
            raise InvalidInput("the note is for its author; write it into a memory block instead")
        row = HandoffNote(
            self._storage.ids.new("note"), author, content.strip(), self._storage.now(), from_agent, to_agent
        )
        async with given_or_alone(work, self._storage.commit) as unit:
            unit.store(_add, row)
            receiver = "any agent" if agent is None else agent.name
            self._storage.note(unit, "note_left", f"for {receiver}", author=author, importance=MEDIUM)
            unit.event("handoff.left", {"note_id": row.id, "by": author, "to": to_agent})
        return row

    async def delete(self, note_id: str) -> None:
        """Delete a note; a conversation that shows it stays as it is.

        Raises:
            NotFound: there is none.
        """
        async with given_or_alone(None, self._storage.commit) as work:
            work.store(handoffs.delete, note_id)
            work.event("handoff.deleted", {"note_id": note_id})


def _add(connection: Connection, row: HandoffNote) -> None:
    if handoffs.count_unread(connection, row.to_agent) >= UNREAD_MAX:
        raise Overloaded(f"{UNREAD_MAX} notes wait to be read by that agent; delete some, or send it a message")
    handoffs.add(connection, row)
