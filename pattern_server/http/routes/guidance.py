"""Guidance of workspaces: what is proposed and decided, and the feedback on it."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response

from pattern_core.guidance import LIVING, SECTION, Advice, Feedback, NewGuidance
from pattern_core.guidance_quality import PROJECT
from pattern_db.enums import GuidanceSource, GuidanceState, GuidanceVerdict
from pattern_server.http.bodies import BY_VALUE, Paged, RequestModel, answer_of, fields_with, items_of, page_of
from pattern_server.http.routing import Router, ToRead, ToWrite

router = Router(prefix="/constellations/{c}/guidance", tags=["guidance"])

Workspace = Annotated[str, Query(description="A workspace: id, name or a folder.")]
_NAMES = (
    "id workspace task_type section content source source_task state merged_into helpful harmful used last_used_at"
    " created_at updated_at changed_by"
)
FEEDBACK = answer_of(Feedback, "verdict author turn weight note created_at", "GuidanceFeedback")
GUIDANCE = answer_of(Advice, _NAMES, "Guidance", utility_score=float)
EXPLAINED = answer_of(Advice, _NAMES, "GuidanceExplained", utility_score=float, feedback=list[FEEDBACK])  # type: ignore[valid-type]  # made above
WAITING = answer_of(Advice, _NAMES, "GuidanceWaiting", utility_score=float, reason=str)


class GuidanceRequest(RequestModel):
    """Guidance of a person, which is active at once."""

    workspace: str
    content: str
    task_type: str = PROJECT
    section: str = SECTION


class GuidanceUpdateRequest(RequestModel):
    """What a person decides: the state, or the guidance that this one is merged into."""

    state: Annotated[GuidanceState, BY_VALUE]
    merged_into: str | None = None


class FeedbackRequest(RequestModel):
    """A verdict, which counts once for its author in a turn."""

    verdict: Annotated[GuidanceVerdict, BY_VALUE]
    turn: str = ""
    note: str | None = None


@router.get("", response_model=page_of(GUIDANCE))
async def list_all(
    home: ToRead,
    paging: Paged,
    workspace: Workspace,
    state: Annotated[GuidanceState | None, Query(description="Only in this state, else proposed and active.")] = None,
) -> object:
    """List guidance of a workspace, the best first."""
    found = await home.constellation.workspaces.find(workspace)
    states = LIVING if state is None else [state]
    rows = await home.constellation.guidance.select(found.id, states, limit=paging.one_more, after=paging.after)
    return paging.cut(rows, lambda row: row.id)


@router.post("", status_code=201, response_model=GUIDANCE)
async def add(body: GuidanceRequest, home: ToWrite, response: Response) -> Advice:
    """Add guidance of a person; what says the same already is returned as it is."""
    workspace = await home.find_workspace(body.workspace, is_written=True) or ""
    new = NewGuidance(
        content=body.content, task_type=body.task_type, section=body.section, source=GuidanceSource.MANUAL
    )
    row, _ = await home.constellation.guidance.add(workspace, new, author=home.caller.author)
    home.locate(response, "guidance", row.id)
    return row


@router.get("/review", response_model=items_of(WAITING))
async def review(home: ToRead, workspace: Workspace) -> object:
    """List what a person should decide about, with the reason."""
    found = await home.constellation.workspaces.find(workspace)
    rows = await home.constellation.guidance.queue(found.id)
    return {"items": [fields_with(row, utility_score=row.utility_score, reason=reason) for row, reason in rows]}


@router.get("/{guidance}", response_model=EXPLAINED)
async def get(guidance: str, home: ToRead) -> object:
    """Show guidance with the feedback on it."""
    row, said = await home.constellation.guidance.get(guidance)
    return fields_with(row, utility_score=row.utility_score, feedback=said)


@router.patch("/{guidance}", response_model=GUIDANCE)
async def update(guidance: str, body: GuidanceUpdateRequest, home: ToWrite) -> Advice:
    """Accept guidance, archive it, or merge it into another one."""
    author = home.caller.author
    return await home.constellation.guidance.decide(guidance, body.state, author=author, into=body.merged_into)


@router.delete("/{guidance}", status_code=204)
async def delete(guidance: str, home: ToWrite) -> None:
    """Delete guidance, its feedback, and what was merged into it."""
    await home.constellation.guidance.delete(guidance, author=home.caller.author)


@router.post("/{guidance}/feedback", response_model=GUIDANCE)
async def rate(guidance: str, body: FeedbackRequest, home: ToWrite) -> Advice:
    """Say that guidance was helpful, harmful or used."""
    await home.constellation.guidance.get(guidance)
    verdicts = {guidance: body.verdict}
    await home.constellation.guidance.rate(verdicts, author=home.caller.author, turn=body.turn, note=body.note)
    return (await home.constellation.guidance.get(guidance))[0]


@router.delete("/{guidance}/feedback", response_model=GUIDANCE)
async def unrate(
    guidance: str,
    home: ToWrite,
    verdict: Annotated[GuidanceVerdict, Query(description="What was said.")],
    author: Annotated[str | None, Query(description="Who said it; by default the caller.")] = None,
    turn: Annotated[str, Query(description="In which turn; empty: outside of turns.")] = "",
) -> Advice:
    """Remove a verdict on guidance."""
    caller = home.caller.author
    await home.constellation.guidance.take_back(guidance, verdict, author or caller, turn, author=caller)
    return (await home.constellation.guidance.get(guidance))[0]
