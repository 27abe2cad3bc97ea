"""What a turn's process knew beside its calls, told again from rows: a restart watches for loops as if there was none.

A decision is one message of the agent's per step, in order. What rules called, and what a tool said in the agent's
name, is none. A compaction made room for the step that was opened next after it; if none was, for the one that is still
open, or else for the next.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from pattern_core.agents.history import SENT_BY_TOOL, from_row
from pattern_core.messages import Message, Reasoning, Text
from pattern_core.rules.state import FORCED_PREFIX
from pattern_db.connection import Connection
from pattern_db.enums import Role
from pattern_db.journal import events
from pattern_db.journal.events import EventRow
from pattern_db.journal.turns import TurnRow
from pattern_db.tables import messages
from pattern_db.tables.messages import MessageRow

STARTED, COMPACTED = "step.started", "history.compacted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What rows tell of a turn under way: how many messages it has, where it came from, whether somebody spoke after
    its newest decision, the steps that said something, characters that its model wrote, and the steps for which room
    was made, once for each time.
    """

    messages: int
    source: str | None
    is_addressed: bool
    said: frozenset[int]
    output_chars: int
    compactions: Sequence[int]


def read(connection: Connection, turn: TurnRow, *, is_open: bool) -> Restored:
    """Read it of a turn; `is_open` says that its newest step has no decision yet."""
    rows = messages.by_batch(connection, turn.agent_id, turn.batch_id or "")
    decisions = [message for message in map(from_row, filter(_is_agents, rows)) if not _is_forced(message)]
    written = [part for one in decisions for part in one.parts if isinstance(part, Text | Reasoning)]
    return Restored(
        messages=len(rows),
        source=rows[0].source if rows else None,
        is_addressed=next((row.role is Role.USER for row in reversed(rows) if _speaks(row)), False),
        said=frozenset(step for step, one in enumerate(decisions, 1) if one.text),
        output_chars=sum(len(part.text) for part in written),
        compactions=_compactions(events.named(connection, turn.key, (STARTED, COMPACTED)), is_open=is_open),
    )


def _is_agents(row: MessageRow) -> bool:
    return row.role is Role.ASSISTANT and row.source != SENT_BY_TOOL


def _speaks(row: MessageRow) -> bool:
    return row.role is Role.USER or _is_agents(row)


def _is_forced(message: Message) -> bool:
    calls = message.tool_calls
    return bool(calls) and not message.text and all(call.call_id.startswith(FORCED_PREFIX) for call in calls)


def _compactions(told: Sequence[EventRow], *, is_open: bool) -> list[int]:
    """The steps, once per run of compactions between two questions to the model."""
    found: list[int] = []
    step, made_room = 0, False
    for event in told:
        if event.name == COMPACTED:
            made_room = True
            continue
        step = int(json.loads(event.data)["step"])
        if made_room:
            found.append(step)
        made_room = False
    if made_room:
        found.append(step if is_open else step + 1)
    return found
