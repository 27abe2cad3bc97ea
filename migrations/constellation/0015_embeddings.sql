-- Vectors of several models side by side, how far each model has got, and what changed since.

-- An index is all vectors of one fingerprint (weights and settings). One is active: search answers from it. One may be
-- built beside it, when another model takes over. A retired one is being removed. `suffix` tells its vec0 tables apart.
CREATE TABLE embedding_indexes (
    id               INTEGER PRIMARY KEY,
    fingerprint      TEXT NOT NULL CHECK (fingerprint <> ''),
    provider         TEXT NOT NULL,
    model            TEXT NOT NULL,
    dimension        INTEGER NOT NULL CHECK (dimension > 0),
    state            TEXT NOT NULL CHECK (state IN ('building', 'active', 'retired')),
    suffix           TEXT UNIQUE,
    created_at       TEXT NOT NULL CHECK (length(created_at) = 24),
    completed_at     TEXT CHECK (length(completed_at) = 24),  -- when every text had its vector for the first time
    UNIQUE (fingerprint, dimension),
    UNIQUE (id, dimension)
) STRICT;
CREATE UNIQUE INDEX embedding_indexes_live ON embedding_indexes(state) WHERE state <> 'retired';

-- What was stored before did not tell the weights that it came from: kept, but search does not compare it.
INSERT INTO embedding_indexes (fingerprint, provider, model, dimension, state, suffix, created_at)
    SELECT 'unknown:' || model || ':' || dimension, 'unknown', model, dimension, 'retired',
           '_r' || row_number() OVER (), min(created_at)
    FROM embeddings GROUP BY model, dimension;

