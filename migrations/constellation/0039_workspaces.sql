-- Workspaces: the projects (folders, repositories) that rows are tagged with. A tag hides nothing: walls are
-- constellations. Rows refer to a workspace without a foreign key, which would need an index in each table; a
-- workspace only goes when it is merged into another one, and then its rows change, too.

CREATE TABLE workspaces (
    id               TEXT PRIMARY KEY,
    name             TEXT NOT NULL UNIQUE CHECK (name <> ''),
    created_at       TEXT NOT NULL CHECK (length(created_at) = 24),
    updated_at       TEXT NOT NULL CHECK (length(updated_at) = 24)
) STRICT;

-- Folders of this machine, as real paths: a folder in several of them belongs to the longest.
CREATE TABLE workspace_roots (
    path             TEXT PRIMARY KEY,
    workspace_id     TEXT NOT NULL REFERENCES workspaces(id) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
CREATE INDEX workspace_roots_workspace ON workspace_roots(workspace_id);

-- What other systems call it. For `git` that is the common directory of a repository, which all of its sub-folders
-- and worktrees have in common.
CREATE TABLE workspace_aliases (
    system           TEXT NOT NULL CHECK (system <> ''),
    alias            TEXT NOT NULL CHECK (alias <> ''),
    workspace_id     TEXT NOT NULL REFERENCES workspaces(id) ON DELETE CASCADE,
    PRIMARY KEY (system, alias)
) STRICT, WITHOUT ROWID;
CREATE INDEX workspace_aliases_workspace ON workspace_aliases(workspace_id);

-- What rows are called elsewhere: the numbers of Delta (#12), by which its programs know them. A number stays taken
-- after its row was deleted.
CREATE TABLE external_refs (
    system           TEXT NOT NULL CHECK (system <> ''),
    kind             TEXT NOT NULL CHECK (kind <> ''),
    workspace        TEXT NOT NULL,
    number           INTEGER NOT NULL CHECK (number >= 1),
    local_id         TEXT NOT NULL,
    content_hash     BLOB CHECK (length(content_hash) = 16),  -- of what was imported; NULL: it was made here
    raw              TEXT CHECK (raw IS NULL OR json_valid(raw)),  -- what it had that the local row cannot hold
    PRIMARY KEY (system, kind, workspace, number)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX external_refs_local ON external_refs(system, local_id);

-- The names that were free text until now become workspaces.
INSERT INTO workspaces (id, name, created_at, updated_at)
    SELECT 'ws_' || lower(hex(randomblob(13))), name, min(created_at), min(created_at) FROM (
        SELECT workspace AS name, created_at FROM messages
        UNION ALL SELECT workspace, created_at FROM archival_entries
        UNION ALL SELECT CAST(metadata ->> '$.workspace' AS TEXT), created_at FROM memory_blocks
    ) WHERE name <> '' GROUP BY name;
UPDATE messages SET workspace = (SELECT id FROM workspaces WHERE name = workspace) WHERE workspace IS NOT NULL;
UPDATE archival_entries SET workspace = (SELECT id FROM workspaces WHERE name = workspace) WHERE workspace IS NOT NULL;
UPDATE memory_blocks
    SET metadata = json_set(metadata, '$.workspace', (SELECT w.id FROM workspaces AS w WHERE w.name = metadata ->> '$.workspace'))
    WHERE coalesce(metadata ->> '$.workspace', '') <> '';

-- Of a block it is in the metadata: a stored column would be behind the snapshot, and reading it would read that (0003).
ALTER TABLE memory_blocks ADD COLUMN workspace TEXT GENERATED ALWAYS AS (CAST(metadata ->> '$.workspace' AS TEXT)) VIRTUAL;
ALTER TABLE tasks ADD COLUMN workspace TEXT;
ALTER TABLE tasks ADD COLUMN session_id TEXT;     -- of a program's session, if the task is only for that
ALTER TABLE sessions ADD COLUMN workspace TEXT;
ALTER TABLE coordination_state ADD COLUMN created_at TEXT CHECK (length(created_at) = 24);
CREATE INDEX archival_entries_workspace ON archival_entries(workspace, created_at) WHERE workspace IS NOT NULL;
