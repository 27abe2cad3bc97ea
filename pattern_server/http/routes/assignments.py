"""Assignments: work that agents share out."""

from __future__ import annotations

from typing import Annotated

from pattern_core.assignments import Assignment
from pattern_db.enums import AssignmentStatus, Priority
from pattern_server.http.bodies import BY_VALUE, PagedTexts, RequestModel, answer_of, page_of
from pattern_server.http.routing import Router, ToRead, ToWrite

router = Router(prefix="/constellations/{c}/assignments", tags=["assignments"])

ASSIGNMENT = answer_of(Assignment, "id description assigned_to status priority created_at updated_at", "Assignment")


class AssignmentRequest(RequestModel):
    """The work to assign, to an agent or to the first one that claims it."""

    description: str
    agent: str | None = None
    priority: Annotated[Priority, BY_VALUE] = Priority.MEDIUM


class AssignmentUpdateRequest(RequestModel):
    """The status to set; a pending assignment is for the first agent that claims it."""

    status: Annotated[AssignmentStatus, BY_VALUE]


@router.get("", response_model=page_of(ASSIGNMENT))
async def list_all(home: ToRead, paging: PagedTexts) -> object:
    """List assignments, newest first; one without `assigned_to` is for the first agent that claims it."""
    return paging.cut(await home.constellation.assignments.page(paging.one_more, paging.after), lambda one: one.id)


@router.post("", status_code=201, response_model=ASSIGNMENT)
async def create(body: AssignmentRequest, home: ToWrite) -> object:
    """Put work on the list that agents claim from; it starts no turn."""
    return await home.constellation.assignments.add(**body.model_dump(), author=home.caller.author)


@router.patch("/{id}", response_model=ASSIGNMENT)
async def update(id: str, body: AssignmentUpdateRequest, home: ToWrite) -> object:  # noqa: A002 - the word of the path
    """Set the status of an assignment: cancel or complete it, or have it claimed again."""
    return await home.constellation.assignments.update(id, body.status, author=home.caller.author)
