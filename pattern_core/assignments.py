"""Assignments: work that agents and people put on one list, each done by the one agent that claims it.

A claim is stored with the result of its call, if the assignment is still as it was read. So of two agents one gets it,
and the other's call changes nothing and says so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from pattern_core.errors import InvalidInput
from pattern_core.messages import check_text
from pattern_core.unit_of_work import Storage, UnitOfWork, given_or_alone
from pattern_db.enums import AssignmentStatus, Priority
from pattern_db.tables import assignments
from pattern_db.tables.agents import AgentRow
from pattern_db.tables.assignments import AssignmentRow

DESCRIPTION_CHARS_MAX = 2_000

Assignment = AssignmentRow


@dataclass(frozen=True, slots=True)
class Assignments:
    """The assignments of one constellation. `find_agent` returns an agent by id or name. What changes assignments is
    committed with `work`, if it is given.
    """

    storage: Storage
    find_agent: Callable[[str], Awaitable[AgentRow]]

    async def page(self, limit: int, before: str | None = None) -> list[Assignment]:
        """Return assignments, newest first; only those before an id, if given."""
        return await self.storage.database.read(assignments.page, limit, before)

    async def add(
        self, description: str, priority: Priority, agent: str | None, *, author: str, work: UnitOfWork | None = None
    ) -> Assignment:
        """Add an assignment for an agent (by id or name), or for the first that claims it.

        Raises:
            InvalidInput: the description is empty or too long.
            NotFound: there is no such agent.
            Conflict: too many are open.
        """
        if not 0 < len(check_text(description).strip()) <= DESCRIPTION_CHARS_MAX:
            raise InvalidInput(f"an assignment has 1 to {DESCRIPTION_CHARS_MAX:,} characters; write more into a block")
        to = None if agent is None else (await self.find_agent(agent)).id
        own_id, now = self.storage.ids.new("asg"), self.storage.now()
        row = Assignment(own_id, description, to, AssignmentStatus.PENDING, priority, now, now)
        return await self._put(row, None, author, work)

    async def claim(self, agent_id: str, finished: str, *, author: str, work: UnitOfWork) -> Assignment | None:
        """Complete what the agent has `finished` (an id; may be empty), and give it the next one; None: none is left.

        Raises:
            RowNotFound: there is no such assignment.
            InvalidInput: it is not the agent's.
        """
        if finished:
            done = await self.storage.database.read(assignments.get, finished)
            if (done.assigned_to, done.status) != (agent_id, AssignmentStatus.IN_PROGRESS):
                raise InvalidInput(f"you do not work on the assignment {finished}; leave out `finished`")
            await self._put(replace(done, status=AssignmentStatus.COMPLETED), done, author, work)
        found = await self.storage.database.read(assignments.next_for, agent_id, but=finished)
        if found is None:
            return None
        taken = replace(found, status=AssignmentStatus.IN_PROGRESS, assigned_to=agent_id)
        return await self._put(taken, found, author, work)

    async def update(self, assignment_id: str, status: AssignmentStatus, *, author: str) -> Assignment:
        """Set its status; a pending one is for the first agent that claims it.

        Raises:
            RowNotFound: there is no such assignment.
            Conflict: another change was first, or too many are open.
        """
        found = await self.storage.database.read(assignments.get, assignment_id)
        to = None if status is AssignmentStatus.PENDING else found.assigned_to
        return await self._put(replace(found, status=status, assigned_to=to), found, author, None)

    async def _put(
        self, row: Assignment, before: Assignment | None, author: str, work: UnitOfWork | None
    ) -> Assignment:
        row = replace(row, updated_at=self.storage.now())
        async with given_or_alone(work, self.storage.commit) as unit:
            unit.store(assignments.put, row, before)
            about = {"assignment_id": row.id, "status": row.status, "agent_id": row.assigned_to, "by": author}
            unit.event("assignment.changed", about)
        return row
