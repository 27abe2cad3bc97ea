-- What each version of a block did, what earlier versions were packed into, and what was found damaged.

-- `change` holds what the version took away and put in place (opaque, packed): with it a version can be shown,
-- blamed and taken back in time that does not grow with the document's history. NULL where it was not recorded.
ALTER TABLE memory_block_history ADD COLUMN kind TEXT NOT NULL DEFAULT 'edit'
    CHECK (kind IN ('create', 'edit', 'undo', 'redo', 'rollback', 'merge', 'repair'));
ALTER TABLE memory_block_history ADD COLUMN stack TEXT;      -- whose edits the version belongs to, for undo and redo
ALTER TABLE memory_block_history ADD COLUMN reverts INTEGER; -- the `seq` of the version that an undo or redo takes back
ALTER TABLE memory_block_history ADD COLUMN is_undone INTEGER NOT NULL DEFAULT 0 CHECK (is_undone IN (0, 1));
ALTER TABLE memory_block_history ADD COLUMN change BLOB;
UPDATE memory_block_history SET stack = changed_by;
-- In place of the index by id: one version is one number, and that is what is asked for.
DROP INDEX memory_block_history_block;
CREATE UNIQUE INDEX memory_block_history_seq ON memory_block_history(block_id, seq);

-- Checkpoints hold a document's state; its operations before that are here, packed, and needed only to hand the whole
-- document to somebody else. Read in the order of `first_seq` they make the document up to the newest checkpoint.
CREATE TABLE memory_block_segments (
    id               INTEGER PRIMARY KEY,
    block_id         TEXT NOT NULL REFERENCES memory_blocks(id) ON DELETE CASCADE,
    first_seq        INTEGER NOT NULL CHECK (first_seq >= 0),
    last_seq         INTEGER NOT NULL CHECK (last_seq >= first_seq),
    created_at       TEXT NOT NULL CHECK (length(created_at) = 24),
    encoding         TEXT NOT NULL DEFAULT 'raw' CHECK (encoding IN ('raw', 'zstd')),
    data             BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX memory_block_segments_first ON memory_block_segments(block_id, first_seq);

-- Bytes that could not be read and were replaced by a repair: kept, never used.
CREATE TABLE memory_block_damaged (
    id               INTEGER PRIMARY KEY,
    block_id         TEXT NOT NULL REFERENCES memory_blocks(id) ON DELETE CASCADE,
    part             TEXT NOT NULL CHECK (part IN ('created', 'checkpoint', 'update', 'segment')),
    seq              INTEGER NOT NULL CHECK (seq >= 0),  -- the newest update that the part held
    found_at         TEXT NOT NULL CHECK (length(found_at) = 24),
    reason           TEXT NOT NULL,
    encoding         TEXT NOT NULL CHECK (encoding IN ('raw', 'zstd')),
    data             BLOB NOT NULL
) STRICT;
CREATE INDEX memory_block_damaged_block ON memory_block_damaged(block_id);
