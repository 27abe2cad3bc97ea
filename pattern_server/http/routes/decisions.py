"""Decisions of workspaces."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response
from pydantic import Field

from pattern_core.decisions import Decision, NewDecision
from pattern_server.http.bodies import Paged, RequestModel, answer_of, page_of, require_values
from pattern_server.http.routing import Router, ToRead, ToWrite

router = Router(prefix="/constellations/{c}/decisions", tags=["decisions"])

DECISION = answer_of(
    Decision,
    "id workspace title text summary details tags scope decision_key confidence freshness source important archived"
    " kb_path cwd project retrieval_count injection_count last_retrieved_at last_injected_at changed_by created_at"
    " updated_at supersedes superseded_by conflicts_with",
)


class DecisionCreateRequest(RequestModel):
    """The decision to add to a workspace: id, name or a folder. `cwd` is the folder in which its author works."""

    workspace: str
    title: str
    text: str
    tags: list[str] = Field(default_factory=list)
    important: bool = False
    cwd: str = ""


class DecisionUpdateRequest(RequestModel):
    """The fields of a decision to change; null removes a value. `supersedes` and `conflicts_with` have all ids."""

    title: str | None = None
    text: str | None = None
    summary: str | None = None
    details: list[str] | None = None
    tags: list[str] | None = None
    scope: str | None = None
    decision_key: str | None = None
    confidence: str | None = None
    freshness: str | None = None
    important: bool | None = None
    archived: bool | None = None
    kb_path: str | None = None
    supersedes: list[str] | None = None
    conflicts_with: list[str] | None = None


@router.get("", response_model=page_of(DECISION))
async def list_all(
    home: ToRead,
    paging: Paged,
    workspace: Annotated[str | None, Query(description="Only those of this workspace: id, name or a folder.")] = None,
    archived: Annotated[bool, Query(description="Also archived ones.")] = False,
) -> object:
    """List decisions in the order in which they were stored."""
    rows = await home.constellation.decisions.known(
        await home.find_workspace(workspace), limit=paging.one_more, archived=archived, after=paging.after
    )
    return paging.cut(rows, lambda row: row.id)


@router.post("", status_code=201, response_model=DECISION)
async def create(body: DecisionCreateRequest, home: ToWrite, response: Response) -> Decision:
    """Add a decision to a workspace."""
    given = body.model_dump(exclude={"workspace"})
    workspace = await home.find_workspace(body.workspace, is_written=True) or ""
    made, _similar = await home.constellation.decisions.add(workspace, NewDecision(**given), author=home.caller.author)
    home.locate(response, "decisions", made.id)
    return made


@router.get("/{decision_id}", response_model=DECISION)
async def get(decision_id: str, home: ToRead) -> Decision:
    """Show a decision."""
    return await home.constellation.decisions.get(decision_id)


@router.patch("/{decision_id}", response_model=DECISION)
async def update(decision_id: str, body: DecisionUpdateRequest, home: ToWrite) -> Decision:
    """Update a decision."""
    changes, decisions = body.model_dump(exclude_unset=True), home.constellation.decisions
    require_values(changes, "title", "text", "details", "tags", "important", "archived", "supersedes", "conflicts_with")
    workspace = (await decisions.get(decision_id)).workspace
    return await decisions.change(workspace, decision_id, changes, author=home.caller.author)
