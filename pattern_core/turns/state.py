"""The request of a step and its failed attempts, the result of a call, and the end of a turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pattern_core.budgets.reservations import WorstCase, worst_case
from pattern_core.messages import ToolResult
from pattern_core.models.model import Usage
from pattern_core.models.routing import FactsOf, ModelChain
from pattern_core.prompts.build import Prompt
from pattern_core.turns.admission import ROLLED_BACK
from pattern_db.enums import EffectStatus
from pattern_db.journal.steps import EffectRow
from pattern_db.tables.outbox import OutboxRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a turn ends: a terminal `TurnStatus` value and, unless it completed, `{"code", "message"}`.

    `discards`: its messages leave the conversation. `undelivered`: its message, if that is to be delivered again.
    """

    status: str
    error: Mapping[str, object] | None = None
    discards: bool = False
    undelivered: OutboxRow | None = None


COMPLETED = Ending(status="completed")


def cancelled(reason: str) -> Ending:
    """Return the ending of a turn with a request to stop."""
    error = {"code": "cancelled", "message": f"cancelled: {reason}"}
    return Ending(status="cancelled", error=error, discards=reason == ROLLED_BACK)


@dataclass(slots=True, kw_only=True)
class Asking:
    """The models that a step calls, in order, and the request. `index` is the last called link.

    `facts` returns the facts about a provider's model, including prices. Since `began_ms` the request was made, at
    `asked_ms` the model was called (unix ms).
    """

    chain: ModelChain
    prompt: Prompt
    facts: FactsOf
    index: int = 0
    began_ms: int = 0
    asked_ms: int = 0

    def worst(self) -> WorstCase:
        """Return the worst case over the models."""
        output_max = self.prompt.request.max_output_tokens
        models = [
            (self.facts(link.provider, link.model).cost, link.max_output_tokens or output_max)
            for link in self.chain.links
        ]
        return worst_case(self.prompt.log.tokens, models)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadAttempt:
    """A failed or discarded model call. It is charged with what it `used`, or with an estimate of its prompt.

    `asking` is its request; None if an earlier process made it. `why` is the code of the defect of its answer.
    """

    is_charged: bool
    asking: Asking | None = None
    used: Usage | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedCall:
    """The outcome of a tool call: a terminal `EffectStatus` value and the text for the model. `is_ours`: this error is
    not the tool's text; neither is any outcome except done and error.
    """

    row: EffectRow
    status: str
    content: str
    is_ours: bool = False
    duration_ms: int | None = None  # None where it did not run now

    @property
    def result(self) -> ToolResult:
        """The result as shown to the model; anything but done is a failure."""
        marks = {
            "is_error": self.status != EffectStatus.DONE,
            "is_ours": self.is_ours or self.status not in (EffectStatus.DONE, EffectStatus.ERROR),
        }
        return ToolResult(call_id=self.row.call_id, tool=self.row.tool, content=self.content, **marks)