-- The one true copy of each vector. The vec0 tables (memory_embeddings, message_embeddings, archival_embeddings and
-- file_passage_embeddings, with the index's suffix) hold one bit per number of it, under the same id, and can be
-- dropped and filled again from here.
CREATE TABLE embeddings_kept (
    id               INTEGER PRIMARY KEY AUTOINCREMENT,  -- never given twice: searches remember what they read of one
    index_id         INTEGER NOT NULL,
    kind             TEXT NOT NULL CHECK (kind IN ('message', 'block', 'archival', 'file')),
    ref              TEXT NOT NULL,      -- id of the message, block, entry or passage
    chunk_index      INTEGER NOT NULL DEFAULT 0 CHECK (chunk_index >= 0),
    scope            TEXT NOT NULL,      -- the owner that a search asks for: an agent, or for passages their folder
    parent           TEXT,               -- the file of a passage
    content_hash     TEXT NOT NULL,      -- of the text that was embedded: tells when it is out of date
    dimension        INTEGER NOT NULL CHECK (dimension > 0),
    created_at       TEXT NOT NULL CHECK (length(created_at) = 24),
    vector           BLOB NOT NULL CHECK (length(vector) = 4 * dimension),  -- float32, little endian
    UNIQUE (kind, ref, chunk_index, index_id),
    -- With the dimension, so that no vector of another length can get in.
    FOREIGN KEY (index_id, dimension) REFERENCES embedding_indexes(id, dimension)
) STRICT;
INSERT INTO embeddings_kept (id, index_id, kind, ref, chunk_index, scope, parent, content_hash, dimension, created_at,
                             vector)
    SELECT e.id, i.id, e.kind, e.ref, e.chunk_index, e.scope, e.parent, e.content_hash, e.dimension, e.created_at,
           e.vector
    FROM embeddings AS e JOIN embedding_indexes AS i ON i.model = e.model AND i.dimension = e.dimension;
DROP TABLE embeddings;
ALTER TABLE embeddings_kept RENAME TO embeddings;
CREATE INDEX embeddings_scope ON embeddings(kind, scope);
CREATE INDEX embeddings_text ON embeddings(content_hash);  -- the same text again takes the vector that there is
DROP TABLE IF EXISTS memory_embeddings;
DROP TABLE IF EXISTS message_embeddings;
DROP TABLE IF EXISTS archival_embeddings;
DROP TABLE IF EXISTS file_passage_embeddings;
DELETE FROM meta WHERE key = 'embedding_dimension';

-- How far an index has got with each kind: the rows with low < row <= high are done. New rows are beyond `high` and
-- come first; the past is worked off downwards from `low`. It costs no byte per row.
CREATE TABLE embedding_cursors (
    kind             TEXT NOT NULL CHECK (kind IN ('message', 'block', 'archival', 'file')),
    index_id         INTEGER NOT NULL REFERENCES embedding_indexes(id) ON DELETE CASCADE,
    low              INTEGER NOT NULL CHECK (low >= 0),
    high             INTEGER NOT NULL CHECK (high >= low),
    PRIMARY KEY (kind, index_id)
) STRICT, WITHOUT ROWID;

-- Pieces of texts that the model refused, alone, while it worked for others. They count as done; a rebuild tries again.
CREATE TABLE embedding_refusals (
    index_id         INTEGER NOT NULL REFERENCES embedding_indexes(id) ON DELETE CASCADE,
    kind             TEXT NOT NULL CHECK (kind IN ('message', 'block', 'archival', 'file')),
    ref              TEXT NOT NULL,
    content_hash     TEXT NOT NULL,
    scope            TEXT NOT NULL,      -- as in embeddings
    reason           TEXT NOT NULL,      -- a sentence
    PRIMARY KEY (kind, ref, index_id, content_hash)
) STRICT, WITHOUT ROWID;

-- Derived: what changed or went among the rows that were done. Emptied as the queue looks at it again.
CREATE TABLE embedding_changes (
    index_id         INTEGER NOT NULL REFERENCES embedding_indexes(id) ON DELETE CASCADE,
    kind             TEXT NOT NULL CHECK (kind IN ('message', 'block', 'archival', 'file')),
    ref              TEXT NOT NULL,
    PRIMARY KEY (index_id, kind, ref)
) STRICT, WITHOUT ROWID;

-- A row that takes a number which is done: SQLite gives the greatest one again after its row was removed.
CREATE TRIGGER embedding_message_insert AFTER INSERT ON messages
WHEN EXISTS (SELECT 1 FROM embedding_cursors WHERE kind = 'message' AND high >= new.row) BEGIN
    INSERT OR IGNORE INTO embedding_changes(index_id, kind, ref)
    SELECT index_id, 'message', new.id FROM embedding_cursors WHERE kind = 'message' AND high >= new.row;
END;
CREATE TRIGGER embedding_message_update AFTER UPDATE OF content, is_deleted ON messages
WHEN old.content IS NOT new.content OR old.is_deleted IS NOT new.is_deleted BEGIN
    INSERT OR IGNORE INTO embedding_changes(index_id, kind, ref)
    SELECT index_id, 'message', new.id FROM embedding_cursors WHERE kind = 'message';
END;

CREATE TRIGGER embedding_block_insert AFTER INSERT ON memory_blocks
WHEN EXISTS (SELECT 1 FROM embedding_cursors WHERE kind = 'block' AND high >= new.row) BEGIN
    INSERT OR IGNORE INTO embedding_changes(index_id, kind, ref)
    SELECT index_id, 'block', new.id FROM embedding_cursors WHERE kind = 'block' AND high >= new.row;
END;
CREATE TRIGGER embedding_block_update AFTER UPDATE OF agent_id, label, content_preview, is_active ON memory_blocks
WHEN old.content_preview IS NOT new.content_preview OR old.is_active IS NOT new.is_active
    OR old.label IS NOT new.label OR old.agent_id IS NOT new.agent_id BEGIN
    INSERT OR IGNORE INTO embedding_changes(index_id, kind, ref)
    SELECT index_id, 'block', new.id FROM embedding_cursors WHERE kind = 'block';
END;
CREATE TRIGGER embedding_block_delete AFTER DELETE ON memory_blocks BEGIN
    INSERT OR IGNORE INTO embedding_changes(index_id, kind, ref)
    SELECT index_id, 'block', old.id FROM embedding_cursors WHERE kind = 'block';
END;

CREATE TRIGGER embedding_archival_insert AFTER INSERT ON archival_entries
WHEN EXISTS (SELECT 1 FROM embedding_cursors WHERE kind = 'archival' AND high >= new.row) BEGIN
    INSERT OR IGNORE INTO embedding_changes(index_id, kind, ref)
    SELECT index_id, 'archival', new.id FROM embedding_cursors WHERE kind = 'archival' AND high >= new.row;
END;
CREATE TRIGGER embedding_archival_update AFTER UPDATE OF agent_id, content ON archival_entries
WHEN old.content IS NOT new.content OR old.agent_id IS NOT new.agent_id BEGIN
    INSERT OR IGNORE INTO embedding_changes(index_id, kind, ref)
    SELECT index_id, 'archival', new.id FROM embedding_cursors WHERE kind = 'archival';
END;
CREATE TRIGGER embedding_archival_delete AFTER DELETE ON archival_entries BEGIN
    INSERT OR IGNORE INTO embedding_changes(index_id, kind, ref)
    SELECT index_id, 'archival', old.id FROM embedding_cursors WHERE kind = 'archival';
END;

CREATE TRIGGER embedding_file_insert AFTER INSERT ON file_passages
WHEN EXISTS (SELECT 1 FROM embedding_cursors WHERE kind = 'file' AND high >= new.row) BEGIN
    INSERT OR IGNORE INTO embedding_changes(index_id, kind, ref)
    SELECT index_id, 'file', new.id FROM embedding_cursors WHERE kind = 'file' AND high >= new.row;
END;
CREATE TRIGGER embedding_file_update AFTER UPDATE OF content, heading ON file_passages
WHEN old.content IS NOT new.content OR old.heading IS NOT new.heading BEGIN
    INSERT OR IGNORE INTO embedding_changes(index_id, kind, ref)
    SELECT index_id, 'file', new.id FROM embedding_cursors WHERE kind = 'file';
END;
CREATE TRIGGER embedding_file_delete AFTER DELETE ON file_passages BEGIN
    INSERT OR IGNORE INTO embedding_changes(index_id, kind, ref)
    SELECT index_id, 'file', old.id FROM embedding_cursors WHERE kind = 'file';
END;
