-- What was recalled for a message is a list of its own with each turn, 1.5 KB of much the same words: packed, a quarter.
-- Lists from before stay as they are; a packed one does not begin with '{'.
CREATE TABLE prompt_log_kept (
    agent_id         TEXT NOT NULL REFERENCES agents(id) ON DELETE CASCADE,
    digest           BLOB NOT NULL CHECK (length(digest) = 16),  -- BLAKE2b over the JSON text
    parts            BLOB NOT NULL,                              -- JSON as UTF-8, or that as one zlib stream
    PRIMARY KEY (agent_id, digest)
) STRICT, WITHOUT ROWID;
INSERT INTO prompt_log_kept (agent_id, digest, parts) SELECT agent_id, digest, CAST(parts AS BLOB) FROM prompt_log;
DROP TABLE prompt_log;
ALTER TABLE prompt_log_kept RENAME TO prompt_log;
