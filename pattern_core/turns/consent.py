"""Tool calls that need approval: the question, and the effects of the answer.

A call that needs approval waits as a row, with its question (T4). The answer turns it into a planned or a denied one
(T4′) and wakes the agent, which continues the turn when all its questions are answered. Until then the turn exists only
as rows.

A call of a dead process that cannot simply run waits the same way, until a person has answered
(`needs_attention` in the request says why): its outcome is unknown, or its tool no longer exists.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal

from pattern_core.agents import Agent, Roster
from pattern_core.approvals import Approval, ApprovalAnswer, ApprovalQuestion, Approvals
from pattern_core.errors import Conflict, InvalidInput, NotFound
from pattern_core.rules.facts import EDITED
from pattern_core.tools.registry import ToolRegistry
from pattern_core.unit_of_work import UnitOfWork
from pattern_db.columns import Json, to_json
from pattern_db.enums import ApprovalKind, ApprovalStatus
from pattern_db.journal import steps
from pattern_db.journal.approvals import ApprovalRow
from pattern_db.journal.steps import EffectRow

AGREED = frozenset({ApprovalStatus.APPROVED, ApprovalStatus.EDITED})
AUDIENCE = "human"  # users who may write to the constellation

Attention = Literal["in_doubt", "tool_gone"]
"""Why a call that was cut off needs a person: its outcome is unknown; its tool no longer exists."""


class ToolConsent:
    """Asks for approval of tool calls. `roster` knows the tools of an agent; `wake` lets an agent check for work."""

    def __init__(self, approvals: Approvals, tools: ToolRegistry, roster: Roster, wake: Callable[[str], None]) -> None:
        self.approvals = approvals
        self._tools = tools
        self._roster = roster
        self._wake = wake
        for kind in (ApprovalKind.TOOL, ApprovalKind.RECOVERY):
            approvals.on_answer(kind, self._grant, self._refuse)

    async def is_standing(self, agent_id: str, row: EffectRow, scope: str | None) -> bool:
        """Return whether a grant allows the call."""
        return await self.approvals.grants.covers({"agent_id": agent_id, **_subject(row, scope)})

    def question(
        self,
        agent: Agent,
        turn_id: str,
        row: EffectRow,
        reason: str,
        *,
        kind: ApprovalKind = ApprovalKind.TOOL,
        scope: str | None = None,
        attention: Attention | None = None,
        is_client: bool = False,
    ) -> ApprovalRow:
        """Return the question about a call, to be stored with it. A grant applies to all calls of its `scope`, or of
        its tool; a question after an interruption (`attention` says what is wrong) can only be approved once. A call
        that `is_client` is answered by its client, with a result.
        """
        request: dict[str, Json] = {
            "agent_id": agent.id,
            "agent": agent.name,
            "tool": row.tool,
            "arguments": json.loads(row.args),
            "reason": reason,
            "turn_id": turn_id,
            "call_id": row.call_id,
        }
        if is_client:
            request["client"] = True
        elif kind is ApprovalKind.TOOL:
            request |= _subject(row, scope)
        if attention is not None:
            request["needs_attention"] = attention
        asked = self.approvals.row(ApprovalQuestion(kind=kind, request=request, audience=AUDIENCE))
        return replace(asked, turn=row.turn, step=row.step, call=row.call)

    async def _grant(self, approval: Approval, answer: ApprovalAnswer, work: UnitOfWork) -> str:
        request = approval.request
        arguments: Mapping[str, Json] = request["arguments"]
        if "client" in request and (answer.result is None or answer.arguments is not None):
            raise InvalidInput(
                "the client that offered this tool answers its calls with their results; deny the call to have the"
                " agent continue without one"
            )
        if approval.kind is ApprovalKind.RECOVERY:
            await self._check_there(request["agent_id"], request["tool"])
        if answer.arguments is not None:
            if "needs_attention" in request:
                raise InvalidInput("this call was decided on and may have happened as it is: agree to that, or deny it")
            self._tools.get(request["tool"], self._tools.names).check(answer.arguments)
            arguments = answer.arguments
        args = to_json(dict(arguments))
        work.store(steps.approve_call, _key(approval), args=args, args_hash=steps.hash_call(request["tool"], args))
        self._wake_after(work, request["agent_id"])
        return f"The call of {request['tool']} runs now"

    async def _check_there(self, agent_id: str, name: str) -> None:
        """Check that the tool of an interrupted call exists again, or may still appear.

        Raises:
            Conflict: it is not; the question stays open.
        """
        if not self._tools.accepts(name):
            raise Conflict(
                f"there is no tool {name} any more: bring it back (one of another server comes with its section in the"
                " configuration) and agree then, or deny"
            )
        agent = await self._roster.get(agent_id)
        try:
            self._tools.get(name, agent.enabled_tools)
        except NotFound:
            if name in self._tools.names:  # else its server may still be starting
                message = f"{agent.name} may not use the tool {name} any more: enable it and agree then, or deny"
                raise Conflict(message) from None

    def _refuse(self, approval: Approval, work: UnitOfWork) -> None:
        work.store(steps.deny_call, _key(approval))
        self._wake_after(work, approval.request["agent_id"])

    def _wake_after(self, work: UnitOfWork, agent_id: str) -> None:
        work.when_settled(lambda committed: self._wake(agent_id) if committed else None)


def _subject(row: EffectRow, scope: str | None) -> dict[str, Json]:
    """Return the subject of a grant for a call."""
    return {"subject": f"tool:{row.tool}" if scope is None else f"scope:{scope}", "digest": row.args_hash.hex()}


def denial(approval: ApprovalRow | None) -> str:
    """Return the text for the model instead of the result of a call that was not approved."""
    if approval is None:
        return "Not run: no person agreed to it."
    if approval.request.get("needs_attention") == "tool_gone":
        tool = approval.request["tool"]
        return f"Not run: there is no tool {tool!r} any more. Continue without it."
    if approval.status is ApprovalStatus.EXPIRED:
        return "Not run: it needs a person's consent, and there was no answer in time. Continue without it."
    reason = (approval.decision or {}).get("reason")
    return f"Not run: a person did not agree{f' ({reason})' if reason else ''}. Do not try it again unless asked to."


def edited_note(approval: ApprovalRow | None, row: EffectRow) -> str:
    """Return the text before the result of a call that was approved with changes; else nothing."""
    return f"{EDITED}{row.args}]\n" if approval is not None and approval.status is ApprovalStatus.EDITED else ""


def _key(approval: Approval) -> tuple[int, int, int]:
    if approval.turn is None or approval.step is None or approval.call is None:
        raise NotFound("the call that was asked about is gone with its turn; deny the question to close it")
    return (approval.turn, approval.step, approval.call)
