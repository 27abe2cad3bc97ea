"""The rows and events of a turn's moments, made from what the running process knows. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b

from pattern_core.agents.active import ActiveTurn, Asking, Ending, Finished
from pattern_core.agents.history import to_row
from pattern_core.events import Draft, called, ended, resulted
from pattern_core.messages import Message, ToolCall
from pattern_core.models.model import Usage
from pattern_core.prompts.prompt import Prompt
from pattern_db.columns import to_json
from pattern_db.enums import BatchType, EffectClass
from pattern_db.journal.effects import EffectRow
from pattern_db.journal.steps import StepRow
from pattern_db.journal.usage import UsageRow
from pattern_db.tables.messages import MessageRow

KEY_BYTES = 16


def asking_of(turn: ActiveTurn) -> Asking:
    """Of whom the turn's step asks; that is decided before the step is opened."""
    assert turn.asking is not None
    return turn.asking


def step_row(turn: ActiveTurn, prompt: Prompt, now: str) -> StepRow:
    """The open step that is about to send `prompt`."""
    link = asking_of(turn).first
    return StepRow(
        turn.key,
        turn.step,
        turn.attempt,
        "open",
        link.provider,
        link.model,
        prompt.cursor,
        prompt.prefix_hash,
        prompt.request_hash,
        None,
        now,
        prompt.log,
    )


def message_row(
    turn: ActiveTurn,
    message: Message,
    *,
    origin: Mapping[str, object] | None = None,
    arguments: Mapping[str, object] | None = None,
) -> MessageRow:
    """The row of a message of this turn; `origin` may name its source and the source's metadata."""
    source = (origin or {}).get("source")
    metadata = (origin or {}).get("source_metadata")
    row = to_row(
        message,
        agent_id=turn.agent.id,
        batch_id=turn.batch_id,
        sequence=turn.next_sequence(),
        source=source if isinstance(source, str) else None,
        source_metadata=metadata if isinstance(metadata, dict) else None,
        arguments=arguments,
    )
    return replace(row, batch_type=BatchType.CONTINUATION) if turn.has_waited else row


def effect_rows(
    turn: ActiveTurn, calls: Sequence[ToolCall], classes: Sequence[EffectClass], constellation_id: str
) -> list[EffectRow]:
    """One planned effect per call, in the model's order, after those that the step has already.

    The idempotency key is a BLAKE2b digest (32 hex digits) of constellation, turn, step and place: the same when
    the call is run again, and no other call's.
    """
    rows = []
    first = sum(call.step == turn.step for call in turn.log)
    for index, (call, effect_class) in enumerate(zip(calls, classes, strict=True), first):
        arguments = to_json(dict(call.arguments)) if call.invalid is None else to_json(call.invalid)
        place = f"{constellation_id}/{turn.id}/{turn.step}/{index}".encode()
        rows.append(
            EffectRow(
                turn.key,
                turn.step,
                index,
                call.call_id,
                call.tool,
                arguments,
                hash_call(call.tool, arguments),
                effect_class.value,
                blake2b(place, digest_size=KEY_BYTES).hexdigest(),
            )
        )
    return rows


def hash_call(tool: str, arguments: str) -> bytes:
    """16 bytes that name a tool with its arguments: equal calls have equal digests."""
    return blake2b(f"{tool}\0{arguments}".encode(), digest_size=KEY_BYTES).digest()


def effect_key(row: EffectRow) -> tuple[int, int, int]:
    """The primary key of an effect."""
    return (row.turn, row.step, row.call)


def usage_row(turn: ActiveTurn, usage: Usage, *, at: str) -> UsageRow:
    """What the turn's current model call cost, of whichever model answered."""
    asking = turn.asking
    link = None if asking is None else asking.answered
    return UsageRow(
        turn=turn.key,
        step=turn.step,
        attempt=turn.attempt,
        provider=turn.agent.model_provider if link is None else link.provider,
        model=turn.agent.model_name if link is None else link.model,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_tokens=usage.cached_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        cost_microdollars=None if asking is None else asking.cost(usage),
        is_estimate=usage.is_estimate,
        at=at,
        agent_id=turn.agent.id,
    )


def step_started(step: StepRow) -> Draft:
    """The event that a model is being asked."""
    return Draft("step.started", {"step": step.no, "attempt": step.attempt})


def step_superseded(step: StepRow) -> Draft:
    """The event that an attempt's pieces are void: another attempt follows."""
    return Draft("step.superseded", {"step": step.no, "attempt": step.attempt})


def said(message: Message) -> Draft:
    """The event of an agent's words."""
    return Draft("message", {"message_id": message.id, "role": message.role}, {"content": message.text})


def call_planned(effect: EffectRow) -> Draft:
    """The event that a model asked for a tool."""
    return Draft("tool.call", {"step": effect.step, "call": effect.call}, called(effect))


def call_finished(finished: Finished, message: Message) -> Draft:
    """The event of what a tool call came to."""
    effect = replace(finished.row, status=finished.status, message_id=message.id)
    return Draft("tool.result", {"step": effect.step, "call": effect.call}, resulted(effect, finished.content))


def turn_started(turn: ActiveTurn, message: Message) -> Draft:
    """The event that the agent took the message up."""
    return Draft("turn.started", {}, {"agent_id": turn.agent.id, "message_id": message.id})


def turn_ended(ending: Ending) -> Draft:
    """The one terminal event."""
    return Draft(f"turn.{ending.status}", {}, ended(ending.status, ending.error))
