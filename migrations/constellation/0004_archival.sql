-- Long-term entries that an agent stores and finds again, one by one.

-- `agent_id` may be '_constellation_', so it is no foreign key; whoever deletes an agent deletes its entries.
CREATE TABLE archival_entries (
    row              INTEGER PRIMARY KEY,
    id               TEXT NOT NULL UNIQUE,
    agent_id         TEXT NOT NULL,
    content          TEXT NOT NULL,
    metadata         TEXT CHECK (metadata IS NULL OR json_valid(metadata)),
    chunk_index      INTEGER DEFAULT 0,
    parent_entry_id  TEXT REFERENCES archival_entries(id) ON DELETE CASCADE,  -- the first chunk of a long text
    created_at       TEXT NOT NULL CHECK (length(created_at) = 24)
) STRICT;
CREATE INDEX archival_entries_agent ON archival_entries(agent_id, created_at);
CREATE INDEX archival_entries_parent ON archival_entries(parent_entry_id) WHERE parent_entry_id IS NOT NULL;
