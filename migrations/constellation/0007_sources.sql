-- Where data comes from by itself, and the files that agents may read, with their full-text index.

CREATE TABLE data_sources (
    id               TEXT PRIMARY KEY,
    name             TEXT NOT NULL UNIQUE CHECK (name <> ''),
    source_type      TEXT NOT NULL,
    config           TEXT NOT NULL CHECK (json_valid(config)),
    last_sync_at     TEXT,
    sync_cursor      TEXT,
    enabled          INTEGER NOT NULL DEFAULT 1 CHECK (enabled IN (0, 1)),
    created_at       TEXT NOT NULL CHECK (length(created_at) = 24),
    updated_at       TEXT NOT NULL CHECK (length(updated_at) = 24)
) STRICT;

CREATE TABLE agent_data_sources (
    agent_id         TEXT NOT NULL REFERENCES agents(id) ON DELETE CASCADE,
    source_id        TEXT NOT NULL REFERENCES data_sources(id) ON DELETE CASCADE,
    notification_template TEXT,
    PRIMARY KEY (agent_id, source_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX agent_data_sources_source ON agent_data_sources(source_id);

CREATE TABLE folders (
    id               TEXT PRIMARY KEY,
    name             TEXT NOT NULL UNIQUE CHECK (name <> ''),
    description      TEXT,
    path_type        TEXT NOT NULL CHECK (path_type IN ('local', 'virtual', 'remote')),
    path_value       TEXT,
    embedding_model  TEXT NOT NULL,
    created_at       TEXT NOT NULL CHECK (length(created_at) = 24)
) STRICT;

-- The content is the last column, so that reading the others does not walk its overflow pages.
CREATE TABLE folder_files (
    id               TEXT PRIMARY KEY,
    folder_id        TEXT NOT NULL REFERENCES folders(id) ON DELETE CASCADE,
    name             TEXT NOT NULL CHECK (name <> ''),
    content_type     TEXT,
    size_bytes       INTEGER CHECK (size_bytes >= 0),
    uploaded_at      TEXT NOT NULL CHECK (length(uploaded_at) = 24),
    indexed_at       TEXT,
    content          BLOB,               -- for virtual folders
    UNIQUE (folder_id, name)
) STRICT;

CREATE TABLE file_passages (
    row              INTEGER PRIMARY KEY,
    id               TEXT NOT NULL UNIQUE,
    file_id          TEXT NOT NULL REFERENCES folder_files(id) ON DELETE CASCADE,
    content          TEXT NOT NULL,
    start_line       INTEGER,
    end_line         INTEGER,
    chunk_index      INTEGER NOT NULL DEFAULT 0,
    created_at       TEXT NOT NULL CHECK (length(created_at) = 24)
) STRICT;
CREATE INDEX file_passages_file ON file_passages(file_id, chunk_index);

CREATE TABLE folder_attachments (
    folder_id        TEXT NOT NULL REFERENCES folders(id) ON DELETE CASCADE,
    agent_id         TEXT NOT NULL REFERENCES agents(id) ON DELETE CASCADE,
    access           TEXT NOT NULL CHECK (access IN ('read', 'read_write')),
    attached_at      TEXT NOT NULL CHECK (length(attached_at) = 24),
    PRIMARY KEY (folder_id, agent_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX folder_attachments_agent ON folder_attachments(agent_id);

CREATE VIEW file_passage_fts_source AS
    SELECT row, id AS passage_id, content FROM file_passages;
CREATE VIRTUAL TABLE file_passage_fts USING fts5(
    passage_id UNINDEXED, content,
    content = 'file_passage_fts_source', content_rowid = 'row', tokenize = 'porter unicode61 remove_diacritics 2'
);
INSERT INTO file_passage_fts(file_passage_fts, rank) VALUES ('pgsz', 1980);
CREATE TRIGGER file_passage_fts_insert AFTER INSERT ON file_passages BEGIN
    INSERT INTO file_passage_fts(rowid, passage_id, content) VALUES (new.row, new.id, new.content);
END;
CREATE TRIGGER file_passage_fts_delete AFTER DELETE ON file_passages BEGIN
    INSERT INTO file_passage_fts(file_passage_fts, rowid, passage_id, content)
    VALUES ('delete', old.row, old.id, old.content);
END;
CREATE TRIGGER file_passage_fts_update AFTER UPDATE OF content ON file_passages
WHEN old.content IS NOT new.content BEGIN
    INSERT INTO file_passage_fts(file_passage_fts, rowid, passage_id, content)
    VALUES ('delete', old.row, old.id, old.content);
    INSERT INTO file_passage_fts(rowid, passage_id, content) VALUES (new.row, new.id, new.content);
END;
