"""Why a model was shown what it was shown: each step of a turn with its parts, their reasons and what was left out.

Texts are made again from the rows that they came from, at the versions that were shown. What has changed since, or is
gone, says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial

from pattern_core.errors import NotFound, PatternError
from pattern_core.memory.history import content_at
from pattern_core.prompts.activity import (
    caught_up_text,
    decision_part,
    guidance_text,
    handoff_text,
    noted_line,
    turn_line,
    workspace_part,
)
from pattern_core.prompts.build import DATA, DEFAULT_INSTRUCTIONS, MEMORY_AND_DATA, time_words
from pattern_core.prompts.parts import Kind, Part, check_of, place_of, read_log
from pattern_db.connection import Connection
from pattern_db.database import Database
from pattern_db.errors import DatabaseError, RowNotFound, StorageFailed
from pattern_db.journal import turns
from pattern_db.tables import (
    activity,
    agents,
    decisions,
    guidance,
    handoffs,
    memory_blocks,
    overview,
    prompts,
    tasks,
    workspaces,
)
from pattern_db.tables.prompts import LoggedParts, ShownRow, StepPrompt

TEXT_CHARS_MAX = 400  # shown of each part's text
CHANGED = "has changed since"
GONE = "is not there any more"
Said = tuple[str | None, str | None]
"""A part's text, None if it is not known, and a note on it."""
_NOTHING = LoggedParts(b"", "{}")
_NOT_NOTED = ShownRow(tokens=0, stable=_NOTHING, volatile=_NOTHING, history_from="", history_count=0, history_tokens=0)
_BLOCKS = frozenset({Kind.CORE.value, Kind.PINNED.value, Kind.REFERRED.value, Kind.LOGS.value})


@dataclass(frozen=True, slots=True, kw_only=True)
class PartShown:
    """A part. `text` is the beginning of what it said, None if that is not known; `note` is the reason, or that it has
    changed since. `tokens` is an estimate.
    """

    kind: str
    place: str
    name: str
    ref: str
    version: int | None
    tokens: int
    reason: str
    text: str | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryShown:
    """The messages that were shown, from the first position to the last (empty for none); `tokens` is an estimate."""

    first: str
    last: str
    count: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsShown:
    """The tools that were offered; `tokens` is an estimate."""

    count: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepExplained:
    """One model call. `tokens` are those of the whole prompt: what the vendor counted, or with `is_estimate` ours.

    `cached_tokens` are those of them that the vendor had in its cache. `is_known` is false for steps from before
    prompts were noted: then there are no parts.
    """

    step: int
    attempt: int
    status: str
    provider: str
    model: str
    started_at: str
    window: int
    tokens: int
    is_estimate: bool
    cached_tokens: int
    tools: ToolsShown
    history: HistoryShown
    parts: Sequence[PartShown]
    left_out: Sequence[PartShown]
    notes: Sequence[str]
    is_known: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnExplained:
    """A turn's model calls in order, every attempt; `session_id` is the conversation that they showed, None for the
    agent's main one.
    """

    turn_id: str
    agent_id: str
    session_id: str | None
    steps: Sequence[StepExplained]


async def explain(database: Database, turn_id: str) -> TurnExplained:
    """Return what the turn's model calls were shown, and why.

    Raises:
        NotFound: there is no such turn.
    """
    try:
        return await database.read_aside(_explained, turn_id)
    except RowNotFound as error:
        raise NotFound(error.message) from None


def _explained(connection: Connection, turn_id: str) -> TurnExplained:
    turn = turns.by_id(connection, turn_id)
    said = cache(partial(_said, connection, turn.agent_id))  # most parts are in every step
    steps = [_step(step, said) for step in prompts.of_turn(connection, turn.key)]
    return TurnExplained(turn_id=turn.id, agent_id=turn.agent_id, session_id=turn.session_id, steps=steps)


