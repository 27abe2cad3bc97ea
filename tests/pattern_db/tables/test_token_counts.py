from __future__ import annotations

from pattern_db.connection import Connection
from pattern_db.tables import token_counts
from pattern_db.tables.token_counts import CountedRow


def call(db: Connection, key: int, *, agent: str = "agt_ada", purpose: str = "step", is_estimate: bool = False) -> None:
    """A turn with one call that showed 7 tokens of history."""
    now = "2026-01-01T00:00:00.000Z"
    db.execute(
        "INSERT INTO turn (key, id, agent_id, sender, seed, status, created_at)"
        " VALUES (?1, 'turn_' || ?1, ?2, 'user:u', 1, 'completed', ?3)",
        (key, agent, now),
    )
    db.execute(
        "INSERT INTO step (turn, no, attempt, status, provider, model, cursor, prefix_hash, request_hash, started_at,"
        " prompt_tokens, prompt_stable, prompt_volatile, history_from, history_count, history_tokens)"
        " VALUES (?, 1, 1, 'done', 'p', 'm', '', zeroblob(16), zeroblob(16), ?, 9, ?, ?, '', 1, 7)",
        (key, now, b"s" * 16, b"v" * 16),
    )
    db.execute(
        "INSERT INTO usage (turn, agent_id, step, attempt, purpose, provider, model, input_tokens, output_tokens,"
        " is_estimate, at) VALUES (?, ?, 1, 1, ?, 'p', 'm', ?, 1, ?, ?)",
        (key, agent, purpose, 100 + key, int(is_estimate), now),
    )


def test_the_last_counted_prompts_of_one_agent_and_model(db: Connection) -> None:
    for agent in ("agt_ada", "agt_bob"):
        for digest in (b"s" * 16, b"v" * 16):
            db.execute("INSERT INTO prompt_log (agent_id, digest, parts) VALUES (?, ?, x'7b7d')", (agent, digest))
    for key in (1, 2, 3):
        call(db, key)
    call(db, 4, agent="agt_bob")
    call(db, 5, is_estimate=True)
    call(db, 6, purpose="summary")
    found = token_counts.of_agent(db, "agt_ada", "m", 2, among=50)
    assert found == [CountedRow(counted=100 + key, history_tokens=7, stable="{}", volatile="{}") for key in (2, 3)]
    assert [row.counted for row in token_counts.of_agent(db, "agt_ada", "m", 9, among=4)] == [103]
    assert token_counts.of_agent(db, "agt_ada", "other", 9, among=50) == []
