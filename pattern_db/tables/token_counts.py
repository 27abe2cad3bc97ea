"""What vendors counted of prompts, beside what was noted of them when they were shown."""

from __future__ import annotations

from dataclasses import dataclass

from pattern_db.connection import Connection, fetch_all
from pattern_db.tables.prompts import unpacked


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedRow:
    """A prompt that its vendor counted: `counted` input tokens. What was shown, as it was noted: `stable` and
    `volatile` are JSON text (opaque here, see `tables.prompts`), `history_tokens` an estimate.
    """

    counted: int
    history_tokens: int
    stable: str
    volatile: str


def of_agent(connection: Connection, agent_id: str, model: str, limit: int, *, among: int) -> list[CountedRow]:
    """The agent's last `limit` prompts that this model's vendor counted, oldest first, as far as they are among the
    file's last `among` calls of any agent: so it never reads more than these.
    """
    rows = fetch_all(
        connection,
        "SELECT u.input_tokens, s.history_tokens, stable.parts, volatile.parts FROM"
        " (SELECT key, turn, step, attempt, purpose, agent_id, model, input_tokens, is_estimate FROM usage"
        " ORDER BY key DESC LIMIT ?3) AS u"
        " JOIN step AS s ON s.turn = u.turn AND s.no = u.step AND s.attempt = u.attempt"
        " JOIN prompt_log AS stable ON stable.agent_id = u.agent_id AND stable.digest = s.prompt_stable"
        " JOIN prompt_log AS volatile ON volatile.agent_id = u.agent_id AND volatile.digest = s.prompt_volatile"
        " WHERE u.agent_id = ?1 AND u.model = ?2 AND u.purpose = 'step' AND u.is_estimate = 0"
        " AND s.history_tokens IS NOT NULL ORDER BY u.key DESC LIMIT ?4",
        (agent_id, model, among, limit),
    )
    return [
        CountedRow(counted=counted, history_tokens=history, stable=unpacked(stable), volatile=unpacked(volatile))
        for counted, history, stable, volatile in reversed(rows)
    ]
