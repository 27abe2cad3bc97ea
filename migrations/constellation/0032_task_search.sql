-- Tasks are used: statuses, what started them, and search by words and by meaning.

-- Tasks become a kind of text that has vectors. The constraints only become weaker: no row changes (0030).
PRAGMA writable_schema = ON;
UPDATE sqlite_schema SET sql = replace(sql, '''file'', ''summary'')', '''file'', ''summary'', ''task'')')
WHERE type = 'table' AND name IN ('embeddings', 'embedding_cursors', 'embedding_changes', 'embedding_refusals');
PRAGMA writable_schema = RESET;

-- The table is made again, with all that is in it: it gets `row`, which its indexes hang on, and `content`, what is
-- searched.
CREATE TABLE tasks_kept (
    row              INTEGER PRIMARY KEY,
    id               TEXT NOT NULL UNIQUE,
    agent_id         TEXT REFERENCES agents(id) ON DELETE SET NULL,  -- NULL: the whole constellation's
    title            TEXT NOT NULL CHECK (title <> ''),
    description      TEXT,
    status           TEXT NOT NULL DEFAULT 'pending'
                     CHECK (status IN ('backlog', 'pending', 'in_progress', 'blocked', 'deferred', 'completed', 'cancelled')),
    blocked_reason   TEXT CHECK ((blocked_reason IS NOT NULL) = (status = 'blocked')),
    priority         INTEGER NOT NULL DEFAULT 1 CHECK (priority BETWEEN 0 AND 3),  -- low, medium, high, urgent
    due_at           TEXT,
    scheduled_at     TEXT,               -- when its agent starts with it
    started_at       TEXT,               -- when its agent was started; a later `scheduled_at` clears it
    completed_at     TEXT,
    parent_task_id   TEXT REFERENCES tasks_kept(id) ON DELETE CASCADE,
    tags             TEXT CHECK (tags IS NULL OR json_valid(tags)),
    estimated_minutes INTEGER CHECK (estimated_minutes >= 0),
    actual_minutes   INTEGER CHECK (actual_minutes >= 0),
    notes            TEXT,
    changed_by       TEXT NOT NULL DEFAULT '',  -- author of the newest change, as in `memory_block_history`
    created_at       TEXT NOT NULL CHECK (length(created_at) = 24),
    updated_at       TEXT NOT NULL CHECK (length(updated_at) = 24),
    content          TEXT NOT NULL GENERATED ALWAYS AS
                     (title || coalesce(char(10) || description, '') || coalesce(char(10) || notes, '')) VIRTUAL
) STRICT;
INSERT INTO tasks_kept (id, agent_id, title, description, status, priority, due_at, scheduled_at, completed_at,
                        parent_task_id, tags, estimated_minutes, actual_minutes, notes, created_at, updated_at)
    SELECT id, agent_id, title, description, status, priority, due_at, scheduled_at, completed_at,
           parent_task_id, tags, estimated_minutes, actual_minutes, notes, created_at, updated_at
    FROM tasks ORDER BY created_at, id;
DROP TABLE tasks;
ALTER TABLE tasks_kept RENAME TO tasks;
CREATE INDEX tasks_agent ON tasks(agent_id, status);
CREATE INDEX tasks_parent ON tasks(parent_task_id) WHERE parent_task_id IS NOT NULL;

-- Derived, like the other full-text indexes (0005). Chinese, Japanese and Korean are looked for in the texts
-- themselves, as in summaries: there are few tasks.
CREATE VIEW task_fts_source AS SELECT row, id AS task_id, content FROM tasks;
CREATE VIRTUAL TABLE task_fts USING fts5(
    task_id UNINDEXED, content,
    content = 'task_fts_source', content_rowid = 'row', tokenize = 'porter unicode61 remove_diacritics 2'
);
INSERT INTO task_fts(task_fts, rank) VALUES ('pgsz', 1980);
INSERT INTO task_fts(task_fts) VALUES ('rebuild');
CREATE VIRTUAL TABLE task_fts_words USING fts5vocab(task_fts, row);
CREATE TRIGGER task_fts_insert AFTER INSERT ON tasks BEGIN
    INSERT INTO task_fts(rowid, task_id, content) VALUES (new.row, new.id, new.content);
END;
CREATE TRIGGER task_fts_delete AFTER DELETE ON tasks BEGIN
    INSERT INTO task_fts(task_fts, rowid, task_id, content) VALUES ('delete', old.row, old.id, old.content);
END;
CREATE TRIGGER task_fts_update AFTER UPDATE OF title, description, notes ON tasks
WHEN old.content IS NOT new.content BEGIN
    INSERT INTO task_fts(task_fts, rowid, task_id, content) VALUES ('delete', old.row, old.id, old.content);
    INSERT INTO task_fts(rowid, task_id, content) VALUES (new.row, new.id, new.content);
END;

-- Whatever index is in use has the tasks before it, like any text of the past (0022).
INSERT INTO embedding_cursors (kind, index_id, low, high)
    SELECT 'task', i.id, t.newest, t.newest
    FROM embedding_indexes AS i, (SELECT coalesce(max(row), 0) AS newest FROM tasks) AS t WHERE i.state <> 'retired';

-- As for the other kinds (0015).
CREATE TRIGGER embedding_task_insert AFTER INSERT ON tasks
WHEN EXISTS (SELECT 1 FROM embedding_cursors WHERE kind = 'task' AND high >= new.row) BEGIN
    INSERT OR IGNORE INTO embedding_changes(index_id, kind, ref)
    SELECT index_id, 'task', new.id FROM embedding_cursors WHERE kind = 'task' AND high >= new.row;
END;
CREATE TRIGGER embedding_task_update AFTER UPDATE OF agent_id, title, description, notes ON tasks
WHEN old.content IS NOT new.content OR old.agent_id IS NOT new.agent_id BEGIN
    INSERT OR IGNORE INTO embedding_changes(index_id, kind, ref)
    SELECT index_id, 'task', new.id FROM embedding_cursors WHERE kind = 'task';
END;
CREATE TRIGGER embedding_task_delete AFTER DELETE ON tasks BEGIN
    INSERT OR IGNORE INTO embedding_changes(index_id, kind, ref)
    SELECT index_id, 'task', old.id FROM embedding_cursors WHERE kind = 'task';
END;
