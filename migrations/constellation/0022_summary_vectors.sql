-- Summaries are found by their meaning, too: `summary` becomes a kind of text that has vectors. SQLite cannot change a
-- CHECK, so the four tables that name the kinds are made anew, with all that is in them.

-- First the one that takes another name on the way: a rename looks at every trigger, and theirs must all be there.
CREATE TABLE embeddings_kept (
    id               INTEGER PRIMARY KEY AUTOINCREMENT,  -- never given twice: searches remember what they read of one
    index_id         INTEGER NOT NULL,
    kind             TEXT NOT NULL CHECK (kind IN ('message', 'block', 'archival', 'file', 'summary')),
    ref              TEXT NOT NULL,      -- id of the message, block, entry, passage or summary
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
    SELECT id, index_id, kind, ref, chunk_index, scope, parent, content_hash, dimension, created_at, vector
    FROM embeddings;
DROP TABLE embeddings;
ALTER TABLE embeddings_kept RENAME TO embeddings;
CREATE INDEX embeddings_scope ON embeddings(kind, scope);
CREATE INDEX embeddings_text ON embeddings(content_hash);  -- the same text again takes the vector that there is

CREATE TABLE cursors_kept AS SELECT kind, index_id, low, high FROM embedding_cursors;
DROP TABLE embedding_cursors;
CREATE TABLE embedding_cursors (
    kind             TEXT NOT NULL CHECK (kind IN ('message', 'block', 'archival', 'file', 'summary')),
    index_id         INTEGER NOT NULL REFERENCES embedding_indexes(id) ON DELETE CASCADE,
    low              INTEGER NOT NULL CHECK (low >= 0),
    high             INTEGER NOT NULL CHECK (high >= low),
    PRIMARY KEY (kind, index_id)
) STRICT, WITHOUT ROWID;
INSERT INTO embedding_cursors (kind, index_id, low, high) SELECT kind, index_id, low, high FROM cursors_kept;
DROP TABLE cursors_kept;
-- Whatever index is in use has the summaries before it, like any text of the past: nobody has to ask for a rebuild.
INSERT INTO embedding_cursors (kind, index_id, low, high)
    SELECT 'summary', i.id, s.newest, s.newest
    FROM embedding_indexes AS i, (SELECT coalesce(max(row), 0) AS newest FROM archive_summaries) AS s
    WHERE i.state <> 'retired';

CREATE TABLE refusals_kept AS SELECT index_id, kind, ref, content_hash, scope, reason FROM embedding_refusals;
DROP TABLE embedding_refusals;
CREATE TABLE embedding_refusals (
    index_id         INTEGER NOT NULL REFERENCES embedding_indexes(id) ON DELETE CASCADE,
    kind             TEXT NOT NULL CHECK (kind IN ('message', 'block', 'archival', 'file', 'summary')),
    ref              TEXT NOT NULL,
    content_hash     TEXT NOT NULL,
    scope            TEXT NOT NULL,      -- as in embeddings
    reason           TEXT NOT NULL,      -- a sentence
    PRIMARY KEY (kind, ref, index_id, content_hash)
) STRICT, WITHOUT ROWID;
INSERT INTO embedding_refusals (index_id, kind, ref, content_hash, scope, reason)
    SELECT index_id, kind, ref, content_hash, scope, reason FROM refusals_kept;
DROP TABLE refusals_kept;

CREATE TABLE changes_kept AS SELECT index_id, kind, ref FROM embedding_changes;
DROP TABLE embedding_changes;
CREATE TABLE embedding_changes (
    index_id         INTEGER NOT NULL REFERENCES embedding_indexes(id) ON DELETE CASCADE,
    kind             TEXT NOT NULL CHECK (kind IN ('message', 'block', 'archival', 'file', 'summary')),
    ref              TEXT NOT NULL,
    PRIMARY KEY (index_id, kind, ref)
) STRICT, WITHOUT ROWID;
INSERT INTO embedding_changes (index_id, kind, ref) SELECT index_id, kind, ref FROM changes_kept;
DROP TABLE changes_kept;

-- As for the other kinds (0015).
CREATE TRIGGER embedding_summary_insert AFTER INSERT ON archive_summaries
WHEN EXISTS (SELECT 1 FROM embedding_cursors WHERE kind = 'summary' AND high >= new.row) BEGIN
    INSERT OR IGNORE INTO embedding_changes(index_id, kind, ref)
    SELECT index_id, 'summary', new.id FROM embedding_cursors WHERE kind = 'summary' AND high >= new.row;
END;
CREATE TRIGGER embedding_summary_update AFTER UPDATE OF agent_id, summary, is_stub ON archive_summaries
WHEN old.summary IS NOT new.summary OR old.is_stub IS NOT new.is_stub OR old.agent_id IS NOT new.agent_id BEGIN
    INSERT OR IGNORE INTO embedding_changes(index_id, kind, ref)
    SELECT index_id, 'summary', new.id FROM embedding_cursors WHERE kind = 'summary';
END;
CREATE TRIGGER embedding_summary_delete AFTER DELETE ON archive_summaries BEGIN
    INSERT OR IGNORE INTO embedding_changes(index_id, kind, ref)
    SELECT index_id, 'summary', old.id FROM embedding_cursors WHERE kind = 'summary';
END;

-- Which images are old enough to be looked for (they are removed when no message shows them any more). Without it that
-- question would read the bytes of all of them: the time stands behind them.
CREATE INDEX blob_created ON blob(created_at);
