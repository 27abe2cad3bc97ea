-- What an archival entry is about, where it came from and how long it held; and imports of past messages, once each.

-- Of a long text every chunk is a row of its own with the tags, workspace and validity of the first, so that a search
-- filters chunks without looking at their parent. Metadata, source, hash and successor stand with the first chunk only.
ALTER TABLE archival_entries ADD COLUMN tags TEXT CHECK (tags IS NULL OR json_type(tags) = 'array');  -- of strings
ALTER TABLE archival_entries ADD COLUMN workspace TEXT;            -- the project that it is about
ALTER TABLE archival_entries ADD COLUMN valid_from TEXT CHECK (length(valid_from) = 24);  -- NULL: since it was stored
ALTER TABLE archival_entries ADD COLUMN valid_to TEXT CHECK (length(valid_to) = 24);      -- excluded; NULL: still valid
ALTER TABLE archival_entries ADD COLUMN superseded_by TEXT REFERENCES archival_entries(id) ON DELETE SET NULL;
ALTER TABLE archival_entries ADD COLUMN source TEXT CHECK (source IS NULL OR json_type(source) = 'object');  -- links
ALTER TABLE archival_entries ADD COLUMN content_hash BLOB CHECK (length(content_hash) = 16);  -- of the whole text, normalised

CREATE INDEX archival_entries_superseded ON archival_entries(superseded_by) WHERE superseded_by IS NOT NULL;
CREATE INDEX archival_entries_hash ON archival_entries(agent_id, content_hash) WHERE content_hash IS NOT NULL;

-- One row per import that came with an Idempotency-Key: repeated, it is answered with the same messages.
CREATE TABLE history_import (
    key              INTEGER PRIMARY KEY,
    idempotency      BLOB NOT NULL UNIQUE CHECK (length(idempotency) = 16),  -- digest of (agent, sender, the key)
    fingerprint      BLOB NOT NULL CHECK (length(fingerprint) = 16),         -- digest of the messages
    agent_id         TEXT NOT NULL REFERENCES agents(id) ON DELETE CASCADE,
    created_at       TEXT NOT NULL CHECK (length(created_at) = 24),
    positions        BLOB NOT NULL CHECK (length(positions) % 8 = 0)  -- of the messages as they were sent, 8 bytes each
) STRICT;
CREATE INDEX history_import_agent ON history_import(agent_id);