def _said(connection: Connection, reader: str, part: Part) -> Said:
    try:
        if part.kind in _BLOCKS:
            return _as_it_was(connection, part)
        text = _today(connection, part, reader)
    except RowNotFound:
        return None, GONE
    if text is None:
        return None, GONE if part.ref else None
    is_other = bool(part.check) and check_of(text) != part.check
    return (None, CHANGED) if is_other else (text, None)


def _as_it_was(connection: Connection, part: Part) -> Said:
    row = memory_blocks.get(connection, part.ref, include_inactive=True)
    if row.last_seq == part.version:
        return row.content_preview or "", None
    try:
        return content_at(connection, part.ref, part.version or 0)[0], None
    except StorageFailed:
        raise
    except (PatternError, DatabaseError) as error:
        return None, error.message


def _today(connection: Connection, part: Part, reader: str) -> str | None:
    match part.kind:
        case Kind.INSTRUCTIONS:
            return agents.get(connection, reader).system_prompt or DEFAULT_INSTRUCTIONS
        case Kind.GUIDE:
            return next((text for text in (MEMORY_AND_DATA, DATA) if check_of(text) == part.check), "")
        case Kind.RECALLED:
            return prompts.text_of(connection, part.ref)
        case Kind.HANDOFFS:
            note = handoffs.find(connection, part.ref)
            return None if note is None else handoff_text(note)
        case Kind.TASKS:
            return tasks.title_of(connection, part.ref)
        case Kind.WORKSPACE:
            return workspace_part(workspaces.map_of(connection, part.ref, reader)).text
        case Kind.DECISIONS:
            return next((decision_part(0, row).text for row in decisions.some(connection, [part.ref])), None)
        case Kind.GUIDANCE:
            return guidance_text(guidance.get(connection, part.ref))
        case Kind.CATCH_UP:
            missed = overview.find(connection, part.ref)
            return None if missed is None else caught_up_text(missed)
        case Kind.ACTIVITY:
            turn = activity.turn(connection, part.ref)
            if turn is not None:
                return turn_line(turn, reader)
            event = activity.noted(connection, part.ref)
            return None if event is None else noted_line(event, reader)
        case Kind.REMINDER:
            return part.name
        case _:
            return None


def _step(prompt: StepPrompt, said: Callable[[Part], Said]) -> StepExplained:
    shown = prompt.shown or _NOT_NOTED
    stable, _volatile = logs = read_log(shown.stable.parts), read_log(shown.volatile.parts)
    time: Said = (time_words(prompt.started_at), None)  # of the part that is not the same in all steps
    return StepExplained(
        step=prompt.no,
        attempt=prompt.attempt,
        status=prompt.status,
        provider=prompt.provider,
        model=prompt.model,
        started_at=prompt.started_at,
        window=stable.window,
        tokens=shown.tokens if prompt.counted is None else prompt.counted,
        is_estimate=prompt.counted is None,
        cached_tokens=prompt.cached or 0,
        tools=ToolsShown(count=stable.tool_count, tokens=stable.tool_tokens),
        history=HistoryShown(
            first=shown.history_from,
            last=prompt.cursor,
            count=shown.history_count,
            tokens=shown.history_tokens,
        ),
        parts=[_shown(part, *(time if part.kind == Kind.TIME else said(part))) for log in logs for part in log.parts],
        left_out=[_shown(part) for log in logs for part in log.left_out],
        notes=[note for log in logs for note in log.notes],
        is_known=prompt.shown is not None,
    )


def _shown(part: Part, text: str | None = None, note: str | None = None) -> PartShown:
    return PartShown(
        kind=part.kind,
        place=place_of(part.kind),
        name=part.name,
        ref=part.ref,
        version=part.version,
        tokens=part.tokens,
        reason=part.reason,
        text=text if text is None or len(text) <= TEXT_CHARS_MAX else text[: TEXT_CHARS_MAX - 1] + "…",
        note=note,
    )
