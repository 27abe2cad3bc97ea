"""A file in memory with two agents, and turns to spend on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pattern_core.budgets.reservations import ModelCall, WorstCase, usage_row
from pattern_core.models.model import Usage
from pattern_db import template
from pattern_db.connection import Connection
from pattern_db.journal import turns
from pattern_db.journal.turns import NewTurn
from pattern_db.journal.usage import UsageRow
from pattern_db.migrate import migrations_of
from pattern_db.tables import agents
from tests.pattern_db.conftest import make_agent

NOW = "2026-11-21T22:24:40.123Z"
AGENTS = ("agt_ada", "agt_bob")


@contextmanager
def opened() -> Iterator[Connection]:
    """A new constellation's file with the agents ada and bob."""
    connection = template.in_memory(migrations_of("constellation"), now=NOW)
    for agent_id in AGENTS:
        agents.create(connection, make_agent(agent_id.removeprefix("agt_")))
    try:
        yield connection
    finally:
        connection.close()


def new_turn(db: Connection, agent_id: str = "agt_ada", *, parent: int | None = None) -> int:
    """Store a queued turn and return its key."""
    number: int = db.execute("SELECT count(*) FROM turn").get
    new = NewTurn(id=f"turn_{number}", agent_id=agent_id, sender="user:u", seed=1, created_at=NOW, parent_turn=parent)
    return turns.insert(db, new)


def call(turn: int, agent_id: str = "agt_ada", *, step: int = 1, attempt: int = 1, purpose: str = "step") -> ModelCall:
    """A call of a turn."""
    return ModelCall(turn=turn, step=step, attempt=attempt, agent_id=agent_id, provider="p", model="m", purpose=purpose)


def worst(tokens: int, *, price: int | None = 2) -> WorstCase:
    """A call of so many tokens at most, a fifth of which is its prompt; `price` is micro-dollars per token."""
    prompt = tokens // 5
    return WorstCase(
        tokens=tokens,
        microdollars=None if price is None else tokens * price,
        prompt_tokens=prompt,
        prompt_microdollars=None if price is None else prompt * price,
    )


def took(one: ModelCall, tokens: int, *, price: int | None = 2, at: str = NOW, is_estimate: bool = False) -> UsageRow:
    """The usage of a call that took so many tokens."""
    usage = Usage(input_tokens=tokens, output_tokens=0, is_estimate=is_estimate)
    return usage_row(one, usage, None if price is None else tokens * price, at)
