"""Constellations as every released schema had them, with rows of that time."""

from __future__ import annotations

from pathlib import Path

from pattern_db import template
from pattern_db.connection import opened_at
from pattern_db.migrate import migrations_of
from pattern_db.tables import meta

NOW = "2026-11-21T22:24:40.123Z"
ROWS = {  # by the version from which on they fit
    1: "INSERT INTO agents (id, name, model_provider, model_name, system_prompt, config, enabled_tools, created_at,"
    " updated_at) VALUES ('agt_ada', 'ada', 'p', 'm', '', '{}', '[]', ?1, ?1)",
    5: "INSERT INTO messages (id, agent_id, position, role, content, created_at)"
    " VALUES ('msg_1', 'agt_ada', '0000000000000000001', 'user', 'tea 猫', ?1)",
    8: "INSERT INTO turn (id, agent_id, sender, status, seed, steps, created_at, started_at, ended_at)"
    " VALUES ('turn_1', 'agt_ada', 'user:ann', 'completed', 1, 1, ?1, ?1, ?1);"
    "INSERT INTO event (turn, name, data, created_at) VALUES (1, 'turn.completed', '{}', ?1);"
    "INSERT INTO effect (turn, step, call, call_id, tool, args, args_hash, class, idempotency_key, status)"
    " VALUES (1, 1, 0, 'c', 'note', '{}', x'', 'local', 'k', 'done')",
    17: "INSERT INTO step (turn, no, attempt, status, provider, model, cursor, prefix_hash, request_hash, started_at,"
    " prompt_tokens, prompt_stable, prompt_volatile, history_from, history_count, history_tokens)"
    " VALUES (1, 1, 1, 'done', 'p', 'm', '', x'', x'', ?1, 7, zeroblob(16), zeroblob(16), '', 0, 0);"
    "INSERT INTO prompt_log (agent_id, digest, parts) VALUES ('agt_ada', zeroblob(16), {parts})",
    30: "INSERT INTO approval (id, kind, request, args_hash, status, expires_at, created_at)"
    " VALUES ('apr_1', 'memory', '{}', x'', 'pending', ?1, ?1)",
}
ID_SINCE = 10  # a file says since then which constellation it is
VERSIONS = range(1, migrations_of("constellation").newest + 1)


def create_older(path: Path, version: int, constellation_id: str | None = None) -> None:
    """Create a constellation at a schema version, with rows in the tables that there were."""
    template.create(path, migrations_of("constellation").up_to(version), now=NOW)
    with opened_at(path) as connection:
        for since, sql in ROWS.items():
            if since <= version:
                text = "x'7b7d'" if version >= 25 else "'{}'"
                for statement in sql.replace("{parts}", text).split(";"):
                    connection.execute(statement, (NOW,) if "?1" in statement else ()).fetchall()
        if constellation_id is not None and version >= ID_SINCE:
            meta.put(connection, meta.CONSTELLATION_ID, constellation_id)
