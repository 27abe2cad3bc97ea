"""What rules judge by, read from rows: the calls of a turn, and when its agent last used a tool."""

from __future__ import annotations

import json
from collections.abc import Collection

from pattern_core.rules.state import FORCED_PREFIX, RESULT_CHARS_MAX, Call, without_note
from pattern_db.connection import Connection
from pattern_db.journal import effects
from pattern_db.timestamps import unix_ms


def read(connection: Connection, agent_id: str, tools: Collection[str]) -> dict[str, int]:
    """When the agent last started each of `tools` with success (unix ms), in whichever turn; without those never used.

    `RuleSet.timed` names the tools for which it matters.
    """
    if not tools:
        return {}
    return {tool: unix_ms(at) for tool, at in effects.last_used(connection, agent_id, tools).items()}


def calls_of(connection: Connection, turn: int) -> tuple[Call, ...]:
    """The calls of the turn with this key, in order."""
    rows = effects.with_results(connection, turn, chars_max=RESULT_CHARS_MAX)
    return tuple(
        Call(
            tool=row.tool,
            arguments=arguments if isinstance(arguments := json.loads(row.args), dict) else {"invalid": arguments},
            status=row.status,
            result=without_note(row.result or ""),
            step=row.step,
            at_ms=None if row.started_at is None else unix_ms(row.started_at),
            effect_class=row.effect_class,
            is_forced=row.call_id.startswith(FORCED_PREFIX),
        )
        for row in rows
    )
