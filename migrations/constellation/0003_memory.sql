-- Memory blocks: documents that merge, stored as opaque bytes: a snapshot and the updates after it.

-- `agent_id` is an agent, a group or '_constellation_', so it is no foreign key; whoever deletes the owner deletes
-- its blocks. The snapshot is the last column, so that reading the others does not walk its overflow pages.
CREATE TABLE memory_blocks (
    row              INTEGER PRIMARY KEY,
    id               TEXT NOT NULL UNIQUE,
    agent_id         TEXT NOT NULL,
    label            TEXT NOT NULL CHECK (label <> ''),
    description      TEXT NOT NULL,
    block_type       TEXT NOT NULL CHECK (block_type IN ('core', 'working', 'archival', 'log')),
    char_limit       INTEGER NOT NULL DEFAULT 5000 CHECK (char_limit > 0),
    permission       TEXT NOT NULL DEFAULT 'read_write' CHECK (permission IN ('read_only', 'partner', 'human',
                                                                              'append', 'read_write', 'admin')),
    read_only        INTEGER NOT NULL GENERATED ALWAYS AS (permission = 'read_only') VIRTUAL,
    pinned           INTEGER NOT NULL DEFAULT 0 CHECK (pinned IN (0, 1)),
    content_preview  TEXT,              -- the text of the newest version, for search and lists
    metadata         TEXT CHECK (metadata IS NULL OR json_valid(metadata)),  -- the document's schema is under "schema"
    embedding_model  TEXT,
    is_active        INTEGER NOT NULL DEFAULT 1 CHECK (is_active IN (0, 1)),
    last_seq         INTEGER NOT NULL DEFAULT 0 CHECK (last_seq >= 0),  -- never falls, so no number is given twice
    frontier         BLOB,              -- the newest version
    created_at       TEXT NOT NULL CHECK (length(created_at) = 24),
    updated_at       TEXT NOT NULL CHECK (length(updated_at) = 24),
    snapshot_encoding TEXT NOT NULL DEFAULT 'raw' CHECK (snapshot_encoding IN ('raw', 'zstd')),
    large_blob_id    TEXT,              -- where a snapshot is that is too large to keep twice; loro_snapshot is then empty
    loro_snapshot    BLOB NOT NULL      -- as the newest checkpoint, or as created; empty for a block that began with an update
) STRICT;
-- Only among the active: a label can be used again after its block was deleted.
CREATE UNIQUE INDEX memory_blocks_label ON memory_blocks(agent_id, label) WHERE is_active = 1;

-- What changed since the newest checkpoint, in the order of `seq`.
CREATE TABLE memory_block_updates (
    id               INTEGER PRIMARY KEY AUTOINCREMENT,
    block_id         TEXT NOT NULL REFERENCES memory_blocks(id) ON DELETE CASCADE,
    seq              INTEGER NOT NULL CHECK (seq >= 1),
    update_blob      BLOB NOT NULL,
    byte_size        INTEGER NOT NULL CHECK (byte_size >= 0),
    source           TEXT CHECK (source IN ('agent', 'sync', 'migration', 'manual')),
    frontier         BLOB,              -- the version after this update
    author           TEXT,              -- 'agent:{id}', 'user:{id}' or 'system'
    cause            TEXT CHECK (cause IS NULL OR json_valid(cause)),  -- {"message", "turn", "call"}: what led to it
    created_at       TEXT NOT NULL CHECK (length(created_at) = 24)
) STRICT;
CREATE UNIQUE INDEX memory_block_updates_seq ON memory_block_updates(block_id, seq);

-- Snapshots over time; the newest is the base of the updates, earlier ones are kept for rollback.
CREATE TABLE memory_block_checkpoints (
    id               INTEGER PRIMARY KEY AUTOINCREMENT,
    block_id         TEXT NOT NULL REFERENCES memory_blocks(id) ON DELETE CASCADE,
    created_at       TEXT NOT NULL CHECK (length(created_at) = 24),
    updates_consolidated INTEGER NOT NULL DEFAULT 0 CHECK (updates_consolidated >= 0),
    up_to_seq        INTEGER NOT NULL DEFAULT 0 CHECK (up_to_seq >= 0),  -- the newest update that the snapshot holds
    frontier         BLOB,
    encoding         TEXT NOT NULL DEFAULT 'raw' CHECK (encoding IN ('raw', 'zstd')),
    snapshot         BLOB NOT NULL
) STRICT;
CREATE INDEX memory_block_checkpoints_newest ON memory_block_checkpoints(block_id, id);
-- Large snapshots are kept once, in their checkpoint: this is where `large_blob_id` points.
CREATE VIEW large_blobs AS SELECT CAST(id AS TEXT) AS id, snapshot AS data FROM memory_block_checkpoints;

-- One line per edit for people to read; it stays when its update is merged into a checkpoint.
CREATE TABLE memory_block_history (
    id               INTEGER PRIMARY KEY AUTOINCREMENT,
    block_id         TEXT NOT NULL REFERENCES memory_blocks(id) ON DELETE CASCADE,
    seq              INTEGER,           -- the update that made this version
    version_frontiers TEXT NOT NULL CHECK (json_valid(version_frontiers)),
    change_summary   TEXT,
    changed_by       TEXT NOT NULL,     -- 'agent:{id}', 'user:{id}' or 'system'
    cause            TEXT CHECK (cause IS NULL OR json_valid(cause)),
    timestamp        TEXT NOT NULL CHECK (length(timestamp) = 24)
) STRICT;
CREATE INDEX memory_block_history_block ON memory_block_history(block_id, id);

-- Blocks lent to other agents.
CREATE TABLE shared_block_agents (
    block_id         TEXT NOT NULL REFERENCES memory_blocks(id) ON DELETE CASCADE,
    agent_id         TEXT NOT NULL REFERENCES agents(id) ON DELETE CASCADE,
    permission       TEXT NOT NULL DEFAULT 'read_only' CHECK (permission IN ('read_only', 'partner', 'human',
                                                                             'append', 'read_write', 'admin')),
    write_access     INTEGER NOT NULL GENERATED ALWAYS AS (permission IN ('append', 'read_write', 'admin')) VIRTUAL,
    attached_at      TEXT NOT NULL CHECK (length(attached_at) = 24),
    PRIMARY KEY (block_id, agent_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX shared_block_agents_agent ON shared_block_agents(agent_id);
