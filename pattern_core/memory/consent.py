"""Asking a person before an edit: what is asked, and how the agent is told. Pure.

The edit waits as a row and is made, once, when somebody agrees. The agent goes on meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

from pattern_core.approvals import ApprovalQuestion
from pattern_core.consent_grants import Subject
from pattern_core.errors import PermissionDenied
from pattern_core.memory.block import Attribution, short_name
from pattern_core.memory.edits.edit import BlockEdit, from_json_value, to_json_value
from pattern_db.columns import Json, to_json
from pattern_db.enums import ApprovalKind
from pattern_db.tables.memory_blocks import BlockRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """An edit as it is asked for, and as it waits for consent: whose label, which block, what, and on whose behalf."""

    agent_id: str
    label: str
    block_id: str
    edit: BlockEdit
    by: Attribution


def needs_consent(refusal: PermissionDenied) -> bool:
    """Whether the operation was refused only because a person must agree first."""
    return "consent" in refusal.details


def question(proposal: Proposal, refusal: PermissionDenied) -> ApprovalQuestion:
    """What to ask the person whom the block's permission names."""
    cause = dict(proposal.by.cause or {})
    request = {
        "agent_id": proposal.agent_id,
        "agent": short_name(proposal.by.author),
        "label": proposal.label,
        "block_id": proposal.block_id,
        "operation": proposal.edit.operation.value,
        "edit": to_json_value(proposal.edit),
        "author": proposal.by.author,
        "cause": cause,
        "subject": subject_of(proposal).name,
        "digest": subject_of(proposal).args_hash.hex(),
    }
    return ApprovalQuestion(
        kind=ApprovalKind.MEMORY,
        request=request,
        audience=str(refusal.details["consent"]),
        turn_id=cause.get("turn"),
    )


def subject_of(proposal: Proposal) -> Subject:
    """What standing consent for such an edit is about: this label of this agent, and exactly this edit."""
    digest = blake2b(to_json(to_json_value(proposal.edit)).encode(), digest_size=16).digest()
    return Subject(agent_id=proposal.agent_id, name=f"block:{proposal.label}", args_hash=digest)


def proposal_of(request: Json, approval_id: str, agreed: str) -> Proposal:
    """The edit that an approval asks for; `agreed` is who said yes, and stays in the edit's cause."""
    cause = {**request["cause"], "approval": approval_id, "approved_by": agreed}
    return Proposal(
        agent_id=request["agent_id"],
        label=request["label"],
        block_id=request["block_id"],
        edit=from_json_value(request["edit"]),
        by=Attribution(author=request["author"], cause=cause),
    )


def asked_note(row: BlockRow, approval_id: str) -> str:
    """What the agent is told instead of a result."""
    return (
        f"Not changed yet: the block {row.label} is changed only with consent, and a person has been asked"
        f" ({approval_id}). It will be changed when they agree; go on without it"
    )
