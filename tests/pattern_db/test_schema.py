"""Every table and column of the database design exists under its name; what the design asks for beyond that holds."""

from __future__ import annotations

import apsw
import pytest

from pattern_db.connection import Connection, fetch_all
from pattern_db.tables import embedding_indexes
from tests.pattern_db.conftest import MakeBlock

CONSTELLATION = {
    "agents": "id name description model_provider model_name system_prompt config enabled_tools tool_rules status"
    " created_at updated_at",
    "agent_groups": "id name description pattern_type pattern_config created_at updated_at",
    "group_members": "group_id agent_id role joined_at",
    "memory_blocks": "id agent_id label description block_type char_limit read_only loro_snapshot content_preview"
    " created_at updated_at frontier last_seq large_blob_id",
    "large_blobs": "id data",
    "memory_block_updates": "id block_id seq update_blob byte_size source created_at",
    "memory_block_checkpoints": "frontier",
    "shared_block_agents": "block_id agent_id write_access attached_at",
    "memory_block_history": "id block_id version_frontiers change_summary changed_by timestamp",
    "archival_entries": "id agent_id content metadata chunk_index parent_entry_id created_at",
    "messages": "id agent_id position batch_id sequence_in_batch role content tool_call_id tool_name tool_args"
    " tool_result source source_metadata is_archived created_at",
    "archive_summaries": "id agent_id summary start_position end_position message_count created_at",
    "memory_embeddings": "embedding block_id chunk_index content_hash",
    "message_embeddings": "embedding message_id content_hash",
    "memory_fts": "block_id label content",
    "message_fts": "message_id content",
    "tasks": "id agent_id title description status priority due_at scheduled_at completed_at parent_task_id created_at"
    " updated_at",
    "events": "id agent_id title description starts_at ends_at rrule reminder_minutes created_at updated_at",
    "data_sources": "id name source_type config last_sync_at sync_cursor enabled created_at updated_at",
    "agent_data_sources": "agent_id source_id notification_template",
    "folders": "id name description path_type path_value embedding_model created_at",
    "folder_files": "id folder_id name content_type size_bytes content uploaded_at indexed_at",
    "file_passages": "id file_id content start_line end_line created_at",
    "file_passage_embeddings": "embedding passage_id file_id folder_id",
    "folder_attachments": "folder_id agent_id access attached_at",
    "activity_events": "id timestamp agent_id event_type details importance",
    "agent_summaries": "agent_id summary messages_covered generated_at last_active",
    "constellation_summaries": "id period_start period_end summary key_decisions open_threads created_at",
    "notable_events": "id timestamp event_type description agents_involved importance created_at",
    "coordination_state": "key value updated_at updated_by",
    "coordination_tasks": "id description assigned_to status priority created_at updated_at",
    "handoff_notes": "id from_agent to_agent content created_at read_at",
    "migration_audit": "id imported_at source_file source_version issues_found issues_resolved audit_log",
}
GLOBAL = {
    "users": "id username email password_hash created_at updated_at",
    "user_identities": "id user_id provider provider_id access_token refresh_token expires_at created_at",
    "constellations": "id owner_id name db_path created_at last_accessed_at",
}


def test_the_tables_and_columns_of_the_design_exist(db: Connection, global_db: Connection) -> None:
    for connection, tables in ((db, CONSTELLATION), (global_db, GLOBAL)):
        for table, names in tables.items():
            connection.execute(f"SELECT {', '.join(names.split())} FROM {table}").fetchall()


def test_all_tables_are_strict_and_have_a_key(db: Connection, global_db: Connection) -> None:
    seen: set[str] = set()
    vector_tables = embedding_indexes.tables(db)
    for connection in (db, global_db):
        derived = [name for name in CONSTELLATION if name.endswith(("_fts", "_embeddings"))]
        derived += [*vector_tables, "archival_fts", "file_passage_fts"]
        for _schema, name, kind, _columns, _without_rowid, strict in fetch_all(connection, "PRAGMA main.table_list"):
            if kind != "table" or name.startswith(("sqlite_", *(f"{table}_" for table in derived))):
                continue
            seen.add(name)
            assert strict, name
            keys = [row for row in fetch_all(connection, f"PRAGMA table_info({name})") if row[5]]
            assert keys, name
    assert {"turn", "messages", "memory_blocks", "users", "constellations"} <= seen


def test_triggers_write_only_derived_tables(db: Connection) -> None:
    triggers = fetch_all(db, "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'")
    assert len(triggers) > 10
    for name, sql in triggers:
        body = str(sql).split("BEGIN", 1)[1]
        for statement in body.split(";")[:-1]:
            words = statement.split()
            assert words[0] == "INSERT", name
            assert words[words.index("INTO") + 1].split("(")[0].endswith(("_fts", "embedding_changes")), name
        assert "WHEN" in sql or "UPDATE" not in sql, name


def test_what_refers_to_an_agent_is_found_by_an_index(db: Connection) -> None:
    """Deleting an agent looks up its rows in every table; on the large ones that must not be a scan."""
    for rows in (
        "messages WHERE agent_id = 'x'",
        "archival_entries WHERE agent_id = 'x'",
        "memory_blocks WHERE agent_id = 'x' AND is_active = 1",
        "embeddings WHERE scope = 'x' AND kind = 'message'",
        "inbox WHERE agent_id = 'x'",
    ):
        [step] = fetch_all(db, f"EXPLAIN QUERY PLAN SELECT 1 FROM {rows}")
        assert "USING" in step[3], rows


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE agents SET status = 'asleep'",
        "UPDATE agents SET config = '{'",
        "UPDATE agents SET created_at = '2026-11-21 22:24:40'",
        "UPDATE agents SET name = ''",
        "UPDATE agents SET id = NULL",
        "INSERT INTO messages (id, agent_id, position, role, created_at)"
        " VALUES ('m', 'agt_ada', '12', 'user', '2026-11-21T22:24:40.123Z')",
        "INSERT INTO embeddings (index_id, kind, ref, scope, content_hash, dimension, created_at, vector)"
        " VALUES (1, 'message', 'm', 'agt_ada', 'h', 4, '2026-11-21T22:24:40.123Z', zeroblob(15))",
        "INSERT INTO embeddings (index_id, kind, ref, scope, content_hash, dimension, created_at, vector)"
        " VALUES (1, 'message', 'm', 'agt_ada', 'h', 8, '2026-11-21T22:24:40.123Z', zeroblob(32))",
        "INSERT INTO tasks (id, title, priority, created_at, updated_at)"
        " VALUES ('t', 't', 4, '2026-11-21T22:24:40.123Z', '2026-11-21T22:24:40.123Z')",
    ],
)
def test_wrong_values_are_refused(db: Connection, statement: str) -> None:
    with pytest.raises(apsw.ConstraintError):
        db.execute(statement)


def test_an_unchanged_text_is_not_indexed_again(db: Connection, make_block: MakeBlock) -> None:
    make_block("notes", content_preview="some words")
    before = fetch_all(db, "SELECT id, block FROM memory_fts_data")
    db.execute("UPDATE memory_blocks SET content_preview = 'some words', pinned = 1")
    assert fetch_all(db, "SELECT id, block FROM memory_fts_data") == before
    db.execute("UPDATE memory_blocks SET content_preview = 'other words'")
    assert fetch_all(db, "SELECT id, block FROM memory_fts_data") != before
