-- What the file knows about itself, imports from elsewhere, and the vectors from which the vec0 tables are derived.

-- constellation_id, created_at, epoch, embedding_dimension.
CREATE TABLE meta (
    key              TEXT PRIMARY KEY,
    value            TEXT NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO meta (key, value) VALUES ('epoch', '0');

CREATE TABLE migration_audit (
    id               TEXT PRIMARY KEY,
    imported_at      TEXT NOT NULL CHECK (length(imported_at) = 24),
    source_file      TEXT NOT NULL,
    source_version   INTEGER NOT NULL,
    issues_found     INTEGER NOT NULL CHECK (issues_found >= 0),
    issues_resolved  INTEGER NOT NULL CHECK (issues_resolved >= 0),
    audit_log        TEXT NOT NULL CHECK (json_valid(audit_log))
) STRICT;

-- The one true copy of each vector. memory_embeddings, message_embeddings, archival_embeddings and
-- file_passage_embeddings (vec0) are made by the program for the configured dimension; their rowid is this id, and
-- they can be dropped and filled again from here.
CREATE TABLE embeddings (
    id               INTEGER PRIMARY KEY,
    kind             TEXT NOT NULL CHECK (kind IN ('message', 'block', 'archival', 'file')),
    ref              TEXT NOT NULL,      -- id of the message, block, entry or passage
    chunk_index      INTEGER NOT NULL DEFAULT 0 CHECK (chunk_index >= 0),
    scope            TEXT NOT NULL,      -- the owner that a search asks for: an agent, or for passages their folder
    parent           TEXT,               -- the file of a passage
    content_hash     TEXT NOT NULL,      -- of the text that was embedded: tells when it is out of date
    model            TEXT NOT NULL,
    dimension        INTEGER NOT NULL CHECK (dimension > 0),
    created_at       TEXT NOT NULL CHECK (length(created_at) = 24),
    vector           BLOB NOT NULL CHECK (length(vector) = 4 * dimension),  -- float32, little endian
    UNIQUE (kind, ref, chunk_index)
) STRICT;
CREATE INDEX embeddings_scope ON embeddings(kind, scope);
